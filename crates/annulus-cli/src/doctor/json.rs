//! The JSON of `annulus doctor`. Its schema is in `schema/doctor.json`.

use std::time::SystemTime;

use serde::Serialize;

use super::advice::{Advice, Findings, Verdict, advice, next_command};
use super::cause::{Cause, causes};
use super::facts::Environment;
use super::figures::Figures;
use super::traps::{self, TrapHere};
use crate::bench::all::parts::{Needs, Part, parts};
use crate::bench::output::Header;

/// The version of the format.
pub(crate) const VERSION: u32 = 1;

/// The report of `annulus doctor`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Report {
    #[serde(flatten)]
    pub(crate) header: Header,
    pub(crate) environment: Environment,
    /// The causes of a missing ring, the main cause first. Empty if there is a ring.
    pub(crate) causes: Vec<Cause>,
    /// Known traps of the kernel's version.
    pub(crate) traps: Vec<TrapHere>,
    /// Absent with `--quick`.
    pub(crate) figures: Option<Figures>,
    /// The advice, the most severe first.
    pub(crate) advice: Vec<Advice>,
    /// The parts of `annulus bench all`, and what the machine lacks for them.
    pub(crate) benchmark: Vec<Part>,
    pub(crate) verdict: Verdict,
    /// The exit code of the command.
    pub(crate) exit_code: u8,
    /// The command to run next.
    pub(crate) next: String,
}

impl Report {
    /// Derives the report from the facts and the figures.
    pub(crate) fn new(
        environment: Environment,
        figures: Option<Figures>,
        started: SystemTime,
    ) -> Report {
        let findings = Findings {
            env: &environment,
            figures: figures.as_ref(),
        };
        let advice = advice(&findings);
        let verdict = Verdict::of(&advice);
        Report {
            header: Header::new(VERSION, started),
            causes: causes(&environment),
            traps: traps::of(&environment),
            benchmark: benchmark(&environment),
            advice,
            verdict,
            exit_code: verdict.exit_code(),
            next: next_command(verdict, &environment),
            environment,
            figures,
        }
    }
}

fn benchmark(env: &Environment) -> Vec<Part> {
    let location = env.location.as_ref();
    let is_direct = location.is_some_and(|location| location.direct.works == Some(true));
    let no_direct = location.and_then(|location| location.direct.why.as_deref());
    let is_polled = location.is_some_and(|location| location.can_poll == Some(true));
    let no_polling = location.and_then(|location| location.poll_refusal.as_deref());
    let refusal = env.ring.refusal.as_ref();
    parts(&Needs {
        no_ring: refusal.map(|refusal| refusal.text.as_str()),
        no_direct: (!is_direct).then(|| no_direct.unwrap_or("no file could be tested")),
        no_polling: (!is_polled).then(|| no_polling.unwrap_or("no file could be tested")),
        processors: env.limits.processors,
        servers: &env.servers,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_doctor_schema_in_the_repository_matches_the_structs() {
        crate::bench::output::schema_is_current("doctor.json", &schemars::schema_for!(Report));
    }
}
