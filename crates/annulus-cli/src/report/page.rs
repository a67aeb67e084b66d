//! The page: a single file that loads nothing, and works without its script.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use maud::{DOCTYPE, Markup, PreEscaped, Render, html};
use sha2::{Digest, Sha256};

use super::compare::{self, Difference};
use super::format::{duration, moment, quoted};
use super::heatmap::Scale;
use super::model::{Comparison, Group, VariantRuns};
use super::svg::{self, DataRef};
use super::{curve, guide};
use crate::bench::output::Header;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
const NO_TIMELINES: &str = "These files have no timelines, so there are no heat maps, no speed over time and no \
    percentile curves. With --timeline, --json keeps timelines.";
const NO_TIMELINES_OF_JOBS: &str =
    "Runs of a job file record no timelines, so there are no heat maps.";
/// The names of two runs.
const NAMES: [&str; 2] = ["A", "B"];

/// Returns the page on one run, or on two.
pub(super) fn page(comparisons: &[Comparison], scale: Option<&Scale>) -> String {
    let title = match comparisons {
        [one] => format!("{} – Annulus", one.title),
        _ => "Two runs compared – Annulus".into(),
    };
    let differences = match comparisons {
        [first, second] => Some(compare::differences(first, second)),
        _ => None,
    };
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            (html_head(&title))
            body {
                a.skip href="#main" { "Skip to the report" }
                (head(comparisons, differences.as_deref()))
                (contents(comparisons, scale.is_some()))
                main id="main" {
                    (tables(comparisons))
                    @if let Some(scale) = scale {
                        (maps(comparisons, scale))
                        (over_time(comparisons, scale))
                        (percentiles(comparisons, scale))
                    } @else {
                        section aria-labelledby="maps" {
                            h2 id="maps" { "Latency over time" }
                            p { @if comparisons[0].kind == "job" { (NO_TIMELINES_OF_JOBS) } @else { (NO_TIMELINES) } }
                        }
                    }
                    @if let (Some(differences), [first, second]) = (&differences, comparisons) {
                        (side_by_side(first, second, differences))
                    }
                    (facts(comparisons))
                    (guide::guide(comparisons))
                    (data(comparisons))
                }
                footer {
                    p { "Created by annulus " (env!("CARGO_PKG_VERSION")) ". This page loads no external resources." }
                }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    };
    page.into_string()
}

/// Returns the `<head>` of a page.
pub(super) fn html_head(title: &str) -> Markup {
    html! {
        head {
            meta charset="utf-8";
            meta http-equiv="Content-Security-Policy" content=(policy());
            meta name="viewport" content="width=device-width, initial-scale=1";
            meta name="color-scheme" content="light dark";
            meta name="referrer" content="no-referrer";
            title { (title) }
            link rel="icon" href="data:,";
            style { (PreEscaped(STYLE)) }
        }
    }
}

/// Returns a policy that allows only the style and the script of the page, by their hashes.
fn policy() -> String {
    let hash = |text: &str| STANDARD.encode(Sha256::digest(text));
    format!(
        "default-src 'none'; img-src data:; style-src 'sha256-{}'; script-src 'sha256-{}'; base-uri 'none'; \
         form-action 'none'",
        hash(STYLE),
        hash(SCRIPT)
    )
}

fn name(comparisons: &[Comparison], nth: usize) -> Option<&'static str> {
    (comparisons.len() > 1).then(|| NAMES[nth.min(1)])
}

fn head(comparisons: &[Comparison], differences: Option<&[Difference]>) -> Markup {
    html! {
        header {
            p.brand { "Annulus " @if comparisons[0].kind == "net" { "bench net" } @else { "bench file" } }
            @if let Some(differences) = differences {
                h1 { "Two runs compared" }
                p.verdict { (compare::sentence(differences)) }
            }
            @for (nth, comparison) in comparisons.iter().enumerate() {
                @if let Some(name) = name(comparisons, nth) {
                    h2 { span.run { (name) } " " (comparison.title) }
                } @else {
                    h1 { (comparison.title) }
                }
                @if !comparison.verdict.is_empty() { p.verdict { (comparison.verdict) } }
                p.checks { (comparison.checks) }
                p.when { (moment(comparison.header.started_unix_s)) }
                (warnings(&comparison.warnings))
                @if !comparison.notes.is_empty() {
                    ul.notes aria-label="Notes" { @for note in &comparison.notes { li { (note) } } }
                }
            }
        }
    }
}

fn contents(comparisons: &[Comparison], drawn: bool) -> Markup {
    let links = [
        ("tables", "Tables"),
        ("maps", "Heat maps"),
        ("time", "Over time"),
        ("percentiles", "Percentiles"),
        ("comparison", "A and B"),
        ("machine", "Machine and command"),
        ("guide", "How to read this"),
        ("data", "Data"),
    ];
    let here = |id: &str| match id {
        "comparison" => comparisons.len() > 1,
        "time" | "percentiles" => drawn,
        _ => true,
    };
    html! {
        nav aria-label="Sections" {
            ul { @for (id, text) in links.iter().filter(|(id, _)| here(id)) { li { a href={ "#" (id) } { (text) } } } }
        }
    }
}

