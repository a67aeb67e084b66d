//! The table of probes: what is tried, how, and the verdict. `Support` and `annulus doctor` read it. The attempts are
//! in `syscall_probe.rs`, `feature_probe.rs` and `kernel_quirks.rs`.

use std::ffi::c_long;
use std::io;

use rustix::io_uring::IoringSetupFlags;

use super::feature_probe::{Bench, patiently, set_up};
use super::filter_probe::{self, RING_CALLS};
use super::kernel_quirks::{self, QuirkResult};
use super::syscall_probe;
use crate::error::SetupError;

/// A row of the table of probes.
///
/// ```
/// use annulus::support::{ProbeKind, Support};
///
/// for probe in Support::detect().probes(ProbeKind::Registration) {
///     if let Some(error) = probe.error() {
///         println!("{} (since Linux {}): {error}", probe.name, probe.since);
///     }
/// }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Probe {
    /// The kind of thing that was probed.
    pub kind: ProbeKind,
    /// A system call or a set-up flag by the kernel's name, or a description of the registration or the behaviour.
    pub name: &'static str,
    /// The first kernel version that has it.
    pub since: &'static str,
    /// A description of the probe.
    pub how: &'static str,
    /// The result.
    pub verdict: Verdict,
}

impl Probe {
    /// Returns whether it works.
    pub fn works(&self) -> bool {
        matches!(self.verdict, Verdict::Works)
    }

    /// Returns the error of the kernel, if that was the result.
    pub fn error(&self) -> Option<&SetupError> {
        match &self.verdict {
            Verdict::Refused(error) => Some(error),
            _ => None,
        }
    }
}

/// The kind of thing that a [`Probe`] has tried.
///
/// Without a ring, only the system calls were probed:
///
/// ```
/// use annulus::support::{ProbeKind, Support};
///
/// let support = Support::detect();
/// assert!(support.probes(ProbeKind::SystemCall).count() > 0);
/// assert_eq!(support.probes(ProbeKind::SetupFlag).count() > 0, support.ring().is_ok());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProbeKind {
    /// A system call of io_uring. The refused calls, and their errors, show which policy forbids io_uring: a filter
    /// refuses calls by number; a sysctl and the security modules refuse only the set-up.
    SystemCall,
    /// A flag of `io_uring_setup`. An accepted flag is not a recommendation: polling needs a device with poll queues,
    /// or a free processor.
    SetupFlag,
    /// A kind of registration.
    Registration,
    /// A behaviour that differs between kernels with the same features.
    Behaviour {
        /// The consequence for Annulus.
        meaning: &'static str,
    },
}

/// The result of a [`Probe`].
///
/// ```
/// use annulus::support::{ProbeKind, Support, Verdict};
///
/// let support = Support::detect();
/// for probe in support.probes(ProbeKind::SystemCall) {
///     match &probe.verdict {
///         Verdict::Works => {}
///         Verdict::Refused(reason) => println!("{reason}"), // with what to change
///         Verdict::Kills => println!("a seccomp filter ends the process for {}", probe.name),
///         Verdict::Unknown(reason) => println!("{}: {reason}", probe.name),
///         other => println!("{}: {other:?}", probe.name),
///     }
/// }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Verdict {
    /// The kernel accepted it, or behaves as Annulus prefers.
    Works,
    /// The kernel or a policy refused it: the reason, and what to change.
    Refused(SetupError),
    /// A seccomp filter ends the process for it. The call was made in a child only.
    Kills,
    /// The kernel behaves otherwise.
    Differs,
    /// Not probed, for this reason.
    Unknown(String),
}

impl From<Result<(), SetupError>> for Verdict {
    fn from(result: Result<(), SetupError>) -> Verdict {
        result.map_or_else(Verdict::Refused, |()| Verdict::Works)
    }
}

struct Row {
    kind: ProbeKind,
    name: &'static str,
    since: &'static str,
    how: &'static str,
    attempt: Attempt,
}

