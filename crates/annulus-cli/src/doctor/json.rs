//! The JSON of `annulus doctor`; its schema is kept in `schema/doctor.json`.

use schemars::JsonSchema;
use serde::Serialize;

use super::advice::{Advice, Findings, Verdict, advice, next_command};
use super::cause::{Cause, causes};
use super::facts::Environment;
use super::figures::Figures;
use super::traps::{self, TrapHere};

/// Changed whenever a reader of older files would misread a newer one.
pub(crate) const VERSION: u32 = 1;

/// Everything that `annulus doctor` has found out and has to say.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Report {
    /// The version of this format.
    pub(crate) version: u32,
    /// The version of the command that wrote it.
    pub(crate) annulus: String,
    /// The command as it was typed.
    pub(crate) command: Vec<String>,
    /// When it began, in seconds since 1970.
    pub(crate) started_unix_s: u64,
    pub(crate) environment: Environment,
    /// Why there is no ring, the first the one to begin with; empty where there is one.
    pub(crate) causes: Vec<Cause>,
    /// Known traps of this kernel's version.
    pub(crate) traps: Vec<TrapHere>,
    /// Absent with `--quick`.
    pub(crate) figures: Option<Figures>,
    /// The worst first.
    pub(crate) advice: Vec<Advice>,
    pub(crate) verdict: Verdict,
    /// What the command ends with.
    pub(crate) exit_code: u8,
    /// The command to go on with.
    pub(crate) next: String,
}

impl Report {
    /// All that follows from the facts and the figures.
    pub(crate) fn new(
        environment: Environment,
        figures: Option<Figures>,
        command: Vec<String>,
        started_unix_s: u64,
    ) -> Report {
        let findings = Findings {
            env: &environment,
            figures: figures.as_ref(),
        };
        let advice = advice(&findings);
        let verdict = Verdict::of(&advice);
        Report {
            version: VERSION,
            annulus: env!("CARGO_PKG_VERSION").into(),
            command,
            started_unix_s,
            causes: causes(&environment),
            traps: traps::of(&environment),
            advice,
            verdict,
            exit_code: verdict.exit_code(),
            next: next_command(verdict, &environment),
            environment,
            figures,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_of_doctor_in_the_repository_is_that_of_the_structs() {
        crate::bench::schema_is_current("doctor.json", &schemars::schema_for!(Report));
    }
}
