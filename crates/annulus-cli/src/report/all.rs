//! The page of `annulus bench all`: the machine, an overview, the scaling over processors, and the tables of each part.

use maud::{DOCTYPE, Markup, html};

use super::files::machine_facts;
use super::format::moment;
use super::model::Comparison;
use super::page::{command, facts_list, html_head, table, table_of, warnings};
use crate::bench::all::json::{PartReport, Report};
use crate::bench::numbers::grouped;

/// The columns of the table of scaling.
const SCALING: [(&str, &str); 4] = [
    ("part", "the part"),
    (
        "processors",
        "the processors of the servers or of the reading threads",
    ),
    ("variant", "the variant"),
    (
        "operations/s (min–max)",
        "operations or requests per second; median over the repeats, and the extremes",
    ),
];

/// Returns the page. `comparisons` has an entry for each part.
pub(super) fn page(report: &Report, comparisons: &[Option<Comparison>]) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            (html_head(&format!("Annulus on {}", report.machine.line())))
            body {
                a.skip href="#main" { "Skip to the report" }
                (head(report))
                main id="main" {
                    (overview(report))
                    (scaling(report))
                    @for (nth, (part, comparison)) in report.parts.iter().zip(comparisons).enumerate() {
                        (section(nth, part, comparison.as_ref()))
                    }
                }
                footer {
                    p { "Created by annulus " (report.header.annulus) ". This page loads no external resources." }
                }
            }
        }
    };
    page.into_string()
}

fn head(report: &Report) -> Markup {
    let warned = [
        (
            report.short,
            "made with --short: the runs are too short for a conclusion",
        ),
        (report.interrupted, "interrupted: parts are missing"),
    ];
    let warned = warned.into_iter().filter(|(holds, _)| *holds);
    let warned: Vec<&str> = warned.map(|(_, text)| text).collect();
    html! {
        header {
            p.brand { "Annulus bench all" }
            h1 { (report.machine.line()) }
            p.when { (moment(report.header.started_unix_s)) ", " (format!("{:.0}", report.seconds)) " s" }
            (warnings(&warned))
            (command(&report.header))
            (facts_list(&machine_facts(&report.machine)))
        }
    }
}

fn overview(report: &Report) -> Markup {
    html! {
        section aria-labelledby="overview" {
            h2 id="overview" { "Verdicts" }
            p {
                "Ratios are taken within one repeat. A ratio is level if its extremes lie on both sides of 1. A part gets no "
                "verdict if half of its repeats were disturbed by other work."
            }
            ul {
                @for (nth, part) in report.parts.iter().enumerate() {
                    li { a href={ "#part-" (nth) } { (part.name) } ": " (part.verdict()) }
                }
            }
        }
    }
}

/// Returns the speeds of all parts that differ in their number of processors.
fn scaling(report: &Report) -> Markup {
    let rows: Vec<Vec<String>> = report.parts.iter().flat_map(rows_of).collect();
    html! {
        @if !rows.is_empty() {
            section aria-labelledby="scaling" {
                h2 id="scaling" { "Scaling over processors" }
                (table("Scaling over processors", &SCALING, &rows))
            }
        }
    }
}

fn rows_of(part: &PartReport) -> Vec<Vec<String>> {
    let Some(processors) = part.processors else {
        return Vec::new();
    };
    let kind = part.name.split(',').next().unwrap_or_default();
    let files = part.files.iter().flat_map(|report| {
        let rows = report.rows.iter();
        rows.filter_map(|row| Some((&row.variant, row.medians.as_ref()?.ops_per_second)))
    });
    let network = part.network.iter().flat_map(|report| {
        let rows = report.rows.iter();
        rows.filter_map(|row| Some((&row.variant, row.medians.as_ref()?.requests_per_second)))
    });
    files
        .chain(network)
        .map(|(variant, speed)| {
            let (median, min, max) = (
                grouped(speed.median),
                grouped(speed.min),
                grouped(speed.max),
            );
            vec![
                kind.to_owned(),
                processors.to_string(),
                variant.clone(),
                format!("{median} ({min}–{max})"),
            ]
        })
        .collect()
}

fn section(nth: usize, part: &PartReport, comparison: Option<&Comparison>) -> Markup {
    let id = format!("part-{nth}");
    html! {
        section aria-labelledby=(id) {
            h2 id=(id) { (part.name) }
            @if let Some(comparison) = comparison {
                p { (comparison.title) }
                p.verdict { (comparison.verdict) }
                p.checks { (comparison.checks) }
                (warnings(&comparison.warnings))
                @if let Some(reason) = &part.reason { p.remarks { (reason) } }
                @for group in &comparison.groups {
                    h3 { (group.title) }
                    (table_of(group))
                }
                details {
                    summary { "Command, load and variants" }
                    (command(&comparison.header))
                    (facts_list(&comparison.load))
                    (facts_list(&comparison.variants))
                }
            } @else {
                p.remarks { (part.verdict()) }
            }
        }
    }
}