enum Attempt {
    /// The call's number, and the call, which returns the errno of a refusal.
    Call(c_long, fn() -> Option<i32>),
    /// The flag's bits, with those that it requires.
    SetUp(IoringSetupFlags),
    Register(fn(&mut Bench) -> Result<(), SetupError>),
    Observe(fn() -> QuirkResult),
}

const fn call(
    name: &'static str,
    how: &'static str,
    number: c_long,
    attempt: fn() -> Option<i32>,
) -> Row {
    Row {
        kind: ProbeKind::SystemCall,
        name,
        since: "5.1",
        how,
        attempt: Attempt::Call(number, attempt),
    }
}

const fn flag(name: &'static str, since: &'static str, flags: IoringSetupFlags) -> Row {
    Row {
        kind: ProbeKind::SetupFlag,
        name,
        since,
        how: "sets up a ring with the flag",
        attempt: Attempt::SetUp(flags),
    }
}

const fn registration(
    name: &'static str,
    since: &'static str,
    how: &'static str,
    attempt: fn(&mut Bench) -> Result<(), SetupError>,
) -> Row {
    Row {
        kind: ProbeKind::Registration,
        name,
        since,
        how,
        attempt: Attempt::Register(attempt),
    }
}

const fn behaviour(
    name: &'static str,
    since: &'static str,
    how: &'static str,
    meaning: &'static str,
    attempt: fn() -> QuirkResult,
) -> Row {
    Row {
        kind: ProbeKind::Behaviour { meaning },
        name,
        since,
        how,
        attempt: Attempt::Observe(attempt),
    }
}

const NO_RING: &str =
    "makes the call on a descriptor that is not a ring; a filter refuses it nevertheless";
const FIXED_READ: &str = "reads an eventfd into a registered page";
const DIRECT_READ: &str = "reads a registered eventfd";
const ACCEPTED: &str = "registers it, and gives it back";

/// Every probe. Flags that need queues in the library's memory are left out.
#[rustfmt::skip]
static PROBES: [Row; 31] = [
    call("io_uring_setup", "sets up a ring", RING_CALLS[0], syscall_probe::set_up_refusal),
    call("io_uring_enter", NO_RING, RING_CALLS[1], syscall_probe::enter_refusal),
    call("io_uring_register", NO_RING, RING_CALLS[2], syscall_probe::register_refusal),
    flag("IOPOLL", "5.1", IoringSetupFlags::IOPOLL),
    flag("SQPOLL", "5.1", IoringSetupFlags::SQPOLL),
    flag("SQ_AFF", "5.1", IoringSetupFlags::SQ_AFF.union(IoringSetupFlags::SQPOLL)),
    flag("CQSIZE", "5.5", IoringSetupFlags::CQSIZE),
    flag("CLAMP", "5.6", IoringSetupFlags::CLAMP),
    flag("R_DISABLED", "5.10", IoringSetupFlags::R_DISABLED),
    flag("SUBMIT_ALL", "5.18", IoringSetupFlags::SUBMIT_ALL),
    flag("COOP_TASKRUN", "5.19", IoringSetupFlags::COOP_TASKRUN),
    flag("TASKRUN_FLAG", "5.19", IoringSetupFlags::TASKRUN_FLAG.union(IoringSetupFlags::COOP_TASKRUN)),
    flag("SQE128", "5.19", IoringSetupFlags::SQE128),
    flag("CQE32", "5.19", IoringSetupFlags::CQE32),
    flag("SINGLE_ISSUER", "6.0", IoringSetupFlags::SINGLE_ISSUER),
    flag("DEFER_TASKRUN", "6.1", IoringSetupFlags::DEFER_TASKRUN.union(IoringSetupFlags::SINGLE_ISSUER)),
    flag("NO_SQARRAY", "6.6", IoringSetupFlags::NO_SQARRAY),
    flag("HYBRID_IOPOLL", "6.13", IoringSetupFlags::from_bits_retain(1 << 17).union(IoringSetupFlags::IOPOLL)),
    flag("CQE_MIXED", "6.18", IoringSetupFlags::from_bits_retain(1 << 18)),
    registration("registered buffers", "5.1", FIXED_READ, Bench::buffers),
    registration("replacing registered buffers", "5.13", FIXED_READ, Bench::replaced_buffers),
    registration("direct descriptors", "5.1", DIRECT_READ, Bench::files),
    registration("replacing direct descriptors", "5.5", DIRECT_READ, Bench::replaced_files),
    registration("an empty table of direct descriptors", "5.19", DIRECT_READ, Bench::sparse_files),
    registration("buffer groups", "5.19", "reads an eventfd into a buffer of a group", Bench::buffer_group),
    registration("the ring's own descriptor", "5.18", ACCEPTED, Bench::ring_descriptor),
    registration("a limit of worker threads", "5.15", ACCEPTED, Bench::worker_limit),
    registration("processors for worker threads", "5.14", ACCEPTED, Bench::pin_workers),
    behaviour(
        "a poller of a ring with deferred task work is woken", "6.1",
        "lets a thread sleep in epoll on a ring for which a completion is due",
        "rings that another reactor polls use no deferred task work, whatever the kernel does",
        kernel_quirks::deferred_poller,
    ),
    behaviour(
        "completions beyond the queue are kept and delivered", "5.5",
        "completes twice as many operations as the queue holds",
        "a full completion queue loses nothing",
        kernel_quirks::overflow,
    ),
    behaviour(
        "an eventfd announces deferred completions", "6.1",
        "waits for an eventfd that is registered with a ring",
        "a reactor can sleep on an eventfd instead of the ring",
        kernel_quirks::deferred_eventfd,
    ),
];

