//! The JSON of `annulus bench all`. Its schema is `schema/bench-all.json`.

use serde::Serialize;

use crate::bench::file::json::Report as FileReport;
use crate::bench::machine::Machine;
use crate::bench::net::json::Report as NetReport;
use crate::bench::output::Header;

/// The version of the format.
pub(crate) const VERSION: u32 = 1;

/// All parts of one `annulus bench all`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Report {
    #[serde(flatten)]
    pub(crate) header: Header,
    /// The duration of all parts.
    pub(crate) seconds: f64,
    pub(crate) machine: Machine,
    /// `true` with `--short`: the runs are too short for a conclusion.
    pub(crate) short: bool,
    /// `true` if a signal ended the benchmark early.
    pub(crate) interrupted: bool,
    pub(crate) parts: Vec<PartReport>,
}

/// The result of one part.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct PartReport {
    pub(crate) name: String,
    pub(crate) seconds: f64,
    /// The number of processors, for a part of the scaling over processors.
    pub(crate) processors: Option<usize>,
    /// `true` if a run failed.
    pub(crate) failed: bool,
    /// The reason why it has no results, or not all of them.
    pub(crate) reason: Option<String>,
    /// The results of `bench file`.
    pub(crate) files: Option<FileReport>,
    /// The results of `bench net`.
    pub(crate) network: Option<NetReport>,
}

impl PartReport {
    /// Returns the verdict, or the reason why there is none.
    pub(crate) fn verdict(&self) -> &str {
        let files = self.files.as_ref().map(|report| report.verdict.as_str());
        let network = self.network.as_ref().map(|report| report.verdict.as_str());
        files
            .or(network)
            .or(self.reason.as_deref())
            .unwrap_or("not measured")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_in_the_repository_is_that_of_all_parts() {
        crate::bench::output::schema_is_current("bench-all.json", &schemars::schema_for!(Report));
    }
}
