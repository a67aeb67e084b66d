//! The cases of `rules.rs`: for each rule, a machine to which it applies, and a similar one to which it does not.

use super::machines::{as_user, device, in_container, location, probe_fact, refused, set, without};
use crate::doctor::advice::Severity::{self, Advice, Blocks, Less, Note};
use crate::doctor::device::Device;
use crate::doctor::facts::{
    Environment, Mechanism, OperationFact, RefusalKind, Seccomp, SetupMode, Version,
};
use crate::doctor::figures::{Figures, Measurement};
use crate::doctor::location::Location;
use crate::doctor::surroundings::{ContainerKind, Mitigation};

pub(super) type Change = fn(&mut Environment, &mut Figures);

/// A rule, a change to the good machine that makes it apply, a part of its report, its severity, and a similar change
/// that does not make it apply.
pub(super) type Case = (&'static str, Change, &'static str, Severity, Change);

fn nothing(_: &mut Environment, _: &mut Figures) {}

fn no_ring(env: &mut Environment, kind: RefusalKind, errnos: [i32; 3]) {
    *env = refused(kind, errnos);
}

fn on<'a>(env: &'a mut Environment, filesystem: &str) -> &'a mut Location {
    env.location.insert(location(filesystem))
}

pub(super) fn disk<'a>(env: &'a mut Environment, name: &str) -> &'a mut Device {
    on(env, "ext4").device.insert(device(name))
}

pub(super) const REFUSED: [Case; 14] = [
    (
        "kernel-before-io-uring",
        |env, _| {
            no_ring(env, RefusalKind::Missing, [38; 3]);
            env.kernel.version = Version(4, 19, 0);
            env.kernel.has_io_uring_built_in = None;
            env.policy.io_uring_disabled = None;
        },
        "5.1",
        Blocks,
        nothing,
    ),
    (
        "kernel-too-old",
        |env, _| no_ring(env, RefusalKind::TooOld, [22, 0, 0]),
        "5.11",
        Blocks,
        nothing,
    ),
    (
        "not-built-in",
        |env, _| {
            no_ring(env, RefusalKind::Missing, [38; 3]);
            env.kernel.has_io_uring_built_in = Some(false);
            env.policy.io_uring_disabled = None;
        },
        "CONFIG_IO_URING",
        Blocks,
        |env, _| {
            no_ring(env, RefusalKind::Missing, [38; 3]);
            env.policy.seccomp = Seccomp::Filter;
        },
    ),
    (
        "sysctl-forbids",
        |env, _| {
            no_ring(env, RefusalKind::Refused, [1, 0, 0]);
            env.policy.io_uring_disabled = Some(2);
        },
        "including root",
        Blocks,
        |env, _| env.policy.io_uring_disabled = Some(2),
    ),
    (
        "sysctl-forbids-this-user",
        |env, _| {
            no_ring(env, RefusalKind::Refused, [1, 0, 0]);
            as_user(env);
            env.policy.io_uring_disabled = Some(1);
        },
        "kernel.io_uring_group",
        Blocks,
        |env, _| {
            no_ring(env, RefusalKind::Refused, [1, 0, 0]);
            env.policy.io_uring_disabled = Some(1);
        },
    ),
    (
        "seccomp-refuses",
        |env, _| {
            no_ring(env, RefusalKind::Refused, [1; 3]);
            env.policy.seccomp = Seccomp::Filter;
            in_container(env, ContainerKind::Docker);
        },
        "the default profile of Docker",
        Blocks,
        |env, _| env.policy.seccomp = Seccomp::Filter,
    ),
    (
        "seccomp-says-missing",
        |env, _| {
            no_ring(env, RefusalKind::Missing, [38; 3]);
            env.policy.seccomp = Seccomp::Filter;
        },
        "/proc/config.gz has CONFIG_IO_URING=y",
        Blocks,
        |env, _| no_ring(env, RefusalKind::Missing, [38; 3]),
    ),
    (
        "seccomp-kills",
        |env, _| {
            no_ring(env, RefusalKind::Refused, [0; 3]);
            env.policy.seccomp = Seccomp::Filter;
            env.ring.calls[1].kills = true;
        },
        "kills the process for io_uring_enter:",
        Blocks,
        |env, _| no_ring(env, RefusalKind::Refused, [0, 1, 0]),
    ),
    (
        "seccomp-refuses-part",
        |env, _| {
            no_ring(env, RefusalKind::Refused, [0, 1, 0]);
            env.policy.seccomp = Seccomp::Filter;
        },
        "refuses io_uring_enter:",
        Blocks,
        nothing,
    ),
    (
        "security-module",
        |env, _| {
            no_ring(env, RefusalKind::Refused, [13, 0, 0]);
            env.policy.security_modules = vec!["apparmor".into()];
        },
        "loaded: apparmor",
        Blocks,
        |env, _| {
            no_ring(env, RefusalKind::Refused, [1; 3]);
            env.policy.seccomp = Seccomp::Filter;
        },
    ),
    (
        "sandbox",
        |env, _| no_ring(env, RefusalKind::Missing, [38; 3]),
        "ENOSYS",
        Blocks,
        |env, _| {
            no_ring(env, RefusalKind::Missing, [38; 3]);
            env.policy.seccomp = Seccomp::Filter;
        },
    ),
    (
        "memlock-no-ring",
        |env, _| no_ring(env, RefusalKind::Memlock, [12, 0, 0]),
        "no memory",
        Blocks,
        nothing,
    ),
    (
        "descriptors-no-ring",
        |env, _| no_ring(env, RefusalKind::Descriptors, [24, 0, 0]),
        "EMFILE",
        Blocks,
        nothing,
    ),
    (
        "refused-otherwise",
        |env, _| no_ring(env, RefusalKind::Other, [5, 0, 0]),
        "the error of the library",
        Blocks,
        nothing,
    ),
];

