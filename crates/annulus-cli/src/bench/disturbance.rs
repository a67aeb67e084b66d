//! The rule for disturbed measurements, which all benchmarks and `annulus doctor` share.
//!
//! Ratios are taken within a repeat, and a verdict is about their median. It holds if more than half of the repeats
//! were undisturbed. Otherwise the figures are shown without a verdict.

use std::collections::BTreeMap;

/// Processors used by others, or withheld by the hypervisor, from which a run counts as disturbed. The kernel's own
/// work stays below.
const SHARE_MAX: f64 = 0.3;

/// Returns whether a run was disturbed. Both shares are processors, on average over the run.
pub(crate) fn is_disturbed(others_busy: f64, stolen: f64) -> bool {
    others_busy > SHARE_MAX || stolen > SHARE_MAX
}

/// A run with figures, and the processors that it did not get.
#[derive(Clone, Debug)]
pub(crate) struct RunShares {
    /// The depth, or the connections and the size, as in the heading of the table.
    pub(crate) cell: String,
    pub(crate) repeat: usize,
    pub(crate) variant: String,
    pub(crate) others_busy: f64,
    pub(crate) stolen: f64,
}

impl RunShares {
    fn is_disturbed(&self) -> bool {
        is_disturbed(self.others_busy, self.stolen)
    }

    fn worst(&self) -> f64 {
        self.others_busy.max(self.stolen)
    }
}

/// Returns the warning about disturbed runs, with the worst one. `remedy` names the option for more repeats.
pub(crate) fn warning(runs: &[RunShares], remedy: &str) -> Option<String> {
    let hit: Vec<&RunShares> = runs.iter().filter(|run| run.is_disturbed()).collect();
    let worst = hit.iter().max_by(|a, b| a.worst().total_cmp(&b.worst()))?;
    Some(format!(
        "{} of {} runs were disturbed (worst: {}, {}, repeat {}: other processes or the kernel used {:.1} and the \
         hypervisor withheld {:.1} of a processor): stop other work, or use {remedy}",
        hit.len(),
        runs.len(),
        worst.variant,
        worst.cell,
        worst.repeat,
        worst.others_busy,
        worst.stolen
    ))
}

/// Returns the reason why a cell gets no verdict: at least half of its repeats were disturbed.
fn withheld(runs: &[RunShares], cell: &str) -> Option<String> {
    let mut repeats: BTreeMap<usize, bool> = BTreeMap::new();
    for run in runs.iter().filter(|run| run.cell == cell) {
        *repeats.entry(run.repeat).or_default() |= run.is_disturbed();
    }
    let hit = repeats.values().filter(|disturbed| **disturbed).count();
    (hit > 0 && hit * 2 >= repeats.len()).then(|| {
        format!(
            "{hit} of {} repeats with {cell} were disturbed",
            repeats.len()
        )
    })
}

/// Returns the name of the cell of a depth.
pub(crate) fn depth_cell(depth: usize) -> String {
    format!("depth {depth}")
}

/// Returns the verdict on cells with their clauses. A cell whose runs were disturbed gets none.
pub(crate) fn verdict(
    runs: &[RunShares],
    cells: impl Iterator<Item = (String, Option<String>)>,
) -> String {
    let (mut clauses, mut withheld_reasons) = (Vec::new(), Vec::new());
    for (cell, clause) in cells {
        match withheld(runs, &cell) {
            // A cell may have several clauses.
            Some(why) if withheld_reasons.contains(&why) => {}
            Some(why) => withheld_reasons.push(why),
            None => clauses.extend(clause),
        }
    }
    sentence(&clauses, &withheld_reasons)
}

/// Returns the verdict on all cells: a sentence with the clauses, and one with the reasons of the cells without a
/// clause.
fn sentence(clauses: &[String], withheld: &[String]) -> String {
    let mut text = match (clauses, withheld) {
        ([], []) => return "Verdict: nothing could be compared.".into(),
        ([], _) => String::new(),
        _ => format!("Verdict: {}.", clauses.join("; ")),
    };
    if !withheld.is_empty() {
        let space = if text.is_empty() { "" } else { " " };
        text += &format!("{space}No verdict: {}.", withheld.join("; "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(cell: &str, repeat: usize, others_busy: f64, stolen: f64) -> RunShares {
        RunShares {
            cell: cell.into(),
            repeat,
            variant: "annulus".into(),
            others_busy,
            stolen,
        }
    }

    #[test]
    fn a_cell_gets_a_verdict_if_more_than_half_of_its_repeats_were_undisturbed() {
        let mut runs = vec![
            run("depth 8", 1, 0.9, 0.0),
            run("depth 8", 1, 0.0, 0.0),
            run("depth 8", 2, 0.1, 0.1),
            run("depth 8", 3, 0.0, 0.0),
            run("depth 32", 1, 0.0, 0.0),
        ];
        assert_eq!(withheld(&runs, "depth 8"), None);
        assert_eq!(withheld(&runs, "depth 32"), None);
        runs.push(run("depth 8", 3, 0.0, 0.5));
        let why = withheld(&runs, "depth 8").unwrap();
        assert_eq!(why, "2 of 3 repeats with depth 8 were disturbed");
        assert_eq!(withheld(&runs, "depth 32"), None);
        let text = warning(&runs, "--repeat 9").unwrap();
        assert!(
            text.starts_with("2 of 6 runs were disturbed (worst: annulus, depth 8, repeat 1"),
            "{text}"
        );
        assert_eq!(warning(&runs[1..2], "--repeat 9"), None);
    }

    #[test]
    fn cells_without_a_verdict_are_named_beside_those_with_one() {
        let text = |clauses: &[&str], withheld: &[&str]| {
            let owned =
                |list: &[&str]| -> Vec<String> { list.iter().map(|&one| one.into()).collect() };
            sentence(&owned(clauses), &owned(withheld))
        };
        assert_eq!(text(&[], &[]), "Verdict: nothing could be compared.");
        assert_eq!(text(&["a", "b"], &[]), "Verdict: a; b.");
        assert_eq!(text(&[], &["c"]), "No verdict: c.");
        assert_eq!(text(&["a"], &["c"]), "Verdict: a. No verdict: c.");
    }
}
