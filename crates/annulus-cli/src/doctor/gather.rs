//! Gathers the facts about this machine.

use std::path::Path;

use annulus::support::{Probe, ProbeKind, Support, Verdict};
use annulus::{BackendInUse, Engine, SetupError};
use rustix::process::{Resource, getegid, getgroups, getrlimit, getuid};

use super::facts::{
    Call, EngineFact, Environment, FeatureFact, Kernel, Limits, Mechanism, OperationFact, Policy,
    ProbeFact, Quirk, Refusal, RefusalKind, RingFacts, Seccomp, SetupMode,
};
use super::location::Location;
use super::surroundings::Surroundings;
use crate::bench::all::parts::installed;
use crate::proc_files::{self, text, value};

/// The capabilities that affect a rule, with their bits.
const CAPABILITIES: [(u32, &str); 5] = [
    (7, "CAP_SETUID"),
    (12, "CAP_NET_ADMIN"),
    (14, "CAP_IPC_LOCK"),
    (21, "CAP_SYS_ADMIN"),
    (23, "CAP_SYS_NICE"),
];

impl Environment {
    /// Gathers all facts except those about PATH, which the caller has inspected.
    pub(crate) fn here(location: Option<Location>) -> Environment {
        let root = Path::new("/");
        let support = Support::detect();
        let kernel = Kernel::below(root);
        Environment {
            surroundings: Surroundings::below(root, &kernel.release),
            ring: ring(&support),
            policy: policy(&support),
            limits: limits(&support),
            servers: (installed().into_iter())
                .map(|(name, _)| name.to_owned())
                .collect(),
            kernel,
            location,
        }
    }
}

fn ring(support: &Support) -> RingFacts {
    RingFacts {
        calls: support.probes(ProbeKind::SystemCall).map(call).collect(),
        refusal: support.ring().err().map(refusal),
        setup_mode: support.ring().ok().map(|setup_mode| match setup_mode {
            annulus::engine::SetupMode::Deferred => SetupMode::Deferred,
            annulus::engine::SetupMode::Cooperative => SetupMode::Cooperative,
            _ => SetupMode::Plain,
        }),
        setup_flags: probe_facts(support.probes(ProbeKind::SetupFlag)),
        features: has(support.features().map(|one| (one.name, one.supported))),
        opcodes: has(support.opcodes().map(|one| (one.name, one.supported))),
        operations: support.operations().map(operation).collect(),
        registrations: probe_facts(support.probes(ProbeKind::Registration)),
        quirks: support.probe_behaviour().iter().map(quirk).collect(),
        engine: engine(),
    }
}

fn refusal(error: &SetupError) -> Refusal {
    let kind = match error {
        SetupError::Missing { .. } => RefusalKind::Missing,
        SetupError::Refused { .. } => RefusalKind::Refused,
        SetupError::TooOld { .. } => RefusalKind::TooOld,
        SetupError::Memlock { .. } => RefusalKind::Memlock,
        SetupError::Descriptors { .. } => RefusalKind::Descriptors,
        _ => RefusalKind::Other,
    };
    Refusal {
        kind,
        text: error.to_string(),
    }
}

fn call(probe: &Probe) -> Call {
    let errno = match probe.error() {
        Some(SetupError::Os { error, .. }) => error.raw_os_error(),
        _ => None,
    };
    Call {
        name: probe.name.to_owned(),
        errno,
        kills: matches!(probe.verdict, Verdict::Kills),
    }
}

fn quirk(probe: &Probe) -> Quirk {
    let meaning = match (&probe.verdict, probe.kind) {
        (Verdict::Unknown(why), _) => why,
        (_, ProbeKind::Behaviour { meaning }) => meaning,
        _ => "",
    };
    Quirk {
        name: probe.name.to_owned(),
        works: match probe.verdict {
            Verdict::Works => Some(true),
            Verdict::Differs => Some(false),
            _ => None,
        },
        meaning: meaning.to_owned(),
    }
}

fn probe_facts<'a>(probes: impl Iterator<Item = &'a Probe>) -> Vec<ProbeFact> {
    let one = |probe: &Probe| ProbeFact {
        name: probe.name.to_owned(),
        since: probe.since.to_owned(),
        works: probe.works(),
        why: probe.error().map(SetupError::to_string),
        is_starved: matches!(probe.error(), Some(SetupError::Memlock { .. })),
    };
    probes.map(one).collect()
}

fn has<'a>(all: impl Iterator<Item = (&'a str, bool)>) -> Vec<FeatureFact> {
    all.map(|(name, is_there)| FeatureFact {
        name: name.to_owned(),
        is_there,
    })
    .collect()
}

fn operation(operation: annulus::support::OperationSupport) -> OperationFact {
    OperationFact {
        name: operation.name.to_owned(),
        opcode: operation.opcode.map(str::to_owned),
        mechanism: match operation.mechanism {
            annulus::support::Mechanism::Ring => Mechanism::Ring,
            annulus::support::Mechanism::Clock => Mechanism::Clock,
            _ => Mechanism::BlockingThread,
        },
    }
}

