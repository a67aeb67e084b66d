//! The machine of a measurement, and the processor time that others used meanwhile.

use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{major, minor};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::doctor::Device;
use crate::fault::Fault;
use crate::proc_files::{self, text};

/// The machine, the file system and the disk.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Machine {
    pub(crate) kernel: String,
    pub(crate) architecture: String,
    pub(crate) processor: Option<String>,
    /// The number of processors that this process may use.
    pub(crate) processors: usize,
    /// Processor flaws that the kernel mitigates or leaves open (`/sys/devices/system/cpu/vulnerabilities`).
    #[serde(default)]
    pub(crate) mitigations: Vec<String>,
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) filesystem: Option<String>,
    pub(crate) disk: Option<Disk>,
}

/// The block device under the file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Disk {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) model: Option<String>,
    /// `true` if the device has queues that can be polled.
    #[serde(default)]
    pub(crate) has_poll_queues: bool,
    pub(crate) scheduler: Option<String>,
    pub(crate) rotational: Option<bool>,
    pub(crate) queue_requests: Option<u64>,
    pub(crate) logical_block_bytes: Option<u64>,
    pub(crate) read_ahead_kib: Option<u64>,
}

impl Machine {
    /// Describes this machine, with the file system and the disk of `file`.
    pub(crate) fn of(file: Option<&File>) -> Machine {
        let uname = rustix::system::uname();
        let device = file.and_then(|file| file.metadata().ok()).map(|meta| {
            match meta.file_type().is_block_device() {
                true => meta.rdev(),
                false => meta.dev(),
            }
        });
        Machine {
            kernel: uname.release().to_string_lossy().into_owned(),
            architecture: uname.machine().to_string_lossy().into_owned(),
            processor: processor(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            mitigations: mitigations(Path::new("/sys/devices/system/cpu/vulnerabilities")),
            memory_bytes: proc_files::bytes("/proc/meminfo", "MemTotal"),
            filesystem: device.and_then(filesystem),
            disk: device.and_then(disk),
        }
    }

    /// Returns the description in one line.
    pub(crate) fn line(&self) -> String {
        let mut parts = vec![
            format!("Linux {}", self.kernel),
            format!(
                "{} processors ({})",
                self.processors,
                self.processor.as_deref().unwrap_or(&self.architecture)
            ),
        ];
        if let Some(bytes) = self.memory_bytes {
            parts.push(format!(
                "{} GiB memory",
                (bytes as f64 / (1u64 << 30) as f64).round()
            ));
        }
        parts.extend(self.filesystem.clone());
        if let Some(disk) = &self.disk {
            let scheduler = disk
                .scheduler
                .as_ref()
                .map_or(String::new(), |name| format!(", scheduler {name}"));
            parts.push(format!("disk {}{scheduler}", disk.name));
        }
        if !self.mitigations.is_empty() {
            parts.push(format!("mitigations: {}", self.mitigations.join(", ")));
        }
        parts.join("; ")
    }
}

/// Returns each flaw that affects this processor, with the first part of its state.
fn mitigations(folder: &Path) -> Vec<String> {
    let Ok(flaws) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut states: Vec<String> = flaws
        .filter_map(|flaw| {
            let flaw = flaw.ok()?;
            let state = text(&flaw.path())?;
            let state = match state.strip_prefix("Mitigation: ") {
                Some(state) => state,
                None if state.starts_with("Vulnerable") => state.as_str(),
                None => return None,
            };
            let first = state.split([';', ',']).next()?;
            Some(format!("{} {first}", flaw.file_name().to_string_lossy()))
        })
        .collect();
    states.sort();
    states
}

/// Returns the processors that this process may use.
pub(crate) fn allowed_processors() -> Result<Vec<usize>, Fault> {
    let allowed =
        sched_getaffinity(None).map_err(|error| failed!("asking for our processors: {error}"))?;
    Ok((0..CpuSet::MAX_CPU)
        .filter(|&cpu| allowed.is_set(cpu))
        .collect())
}

/// Raises the limit of open files to the hard limit, for loads with many files or a handle per task.
pub(crate) fn allow_many_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let most = Rlimit {
        current: limit.maximum,
        ..limit
    };
    // If this fails, opening a file beyond the limit reports it.
    let _ = setrlimit(Resource::Nofile, most);
}

/// Returns the memory that is available for a hot file.
pub(crate) fn memory_available_bytes() -> Option<u64> {
    proc_files::bytes("/proc/meminfo", "MemAvailable")
}

/// Makes the current resident memory the peak of this process. Without `/proc`, the peak stays as it is.
pub(crate) fn reset_peak_rss() {
    let _ = fs::write("/proc/self/clear_refs", "5");
}

