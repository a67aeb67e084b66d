//! Aggregates runs into rows: medians over the repeats, and ratios within each repeat.

use super::json::{Latency, Medians, Row, Run, Sample, ServerUse};
use super::options::Options;
use super::variants::reference;
use crate::bench::spread::{Spread, median};
use crate::trace::AtCell;

/// Returns the rows of all cells. Within a cell the fastest variant is first.
pub(crate) fn rows(options: &Options, runs: &[Run]) -> Vec<Row> {
    let names: Vec<&str> = options
        .variants
        .iter()
        .map(|variant| variant.name())
        .collect();
    let reference = reference(options.protocol);
    options
        .cells()
        .into_iter()
        .flat_map(|cell| cell_rows(cell, &names, reference, runs))
        .collect()
}

fn cell_rows(cell: AtCell, names: &[&str], reference: &str, runs: &[Run]) -> Vec<Row> {
    let runs: Vec<&Run> = (runs.iter()).filter(|run| run.cell == cell).collect();
    let mut rows: Vec<Row> = (names.iter())
        .map(|name| row(cell, name, reference, &runs))
        .collect();
    let speed = |row: &Row| {
        (row.medians.as_ref()).map_or(f64::NEG_INFINITY, |medians| {
            medians.requests_per_second.median
        })
    };
    rows.sort_by(|a, b| speed(b).total_cmp(&speed(a)));
    rows
}

fn row(cell: AtCell, name: &str, reference: &str, runs: &[&Run]) -> Row {
    let of = |name: &str| -> Vec<(usize, &Sample)> {
        (runs.iter())
            .filter(|run| run.variant == name)
            .filter_map(|run| Some((run.repeat, run.good()?)))
            .collect()
    };
    let (own, compared) = (of(name), of(reference));
    let ratios: Vec<f64> = (own.iter())
        .filter_map(|(repeat, sample)| {
            let (_, base) = compared.iter().find(|(same, _)| same == repeat)?;
            Some(sample.requests_per_second / base.requests_per_second)
        })
        .collect();
    let lost = (runs.iter()).filter(|run| run.variant == name && run.good().is_none());
    let reason = lost.map(|run| reason(run)).next();
    let samples: Vec<&Sample> = own.iter().map(|(_, sample)| *sample).collect();
    Row {
        cell,
        variant: name.to_string(),
        samples: samples.len(),
        medians: medians(&samples, reference, Spread::of(&ratios)),
        reason,
        limit: most_frequent(&samples),
    }
}

fn reason(run: &Run) -> String {
    let faults = run.sample.as_ref().map(|sample| sample.faults.join("; "));
    let why = faults.or_else(|| run.reason.clone()).unwrap_or_default();
    match run.failed() {
        true => format!("FAILED: {why}"),
        false => why,
    }
}

fn most_frequent(samples: &[&Sample]) -> Option<String> {
    let count = |limit: &str| samples.iter().filter(|other| other.limit == limit).count();
    let most = samples.iter().max_by_key(|sample| count(&sample.limit))?;
    Some(most.limit.clone())
}

fn medians(samples: &[&Sample], reference: &str, ratio: Option<Spread>) -> Option<Medians> {
    let column = |of: &dyn Fn(&Sample) -> Option<f64>| -> Vec<f64> {
        samples.iter().filter_map(|sample| of(sample)).collect()
    };
    let us = |of: fn(&Latency) -> f64| {
        let since = |sample: &Sample| {
            let latency = sample.latency_since_due.as_ref();
            Some(of(latency.unwrap_or(&sample.latency_uncorrected)))
        };
        median(&column(&since))
    };
    let server = |of: fn(&ServerUse) -> Option<f64>| {
        median(&column(&|sample| sample.server.as_ref().and_then(of)))
    };
    let busiest =
        |sample: &Sample| Some(sample.client_cpu_share.iter().copied().fold(0.0, f64::max));
    Some(Medians {
        requests_per_second: Spread::of(&column(&|sample| Some(sample.requests_per_second)))?,
        ratio_to_epoll: ratio.filter(|_| reference == "epoll"),
        ratio_to_nginx: ratio.filter(|_| reference == "nginx"),
        p50_us: us(|latency| latency.p50_us)?,
        p90_us: us(|latency| latency.p90_us)?,
        p99_us: us(|latency| latency.p99_us)?,
        p99_9_us: us(|latency| latency.p99_9_us)?,
        max_us: us(|latency| latency.max_us)?,
        client_cpu_share: median(&column(&busiest))?,
        server_cpus: server(|server| Some(server.cpus)),
        server_cpu_us_per_request: server(|server| Some(server.cpu_us_per_request)),
        busiest_thread_us_per_request: server(|server| Some(server.busiest_thread_us_per_request)),
        syscalls_per_request: server(|server| server.syscalls_per_request),
        voluntary_switches_per_1000: server(|server| Some(server.voluntary_switches_per_1000)),
        involuntary_switches_per_1000: server(|server| Some(server.involuntary_switches_per_1000)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CELL: AtCell = AtCell {
        connections: 50,
        size: Some(128),
    };

    fn run(repeat: usize, variant: &str, requests_per_second: f64, fault: Option<&str>) -> Run {
        let sample = Sample {
            requests_per_second,
            faults: fault.into_iter().map(String::from).collect(),
            ..Sample::default()
        };
        Run {
            cell: CELL,
            repeat,
            variant: variant.into(),
            sample: Some(sample),
            reason: None,
            cut_short: false,
        }
    }

    #[test]
    fn ratios_are_taken_inside_a_repeat_and_void_runs_count_for_nothing() {
        let runs = [
            run(1, "epoll", 100.0, None),
            run(1, "ring", 150.0, None),
            run(2, "ring", 300.0, None),
            run(2, "epoll", 200.0, None),
            run(3, "ring", 900.0, Some("wrong")),
            run(3, "epoll", 100.0, None),
        ];
        let rows = cell_rows(CELL, &["epoll", "ring"], "epoll", &runs);
        assert_eq!(rows[0].variant, "ring");
        let medians = rows[0].medians.as_ref().unwrap();
        assert_eq!(medians.ratio_to_epoll, Spread::of(&[1.5, 1.5]));
        assert_eq!(medians.ratio_to_nginx, None);
        assert_eq!(medians.requests_per_second.max, 300.0);
        assert_eq!(
            (rows[0].samples, rows[0].reason.as_deref()),
            (2, Some("FAILED: wrong"))
        );
    }
}
