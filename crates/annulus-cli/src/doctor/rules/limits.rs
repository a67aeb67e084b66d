//! Rules for a machine with a ring: restrictions by the kernel, and by the limits of this process.

use crate::doctor::advice::{Findings, Rule, RuleReport, Severity};
use crate::doctor::facts::{Mechanism, SetupMode};

/// The least locked memory: 16 registered buffers of 64 KiB.
const MEMLOCK_BYTES_LEAST: u64 = 1 << 20;
/// With less locked memory, a large arena is registered only in part. The hints recommend this value.
const MEMLOCK_BYTES_AMPLE: u64 = 64 << 20;
/// The descriptors of a thread with a ring: the ring, its eventfd, and the duplicate that a reactor polls.
const DESCRIPTORS_PER_THREAD: u64 = 3;
/// The descriptors of the program itself: standard streams and a few files.
const DESCRIPTORS_OF_PROGRAM: u64 = 64;
/// The default limit of shells and services. It is too low for a server with a thousand connections.
const DESCRIPTORS_OF_SHELLS: u64 = 1024;

pub(super) const RULES: &[Rule] = &[
    Rule::new("setup-mode", setup_mode),
    Rule::new("operations-on-threads", operations),
    Rule::new("registrations", registrations),
    Rule::new("memlock-short", memlock_short),
    Rule::new("memlock-arena", memlock_arena),
    Rule::new("memlock-in-namespace", memlock_in_namespace),
    Rule::new("descriptors-short", descriptors_short),
    Rule::new("descriptors-server", descriptors_server),
    Rule::new("completions-lost", completions_lost),
    Rule::new("iowait", iowait),
];

fn setup_mode(findings: &Findings<'_>) -> Option<RuleReport> {
    let (needs, has) = match findings.env.ring.setup_mode? {
        SetupMode::Deferred => return None,
        SetupMode::Cooperative => (
            "6.1",
            "completions interrupt the thread less often, but are still processed before it waits for them",
        ),
        SetupMode::Plain => (
            "5.19, better 6.1",
            "each completion interrupts the thread that waits for it",
        ),
    };
    let what = "rings have no deferred task work";
    Some(RuleReport::new(Severity::Less, what, has).next(format!("boot Linux {needs} or later")))
}

/// Reports operations that have an io_uring opcode which this kernel lacks.
fn operations(findings: &Findings<'_>) -> Option<RuleReport> {
    let env = findings.env;
    if !env.has_ring() {
        return None;
    }
    let names: Vec<&str> = (env.ring.operations.iter())
        .filter(|one| one.mechanism == Mechanism::BlockingThread && one.opcode.is_some())
        .map(|one| &*one.name)
        .collect();
    let what = format!(
        "these operations run on blocking threads: {}",
        names.join(", ")
    );
    let why = "this kernel's io_uring has no opcode for them; each call costs a thread hop";
    let next = "boot Linux 6.12 or later if you use them";
    (!names.is_empty()).then(|| RuleReport::new(Severity::Less, what, why).next(next))
}

fn registrations(findings: &Findings<'_>) -> Option<RuleReport> {
    let refused: Vec<_> = (findings.env.ring.registrations.iter())
        .filter(|one| !one.works && !one.is_starved)
        .collect();
    let newest = refused
        .iter()
        .map(|one| &*one.since)
        .max_by_key(|since| minor_of(since))?;
    let names: Vec<&str> = refused.iter().map(|one| &*one.name).collect();
    let why = refused[0].why.clone().unwrap_or_default();
    let what = format!("registration does not work for: {}", names.join(", "));
    Some(RuleReport::new(Severity::Less, what, why).next(format!("boot Linux {newest} or later")))
}

fn minor_of(since: &str) -> (u32, u32) {
    let (major, minor) = since.split_once('.').unwrap_or((since, "0"));
    (major.parse().unwrap_or(0), minor.parse().unwrap_or(0))
}

/// Returns the limit of locked memory, if it applies.
fn memlock(findings: &Findings<'_>) -> Option<u64> {
    let limits = &findings.env.limits;
    limits
        .memlock_bytes
        .filter(|_| findings.env.has_ring() && !limits.memlock_waived)
}

