//! The rules, one table per subject. docs/reference/doctor.md lists each rule with its threshold and the reason.

mod figures;
mod limits;
mod location;
mod machine;
mod refused;

use super::advice::Rule;
pub(super) use figures::us;

/// Returns all rules.
pub(crate) fn all() -> impl Iterator<Item = &'static Rule> {
    [
        refused::RULES,
        limits::RULES,
        machine::RULES,
        location::RULES,
        figures::RULES,
    ]
    .into_iter()
    .flatten()
}