/// Returns the title of a group, after the name of the run if there are two.
fn heading(comparisons: &[Comparison], nth: usize, group: &Group) -> Markup {
    html! { h3 { @if let Some(name) = name(comparisons, nth) { span.run { (name) } " " } (group.title) } }
}

fn tables(comparisons: &[Comparison]) -> Markup {
    html! {
        section aria-labelledby="tables" {
            h2 id="tables" { "Tables" }
            @for (nth, comparison) in comparisons.iter().enumerate() {
                @for group in &comparison.groups {
                    (heading(comparisons, nth, group))
                    (table_of(group))
                }
            }
        }
    }
}

/// Returns the table and the remarks of a group.
pub(super) fn table_of(group: &Group) -> Markup {
    html! {
        @if !group.rows.is_empty() { (table(&group.title, &group.headings, &group.rows)) }
        @if !group.remarks.is_empty() { ul.remarks { @for remark in &group.remarks { li { (remark) } } } }
    }
}

/// Returns a list of warnings, if there are any.
pub(super) fn warnings<T: Render>(list: &[T]) -> Markup {
    html! {
        @if !list.is_empty() {
            ul.warnings aria-label="Warnings" { @for one in list { li { strong { "Warning: " } (one) } } }
        }
    }
}

/// Returns the command of a run, ready for a shell.
pub(super) fn command(header: &Header) -> Markup {
    let words: Vec<String> = header.command.iter().map(|word| quoted(word)).collect();
    html! { pre { code { (words.join(" ")) } } }
}

/// Returns a list of names with their values.
pub(super) fn facts_list<N: Render, V: Render>(facts: &[(N, V)]) -> Markup {
    html! { dl { @for (name, value) in facts { div { dt { (name) } dd { (value) } } } } }
}