/// Builds an engine with its defaults, to find the number of entries that the limits allow.
fn engine() -> Option<EngineFact> {
    let builder = Engine::builder();
    let entries_requested = builder.ring_entries_requested();
    let engine = builder.build().ok()?;
    let entries_got = match engine.backend() {
        BackendInUse::Uring(rings) => Some(rings.sq_entries),
        _ => None,
    };
    Some(EngineFact {
        backend: engine.backend().to_string(),
        entries_requested,
        entries_got,
    })
}

fn policy(support: &Support) -> Policy {
    let status = proc_files::read("/proc/thread-self/status").unwrap_or_default();
    let group = support.io_uring_group();
    Policy {
        io_uring_disabled: support.io_uring_disabled(),
        io_uring_group: group,
        is_in_group: group.is_some_and(|group| {
            getegid().as_raw() == group
                || getgroups().is_ok_and(|all| all.iter().any(|one| one.as_raw() == group))
        }),
        seccomp: match value(&status, "Seccomp") {
            Some("2") => Seccomp::Filter,
            Some("1") => Seccomp::Strict,
            _ => Seccomp::Off,
        },
        seccomp_filters: value(&status, "Seccomp_filters").and_then(|count| count.parse().ok()),
        no_new_privileges: value(&status, "NoNewPrivs") == Some("1"),
        user: getuid().as_raw(),
        capabilities: capabilities(value(&status, "CapEff").unwrap_or_default()),
        is_initial_user_namespace: text(Path::new("/proc/self/uid_map"))
            .is_none_or(|map| map.split_whitespace().eq(["0", "0", "4294967295"])),
        security_modules: (text(Path::new("/sys/kernel/security/lsm")).unwrap_or_default())
            .split(',')
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect(),
    }
}

/// Parses a mask in hexadecimal digits.
fn capabilities(mask: &str) -> Vec<String> {
    let mask = u64::from_str_radix(mask, 16).unwrap_or(0);
    let capabilities = CAPABILITIES.iter().filter(|(bit, _)| mask & 1 << bit != 0);
    capabilities.map(|(_, name)| (*name).to_owned()).collect()
}

fn limits(support: &Support) -> Limits {
    Limits {
        memlock_bytes: support.memlock_bytes(),
        memlock_hard_bytes: getrlimit(Resource::Memlock).maximum,
        memlock_waived: support.memlock_waived(),
        descriptors: support.descriptors(),
        descriptors_hard: getrlimit(Resource::Nofile).maximum,
        processors: support.processors(),
        processors_online: processors_online().unwrap_or(support.processors()),
        processor_quota: quota(),
        memory_bytes: proc_files::bytes("/proc/meminfo", "MemTotal"),
    }
}

/// Returns the number of processors of the machine, including those that this process may not use.
pub(crate) fn processors_online() -> Option<usize> {
    count(&text(Path::new("/sys/devices/system/cpu/online"))?)
}

/// Counts the numbers in a list such as `0-3,6`.
fn count(list: &str) -> Option<usize> {
    let mut sum = 0;
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        sum += last.checked_sub(first)? + 1;
    }
    Some(sum)
}

/// Returns the processor time that the cgroup of this process allows. In a container, the file is at the root.
fn quota() -> Option<f64> {
    let own = text(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let own = own.lines().find_map(|line| line.strip_prefix("0::"));
    let own = own.unwrap_or_default().trim_start_matches('/');
    let root = Path::new("/sys/fs/cgroup");
    [root.join(own), root.to_path_buf()]
        .iter()
        .find_map(|folder| text(&folder.join("cpu.max")))
        .and_then(|line| parse_quota(&line))
}

/// Parses `200000 100000` or `max 100000`.
fn parse_quota(line: &str) -> Option<f64> {
    let (share, period) = line.split_once(' ')?;
    let (share, period): (f64, f64) = (share.parse().ok()?, period.parse().ok()?);
    (period > 0.0).then_some(share / period)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_masks_and_quotas_are_parsed() {
        assert_eq!(count("0-3,6"), Some(5));
        assert_eq!(count("0"), Some(1));
        assert_eq!(count(""), None);
        assert_eq!(parse_quota("200000 100000"), Some(2.0));
        assert_eq!(parse_quota("max 100000"), None);
        assert_eq!(capabilities("000001ffffffffff").len(), CAPABILITIES.len());
        assert_eq!(capabilities("0000000000004000"), ["CAP_IPC_LOCK"]);
        assert!(capabilities("0").is_empty());
        let status = "Seccomp:\t0\nSeccomp_filters:\t3\n";
        assert_eq!(value(status, "Seccomp"), Some("0"));
        assert_eq!(value(status, "Seccomp_filters"), Some("3"));
    }

    #[test]
    fn the_facts_about_this_machine_are_gathered() {
        let here = Environment::here(None);
        assert_eq!(here.ring.calls.len(), 3);
        assert!(here.limits.processors > 0);
        assert!(here.limits.processors_online >= here.limits.processors);
        assert!(here.kernel.version.0 >= 4, "{:?}", here.kernel);
        assert_eq!(here.has_ring(), here.ring.setup_mode.is_some());
    }
}
