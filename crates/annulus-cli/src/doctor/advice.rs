//! What a rule has to say, and the verdict over all of them.

use schemars::JsonSchema;
use serde::Serialize;

use super::facts::Environment;
use super::figures::Figures;

/// What rules look at.
pub(crate) struct Findings<'a> {
    pub(crate) env: &'a Environment,
    /// Absent with `--quick`.
    pub(crate) figures: Option<&'a Figures>,
}

/// One piece of advice.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(crate) struct Advice {
    /// As docs/reference/doctor.md calls the rule.
    pub(crate) rule: String,
    pub(crate) severity: Severity,
    pub(crate) what: String,
    pub(crate) why: String,
    /// What to type or to change, where something can be done.
    pub(crate) next: Option<String>,
}

/// From the worst on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Severity {
    /// There is no ring because of it.
    Blocks,
    /// Something that Annulus can use is not there.
    Less,
    /// Everything works, and could do better.
    Advice,
    /// Good to know.
    Note,
}

/// A rule: pure, so that a test can show it any machine.
pub(crate) struct Rule {
    pub(crate) name: &'static str,
    pub(crate) check: fn(&Findings<'_>) -> Option<RuleReport>,
}

/// What a rule says, without its name.
pub(crate) struct RuleReport {
    pub(crate) severity: Severity,
    pub(crate) what: String,
    pub(crate) why: String,
    pub(crate) next: Option<String>,
}

impl RuleReport {
    pub(crate) fn new(
        severity: Severity,
        what: impl Into<String>,
        why: impl Into<String>,
    ) -> RuleReport {
        RuleReport {
            severity,
            what: what.into(),
            why: why.into(),
            next: None,
        }
    }

    pub(crate) fn next(self, next: impl Into<String>) -> RuleReport {
        RuleReport {
            next: Some(next.into()),
            ..self
        }
    }
}

/// What every rule says, the worst first.
pub(crate) fn advice(findings: &Findings<'_>) -> Vec<Advice> {
    let mut advice: Vec<Advice> = super::rules::all()
        .filter_map(|rule| {
            let report = (rule.check)(findings)?;
            Some(Advice {
                rule: rule.name.to_owned(),
                severity: report.severity,
                what: report.what,
                why: report.why,
                next: report.next,
            })
        })
        .collect();
    advice.sort_by_key(|one| one.severity);
    advice
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verdict {
    Good,
    Less,
    NoIoUring,
}

impl Verdict {
    pub(crate) fn of(advice: &[Advice]) -> Verdict {
        match advice.first().map(|worst| worst.severity) {
            Some(Severity::Blocks) => Verdict::NoIoUring,
            Some(Severity::Less) => Verdict::Less,
            _ => Verdict::Good,
        }
    }

    pub(crate) fn exit_code(self) -> u8 {
        match self {
            Verdict::Good => 0,
            Verdict::Less => 1,
            Verdict::NoIoUring => 77,
        }
    }

    pub(crate) fn sentence(self) -> &'static str {
        match self {
            Verdict::Good => "io_uring, with all that Annulus can use",
            Verdict::Less => "io_uring, without what is lacking above; everything works",
            Verdict::NoIoUring => {
                "epoll and blocking threads instead of io_uring; everything works"
            }
        }
    }
}

/// The one command to go on with.
pub(crate) fn next_command(verdict: Verdict, env: &Environment) -> String {
    let path = env
        .location
        .as_ref()
        .filter(|location| location.path.as_os_str() != ".")
        .map_or(String::new(), |location| {
            format!(" {}", location.path.display())
        });
    match verdict {
        Verdict::NoIoUring => format!("annulus doctor{path}"),
        _ => format!("annulus bench file{path}"),
    }
}
