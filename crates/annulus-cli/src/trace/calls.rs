//! System-call counts, by name.

use serde::{Deserialize, Serialize};

/// The entry for calls that are not counted by name.
pub(super) const OTHERS: &str = "(others)";

/// The system calls of a group of processes while a tracer was attached.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Counted {
    pub(crate) all: u64,
    /// Name, calls and failed calls, most frequent first. The rest of `all` are calls that are not counted by name.
    pub(crate) names: Vec<(String, u64, u64)>,
}

impl Counted {
    pub(crate) fn new(all: u64, mut names: Vec<(String, u64, u64)>) -> Counted {
        names.retain(|(_, count, _)| *count > 0);
        names.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
        Counted { all, names }
    }

    /// Returns the counts per operation, for `ops` operations. Calls that are not counted by name form one entry,
    /// `(others)`.
    pub(crate) fn per_op(&self, ops: u64) -> Vec<Calls> {
        let named: u64 = self.names.iter().map(|(_, count, _)| count).sum();
        let mut names = self.names.clone();
        names.push((OTHERS.to_string(), self.all.saturating_sub(named), 0));
        (Counted::new(self.all, names).names.into_iter())
            .map(|(name, count, errors)| Calls {
                name,
                count,
                per_op: count as f64 / ops.max(1) as f64,
                errors,
            })
            .collect()
    }
}

/// The calls of one name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Calls {
    pub(crate) name: String,
    pub(crate) count: u64,
    pub(crate) per_op: f64,
    /// Calls that returned an error. Ring operations report errors in completions, which are not counted here.
    pub(crate) errors: u64,
}