pub(super) const LIMITS: [Case; 10] = [
    (
        "setup-mode",
        |env, _| env.ring.setup_mode = Some(SetupMode::Cooperative),
        "6.1",
        Less,
        nothing,
    ),
    (
        "operations-on-threads",
        |env, _| {
            env.ring.operations[0].mechanism = Mechanism::BlockingThread;
        },
        "read_at",
        Less,
        |env, _| {
            // No kernel has an opcode for this one.
            env.ring.operations.push(OperationFact {
                name: "read_dir".into(),
                opcode: None,
                mechanism: Mechanism::BlockingThread,
            });
        },
    ),
    (
        "registrations",
        |env, _| {
            env.ring.registrations[1].works = false;
            env.ring.registrations[1].why = Some("EINVAL".into());
        },
        "buffer groups",
        Less,
        |env, _| {
            // Another rule reports a limit.
            let mut starved = probe_fact("registered buffers", "5.1");
            (starved.works, starved.is_starved) = (false, true);
            env.ring.registrations = vec![starved];
        },
    ),
    (
        "memlock-short",
        |env, _| {
            as_user(env);
            env.ring.registrations[0].works = false;
            env.ring.registrations[0].is_starved = true;
        },
        "too little for registered buffers",
        Less,
        |env, _| {
            env.limits.memlock_bytes = Some(64 << 10);
        },
    ),
    (
        "memlock-arena",
        |env, _| as_user(env),
        "8 MiB",
        Advice,
        |env, _| {
            as_user(env);
            env.limits.memlock_bytes = Some(64 << 20);
        },
    ),
    (
        "memlock-in-namespace",
        |env, _| {
            as_user(env);
            env.policy.capabilities = vec!["CAP_IPC_LOCK".into()];
            env.policy.is_initial_user_namespace = false;
        },
        "user namespace",
        Note,
        |env, _| as_user(env),
    ),
    (
        "descriptors-short",
        |env, _| env.limits.descriptors = Some(87),
        "needs 88",
        Less,
        |env, _| {
            env.limits.descriptors = Some(88);
        },
    ),
    (
        "descriptors-server",
        |env, _| env.limits.descriptors = Some(1024),
        "ulimit -Hn",
        Note,
        |env, _| {
            env.limits.descriptors = Some(1025);
        },
    ),
    (
        "completions-lost",
        |env, _| env.ring.quirks[0].works = Some(false),
        "lost",
        Less,
        |env, _| {
            env.ring.quirks[0].works = None;
        },
    ),
    (
        "iowait",
        |env, _| {
            env.kernel.version = Version(6, 12, 1);
            env.ring.features[0].is_there = false;
        },
        "6.15",
        Note,
        |env, _| {
            env.kernel.version = Version(6, 1, 38);
            env.ring.features[0].is_there = false;
        },
    ),
];

