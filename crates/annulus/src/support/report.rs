//! The report on a machine's support, for people.

use std::fmt;

use super::{Mechanism, Probe, ProbeKind, Support};
use crate::error::SetupError;
use crate::sys::feature_probe::OPCODES;
use crate::sys::probe;
use crate::sys::ring::SetupMode;

/// The first column of the facts, and the maximum line width.
const LABEL_COLUMNS: usize = 16;
const COLUMNS: usize = 100;

/// Writes a label and its fact. Continuation lines are indented.
fn row(f: &mut fmt::Formatter<'_>, label: &str, fact: &str) -> fmt::Result {
    write!(f, "{label:<LABEL_COLUMNS$}")?;
    let mut column = LABEL_COLUMNS;
    for (index, word) in fact.split(' ').enumerate() {
        let columns = word.chars().count() + 1;
        if index > 0 && column + columns > COLUMNS {
            write!(f, "\n{:LABEL_COLUMNS$}", "")?;
            column = LABEL_COLUMNS;
        } else if index > 0 {
            f.write_str(" ")?;
        }
        f.write_str(word)?;
        column += columns;
    }
    writeln!(f)
}

/// Formats supported and missing names as "A, B; not: C".
fn list<'a>(all: impl Iterator<Item = (&'a str, bool)>) -> String {
    let (supported, missing): (Vec<_>, Vec<_>) = all.partition(|&(_, supported)| supported);
    let names = |these: &[(&str, bool)]| {
        these
            .iter()
            .map(|(name, _)| *name)
            .collect::<Vec<_>>()
            .join(", ")
    };
    match (supported.is_empty(), missing.is_empty()) {
        (_, true) => names(&supported),
        (true, false) => format!("none of {}", names(&missing)),
        (false, false) => format!("{}; not: {}", names(&supported), names(&missing)),
    }
}

/// Lists the probes by result. A probe that ran out of memory is listed apart, because it does not show whether the
/// feature works.
fn list_probes<'a>(probes: impl Iterator<Item = &'a Probe>) -> String {
    let starved = |probe: &&Probe| matches!(probe.error(), Some(SetupError::Memlock { .. }));
    let (unknown, known): (Vec<_>, Vec<_>) = probes.partition(starved);
    let known = list(known.iter().map(|probe| (probe.name, probe.works())));
    if unknown.is_empty() {
        return known;
    }
    let unknown: Vec<_> = unknown.iter().map(|probe| probe.name).collect();
    let separator = if known.is_empty() { "" } else { "; " };
    format!(
        "{known}{separator}not probed for lack of locked memory: {}",
        unknown.join(", ")
    )
}

impl fmt::Display for Support {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        row(f, "kernel", &format!("Linux {}", self.kernel))?;
        match &self.ring {
            Ok(probed) => {
                row(f, "io_uring", "works")?;
                row(f, "ring", probed.setup_mode.describe())?;
                row(
                    f,
                    "set-up flags",
                    &list_probes(self.probes(ProbeKind::SetupFlag)),
                )?;
                row(
                    f,
                    "features",
                    &list(self.features().map(|one| (one.name, one.supported))),
                )?;
                row(f, "opcodes", &self.opcodes_in_short())?;
                row(f, "operations", &self.operations_in_short())?;
                row(
                    f,
                    "registrations",
                    &list_probes(self.probes(ProbeKind::Registration)),
                )?;
            }
            Err(error) => {
                let text = error.to_string();
                // The message of a `SetupError` ends with its hint.
                let (fact, hint) = text.split_once("; ").unwrap_or((&text, ""));
                row(
                    f,
                    "io_uring",
                    fact.strip_prefix("io_uring ").unwrap_or(fact),
                )?;
                if !hint.is_empty() {
                    row(f, "to allow", hint)?;
                }
                row(f, "operations", &self.operations_in_short())?;
            }
        }
        if self.ring.is_ok() {
            row(f, "polling", &self.polling())?;
        }
        row(f, "policy", &self.policy())?;
        row(f, "locked memory", &self.locked_memory())?;
        let descriptors = self.descriptors.map_or("unlimited".to_owned(), |count| {
            format!("{count} per process")
        });
        row(f, "descriptors", &format!("{descriptors} (RLIMIT_NOFILE)"))?;
        self.verdict(f)
    }
}