/// Returns a table that scrolls sideways, also by keyboard, if it is too wide.
pub(super) fn table(caption: &str, headings: &[(&str, &str)], rows: &[Vec<String>]) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label={ "Table: " (caption) } {
            table {
                caption { (caption) }
                thead { tr { @for (text, meaning) in headings { th scope="col" title=(meaning) { (text) } } } }
                tbody {
                    @for row in rows {
                        tr {
                            @for (nth, cell) in row.iter().enumerate() {
                                @if nth == 0 { th scope="row" { (cell) } } @else { td { (cell) } }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn maps(comparisons: &[Comparison], scale: &Scale) -> Markup {
    html! {
        section aria-labelledby="maps" {
            h2 id="maps" { "Latency over time" }
            p {
                "Each map shows the repeat of a variant whose speed is nearest "
                "to the median: time to the right, latency "
                "upwards, brighter where more operations completed. All maps have one scale. Latency is "
                (comparisons[0].latency) "."
            }
            (svg::legend(scale, comparisons[0].unit))
            div id="maps-of" data-low=(scale.low) data-shift=(scale.shift) data-rows=(scale.rows)
                data-length=(scale.length_ns) {
                @for (nth, comparison) in comparisons.iter().enumerate() {
                    @if !comparison.has_timelines() {
                        p.remarks { (NAMES[nth.min(1)])
                            " has no timelines, so it has no charts: measure again with "
                            "--json FILE --timeline." }
                    }
                    @for group in comparison.groups.iter().filter(|group| group.drawn().next().is_some()) {
                        (heading(comparisons, nth, group))
                        div.maps { @for variant in group.drawn() { (card((nth, comparison), group, variant, scale)) } }
                    }
                }
            }
        }
    }
}

/// Returns a variant's maps: the typical repeat, and the others folded.
fn card(
    (nth, comparison): (usize, &Comparison),
    group: &Group,
    variant: &VariantRuns,
    scale: &Scale,
) -> Markup {
    let repeats = variant.typical_first();
    let map = |index: usize| {
        let repeat = repeats[index];
        let label = svg::alt_text(comparison, &group.title, variant, repeat);
        html! {
            @if let Some(timeline) = &repeat.timeline {
                (svg::heatmap(timeline, scale, &label, Some(DataRef { comparison: nth, run: repeat.run })))
            }
        }
    };
    let summary = |index: usize| {
        let latency_counts = repeats[index]
            .timeline
            .as_ref()
            .map(|timeline| timeline.latency_counts());
        let at = |quantile: f64| {
            let ns = latency_counts
                .as_ref()
                .and_then(|latency_counts| latency_counts.quantile_ns(quantile));
            ns.map_or("–".into(), duration)
        };
        format!(
            "repeat {}: p50 {}, p99 {}, longest {}",
            repeats[index].number,
            at(0.5),
            at(0.99),
            at(1.0)
        )
    };
    html! {
        figure.card {
            (map(0))
            figcaption { strong { (variant.name) } br; (summary(0)) }
            @if repeats.len() > 1 {
                details {
                    summary { "The other repeats of " (variant.name) }
                    @for index in 1..repeats.len() { (map(index)) p { (summary(index)) } }
                }
            }
        }
    }
}

fn over_time(comparisons: &[Comparison], scale: &Scale) -> Markup {
    html! {
        section aria-labelledby="time" {
            h2 id="time" { "Over time" }
            @for (nth, comparison) in comparisons.iter().enumerate() {
                @if let Some(why) = comparison.no_calls { p { "There are no enters over time. " (why) } }
                @for group in comparison.groups.iter().filter(|group| group.drawn().next().is_some()) {
                    (heading(comparisons, nth, group))
                    div.charts {
                        (curve::speed(comparison, group, scale.length_ns))
                        @if let Some(calls) = curve::calls(comparison, group, scale.length_ns) { (calls) }
                    }
                    @let missing = without_calls(group);
                    @if comparison.no_calls.is_none() && !missing.is_empty() {
                        p.remarks {
                            "Not shown, because they do not report the time of their enters: " (missing) "."
                        }
                    }
                }
            }
        }
    }
}

/// Returns the names of variants without calls over time.
fn without_calls(group: &Group) -> String {
    let names: Vec<&str> = (group.drawn())
        .filter(|variant| {
            variant
                .timeline()
                .is_some_and(|timeline| timeline.calls.is_none())
        })
        .map(|variant| variant.name.as_str())
        .collect();
    names.join(", ")
}

fn percentiles(comparisons: &[Comparison], scale: &Scale) -> Markup {
    html! {
        section aria-labelledby="percentiles" {
            h2 id="percentiles" { "Percentiles" }
            p {
                "Latencies from the fastest to the slowest operation: "
                "at 99, 99 of 100 operations took no longer. "
                "Each nine has the same width. Latencies are exact to a sixteenth."
            }
            @for (nth, comparison) in comparisons.iter().enumerate() {
                div.charts {
                    @for group in comparison.groups.iter().filter(|group| group.drawn().next().is_some()) {
                        div { (heading(comparisons, nth, group)) (curve::percentiles(comparison, group, scale)) }
                    }
                }
            }
        }
    }
}

fn side_by_side(first: &Comparison, second: &Comparison, differences: &[Difference]) -> Markup {
    let unlike = compare::unlike(first, second);
    let rows: Vec<Vec<String>> = differences.iter().map(Difference::cells).collect();
    html! {
        section aria-labelledby="comparison" {
            h2 id="comparison" { "A and B" }
            p { (compare::sentence(differences)) }
            @if !unlike.is_empty() {
                p { "The two runs differ in more than their results:" }
                ul.warnings { @for line in &unlike { li { (line) } } }
            }
            @if !rows.is_empty() { (table("A and B", &compare::HEADINGS, &rows)) }
            p {
                "A difference counts if all repeats of one run lie beyond all "
                "of the other and the medians differ by more "
                "than 3 %. Fewer than 3 repeats are not enough. Runs of different hours may differ by "
                "other activity of the machine: compare variants within one run."
            }
        }
    }
}

fn facts(comparisons: &[Comparison]) -> Markup {
    html! {
        section aria-labelledby="machine" {
            h2 id="machine" { "Machine and command" }
            @for (nth, comparison) in comparisons.iter().enumerate() {
                @if let Some(name) = name(comparisons, nth) { h3 { span.run { (name) } " " (comparison.title) } }
                (command(&comparison.header))
                div.facts {
                    div { h3 { "Machine" } (facts_list(&comparison.machine)) }
                    div { h3 { "Load" } (facts_list(&comparison.load)) }
                    div { h3 { "Variants" } (facts_list(&comparison.variants)) }
                }
            }
        }
    }
}

fn data(comparisons: &[Comparison]) -> Markup {
    html! {
        section aria-labelledby="data" {
            h2 id="data" { "Data" }
            p { "The page contains its figures as JSON." }
            @for (nth, comparison) in comparisons.iter().enumerate() {
                @let id = format!("json-{nth}");
                @if let Some(slices) = comparison.json.slices {
                    p.remarks {
                        "To keep the page small, timelines in it have at most " "
                        "(slices) " slices; the file of --json has all of them."
                    }
                }
                p {
                    button.save type="button" hidden data-json=(id) data-name={ "annulus-" (comparison.kind) ".json" } {
                        "Save the JSON" @if let Some(name) = name(comparisons, nth) { " of " (name) }
                    }
                }
                // Only `<` could end the script, and JSON has it in strings only.
                script type="application/json" id=(id) { (PreEscaped(comparison.json.text.replace('<', "\\u003c"))) }
            }
        }
    }
}
