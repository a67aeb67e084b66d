//! The advice of the rules, and the verdict.

use serde::Serialize;

use super::facts::Environment;
use super::figures::Figures;
use super::location::Kind;

/// The input of the rules.
pub(crate) struct Findings<'a> {
    pub(crate) env: &'a Environment,
    /// Absent with `--quick`.
    pub(crate) figures: Option<&'a Figures>,
}

/// One piece of advice.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Advice {
    /// The name of the rule in docs/reference/doctor.md.
    pub(crate) rule: String,
    pub(crate) severity: Severity,
    pub(crate) what: String,
    pub(crate) why: String,
    /// The command to run or the change to make, if there is one.
    pub(crate) next: Option<String>,
}

/// The severity of advice, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Severity {
    /// Prevents the creation of a ring.
    Blocks,
    /// Something that Annulus can use is missing.
    Less,
    /// Everything works, but could be faster or safer.
    Advice,
    /// Information.
    Note,
}

/// A rule: a pure function, so that tests can apply it to any machine.
pub(crate) struct Rule {
    pub(crate) name: &'static str,
    pub(crate) check: fn(&Findings<'_>) -> Option<RuleReport>,
}

impl Rule {
    pub(crate) const fn new(
        name: &'static str,
        check: fn(&Findings<'_>) -> Option<RuleReport>,
    ) -> Rule {
        Rule { name, check }
    }
}

/// The result of a rule, without its name.
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

/// Returns the advice of all rules, the most severe first.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
            Verdict::Good => "io_uring works, with everything that Annulus can use",
            Verdict::Less => "io_uring works, with the restrictions marked \"lacking\"",
            Verdict::NoIoUring => "no io_uring; Annulus uses epoll and blocking threads instead",
        }
    }
}

/// Returns the command to run next.
pub(crate) fn next_command(verdict: Verdict, env: &Environment) -> String {
    let path = env
        .location
        .as_ref()
        .filter(|location| location.path != ".")
        .map_or(String::new(), |location| format!(" {}", location.path));
    let is_closed = env.location.as_ref().is_some_and(|location| {
        location.kind == Kind::Directory && location.direct.works.is_none()
    });
    match verdict {
        Verdict::NoIoUring => format!("annulus doctor{path}"),
        _ if is_closed => {
            "annulus bench file --dir DIR, with a folder that you can write in".into()
        }
        _ => format!("annulus bench file{path}"),
    }
}
