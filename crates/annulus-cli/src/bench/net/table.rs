//! The text report: one table per cell, the limiting side of each variant, warnings and the verdict.

use super::json::{Medians, Report, Row, Run};
use super::variants::{NGINX_PRELOAD, reference};
use crate::bench::columns::{remarks, ruled};
use crate::bench::disturbance::{self, RunShares};
use crate::bench::numbers::{grouped, short};
use crate::trace::AtCell;

/// The heading of each column, and its meaning.
const HEADINGS: [(&str, &str); 12] = [
    ("variant", "the server"),
    (
        "requests/s (min–max)",
        "responses per second; median over the repeats, and the extremes",
    ),
    (
        "× epoll (min–max)",
        "speed over that of the server named there in the same repeat, with the extremes",
    ),
    ("p50 µs", "half of the operations took at most N µs"),
    ("p99", "99 of 100 took at most N µs"),
    ("p99.9", "999 of 1,000 took at most N µs"),
    ("max", "the longest latency, µs"),
    (
        "client",
        "processor time of the client's busiest thread; near 100 % the client is the limit",
    ),
    ("server", "processors that the server used"),
    ("CPU µs/req", "processor time of the server per request, µs"),
    (
        "syscalls/req",
        "system calls of the server per request, counted after the measured time",
    ),
    (
        "switches/1000",
        "context switches of the server per 1,000 requests: voluntary and involuntary",
    ),
];
/// The index of the heading that names the reference server.
const RATIO: usize = 2;
/// The CPU time of the busiest thread is not shown if it exceeds this share of the process's CPU time.
const ALONE: f64 = 0.98;
/// The variant that the verdict is about, besides nginx under the preload library.
const ANNULUS: &str = "annulus";

/// Returns the column headings, with their meanings.
pub(crate) fn headings(protocol: &str) -> [(&'static str, &'static str); HEADINGS.len()] {
    let mut headings = HEADINGS;
    if reference(protocol) == "nginx" {
        headings[RATIO].0 = "× nginx (min–max)";
    }
    headings
}

/// Returns all tables, an explanation of the columns, the warnings and the verdict.
pub(crate) fn tables(report: &Report) -> String {
    let mut text = String::new();
    for cell in report.load.cells() {
        let rows = report.rows.iter().filter(|row| row.cell == cell);
        let table = table(&rows.collect::<Vec<_>>(), &report.load.protocol);
        text += &format!("\n{cell}\n{table}");
    }
    text += match report.load.rate {
        Some(_) => "\nlatency: from when a request was due (corrected for coordinated omission)\n",
        None => {
            "\nlatency: from sending, closed loop (not corrected for coordinated omission; --rate is)\n"
        }
    };
    text += "client: processor time of its busiest thread; server: processors used; CPU: of all threads (of the \
             program's busiest, where that is less); switches: voluntary/involuntary\n";
    for warning in &report.warnings {
        text += &format!("warning: {warning}\n");
    }
    text + &report.verdict + "\n"
}

fn table(rows: &[&Row], protocol: &str) -> String {
    let mut lines = vec![headings(protocol).map(|(text, _)| text.to_string())];
    lines.extend(rows.iter().filter_map(|row| cells(row)));
    let named = |row: &Row, text: &String| (row.variant.clone(), text.clone());
    let reasons = rows
        .iter()
        .filter_map(|row| Some(named(row, row.reason.as_ref()?)));
    // One line for each limit, with the names of the variants that have it.
    let limits = rows
        .iter()
        .filter_map(|row| Some(named(row, row.limit.as_ref()?)));
    ruled(&lines) + &remarks(&reasons.chain(limits).collect::<Vec<_>>())
}

