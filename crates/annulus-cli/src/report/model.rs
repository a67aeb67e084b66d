//! The contents of a report, from the JSON of `bench file` or `bench net`.

use annulus_baselines::slices::SLICES_MAX;

use crate::bench::output::{Figures, Header};
use crate::bench::spread::Spread;
use crate::bench::timeline::Timeline;

/// A comparison, prepared for a report.
pub(crate) struct Comparison {
    /// `file`, `net` or `job`. Two comparisons of the same kind can be shown side by side.
    pub(crate) kind: &'static str,
    /// The load in one line.
    pub(crate) title: String,
    pub(crate) verdict: String,
    /// A line on the checks of the data.
    pub(crate) checks: String,
    pub(crate) warnings: Vec<String>,
    pub(crate) notes: Vec<String>,
    /// Names and values of the load; `machine` has those of the machine.
    pub(crate) load: Vec<(&'static str, String)>,
    pub(crate) machine: Vec<(&'static str, String)>,
    pub(crate) header: Header,
    /// The name and the description of each variant.
    pub(crate) variants: Vec<(String, String)>,
    pub(crate) groups: Vec<Group>,
    /// The definition of a latency.
    pub(crate) latency: &'static str,
    /// The unit of completions: `ops`, `requests`.
    pub(crate) unit: &'static str,
    /// The reason why there are no calls over time, if there never are.
    pub(crate) no_calls: Option<&'static str>,
    pub(crate) json: Embedded,
}

/// The JSON that a page contains.
pub(crate) struct Embedded {
    pub(crate) text: String,
    /// The number of slices per run that were kept, if not all.
    pub(crate) slices: Option<usize>,
}

/// The variants that are compared directly: at one depth, or with one number of connections and one size.
pub(crate) struct Group {
    pub(crate) title: String,
    pub(crate) headings: Vec<(&'static str, &'static str)>,
    pub(crate) rows: Vec<Vec<String>>,
    /// Reasons and notes of the rows.
    pub(crate) remarks: Vec<String>,
    pub(crate) variants: Vec<VariantRuns>,
}

/// A variant within a group, with all of its repeats.
pub(crate) struct VariantRuns {
    pub(crate) name: String,
    /// The null variant: shown in tables, but not in charts.
    pub(crate) null: bool,
    /// Completions per second over the repeats.
    pub(crate) speed: Option<Spread>,
    pub(crate) samples: usize,
    pub(crate) p99_us: Option<f64>,
    pub(crate) repeats: Vec<Repeat>,
}

/// One run.
pub(crate) struct Repeat {
    /// The index in the JSON's list of runs.
    pub(crate) run: usize,
    pub(crate) number: usize,
    pub(crate) per_second: f64,
    pub(crate) timeline: Option<Timeline>,
}

impl Comparison {
    /// Returns a variant's number, which is the same in every chart.
    pub(crate) fn number(&self, variant: &str) -> usize {
        let matched = self.variants.iter().position(|(name, _)| name == variant);
        matched.unwrap_or(0)
    }
}

impl Comparison {
    /// Returns whether any of its runs has a timeline to draw.
    pub(crate) fn has_timelines(&self) -> bool {
        self.groups
            .iter()
            .any(|group| group.drawn().next().is_some())
    }

    /// Returns whether any run has figures.
    pub(crate) fn has_runs(&self) -> bool {
        let mut variants = self.groups.iter().flat_map(|group| &group.variants);
        variants.any(|variant| !variant.repeats.is_empty())
    }
}

impl VariantRuns {
    /// Returns the repeats by the distance of their speed from the median: the typical one first.
    pub(crate) fn typical_first(&self) -> Vec<&Repeat> {
        let middle = self.speed.map_or(0.0, |speed| speed.median);
        let mut repeats: Vec<&Repeat> = self.repeats.iter().collect();
        repeats.sort_by(|a, b| {
            let far = |repeat: &Repeat| (repeat.per_second - middle).abs();
            far(a).total_cmp(&far(b)).then(a.number.cmp(&b.number))
        });
        repeats
    }

    /// Returns the timeline of the typical repeat.
    pub(crate) fn timeline(&self) -> Option<&Timeline> {
        let typical = self.typical_first().into_iter().next()?;
        typical.timeline.as_ref()
    }
}

impl Group {
    /// Returns the variants with charts.
    pub(crate) fn drawn(&self) -> impl Iterator<Item = &VariantRuns> {
        self.variants
            .iter()
            .filter(|variant| !variant.null && variant.timeline().is_some())
    }
}

/// Formats a report as JSON, with fewer slices per timeline if it exceeds the budget.
pub(crate) fn embed(report: &impl Figures, budget_bytes: usize) -> serde_json::Result<Embedded> {
    let (mut text, mut slices) = (serde_json::to_string(report)?, None);
    loop {
        // Half the slices are about half the bytes; a run has no more than SLICES_MAX.
        let halvings = (text.len() / budget_bytes.max(1)).checked_ilog2();
        let next = slices.unwrap_or(SLICES_MAX as usize) >> (halvings.unwrap_or(0) + 1);
        if text.len() <= budget_bytes || next == 0 {
            return Ok(Embedded { text, slices });
        }
        slices = Some(next);
        let mut smaller = report.clone();
        for timeline in smaller.timelines().flatten() {
            *timeline = timeline.coarser(next);
        }
        text = serde_json::to_string(&smaller)?;
    }
}

/// Formats a number of bytes.
pub(crate) fn bytes(count: u64) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units
        .iter()
        .find(|(unit, _)| count >= *unit && count.is_multiple_of(*unit))
    {
        Some((unit, name)) => format!("{} {name}", count / unit),
        None => format!("{count} bytes"),
    }
}