pub(super) const MACHINE: [Case; 7] = [
    (
        "kernel-traps",
        |env, _| env.kernel.version = Version(5, 15, 3),
        "early bugs",
        Advice,
        |env, _| {
            env.kernel.version = Version(6, 12, 117);
        },
    ),
    (
        "vendor-kernel",
        |env, _| env.kernel.vendor = Some("Red Hat".into()),
        "backported",
        Note,
        |env, _| {
            env.kernel.vendor = Some("Debian".into());
        },
    ),
    (
        "processor-quota",
        |env, _| env.limits.processor_quota = Some(2.5),
        "cores(2)",
        Advice,
        |env, _| {
            env.limits.processor_quota = Some(8.0);
        },
    ),
    (
        "mitigations",
        |env, _| mitigated(env, "meltdown", "Mitigation: PTI"),
        "meltdown",
        Note,
        |env, _| {
            mitigated(
                env,
                "spectre_v2",
                "Mitigation: Enhanced / Automatic IBRS; IBRS_FW",
            );
        },
    ),
    (
        "virtual-machine",
        |env, _| env.surroundings.hypervisor = Some("KVM".into()),
        "(KVM)",
        Note,
        nothing,
    ),
    (
        "huge-pages",
        |env, _| env.surroundings.huge_pages = Some("never".into()),
        "madvise",
        Note,
        nothing,
    ),
    (
        "wsl",
        |env, _| in_container(env, ContainerKind::Wsl),
        "/mnt",
        Note,
        |env, _| {
            in_container(env, ContainerKind::Docker);
        },
    ),
];

fn mitigated(env: &mut Environment, name: &str, content: &str) {
    env.surroundings.mitigations = vec![Mitigation {
        name: name.into(),
        content: content.into(),
    }];
}