pub(crate) fn cells(row: &Row) -> Option<[String; HEADINGS.len()]> {
    let medians = row.medians.as_ref()?;
    let dash = || "–".to_string();
    let percent = |value: f64| format!("{:.0} %", value * 100.0);
    let speed = &medians.requests_per_second;
    let ratio = medians.ratio().map_or_else(dash, |ratio| {
        format!("{:.3} ({:.3}–{:.3})", ratio.median, ratio.min, ratio.max)
    });
    let switches = medians
        .voluntary_switches_per_1000
        .zip(medians.involuntary_switches_per_1000);
    Some([
        row.variant.clone(),
        format!(
            "{} ({}–{})",
            grouped(speed.median),
            grouped(speed.min),
            grouped(speed.max)
        ),
        ratio,
        short(medians.p50_us),
        short(medians.p99_us),
        short(medians.p99_9_us),
        short(medians.max_us),
        percent(medians.client_cpu_share),
        medians.server_cpus.map_or_else(dash, percent),
        processor_time(medians),
        (medians.syscalls_per_request).map_or_else(dash, |calls| format!("{calls:.3}")),
        switches.map_or_else(dash, |(voluntary, involuntary)| {
            format!("{}/{}", short(voluntary), short(involuntary))
        }),
    ])
}

/// Returns the server's CPU time per request, and that of its busiest thread if other threads contribute.
fn processor_time(medians: &Medians) -> String {
    let Some(all) = medians.server_cpu_us_per_request else {
        return "–".into();
    };
    match medians.busiest_thread_us_per_request {
        Some(busiest) if busiest < all * ALONE => format!("{} ({})", short(all), short(busiest)),
        _ => short(all),
    }
}

/// Returns warnings about the validity of the results.
pub(crate) fn warnings(runs: &[Run]) -> Vec<String> {
    let mut warnings = Vec::new();
    let samples = || runs.iter().filter_map(|run| run.sample.as_ref());
    warnings.extend(disturbance::warning(&shares(runs), "more --repeats"));
    let mut notes: Vec<&str> = Vec::new();
    for sample in samples() {
        let server = sample.server.as_ref();
        let note = server.map_or(sample.server_note.as_deref(), |server| {
            server.syscalls_note.as_deref()
        });
        if let Some(note) = note.filter(|note| !notes.contains(note)) {
            notes.push(note);
            let what = if server.is_some() {
                "system calls"
            } else {
                "the server's costs"
            };
            warnings.push(format!("{what}: {note}"));
        }
    }
    warnings
}

/// Returns the verdict: the ratio of Annulus to the reference server, or the results of a single server.
///
/// A cell whose runs were disturbed gets no verdict.
pub(crate) fn verdict(runs: &[Run], rows: &[Row]) -> String {
    let cells = rows.iter().filter_map(|row| {
        let clause = clause(row)?;
        Some((in_words(row.cell), Some(clause)))
    });
    disturbance::verdict(&shares(runs), cells)
}

/// Names a cell within a sentence.
fn in_words(cell: AtCell) -> String {
    cell.to_string().replace(", ", " and ")
}

/// Returns the shares of all runs. Without --pid, those of an external server are unknown, and its runs
/// count as undisturbed.
fn shares(runs: &[Run]) -> Vec<RunShares> {
    let measured = runs.iter().filter_map(|run| Some((run, run.good()?)));
    measured
        .map(|(run, sample)| RunShares {
            cell: in_words(run.cell),
            repeat: run.repeat,
            variant: run.variant.clone(),
            others_busy: sample.others_busy.unwrap_or(0.0),
            stolen: sample.stolen,
        })
        .collect()
}

fn clause(row: &Row) -> Option<String> {
    let medians = row.medians.as_ref()?;
    let cell = in_words(row.cell);
    let reference = match medians.ratio_to_nginx {
        Some(_) => "nginx",
        None => "epoll",
    };
    match medians.ratio() {
        _ if row.variant == "server" => Some(format!(
            "with {cell} {} requests/s, p99 {} µs; {}",
            grouped(medians.requests_per_second.median),
            short(medians.p99_us),
            row.limit.as_deref().unwrap_or_default(),
        )),
        Some(ratio) if [ANNULUS, NGINX_PRELOAD].contains(&row.variant.as_str()) => Some(format!(
            "with {cell} {} completes {:.2} times as many requests as {reference} ({:.2}–{:.2}){}",
            row.variant,
            ratio.median,
            ratio.min,
            ratio.max,
            cpu(medians),
        )),
        _ => None,
    }
}

fn cpu(medians: &Medians) -> String {
    let us = medians.server_cpu_us_per_request;
    us.map_or(String::new(), |us| format!(" at {} µs CPU each", short(us)))
}
