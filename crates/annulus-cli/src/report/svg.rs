//! A heat map as SVG, for the page or as a file.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use maud::{Markup, html};

use super::format::{count, duration, percent_text};
use super::heatmap::{LEVELS, Map, Scale, colour};
use super::model::{Comparison, Repeat, VariantRuns};
use crate::bench::timeline::Timeline;

/// The size of the chart, and the position and the size of the plot within it.
pub(super) const WIDTH: f64 = 400.0;
pub(super) const HEIGHT: f64 = 232.0;
pub(super) const LEFT: f64 = 48.0;
pub(super) const TOP: f64 = 10.0;
pub(super) const PLOT_WIDTH: f64 = 344.0;
pub(super) const PLOT_HEIGHT: f64 = 202.0;

/// The position of a run in the page's JSON, for the script.
#[derive(Clone, Copy)]
pub(super) struct DataRef {
    pub(super) comparison: usize,
    pub(super) run: usize,
}

/// Draws a map with its axes; `label` is its text alternative.
pub(super) fn heatmap(
    timeline: &Timeline,
    scale: &Scale,
    label: &str,
    data_ref: Option<DataRef>,
) -> Markup {
    let map = Map::of(timeline, scale);
    let Ok(png) = map.png() else {
        return html! { p { "This map could not be drawn." } };
    };
    let picture = format!("data:image/png;base64,{}", STANDARD.encode(png));
    let width = PLOT_WIDTH * map.width;
    html! {
        svg.map viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="img" aria-label=(label)
            data-comparison=[data_ref.map(|data_ref| data_ref.comparison)] data-run=[data_ref.map(|data_ref| data_ref.run)] {
            rect.plot x=(LEFT) y=(TOP) width=(PLOT_WIDTH) height=(PLOT_HEIGHT) fill="#0d1017" {}
            image x=(LEFT) y=(TOP) width=(fine(width)) height=(PLOT_HEIGHT) preserveAspectRatio="none"
                image-rendering="pixelated" href=(picture) {}
            @for ns in scale.marks_ns() {
                (across(TOP + PLOT_HEIGHT * (1.0 - scale.height(ns)), &duration(ns)))
            }
            (time_axis(scale.length_ns))
        }
    }
}

/// Draws a line across the plot, with its value.
pub(super) fn across(y: f64, text: &str) -> Markup {
    let y = fine(y);
    html! {
        line.grid x1=(LEFT) x2=(LEFT + PLOT_WIDTH) y1=(y) y2=(y) stroke="#8a93a3" stroke-opacity="0.35" {}
        text x=(LEFT - 4.0) y=(y) dy="4" text-anchor="end" { (text) }
    }
}

/// Draws the marks of the time axis, in seconds.
pub(super) fn time_axis(length_ns: u64) -> Markup {
    let seconds = length_ns as f64 / 1e9;
    let step = step(seconds);
    let marks: Vec<f64> = (0..=5)
        .map(|nth| f64::from(nth) * step)
        .take_while(|mark| *mark <= seconds * 1.001)
        .collect();
    let last = marks.len().saturating_sub(1);
    html! {
        @for (nth, mark) in marks.iter().enumerate() {
            text x=(fine(LEFT + PLOT_WIDTH * mark / seconds.max(1e-9))) y=(TOP + PLOT_HEIGHT + 15.0)
                text-anchor="middle" { (tenth(*mark)) @if nth == last { " s" } }
        }
    }
}

/// Returns the distance of marks: one, two or five times a power of ten.
pub(super) fn step(whole: f64) -> f64 {
    let rough = whole.max(1e-9) / 4.5;
    let power = 10f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 5.0]
        .into_iter()
        .find(|factor| factor * power >= rough);
    factor.unwrap_or(10.0) * power
}

