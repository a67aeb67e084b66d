//! The rules, a table for each subject. docs/reference/doctor.md has each with its threshold and where that comes from.

mod figures;
mod limits;
mod location;
mod machine;
mod refused;

use super::advice::Rule;

/// All of them.
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
