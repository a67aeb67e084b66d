//! Line charts: speed and calls over time, and latency percentiles, with a line per variant.
//!
//! Variants are distinguished by colour and dashes, and a list below each chart names them.

use maud::{Markup, html};

use super::format::{count, duration, percent_text};
use super::heatmap::Scale;
use super::model::{Comparison, Group, VariantRuns};
use super::svg::{
    HEIGHT, LEFT, PLOT_HEIGHT, PLOT_WIDTH, TOP, WIDTH, across, fine, step, time_axis,
};
use crate::bench::timeline::{LatencyCounts, Slice, Timeline};

/// The number of combinations of colour and dashes; the style sheet has a class for each.
const STYLES: usize = 24;
/// The most points of a line; more would not be distinguishable at this size.
const POINTS_MAX: usize = 120;
/// The marked percentiles.
const MARKED: [f64; 6] = [0.0, 0.5, 0.9, 0.99, 0.999, 0.9999];
/// The number of nines that are drawn: up to 99.99 %.
const NINES_MAX: f64 = 4.0;
/// The distance of points, in nines.
const NINES_STEP: f64 = 0.05;

/// A line in the coordinates of the chart from 0 to 1, with gaps.
struct Line {
    name: String,
    style: usize,
    points: Vec<Option<(f64, f64)>>,
    label: String,
}

/// Draws completions per second over time.
pub(super) fn speed(comparison: &Comparison, group: &Group, length_ns: u64) -> Markup {
    let per_second =
        |slice: &Slice| Some(slice.completions as f64 * 1e9 / slice.length_ns.max(1) as f64);
    let series = over_time(comparison, group, per_second);
    let caption = format!("{} per second over time", comparison.unit);
    plot_over_time(&caption, group, series, length_ns)
}

/// Draws calls per completion over time, for variants that report the time of their calls.
pub(super) fn calls(comparison: &Comparison, group: &Group, length_ns: u64) -> Option<Markup> {
    let per_completion = |slice: &Slice| match slice.completions {
        0 => None,
        completions => Some(slice.calls? as f64 / completions as f64),
    };
    let series: Vec<Series> = over_time(comparison, group, per_completion)
        .into_iter()
        .filter(|series| series.values.iter().any(|(_, value)| value.is_some()))
        .collect();
    let caption = format!(
        "enters (calls that submit or wait) per {} over time",
        one(comparison.unit)
    );
    (!series.is_empty()).then(|| plot_over_time(&caption, group, series, length_ns))
}

fn one(unit: &str) -> &str {
    match unit {
        "ops" => "operation",
        _ => "request",
    }
}

struct Series {
    name: String,
    style: usize,
    /// The time in ns, and the value.
    values: Vec<(f64, Option<f64>)>,
}

fn over_time(
    comparison: &Comparison,
    group: &Group,
    value: impl Fn(&Slice) -> Option<f64>,
) -> Vec<Series> {
    let series = |variant: &VariantRuns, timeline: &Timeline| {
        let coarse = timeline.coarser(POINTS_MAX);
        // A short slice at the end is omitted, because its rate could be a spike.
        let whole = coarse
            .slices()
            .filter(|slice| slice.length_ns * 2 >= coarse.slice_ns);
        Series {
            name: variant.name.clone(),
            style: comparison.number(&variant.name) % STYLES,
            values: whole
                .map(|slice| {
                    (
                        slice.from_ns as f64 + slice.length_ns as f64 / 2.0,
                        value(&slice),
                    )
                })
                .collect(),
        }
    };
    group
        .drawn()
        .filter_map(|variant| Some(series(variant, variant.timeline()?)))
        .collect()
}

fn plot_over_time(caption: &str, group: &Group, series: Vec<Series>, length_ns: u64) -> Markup {
    let values = || {
        series
            .iter()
            .flat_map(|series| series.values.iter().filter_map(|(_, value)| *value))
    };
    let most = values().fold(0.0, f64::max);
    let step = step(most);
    let top = (most / step * 1.02).ceil().max(1.0) * step;
    let lines = series
        .into_iter()
        .map(|series| {
            let values: Vec<f64> = series
                .values
                .iter()
                .filter_map(|(_, value)| *value)
                .collect();
            let low = values.iter().copied().fold(f64::INFINITY, f64::min);
            let high = values.iter().copied().fold(0.0, f64::max);
            let point = |(at, value): &(f64, Option<f64>)| {
                value.map(|value| (at / length_ns.max(1) as f64, value / top))
            };
            Line {
                points: series.values.iter().map(point).collect(),
                label: format!("{} from {} to {}", series.name, count(low), count(high)),
                name: series.name,
                style: series.style,
            }
        })
        .collect();
    let marks = (0..=5)
        .map(|nth| f64::from(nth) * step)
        .take_while(|mark| *mark <= top * 1.001)
        .map(|mark| (mark / top, count(mark)))
        .collect();
    plot(
        &format!("{}: {caption}", group.title),
        lines,
        marks,
        time_axis(length_ns),
    )
}

