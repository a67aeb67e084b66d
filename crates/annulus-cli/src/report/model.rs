//! What a report tells, whatever was measured: made from the JSON of `bench file` or `bench net`.

use annulus_baselines::slices::SLICES_MAX;

use crate::bench::stats::Spread;
use crate::bench::timeline::Timeline;

/// One comparison, ready to be told.
pub(crate) struct Comparison {
    /// `file` or `net`: two of one kind can be laid side by side.
    pub(crate) kind: &'static str,
    /// What was measured, in a line.
    pub(crate) title: String,
    pub(crate) verdict: String,
    /// How the answers were checked.
    pub(crate) checks: String,
    pub(crate) warnings: Vec<String>,
    pub(crate) notes: Vec<String>,
    /// The load and the machine: what, and how much of it.
    pub(crate) load: Vec<(&'static str, String)>,
    pub(crate) machine: Vec<(&'static str, String)>,
    pub(crate) command: Vec<String>,
    pub(crate) started_unix_s: u64,
    pub(crate) version: String,
    /// Who was measured, and what each of them is.
    pub(crate) variants: Vec<(String, String)>,
    pub(crate) groups: Vec<Group>,
    /// From when to when a latency goes.
    pub(crate) latency: &'static str,
    /// What an answer is called: `ops`, `requests`.
    pub(crate) unit: &'static str,
    /// Why there are no calls over time, if there never are.
    pub(crate) no_calls: Option<&'static str>,
    pub(crate) json: Embedded,
}

/// The JSON for a page.
pub(crate) struct Embedded {
    pub(crate) text: String,
    /// N slices a run were kept, if not all.
    pub(crate) slices: Option<usize>,
}

/// What can be compared directly: one depth, or one number of connections and size.
pub(crate) struct Group {
    pub(crate) title: String,
    pub(crate) headings: Vec<(&'static str, &'static str)>,
    pub(crate) rows: Vec<Vec<String>>,
    /// What belongs to rows: reasons, notes.
    pub(crate) remarks: Vec<String>,
    pub(crate) variants: Vec<VariantRuns>,
}

/// One variant within a group, with all of its repeats.
pub(crate) struct VariantRuns {
    pub(crate) name: String,
    /// The harness itself: it is in tables, not in pictures.
    pub(crate) null: bool,
    /// Answers a second over the repeats.
    pub(crate) speed: Option<Spread>,
    pub(crate) samples: usize,
    pub(crate) p99_us: Option<f64>,
    pub(crate) repeats: Vec<Repeat>,
}

/// One run.
pub(crate) struct Repeat {
    /// Its index in the JSON's list of runs.
    pub(crate) run: usize,
    pub(crate) number: usize,
    pub(crate) per_second: f64,
    pub(crate) timeline: Option<Timeline>,
}

impl Comparison {
    /// A variant's number, the same in every picture.
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
    /// Its repeats in the order of how near their speed is to the median: the typical one first.
    pub(crate) fn typical_first(&self) -> Vec<&Repeat> {
        let middle = self.speed.map_or(0.0, |speed| speed.median);
        let mut repeats: Vec<&Repeat> = self.repeats.iter().collect();
        repeats.sort_by(|a, b| {
            let far = |repeat: &Repeat| (repeat.per_second - middle).abs();
            far(a).total_cmp(&far(b)).then(a.number.cmp(&b.number))
        });
        repeats
    }

    /// The timeline of the typical repeat.
    pub(crate) fn timeline(&self) -> Option<&Timeline> {
        let typical = self.typical_first().into_iter().next()?;
        typical.timeline.as_ref()
    }
}

impl Group {
    /// Who is drawn.
    pub(crate) fn drawn(&self) -> impl Iterator<Item = &VariantRuns> {
        self.variants
            .iter()
            .filter(|variant| !variant.null && variant.timeline().is_some())
    }
}

/// A report that can be made smaller by keeping fewer slices of each timeline.
pub(crate) fn embed(
    budget_bytes: usize,
    text: impl Fn(Option<usize>) -> serde_json::Result<String>,
) -> serde_json::Result<Embedded> {
    let mut slices = None;
    loop {
        let whole = text(slices)?;
        // Half the slices are about half the bytes; a run has no more than SLICES_MAX.
        let halvings = (whole.len() / budget_bytes.max(1)).checked_ilog2();
        let next = slices.unwrap_or(SLICES_MAX as usize) >> (halvings.unwrap_or(0) + 1);
        if whole.len() <= budget_bytes || next == 0 {
            return Ok(Embedded {
                text: whole,
                slices,
            });
        }
        slices = Some(next);
    }
}

/// Bytes for people.
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