fn memlock_short(findings: &Findings<'_>) -> Option<RuleReport> {
    let bytes = memlock(findings)?;
    let ring = &findings.env.ring;
    let starved: Vec<&str> = (ring.registrations.iter().chain(&ring.setup_flags))
        .filter(|one| one.is_starved)
        .map(|one| &*one.name)
        .collect();
    let smaller = ring.engine.as_ref().and_then(|engine| {
        let got = engine.entries_got.unwrap_or(0);
        (got < engine.entries_requested).then(|| match got {
            0 => "no ring of the default size fits".to_owned(),
            got => format!(
                "rings of {got} entries instead of {}",
                engine.entries_requested
            ),
        })
    });
    if bytes >= MEMLOCK_BYTES_LEAST && starved.is_empty() && smaller.is_none() {
        return None;
    }
    let mut why: Vec<String> = smaller.into_iter().collect();
    if !starved.is_empty() {
        why.push(format!("too little for {}", starved.join(", ")));
    }
    why.push("registered buffers count against it, over all processes of the user".to_owned());
    let what = format!("the limit of locked memory is {} KiB", bytes >> 10);
    let next = "ulimit -l 65536; systemd: LimitMEMLOCK=64M; docker run --ulimit memlock=67108864";
    Some(RuleReport::new(Severity::Less, what, why.join("; ")).next(next))
}

fn memlock_arena(findings: &Findings<'_>) -> Option<RuleReport> {
    let bytes = memlock(findings)?;
    let between = (MEMLOCK_BYTES_LEAST..MEMLOCK_BYTES_AMPLE).contains(&bytes);
    let what = format!("the limit of locked memory is {} MiB", bytes >> 20);
    let why = "a larger arena of registered buffers is registered only in part";
    between.then(|| {
        RuleReport::new(Severity::Advice, what, why)
            .next("ulimit -l 65536; systemd: LimitMEMLOCK=64M")
    })
}

fn memlock_in_namespace(findings: &Findings<'_>) -> Option<RuleReport> {
    let policy = &findings.env.policy;
    let holds = policy.capabilities.iter().any(|one| one == "CAP_IPC_LOCK");
    let limited = memlock(findings).is_some();
    let what = "CAP_IPC_LOCK has no effect in a user namespace";
    let why = "root in a container is an ordinary user of the host, so the limit of locked memory applies";
    (limited && holds && !policy.is_initial_user_namespace)
        .then(|| RuleReport::new(Severity::Note, what, why))
}

fn descriptors_needed(findings: &Findings<'_>) -> u64 {
    DESCRIPTORS_OF_PROGRAM + DESCRIPTORS_PER_THREAD * findings.env.limits.processors as u64
}

fn descriptors_short(findings: &Findings<'_>) -> Option<RuleReport> {
    let limit = findings
        .env
        .limits
        .descriptors
        .filter(|_| findings.env.has_ring())?;
    let needed = descriptors_needed(findings);
    let what = format!("the limit is {limit} descriptors per process");
    let why = format!(
        "a runtime on all processors needs {needed} before it opens a file: {DESCRIPTORS_PER_THREAD} for each ring"
    );
    (limit < needed).then(|| {
        RuleReport::new(Severity::Less, what, why)
            .next("ulimit -n 65536; systemd: LimitNOFILE=65536")
    })
}

fn descriptors_server(findings: &Findings<'_>) -> Option<RuleReport> {
    let limits = &findings.env.limits;
    let limit = limits.descriptors?;
    let may = limits.descriptors_hard.is_none_or(|hard| hard > limit);
    let what = format!("the limit is {limit} descriptors per process");
    let why = "a server needs one for each connection";
    let between = (descriptors_needed(findings)..=DESCRIPTORS_OF_SHELLS).contains(&limit);
    between.then(|| {
        let next = match may {
            true => "ulimit -n $(ulimit -Hn); systemd: LimitNOFILE=65536",
            false => "systemd: LimitNOFILE=65536; /etc/security/limits.conf for a login",
        };
        RuleReport::new(Severity::Note, what, why).next(next)
    })
}

fn completions_lost(findings: &Findings<'_>) -> Option<RuleReport> {
    let quirk = (findings.env.ring.quirks.iter())
        .find(|one| one.name.starts_with("completions beyond the queue"))?;
    let what = "completions that overflow the queue are lost on this kernel";
    let why = "after an overflow of the completion queue, some operations would never complete";
    (quirk.works == Some(false)).then(|| {
        RuleReport::new(Severity::Less, what, why).next("boot another kernel, and report this one")
    })
}

fn iowait(findings: &Findings<'_>) -> Option<RuleReport> {
    let env = findings.env;
    let version = env.kernel.version;
    let counts = (version >= crate::doctor::facts::Version(6, 5, 0)
        || (version.0, version.1) == (6, 1) && version.2 >= 39)
        && env.has_ring()
        && !env.has_feature("NO_IOWAIT");
    let what = "an idle engine shows as 100 % iowait in top and in monitoring";
    let why = "this kernel counts a thread that sleeps in io_uring_enter as waiting for a disk, although it \
               uses no processor time";
    counts.then(|| {
        RuleReport::new(Severity::Note, what, why)
            .next("boot Linux 6.15 or later, where the engine turns this accounting off")
    })
}