/// Draws latency by percentile; each nine is as wide as the previous one.
pub(super) fn percentiles(comparison: &Comparison, group: &Group, scale: &Scale) -> Markup {
    let lines = group
        .drawn()
        .filter_map(|variant| {
            let latency_counts = variant.timeline()?.latency_counts();
            Some(percentile_line(
                &variant.name,
                comparison.number(&variant.name) % STYLES,
                &latency_counts,
                scale,
            ))
        })
        .collect();
    let marks = (scale.marks_ns().iter())
        .map(|ns| (scale.height(*ns), duration(*ns)))
        .collect();
    let axis = html! {
        @for (nth, share) in MARKED.iter().enumerate() {
            @let x = fine(LEFT + PLOT_WIDTH * nines(*share) / NINES_MAX);
            @if nth > 0 {
                line.grid x1=(x) x2=(x) y1=(TOP) y2=(TOP + PLOT_HEIGHT) {}
            }
            text x=(x) y=(TOP + PLOT_HEIGHT + 15.0) text-anchor="middle" {
                (percent_text(*share).trim_end_matches(" %"))
                @if nth + 1 == MARKED.len() { " %" }
            }
        }
    };
    plot(
        &format!("{}: latency by percentile", group.title),
        lines,
        marks,
        axis,
    )
}

fn nines(share: f64) -> f64 {
    -(1.0 - share).log10()
}

fn percentile_line(
    name: &str,
    style: usize,
    latency_counts: &LatencyCounts,
    scale: &Scale,
) -> Line {
    // Higher percentiles would all be the longest latency.
    let known = (latency_counts.count().max(1) as f64)
        .log10()
        .min(NINES_MAX);
    let steps = (known / NINES_STEP) as usize;
    let point = |step: usize| {
        let nines = step as f64 * NINES_STEP;
        let ns = latency_counts.quantile_ns(1.0 - 10f64.powf(-nines))?;
        Some((nines / NINES_MAX, scale.height(ns)))
    };
    let percentiles = MARKED[1..]
        .iter()
        .filter(|share| nines(**share) <= known)
        .filter_map(|share| {
            let ns = latency_counts.quantile_ns(*share)?;
            Some(format!("{} {}", percent_text(*share), duration(ns)))
        });
    Line {
        name: name.to_string(),
        style,
        points: (0..=steps).map(point).collect(),
        label: format!("{name} {}", percentiles.collect::<Vec<_>>().join(", ")),
    }
}

fn plot(caption: &str, lines: Vec<Line>, marks: Vec<(f64, String)>, axis: Markup) -> Markup {
    let label: Vec<&str> = lines.iter().map(|line| line.label.as_str()).collect();
    let label = format!("Lines: {caption}. {}.", label.join("; "));
    html! {
        figure.chart {
            svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="img" aria-label=(label) {
                rect.paper x=(LEFT) y=(TOP) width=(PLOT_WIDTH) height=(PLOT_HEIGHT) {}
                @for (height, text) in &marks { (across(TOP + PLOT_HEIGHT * (1.0 - height), text)) }
                (axis)
                @for line in &lines {
                    path class={ "line s" (line.style) } d=(path(&line.points)) {
                        title { (line.name) }
                    }
                }
            }
            figcaption { (caption) }
            ul.key {
                @for line in &lines {
                    li {
                        svg viewBox="0 0 28 8" aria-hidden="true" {
                            path class={ "line s" (line.style) } d="M0 4h28" {}
                        }
                        (line.name)
                    }
                }
            }
        }
    }
}

fn path(points: &[Option<(f64, f64)>]) -> String {
    let (mut text, mut down) = (String::new(), false);
    for point in points {
        let Some((x, y)) = point else {
            down = false;
            continue;
        };
        text.push(if down { 'L' } else { 'M' });
        text += &fine(LEFT + PLOT_WIDTH * x.clamp(0.0, 1.0));
        text.push(' ');
        text += &fine(TOP + PLOT_HEIGHT * (1.0 - y.clamp(0.0, 1.0)));
        down = true;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_in_a_line_is_a_gap() {
        let points = [Some((0.0, 0.0)), Some((0.5, 1.0)), None, Some((1.0, 0.5))];
        assert_eq!(path(&points), "M48 212L220 10M392 111");
    }

    #[test]
    fn every_nine_is_as_wide_as_the_one_before() {
        assert!((nines(0.9) - 1.0).abs() < 1e-9 && (nines(0.999) - 3.0).abs() < 1e-9);
    }
}