/// Returns the peak of the resident memory of this process since the last reset.
pub(crate) fn peak_rss_bytes() -> Option<u64> {
    proc_files::bytes("/proc/self/status", "VmHWM")
}

/// Returns the memory of this process that is not of files.
pub(crate) fn own_memory_bytes() -> Option<u64> {
    proc_files::bytes("/proc/self/status", "RssAnon")
}

/// Returns the type of the file system with this device number.
fn filesystem(device: u64) -> Option<String> {
    let device_id = format!("{}:{}", major(device), minor(device));
    let mut mounts = proc_files::mounts().into_iter();
    mounts
        .find(|mount| mount.device == device_id)
        .map(|mount| mount.kind)
}

fn disk(number: u64) -> Option<Disk> {
    let device = Device::below(Path::new("/sys"), major(number), minor(number))?;
    let queue = Path::new("/sys/block").join(&device.name).join("queue");
    Some(Disk {
        model: device.model,
        has_poll_queues: device.has_poll_queues,
        scheduler: device.scheduler,
        rotational: device.is_rotational,
        queue_requests: device.nr_requests,
        logical_block_bytes: device.logical_block_bytes,
        read_ahead_kib: text(&queue.join("read_ahead_kb")).and_then(|kib| kib.parse().ok()),
        name: device.name,
    })
}

fn processor() -> Option<String> {
    let text = proc_files::read("/proc/cpuinfo").ok()?;
    proc_files::value(&text, "model name").map(str::to_owned)
}

/// The processor time so far of this process and of the machine, and the time stolen by the hypervisor. The time of
/// children counts once they have ended.
#[derive(Clone, Copy)]
pub(crate) struct Usage {
    own_cpu_ns: u64,
    children_ticks: u64,
    machine_busy_ticks: u64,
    stolen_ticks: u64,
}

/// The difference between two [`Usage`] values.
pub(crate) struct Used {
    pub(crate) own_cpu_ns: f64,
    pub(crate) machine_busy_ns: f64,
    pub(crate) stolen_ns: f64,
}

impl Usage {
    pub(crate) fn now() -> Usage {
        let ticks = processor_ticks().unwrap_or_default();
        Usage {
            // User and system time of all threads, those of the ring included.
            own_cpu_ns: clock_ns(ClockId::ProcessCPUTime),
            children_ticks: children_ticks().unwrap_or(0),
            // user, nice, system, irq, softirq; idle (3) and iowait (4) are not work.
            machine_busy_ticks: [0, 1, 2, 5, 6].iter().map(|&field| ticks[field]).sum(),
            stolen_ticks: ticks[7],
        }
    }

    pub(crate) fn since(&self, earlier: &Usage) -> Used {
        let tick_ns = 1e9 / rustix::param::clock_ticks_per_second().max(1) as f64;
        Used {
            own_cpu_ns: self.own_cpu_ns.saturating_sub(earlier.own_cpu_ns) as f64
                + self.children_ticks.saturating_sub(earlier.children_ticks) as f64 * tick_ns,
            machine_busy_ns: self
                .machine_busy_ticks
                .saturating_sub(earlier.machine_busy_ticks) as f64
                * tick_ns,
            stolen_ns: self.stolen_ticks.saturating_sub(earlier.stolen_ticks) as f64 * tick_ns,
        }
    }
}

impl Used {
    /// Returns the processors that others used during `ns`, and those that the hypervisor withheld.
    pub(crate) fn shares(&self, ns: f64) -> (f64, f64) {
        let others = (self.machine_busy_ns - self.own_cpu_ns).max(0.0);
        (others / ns, self.stolen_ns / ns)
    }
}

fn clock_ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the processor time of the calling thread.
pub(crate) fn thread_cpu_ns() -> u64 {
    clock_ns(ClockId::ThreadCPUTime)
}

/// Returns the processor time of children that have ended.
fn children_ticks() -> Option<u64> {
    let text = proc_files::read("/proc/self/stat").ok()?;
    // proc_pid_stat(5): `cutime` and `cstime` are the fields 16 and 17; the second is the name, in brackets.
    let fields = text.rsplit_once(") ")?.1.split(' ').skip(13).take(2);
    fields.map(|field| field.parse::<u64>().ok()).sum()
}

/// Returns the first eight numbers of the first line of `/proc/stat`.
fn processor_ticks() -> Option<[u64; 8]> {
    let text = proc_files::read("/proc/stat").ok()?;
    let mut fields = [0; 8];
    for (slot, field) in fields
        .iter_mut()
        .zip(text.lines().next()?.split_whitespace().skip(1))
    {
        *slot = field.parse().ok()?;
    }
    Some(fields)
}