impl Support {
    fn opcodes_in_short(&self) -> String {
        let missing: Vec<_> = self
            .opcodes()
            .filter(|one| !one.supported)
            .map(|one| one.name)
            .collect();
        let known = OPCODES.len();
        if missing.is_empty() {
            return format!("all {known} that Annulus knows of");
        }
        format!(
            "{} of {known}; not: {}",
            known - missing.len(),
            missing.join(", ")
        )
    }

    fn operations_in_short(&self) -> String {
        let named = |mechanism| {
            let operations = self
                .operations()
                .filter(|operation| operation.mechanism == mechanism);
            operations
                .map(|operation| operation.name)
                .collect::<Vec<_>>()
        };
        let threads = named(Mechanism::BlockingThread);
        match named(Mechanism::Ring).len() {
            0 => "all on blocking threads".to_owned(),
            ring if threads.is_empty() => format!("{ring} through the ring"),
            ring => format!(
                "{ring} through the ring; on blocking threads: {}",
                threads.join(", ")
            ),
        }
    }

    fn polling(&self) -> String {
        let plural = if self.processors == 1 { "" } else { "s" };
        let count = self.processors;
        let sqpoll = match probe::sqpoll_advised(count) {
            true => format!("sqpoll may help ({count} processors)"),
            false => format!("sqpoll is not advised ({count} processor{plural})"),
        };
        let devices = list(
            self.poll_devices()
                .map(|one| (one.name, one.has_poll_queues)),
        );
        let devices = if devices.is_empty() {
            "no device"
        } else {
            &devices
        };
        format!("{sqpoll}; poll queues for iopoll: {devices}")
    }

    fn policy(&self) -> String {
        let sysctl = match (self.disabled, self.group) {
            (None, _) => "no sysctl kernel.io_uring_disabled".to_owned(),
            (Some(1), Some(group)) => {
                format!("kernel.io_uring_disabled = 1 (not for group {group})")
            }
            (Some(value), _) => format!("kernel.io_uring_disabled = {value}"),
        };
        let seccomp = if self.seccomp {
            "a seccomp filter is loaded"
        } else {
            "no seccomp filter"
        };
        format!("{sysctl}; {seccomp}")
    }

    fn locked_memory(&self) -> String {
        let limit = match self.memlock_bytes {
            Some(bytes) => format!("{} KiB per user", bytes >> 10),
            None => "unlimited".to_owned(),
        };
        let waived = if self.memlock_waived {
            ", waived by CAP_IPC_LOCK"
        } else {
            ""
        };
        format!("{limit} (RLIMIT_MEMLOCK){waived}")
    }

    fn verdict(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ok(probed) = &self.ring else {
            return row(
                f,
                "so",
                "blocking threads; every operation works. Next: make the change above, or run annulus bench file as is",
            );
        };
        let mut less = Vec::new();
        if probed.setup_mode < SetupMode::Deferred {
            less.push("deferred task work: boot Linux 6.1 or later".to_owned());
        }
        for probe in self.probes(ProbeKind::Registration) {
            let lack = probe.error().map(SetupError::to_string);
            // A policy that refuses one registration refuses all of them with the same message.
            less.extend(lack.filter(|lack| !less.contains(lack)));
        }
        for lack in &less {
            row(f, "lacking", lack)?;
        }
        match less.is_empty() {
            true => row(
                f,
                "so",
                "io_uring, with every feature that Annulus uses. Next: annulus bench file",
            ),
            false => row(
                f,
                "so",
                "io_uring, without the features listed above. Next: annulus bench file",
            ),
        }
    }
}