/// Makes the probes for which `attempt` returns a verdict.
fn run(mut attempt: impl FnMut(&Row) -> Option<Verdict>) -> Vec<Probe> {
    let probed = PROBES.iter().filter_map(|row| {
        Some(Probe {
            kind: row.kind,
            name: row.name,
            since: row.since,
            how: row.how,
            verdict: attempt(row)?,
        })
    });
    probed.collect()
}

/// Makes each system call once, except those for which a filter would end the process.
pub(crate) fn calls() -> Vec<Probe> {
    let is_safe = filter_probe::check().is_ok();
    run(|row| {
        let Attempt::Call(number, attempt) = row.attempt else {
            return None;
        };
        // Without a child to test it in, the call is not made either.
        if !is_safe && filter_probe::kills(&[number]).unwrap_or(true) {
            return Some(Verdict::Kills);
        }
        let refused = attempt().map(|errno| SetupError::Os {
            what: row.name,
            error: io::Error::from_raw_os_error(errno),
        });
        Some(refused.map_or(Verdict::Works, Verdict::Refused))
    })
}

/// Tries each set-up flag on a separate ring.
pub(crate) fn setup_flags() -> Vec<Probe> {
    run(|row| match row.attempt {
        Attempt::SetUp(flags) => {
            let result = patiently(|| set_up(flags.bits(), row.name, row.since));
            Some(result.map(drop).into())
        }
        _ => None,
    })
}

/// Tries each registration on the ring of `bench`.
pub(super) fn registrations(mut bench: Bench) -> Vec<Probe> {
    run(|row| match row.attempt {
        Attempt::Register(attempt) => Some(patiently(|| attempt(&mut bench)).into()),
        _ => None,
    })
}

/// Observes each behaviour. Takes about 20 ms in total.
pub(crate) fn behaviour_probes() -> Vec<Probe> {
    run(|row| match row.attempt {
        Attempt::Observe(attempt) => Some(match attempt() {
            Ok(Some(true)) => Verdict::Works,
            Ok(Some(false)) => Verdict::Differs,
            Ok(None) => {
                let text = "the behaviour could not be observed in time; run it again";
                Verdict::Unknown(text.to_owned())
            }
            Err(error) => Verdict::Unknown(format!("not probed: {error}")),
        }),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `annulus doctor` finds probes by their names.
    #[test]
    fn no_two_probes_have_one_name() {
        let names: std::collections::BTreeSet<_> = PROBES.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), PROBES.len());
    }
}
