//! Detection of io_uring's features on this machine, and of the limits that apply to this process.

#[cfg(feature = "net")]
pub(crate) mod group_probe;
mod report;

pub use crate::sys::probe_table::{Probe, ProbeKind, Verdict};

use std::io;
use std::thread;

use crate::error::SetupError;
use crate::op::{self, OpInfo};
use crate::sys::feature_probe::{self, FEATURES, OPCODES, ProbedRing};
use crate::sys::filter_probe;
use crate::sys::poll_queue;
use crate::sys::probe;
use crate::sys::probe_table;
use crate::sys::ring::SetupMode;
use crate::sys::sqe::opcode;

/// The io_uring features that this machine supports, found by probing. `Display` writes a report for people: one fact
/// per line, a verdict and a next step.
///
/// Versions and names are only hints: distributions backport features, and filters forbid parts. So a ring is set up
/// exactly like the engine's, each set-up flag is tried on its own ring, and each registration is tried with a transfer
/// that uses it.
///
/// ```
/// use annulus::support::Support;
///
/// let support = Support::detect();
/// print!("{support}");
/// match support.ring() {
///     Ok(mode) => println!("io_uring works, set-up mode {mode:?}"),
///     Err(error) => println!("fallback: {error}"),
/// }
/// ```
#[derive(Debug)]
pub struct Support {
    kernel: String,
    ring: Result<ProbedRing, SetupError>,
    probes: Vec<Probe>,
    features: u32,
    disabled: Option<u32>,
    group: Option<u32>,
    seccomp: bool,
    memlock_bytes: Option<u64>,
    memlock_waived: bool,
    descriptors: Option<u64>,
    processors: usize,
    poll_devices: Vec<(String, bool)>,
}

/// An operation of the library, and how it runs on this machine.
///
/// ```
/// use annulus::support::{Mechanism, Support};
///
/// let support = Support::detect();
/// let slow: Vec<_> = support
///     .operations()
///     .filter(|operation| operation.mechanism == Mechanism::BlockingThread)
///     .map(|operation| operation.name)
///     .collect();
/// assert!(slow.contains(&"read_dir")); // io_uring has no opcode for it
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OperationSupport {
    /// The name of the operation, as in docs/reference/kernels.md.
    pub name: &'static str,
    /// The kernel's name of the io_uring opcode, if there is one.
    pub opcode: Option<&'static str>,
    /// The mechanism that executes the operation.
    pub mechanism: Mechanism,
}

/// A mechanism that executes an operation.
///
/// A container whose filter refuses io_uring loses the ring:
///
/// ```
/// use annulus::support::{Mechanism, Support};
///
/// let support = Support::detect();
/// let by_ring = support.operations().filter(|operation| operation.mechanism == Mechanism::Ring);
/// assert_eq!(by_ring.count() > 0, support.ring().is_ok());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mechanism {
    /// The kernel, through a ring.
    Ring,
    /// A system call on a blocking thread.
    BlockingThread,
    /// The driver's own clock.
    Clock,
}

/// The first two numbers of a kernel release.
///
/// ```
/// use annulus::support::{KernelVersion, Support};
///
/// let version = Support::detect().kernel_version();
/// if version < KernelVersion::new(6, 0) {
///     println!("receives are not multishot on Linux {}.{}", version.major, version.minor);
/// }
/// assert!(KernelVersion::new(6, 10) > KernelVersion::new(6, 9)); // by number, not by text
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct KernelVersion {
    /// The first number.
    pub major: u32,
    /// The second number.
    pub minor: u32,
}

impl KernelVersion {
    /// Returns a version to compare with.
    pub const fn new(major: u32, minor: u32) -> KernelVersion {
        KernelVersion { major, minor }
    }
}

/// A feature or an opcode of io_uring.
///
/// ```
/// let support = annulus::support::Support::detect();
/// let has_splice = support.opcodes().any(|opcode| opcode.name == "SPLICE" && opcode.supported);
/// // Without a ring nothing is supported.
/// assert!(!has_splice || support.ring().is_ok());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capability {
    /// The kernel's name of it.
    pub name: &'static str,
    /// True if rings on this machine support it.
    pub supported: bool,
}