fn tenth(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

/// Formats a coordinate.
pub(super) fn fine(value: f64) -> String {
    tenth((value * 10.0).round() / 10.0)
}

/// Returns the text alternative of a map.
pub(super) fn alt_text(
    comparison: &Comparison,
    group: &str,
    variant: &VariantRuns,
    repeat: &Repeat,
) -> String {
    let Some(timeline) = &repeat.timeline else {
        return String::new();
    };
    let latency_counts = timeline.latency_counts();
    let at = |quantile| {
        latency_counts
            .quantile_ns(quantile)
            .map_or("–".into(), duration)
    };
    let speeds = || {
        let whole = timeline
            .slices()
            .filter(|slice| slice.length_ns == timeline.slice_ns);
        whole.map(|slice| slice.completions as f64 * 1e9 / slice.length_ns as f64)
    };
    let slowest = speeds().fold(f64::INFINITY, f64::min);
    let errors: u64 = timeline.errors.iter().sum();
    let mut text = format!(
        "Heat map of {}, {group}, repeat {}: {} {} in {}; half took at most {}, {} at most {}, the longest {}",
        variant.name,
        repeat.number,
        count(latency_counts.count() as f64),
        comparison.unit,
        duration(timeline.length_ns),
        at(0.5),
        percent_text(0.99),
        at(0.99),
        at(1.0),
    );
    if slowest.is_finite() {
        let fastest = speeds().fold(0.0, f64::max);
        text += &format!(
            "; between {} and {} per second",
            count(slowest),
            count(fastest)
        );
    }
    if errors > 0 {
        text += &format!("; {errors} errors");
    }
    text + "."
}

/// Draws the legend of the colours.
pub(super) fn legend(scale: &Scale, unit: &str) -> Markup {
    const CELL: f64 = 12.0;
    let width = CELL * LEVELS as f64;
    let mark = |share: f64| count(scale.per_second_at(share));
    let label = format!(
        "Colours: from dark, {} {unit} per second in a cell, to bright, {}; an empty cell has no colour.",
        mark(0.0),
        mark(1.0)
    );
    html! {
        svg.legend viewBox={ "0 0 " (width + 8.0) " 40" } role="img" aria-label=(label) {
            @for level in 1..=LEVELS {
                rect x=(4.0 + CELL * (level - 1) as f64) y="2" width=(CELL) height="14"
                    fill=(hex(colour(level as u8))) {}
            }
            @for (share, anchor) in [(0.0, "start"), (0.5, "middle"), (1.0, "end")] {
                text x=(fine(4.0 + width * share)) y="32" text-anchor=(anchor) {
                    (mark(share)) @if share == 1.0 { "/s" }
                }
            }
        }
    }
}

fn hex(rgb: [u8; 3]) -> String {
    format!("#{:02x}{:02x}{:02x}", rgb[0], rgb[1], rgb[2])
}

/// Draws all maps as a file: a row per variant, with its repeats side by side.
pub(super) fn document(comparison: &Comparison, scale: &Scale) -> String {
    const GAP: f64 = 16.0;
    const HEAD: f64 = 44.0;
    let rows: Vec<(String, Vec<(&VariantRuns, &Repeat)>)> = (comparison.groups.iter())
        .flat_map(|group| {
            group.drawn().map(|variant| {
                let repeats = variant
                    .repeats
                    .iter()
                    .filter(|repeat| repeat.timeline.is_some());
                (
                    group.title.clone(),
                    repeats.map(|repeat| (variant, repeat)).collect(),
                )
            })
        })
        .collect();
    let most = rows
        .iter()
        .map(|(_, repeats)| repeats.len())
        .max()
        .unwrap_or(0);
    let (across, down) = (WIDTH + GAP, HEIGHT + HEAD);
    let (width, height) = (GAP + across * most as f64, 110.0 + down * rows.len() as f64);
    let body = html! {
        svg xmlns="http://www.w3.org/2000/svg" width=(width) height=(height)
            viewBox={ "0 0 " (width) " " (height) } font-family="system-ui, sans-serif" font-size="12"
            fill="#1b1f27" {
            title { "Latency heat maps: " (comparison.title) }
            rect width="100%" height="100%" fill="#ffffff" {}
            text x=(GAP) y="28" font-size="18" font-weight="600" { (comparison.title) }
            text x=(GAP) y="48" { "Latency " (comparison.latency) "; one scale for all" }
            g transform={ "translate(" (GAP) " 60)" } {
                svg width="296" height="40" { (legend(scale, comparison.unit)) }
            }
            @for (nth, (group, repeats)) in rows.iter().enumerate() {
                @for (column, (variant, repeat)) in repeats.iter().enumerate() {
                    g transform={ "translate(" (GAP + across * column as f64) " " (110.0 + down * nth as f64) ")" } {
                        text y="20" font-weight="600" { (variant.name) ", " (group) ", repeat " (repeat.number) }
                        svg y="28" width=(WIDTH) height=(HEIGHT) {
                            @if let Some(timeline) = &repeat.timeline {
                                (heatmap(timeline, scale, &alt_text(comparison, group, variant, repeat), None))
                            }
                        }
                    }
                }
            }
        }
    };
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{}\n",
        body.into_string()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_marks_at_round_numbers() {
        for (whole, expected) in [
            (1.0, 0.5),
            (0.4, 0.1),
            (60.0, 20.0),
            (3_600.0, 1_000.0),
            (9.0, 2.0),
        ] {
            assert!(
                (step(whole) / expected - 1.0).abs() < 1e-9,
                "{whole}: {}",
                step(whole)
            );
        }
        assert_eq!(
            (fine(12.34), fine(0.0), fine(5.0)),
            ("12.3".into(), "0".into(), "5".into())
        );
    }
}