pub(super) const LOCATION: [Case; 15] = [
    (
        "in-memory",
        |env, _| _ = on(env, "tmpfs"),
        "tmpfs",
        Advice,
        |env, _| _ = on(env, "xfs"),
    ),
    (
        "overlay",
        |env, _| _ = on(env, "overlay"),
        "volume",
        Advice,
        |env, _| _ = on(env, "xfs"),
    ),
    (
        "fuse",
        |env, _| _ = on(env, "fuse.sshfs"),
        "fuse.sshfs",
        Advice,
        |env, _| _ = on(env, "xfs"),
    ),
    (
        "network-file-system",
        |env, _| _ = on(env, "nfs4"),
        "nfs4",
        Advice,
        |env, _| _ = on(env, "xfs"),
    ),
    (
        "no-direct",
        |env, _| {
            let direct = &mut on(env, "zfs").direct;
            direct.works = Some(false);
            direct.why = Some("the file system does not support O_DIRECT".into());
        },
        "does not support O_DIRECT",
        Advice,
        |env, _| {
            // Another rule reports it.
            on(env, "tmpfs").direct.works = Some(false);
        },
    ),
    (
        "not-tested",
        |env, _| {
            let direct = &mut on(env, "ext4").direct;
            direct.works = None;
            direct.why = Some("this user cannot write in /data (EACCES); name a folder".into());
        },
        "this user cannot write in /data (EACCES) → name a folder: annulus doctor PATH",
        Advice,
        |env, _| {
            let direct = &mut on(env, "ext4").direct;
            direct.works = Some(false);
            direct.why = Some("the file system does not support O_DIRECT".into());
        },
    ),
    (
        "alignment",
        |env, _| on(env, "xfs").direct.offset_bytes = Some(16384),
        "16384",
        Note,
        |env, _| {
            on(env, "xfs").direct.offset_bytes = Some(4096);
        },
    ),
    (
        "buffered-writes",
        |env, _| _ = on(env, "ext4"),
        "worker threads",
        Note,
        |env, _| _ = on(env, "xfs"),
    ),
    (
        "scheduler",
        |env, _| {
            disk(env, "nvme0n1").scheduler = Some("mq-deadline".into());
        },
        "echo none >/sys/block/nvme0n1",
        Advice,
        |env, _| {
            // This scheduler is sensible for a disk with one queue.
            disk(env, "sda").scheduler = Some("mq-deadline".into());
        },
    ),
    (
        "nr-requests",
        |env, _| disk(env, "sda").nr_requests = Some(32),
        "32 requests",
        Advice,
        |env, _| {
            disk(env, "sda").nr_requests = Some(64);
        },
    ),
    (
        "write-cache",
        |env, _| disk(env, "sda").write_cache = Some("write back".into()),
        "flushes",
        Note,
        |env, _| {
            _ = disk(env, "sda");
        },
    ),
    (
        "poll-queues",
        |env, _| {
            _ = disk(env, "nvme0n1");
            let steps = "nvme0n1 has no queues to poll; modprobe nvme poll_queues=1; then look";
            if let Some(location) = &mut env.location {
                location.poll_refusal = Some(steps.into());
            }
        },
        "→ modprobe nvme poll_queues=1; then look",
        Note,
        |env, _| _ = disk(env, "sda"),
    ),
    (
        "polled",
        |env, _| disk(env, "nvme0n1").has_poll_queues = true,
        "iopoll(true)",
        Note,
        |env, _| {
            _ = disk(env, "nvme0n1");
        },
    ),
    (
        "rotational",
        |env, _| disk(env, "sda").is_rotational = Some(true),
        "rotational",
        Note,
        |env, _| {
            _ = disk(env, "sda");
        },
    ),
    (
        "stacked",
        |env, _| disk(env, "dm-0").made_of = vec!["sda2".into()],
        "on top of sda2",
        Note,
        |env, _| {
            _ = disk(env, "sda");
        },
    ),
];

pub(super) const FIGURES: [Case; 8] = [
    (
        "disturbed",
        |_, figures| figures.stolen = 0.5,
        "hypervisor 0.50",
        Note,
        nothing,
    ),
    (
        "backend-cached",
        nothing,
        "CachedReads::Learn",
        Note,
        |_, figures| set(figures, Measurement::CachedRing, 500.0),
    ),
    (
        "backend-direct",
        |_, figures| {
            set(figures, Measurement::DirectRing, 120_000.0);
        },
        "pread is faster",
        Note,
        |_, figures| without(figures, Measurement::DirectRing),
    ),
    (
        "backend-network",
        |_, figures| {
            set(figures, Measurement::EchoRing, 20_000.0);
        },
        "epoll is faster",
        Note,
        |_, figures| without(figures, Measurement::EchoRing),
    ),
    (
        "depth",
        nothing,
        "keep 32 in flight, or more",
        Note,
        |_, figures| without(figures, Measurement::DirectRing8),
    ),
    (
        "buffers",
        |_, figures| {
            set(figures, Measurement::DirectPlain32, 4500.0);
        },
        "registered buffers make direct reads faster",
        Note,
        |_, figures| without(figures, Measurement::DirectPlain32),
    ),
    (
        "batches",
        nothing,
        "300 ns alone and 60 ns in a batch of 32",
        Note,
        |_, figures| set(figures, Measurement::Nop32, 290.0),
    ),
    (
        "sqpoll",
        |env, _| env.limits.processors = 2,
        "would not pay",
        Note,
        |_, figures| without(figures, Measurement::Enter),
    ),
];