/// A block device.
///
/// ```
/// let support = annulus::support::Support::detect();
/// let polled = support.poll_devices().filter(|device| device.has_poll_queues).count();
/// if polled == 0 {
///     println!("`EngineBuilder::iopoll` has no effect here");
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockDevice<'a> {
    /// The name in `/sys/block`.
    pub name: &'a str,
    /// True if the device has queues that can be polled instead of using interrupts.
    pub has_poll_queues: bool,
}

impl Support {
    /// Probes this machine. Takes a few milliseconds, and leaves nothing behind. If locked memory is so short that each
    /// ring has to wait for the memory of the previous one, it takes up to a second.
    ///
    /// # Implementation
    ///
    /// The probes run on a thread that ends before this returns, because some registrations belong to the thread.
    /// Filters and limits of the calling thread apply to it.
    pub fn detect() -> Support {
        if let Err(error) = filter_probe::check() {
            return Support::around(Err(error));
        }
        thread::scope(|scope| {
            let named = thread::Builder::new().name("annulus-support".to_owned());
            let detected = named
                .spawn_scoped(scope, detect)
                .map(thread::ScopedJoinHandle::join);
            match detected {
                Ok(Ok(support)) => support,
                Ok(Err(_)) => Support::without_ring(io::Error::other("the thread panicked")),
                Err(error) => Support::without_ring(error),
            }
        })
    }

    fn without_ring(error: io::Error) -> Support {
        Support::around(Err(SetupError::Os {
            what: "probing io_uring on a thread",
            error,
        }))
    }

    /// Combines the result of the ring with all facts that need no ring.
    fn around(ring: Result<ProbedRing, SetupError>) -> Support {
        Support {
            kernel: probe::kernel_release(),
            ring,
            probes: probe_table::calls(),
            features: 0,
            disabled: probe::io_uring_disabled(),
            group: probe::io_uring_group(),
            seccomp: probe::seccomp_filters(),
            memlock_bytes: probe::memlock_bytes(),
            memlock_waived: probe::memlock_waived(),
            descriptors: probe::nofile(),
            processors: probe::processors().len(),
            poll_devices: poll_queue::devices(),
        }
    }

    /// Returns the kernel release, as `uname -r` prints it.
    pub fn kernel_release(&self) -> &str {
        &self.kernel
    }

    /// Returns the first two numbers of the release: `6.18.44-cloud` is 6 and 18. Only a hint, because distributions
    /// port features back.
    pub fn kernel_version(&self) -> KernelVersion {
        let (major, minor) = probe::parse_version(&self.kernel);
        KernelVersion::new(major, minor)
    }

    /// Returns the probes of one kind: the system calls, and, unless no ring can be set up, the set-up flags and the
    /// registrations.
    ///
    /// ```
    /// use annulus::support::{ProbeKind, Support, Verdict};
    ///
    /// for probe in Support::detect().probes(ProbeKind::SystemCall) {
    ///     match &probe.verdict {
    ///         Verdict::Works => {}
    ///         Verdict::Refused(reason) => println!("{}: {reason}", probe.name),
    ///         other => println!("{}: {other:?}", probe.name),
    ///     }
    /// }
    /// ```
    pub fn probes(&self, kind: ProbeKind) -> impl Iterator<Item = &Probe> {
        self.probes.iter().filter(move |probe| probe.kind == kind)
    }

    /// Probes for behaviours that differ between kernels with the same features, each on its own rings. Returns an
    /// empty list if no ring can be set up. Takes about 20 ms, so it is not part of [`Support::detect`].
    pub fn probe_behaviour(&self) -> Vec<Probe> {
        match self.ring {
            Ok(_) => probe_table::behaviour_probes(),
            Err(_) => Vec::new(),
        }
    }

    /// Returns the newest set-up mode that the kernel accepts.
    ///
    /// ```
    /// let support = annulus::support::Support::detect();
    /// if let Err(error) = support.ring() {
    ///     // The message ends with what to change, for a log at the start of a program.
    ///     eprintln!("io_uring is not used: {error}");
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with the reason why no ring can be set up, and the remedy.
    pub fn ring(&self) -> Result<SetupMode, &SetupError> {
        self.ring.as_ref().map(|probed| probed.setup_mode)
    }

    /// Returns each known feature bit of io_uring, by the kernel's name (`EXT_ARG`).
    pub fn features(&self) -> impl Iterator<Item = Capability> {
        FEATURES.iter().enumerate().map(|(bit, &name)| Capability {
            name,
            supported: self.features & 1 << bit != 0,
        })
    }

