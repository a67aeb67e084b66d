//! The unused keys: accepted with a warning, refused, or unknown to fio.

/// Keys that are accepted or refused for the same reason.
pub(super) struct Group {
    /// The names of the keys, with a space between two.
    names: &'static str,
    /// The reason.
    pub(super) why: &'static str,
}

impl Group {
    /// Returns the names of the keys.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.names.split(' ')
    }
}

/// Keys that are accepted with a warning.
pub(super) const NO_EFFECT: &[Group] = &[
    Group {
        names: "random_generator softrandommap",
        why: "our own generator is used, whose order repeats no block in a pass",
    },
    Group {
        names: "unit_base significant_figures disk_util eta stats block_error_percentiles",
        why: "only changes what fio prints",
    },
    Group {
        names: "clat_percentiles lat_percentiles slat_percentiles unified_rw_reporting",
        why: "reads and writes are reported apart, from submission to completion",
    },
    Group {
        names: "disable_lat disable_clat disable_slat disable_bw_measurement disable_bw gtod_reduce gtod_cpu \
                clocksource",
        why: "the clock is read once per operation in any case",
    },
    Group {
        names: "write_bw_log write_lat_log write_iops_log write_hist_log bwavgtime iopsavgtime log_avg_msec \
                log_hist_msec log_hist_coarseness log_max_value log_offset log_prio log_entries log_compression \
                log_compression_cpus log_store_compressed log_unix_epoch log_alternate_epoch \
                log_alternate_epoch_clock_id per_job_logs",
        why: "no log files are written; see --json",
    },
    Group {
        names: "fallocate create_serialize create_fsync allow_file_create openfiles file_service_type overwrite",
        why: "files are laid out in one way: allocated, and filled where the job reads; used in turn",
    },
    Group {
        names: "thp hugepage-size userspace_reap nonvectored mem mem_align iomem_align iomem",
        why: "each engine has its own way: MADV_RANDOM on random maps, page-aligned memory, unvectored reads",
    },
    Group {
        names: "scramble_buffers refill_buffers",
        why: "written data is random and does not compress",
    },
    Group {
        names: "verify_fatal verify_dump verify_async verify_async_cpus verify_state_save verify_backlog \
                verify_backlog_batch exitall exitall_on_error exit_what error_dump",
        why: "a wrong block makes the job fail with its offset; blocks are read back when all are written",
    },
    Group {
        names: "lockmem allow_mounted_write unlink_each_loop unique_filename opendir lockfile",
        why: "nothing of this kind is done",
    },
];

/// Keys that are refused, unless their value switches them off.
pub(super) const REFUSED: &[Group] = &[
    Group {
        names: "thinktime thinktime_spin thinktime_blocks thinktime_blocks_type thinktime_iotime rate_min \
                ratemin rate_iops_min rate_process rate_cycle ratecycle rate_ignore_thinktime flow flow_id \
                flow_sleep latency_target latency_window latency_percentile latency_run max_latency \
                io_submit_mode serialize_overlap",
        why: "it paces the job; `rate` and `rate_iops` are supported",
    },
    Group {
        names: "fsync fdatasync sync_file_range write_barrier fsync_on_close",
        why: "it adds operations; `sync=dsync` makes each write durable, `end_fsync` flushes at the end",
    },
    Group {
        names: "random_distribution percentage_random rw_sequencer bs_is_seq_rand bs_unaligned \
                blocksize_unaligned ba blockalign offset_align file_append filename_format fill_device fill_fs \
                pre_read create_only create_on_open",
        why: "other blocks of other files would be used",
    },
    Group {
        names: "zero_buffers buffer_pattern buffer_compress_percentage buffer_compress_chunk dedupe_percentage \
                dedupe_mode dedupe_working_set_percentage dedupe_global",
        why: "written data is always random here, which affects a disk that compresses",
    },
    Group {
        names: "verify_only verify_interval verify_offset experimental_verify verify_state_load trim_percentage \
                trim_verify_zero trim_backlog trim_backlog_batch",
        why: "verification knows whole blocks and no trims",
    },
    Group {
        names: "startdelay wait_for steadystate ss steadystate_duration ss_dur steadystate_ramp_time ss_ramp \
                continue_on_error ignore_error exec_prerun exec_postrun",
        why: "jobs start together or after a `stonewall`, and end by size or time; no commands are run",
    },
    Group {
        names: "write_iolog read_iolog read_iolog_chunked replay_no_stall replay_redirect replay_scale \
                replay_align replay_time_scale replay_skip merge_blktrace_file merge_blktrace_scalars \
                merge_blktrace_iters profile",
        why: "recorded loads are not replayed",
    },
    Group {
        names: "zonemode zonesize zonecapacity zonerange zoneskip read_beyond_wp max_open_zones \
                job_max_open_zones ignore_zone_limits zone_reset_threshold zone_reset_frequency write_hint",
        why: "zones and placement hints are not supported",
    },
    Group {
        names: "cpumask cpus_allowed cpus_allowed_policy numa_cpu_nodes numa_mem_policy nice prio prioclass \
                cmdprio cmdprio_percentage cmdprio_class cmdprio_bssplit ioscheduler cgroup cgroup_weight \
                cgroup_nodelete uid gid sqthread_poll_cpu",
        why: "it pins or prioritises the job; start annulus under taskset, ionice or systemd-run instead",
    },
    Group {
        names: "hipri_percentage uncached nowait force_async cmd_type atomic",
        why: "operations carry no such flag here",
    },
    Group {
        names: "arguments bindname brick busy_poll chunk_size clientname clustername conf cpuchunks cpuload \
                cpumode cuda_io donorname exit_on_io_done gpu_dev_ids grace_time hdfsdirectory hostname \
                http_host http_mode http_pass http_s3_key http_s3_keyid http_s3_region \
                http_s3_sse_customer_algorithm http_s3_sse_customer_key http_s3_storage_class \
                http_swift_auth_token http_user http_verbose https inplace interface listen mss namenode nfs_url \
                nodelay object_class pingpong pool port program proto protocol rbdname readfua sg_write_mode \
                single-instance skip_bad stat_type std_redirect stream_id touch_objects ttl uri verb volume \
                window_size writefua xnvme_admin xnvme_async xnvme_dev_nsid xnvme_iovec xnvme_sync",
        why: "it belongs to an engine of fio that is not supported; `ioengine` takes psync, libaio, io_uring and mmap",
    },
];

/// Keys that fio does not have but people write, with their probable meaning.
pub(super) const MISTAKEN: &[(&str, &str)] = &[(
    "threads",
    "fio has no key of this name. To run the clones of a job as threads it has `thread` (here they always are); \
     to have N of them, `numjobs`. It is ignored",
)];

/// Returns whether the value switches off a refused key.
pub(super) fn is_switched_off(name: &str, value: Option<&str>) -> bool {
    match (name, value) {
        ("random_distribution", Some("random")) | ("rate_process", Some("linear")) => true,
        ("io_submit_mode", Some("inline"))
        | ("zonemode", Some("none"))
        | ("cmd_type", Some("none")) => true,
        ("percentage_random", Some("100")) => true,
        (_, value) => value == Some("0"),
    }
}
