//! System calls that were counted, by name.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Stands for all names that were not asked for.
pub(super) const OTHERS: &str = "(others)";

/// All calls of some processes for a while.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Counted {
    /// Who counted.
    pub(crate) by: &'static str,
    pub(crate) all: u64,
    /// By falling number; what is missing of `all` has names that were not asked for.
    pub(crate) names: Vec<(String, u64, u64)>,
}

impl Counted {
    pub(crate) fn new(by: &'static str, all: u64, mut names: Vec<(String, u64, u64)>) -> Counted {
        names.retain(|(_, count, _)| *count > 0);
        names.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
        Counted { by, all, names }
    }

    /// The same for N operations; calls of other names are one entry among them.
    pub(crate) fn per_op(&self, ops: u64) -> Vec<Calls> {
        let named: u64 = self.names.iter().map(|(_, count, _)| count).sum();
        let mut names = self.names.clone();
        names.push((OTHERS.to_string(), self.all.saturating_sub(named), 0));
        (Counted::new(self.by, self.all, names).names.into_iter())
            .map(|(name, count, errors)| Calls {
                name,
                count,
                per_op: count as f64 / ops.max(1) as f64,
                errors,
            })
            .collect()
    }
}

/// Calls of one name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Calls {
    pub(crate) name: String,
    pub(crate) count: u64,
    pub(crate) per_op: f64,
    /// How many of them were answered by an error; operations on a ring have theirs in completions, not here.
    pub(crate) errors: u64,
}