    /// Returns each known opcode of io_uring, by the kernel's name (`READ`).
    pub fn opcodes(&self) -> impl Iterator<Item = Capability> {
        OPCODES.iter().enumerate().map(|(code, &name)| Capability {
            name,
            supported: self.takes(code),
        })
    }

    /// Returns each file operation of the library and what executes it. Socket operations run on a runtime's cores.
    pub fn operations(&self) -> impl Iterator<Item = OperationSupport> {
        op::ON_FILES.iter().map(|info| self.operation(info))
    }

    /// Returns `kernel.io_uring_disabled`: 0 allows io_uring to all processes, 1 only to root and a group, 2 to none.
    /// Needs Linux 6.6; before that, `None`.
    ///
    /// ```
    /// let support = annulus::support::Support::detect();
    /// match (support.io_uring_disabled(), support.io_uring_group()) {
    ///     (Some(2), _) => println!("no process may use io_uring: sysctl kernel.io_uring_disabled"),
    ///     (Some(1), Some(group)) => println!("root and group {group} may use io_uring"),
    ///     _ => {} // allowed, or a kernel before 6.6, which has no such setting
    /// }
    /// ```
    pub fn io_uring_disabled(&self) -> Option<u32> {
        self.disabled
    }

    /// Returns `kernel.io_uring_group`, the group that may use io_uring if the value above is 1.
    pub fn io_uring_group(&self) -> Option<u32> {
        self.group
    }

    /// Returns whether a seccomp filter is loaded. The filter may allow io_uring.
    pub fn seccomp_filter(&self) -> bool {
        self.seccomp
    }

    /// Returns `RLIMIT_MEMLOCK` in bytes; `None` is unlimited. It limits registered buffers, and on some kernels rings,
    /// over all processes of the user.
    ///
    /// ```
    /// let support = annulus::support::Support::detect();
    /// let needed = 64 << 20; // bytes of an arena
    /// match support.memlock_bytes() {
    ///     Some(limit) if limit < needed && !support.memlock_waived() => println!("ulimit -l: {limit} is too small"),
    ///     _ => {} // enough, or `None`: unlimited
    /// }
    /// ```
    pub fn memlock_bytes(&self) -> Option<u64> {
        self.memlock_bytes
    }

    /// Returns whether `CAP_IPC_LOCK` waives that limit.
    pub fn memlock_waived(&self) -> bool {
        self.memlock_waived
    }

    /// Returns `RLIMIT_NOFILE`, the limit on descriptors of this process; `None` is unlimited.
    pub fn descriptors(&self) -> Option<u64> {
        self.descriptors
    }

    /// Returns the number of processors that this process may use. With fewer than four,
    /// [`sqpoll`](crate::EngineBuilder::sqpoll) is not advised.
    pub fn processors(&self) -> usize {
        self.processors
    }

    /// Returns the block devices in `/sys/block`, for [`iopoll`](crate::EngineBuilder::iopoll).
    pub fn poll_devices(&self) -> impl Iterator<Item = BlockDevice<'_>> {
        let devices = self.poll_devices.iter();
        devices.map(|(name, has_poll_queues)| BlockDevice {
            name,
            has_poll_queues: *has_poll_queues,
        })
    }

    fn takes(&self, code: usize) -> bool {
        self.ring
            .as_ref()
            .is_ok_and(|probed| probed.opcodes.get(code) == Some(&true))
    }

    fn operation(&self, info: &OpInfo) -> OperationSupport {
        let code = usize::from(info.opcode);
        let mechanism = match info.opcode {
            opcode::SLEEP => Mechanism::Clock,
            _ if self.takes(code) => Mechanism::Ring,
            _ => Mechanism::BlockingThread,
        };
        OperationSupport {
            name: info.name,
            opcode: OPCODES.get(code).copied(),
            mechanism,
        }
    }
}

fn detect() -> Support {
    let features = feature_probe::features();
    let setup_flags = features.map(|_| probe_table::setup_flags());
    // Last, because this ring stays registered with the thread until the thread ends.
    let mut ring = feature_probe::try_ring();
    let registrations = (ring.as_mut()).map(|probed| std::mem::take(&mut probed.registrations));
    let registrations = registrations.ok();
    let mut support = Support::around(ring);
    support.features = features.unwrap_or(0);
    if let Some(registrations) = registrations {
        support.probes.extend(setup_flags.unwrap_or_default());
        support.probes.extend(registrations);
    }
    support
}
