//! Computes the results of a run from the counts of the load generator and the watch, and determines the limiting side.

use annulus_baselines::net::load::{Outcome, Plan};
use hdrhistogram::Histogram;

use super::json::{ErrorCount, Latency, Sample, ServerUse, Totals};
use super::watch::Watch;
use crate::bench::machine::Used;
use crate::bench::timeline::Timeline;

/// A client thread that uses more than this share of a processor counts as saturated.
const CLIENT_FULL: f64 = 0.97;
/// A server that uses at least this many processors counts as saturated.
const SERVER_FULL: f64 = 0.95;

/// Returns the results of one run.
pub(crate) fn sample(
    plan: &Plan,
    outcome: &Outcome,
    watch: Option<&Watch>,
    machine: Option<Used>,
) -> Sample {
    let (server, server_note) = match watch.map(|watch| server(outcome, watch)) {
        Some(Ok(server)) => (Some(server), None),
        Some(Err(why)) => (None, Some(why)),
        None => (
            None,
            Some("not available: --pid PID watches the server".into()),
        ),
    };
    let seconds = outcome.measured.as_secs_f64();
    let shares = machine.map(|used| used.shares(seconds.max(1e-9) * 1e9));
    let stolen = shares.map_or(0.0, |(_, stolen)| stolen);
    let others_busy = shares
        .zip(server.as_ref())
        .map(|((busy, _), server)| (busy - server.cpus).max(0.0));
    Sample {
        requests_per_second: outcome.per_second,
        responses: outcome.responses,
        measured_seconds: seconds,
        sent_bytes: outcome.sent_bytes,
        received_bytes: outcome.received_bytes,
        latency_uncorrected: latency(&outcome.latency),
        latency_since_due: outcome.due_latency.as_ref().map(latency),
        client_cpu_share: outcome.client_cpu.clone(),
        others_busy,
        stolen,
        limit: limit(plan, &outcome.client_cpu, server.as_ref()),
        server,
        server_note,
        totals: Totals {
            requests: outcome.requests,
            responses: outcome.all_responses,
            dropped: outcome.dropped,
            unanswered: outcome.unanswered,
            never_sent: outcome.never_sent,
            nils: outcome.nils,
            connections_open: outcome.open_at_end,
            reopened: outcome.reopened,
            client_enters: outcome.enters,
            client_out_of_buffers: outcome.out_of_buffers,
        },
        errors: (outcome.errors.list())
            .map(|(kind, count, first)| ErrorCount {
                kind: kind.name().into(),
                count,
                first: first.into(),
            })
            .collect(),
        faults: outcome.faults.clone(),
        timeline: Timeline::of(
            outcome.recorder.clone(),
            outcome.measured.as_nanos() as u64,
            None,
        ),
    }
}

fn latency(histogram: &Histogram<u64>) -> Latency {
    let us = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1000.0;
    Latency {
        mean_us: histogram.mean() / 1000.0,
        p50_us: us(0.5),
        p90_us: us(0.9),
        p99_us: us(0.99),
        p99_9_us: us(0.999),
        max_us: histogram.max() as f64 / 1000.0,
    }
}

fn server(outcome: &Outcome, watch: &Watch) -> Result<ServerUse, String> {
    let used = watch.used()?;
    if outcome.responses == 0 || used.seconds <= 0.0 {
        return Err("not available: no request completed".into());
    }
    let responses = outcome.responses as f64;
    let (syscalls_per_request, syscalls_note) = match watch.syscalls_per_request() {
        Ok(calls) => (Some(calls), None),
        Err(why) => (None, Some(why)),
    };
    Ok(ServerUse {
        cpu_us_per_request: used.cpu_ns / 1000.0 / responses,
        busiest_thread_us_per_request: used.busiest_cpu_ns / 1000.0 / responses,
        ring_threads_us_per_request: used.rings_cpu_ns / 1000.0 / responses,
        cpus: used.cpu_ns / 1e9 / used.seconds,
        voluntary_switches_per_1000: used.voluntary * 1000.0 / responses,
        involuntary_switches_per_1000: used.involuntary * 1000.0 / responses,
        syscalls_per_request,
        syscalls_note,
    })
}

/// Determines which side limited the throughput. One saturated client thread is enough, because its connections wait
/// for it.
fn limit(plan: &Plan, client: &[f64], server: Option<&ServerUse>) -> String {
    let busiest = client.iter().copied().fold(0.0, f64::max);
    let client_full = busiest > CLIENT_FULL;
    if matches!(plan.pace, annulus_baselines::net::load::Pace::Rate(_)) && !client_full {
        return "the rate is the limit, as requested".into();
    }
    match (client_full, server.map(|server| server.cpus)) {
        (true, Some(cpus)) if cpus >= SERVER_FULL => {
            "client and server are both full: figures may be a lower bound".into()
        }
        (true, _) => "the client is the limit: figures are a lower bound".into(),
        (false, Some(cpus)) if cpus >= SERVER_FULL => "the server is the limit".into(),
        (false, Some(_)) => {
            "neither is full: they wait for each other, or for others on their processors".into()
        }
        (false, None) => "the client is not the limit".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use annulus_baselines::net::load::{Pace, Target, Workload};
    use std::time::Duration;

    #[test]
    fn the_limit_is_the_busiest_side() {
        let mut plan = Plan {
            target: Target::parse("127.0.0.1:1").unwrap(),
            workload: Workload::Echo { bytes: 1 },
            connections: 1,
            pipeline: 1,
            pace: Pace::Closed,
            reconnect: false,
            disconnect: false,
            threads: 2,
            cpus: Vec::new(),
            warmup: Duration::ZERO,
            runtime: Duration::ZERO,
            timeout: Duration::ZERO,
            seed: 0,
        };
        let server = |cpus| ServerUse {
            cpus,
            ..ServerUse::default()
        };
        let (idle, full) = (server(0.5), server(0.99));
        let limit_of = |plan: &Plan, client: &[f64], server| limit(plan, client, server);
        assert!(limit_of(&plan, &[0.2, 0.99], Some(&idle)).contains("lower bound"));
        assert!(limit_of(&plan, &[0.99], None).starts_with("the client is the limit"));
        assert!(limit_of(&plan, &[0.99], Some(&full)).contains("both full"));
        assert_eq!(
            limit_of(&plan, &[0.9], Some(&full)),
            "the server is the limit"
        );
        assert!(limit_of(&plan, &[0.9], Some(&idle)).starts_with("neither"));
        plan.pace = Pace::Rate(1.0);
        assert!(limit_of(&plan, &[0.1], Some(&idle)).starts_with("the rate"));
    }
}
