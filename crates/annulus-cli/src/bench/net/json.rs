//! The JSON report of `annulus bench net`. Its schema is `schema/bench-net.json`.

use serde::{Deserialize, Serialize};

use super::options::Options;
use super::variants::Variant;
use crate::bench::machine::Machine;
use crate::bench::output::{Figures, Header};
use crate::bench::spread::Spread;
use crate::bench::timeline::Timeline;
use crate::trace::{AtCell, Traced};

/// The version of the format.
pub(crate) const VERSION: u32 = 1;

/// One run of `annulus bench net`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Report {
    #[serde(flatten)]
    pub(crate) header: Header,
    /// The seed of the order of runs. `--seed` with this number repeats the order.
    pub(crate) seed: u64,
    pub(crate) machine: Machine,
    pub(crate) load: LoadFacts,
    pub(crate) variants: Vec<VariantFacts>,
    /// All runs, in execution order.
    pub(crate) runs: Vec<Run>,
    /// The tables: one row per cell and variant.
    pub(crate) rows: Vec<Row>,
    /// With `--syscalls` or `--flamegraph`: one extra run per cell and variant, after the measured runs.
    #[serde(default)]
    pub(crate) traced: Vec<Traced<AtCell>>,
    /// `true` if a signal ended the benchmark early. Runs are missing, or the last run was cut short.
    #[serde(default)]
    pub(crate) interrupted: bool,
    pub(crate) warnings: Vec<String>,
    pub(crate) verdict: String,
}

impl Figures for Report {
    fn timelines(&mut self) -> impl Iterator<Item = &mut Option<Timeline>> {
        let samples = self.runs.iter_mut().filter_map(|run| run.sample.as_mut());
        samples.map(|sample| &mut sample.timeline)
    }
}

/// The parameters of the load.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct LoadFacts {
    pub(crate) protocol: String,
    pub(crate) description: String,
    pub(crate) connections: Vec<usize>,
    /// Lengths of messages or values, in bytes. For HTTP, lengths of files; `null` if the server determines the length.
    pub(crate) sizes: Vec<Option<u64>>,
    pub(crate) pipeline: usize,
    /// Requests per second at a fixed rate; absent in a closed loop.
    pub(crate) rate: Option<f64>,
    /// `true` if each request opens a new connection.
    pub(crate) reconnect: bool,
    /// `true` if the connection is closed when the request is sent. Requests sent then count as responses.
    #[serde(default)]
    pub(crate) disconnect: bool,
    /// The length of the body of HTTP's POST requests; absent for GET.
    #[serde(default)]
    pub(crate) post_bytes: Option<usize>,
    pub(crate) client_threads: usize,
    /// Processors of the client threads, assigned round-robin. If empty, the kernel chooses.
    pub(crate) client_cpus: Vec<usize>,
    /// Processors of the started servers. If empty, the kernel chooses.
    pub(crate) server_cpus: Vec<usize>,
    pub(crate) warmup_seconds: f64,
    pub(crate) runtime_seconds: f64,
    pub(crate) repeats: usize,
}

impl LoadFacts {
    pub(crate) fn cells(&self) -> Vec<AtCell> {
        AtCell::all(&self.sizes, &self.connections)
    }

    pub(crate) fn of(options: &Options) -> LoadFacts {
        LoadFacts {
            protocol: options.protocol.into(),
            description: options.description(),
            connections: options.connections.clone(),
            sizes: options.sizes.clone(),
            pipeline: options.args.pipeline,
            rate: options.args.rate,
            reconnect: options.reconnect,
            disconnect: options.disconnect,
            post_bytes: options.post_bytes(),
            client_threads: options.args.threads,
            client_cpus: options.client_cpus.clone(),
            server_cpus: options.server_cpus.clone(),
            warmup_seconds: options.args.warmup.as_secs_f64(),
            runtime_seconds: options.args.runtime.as_secs_f64(),
            repeats: options.repeats,
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct VariantFacts {
    pub(crate) name: String,
    pub(crate) about: String,
}

impl VariantFacts {
    pub(crate) fn of(variant: &Variant, protocol: &str) -> VariantFacts {
        let about = match variant {
            Variant::External { target, .. } => format!("the server at {target}"),
            Variant::BuiltIn { name } => match (protocol, *name) {
                ("http", "annulus") => "annulus serve http --backend uring",
                ("http", "annulus-epoll") => "annulus serve http --backend epoll",
                ("http", "nginx-preload") => "the same nginx under `annulus run`",
                ("http", "nginx") => "nginx as installed: one worker, open_file_cache, no log",
                ("http", _) => "hyper on Tokio's current_thread runtime, bodies in memory",
                (_, "annulus") => "annulus serve echo --backend uring",
                (_, "annulus-epoll") => "annulus serve echo --backend epoll",
                (_, "tokio") => "Tokio's current_thread runtime, a task each",
                (_, "ring") => "a ring written by hand: the ceiling",
                _ => "level-triggered epoll by hand: the reference",
            }
            .into(),
            Variant::Command { argv, .. } => argv.join(" "),
        };
        VariantFacts {
            name: variant.name().into(),
            about,
        }
    }
}

/// One variant in one cell, once.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Run {
    #[serde(flatten)]
    pub(crate) cell: AtCell,
    /// The number of the repeat, from 1.
    pub(crate) repeat: usize,
    pub(crate) variant: String,
    pub(crate) sample: Option<Sample>,
    /// The reason for a missing sample.
    pub(crate) reason: Option<String>,
    /// `true` if a signal ended the run early. The sample is present if at least half of the runtime was measured.
    pub(crate) cut_short: bool,
}

impl Run {
    /// Returns whether the run is void. A run that a signal cut short is not.
    pub(crate) fn failed(&self) -> bool {
        self.good().is_none() && !self.cut_short
    }

    /// Returns the sample, unless it has faults.
    pub(crate) fn good(&self) -> Option<&Sample> {
        self.sample
            .as_ref()
            .filter(|sample| sample.faults.is_empty())
    }
}

/// The results of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Sample {
    pub(crate) requests_per_second: f64,
    /// Responses in the measured time.
    pub(crate) responses: u64,
    pub(crate) measured_seconds: f64,
    pub(crate) sent_bytes: u64,
    pub(crate) received_bytes: u64,
    /// Latency from sending to response. Not corrected for coordinated omission: requests that a slow server delayed
    /// count from when they were sent.
    pub(crate) latency_uncorrected: Latency,
    /// With `--rate`: latency from when a request was due to its response, corrected for coordinated omission.
    pub(crate) latency_since_due: Option<Latency>,
    /// The share of the measured time that each client thread spent on a processor.
    pub(crate) client_cpu_share: Vec<f64>,
    /// Processors that other processes kept busy, on average. Absent without figures of the server.
    pub(crate) others_busy: Option<f64>,
    /// Processors that the hypervisor withheld, on average.
    #[serde(default)]
    pub(crate) stolen: f64,
    pub(crate) server: Option<ServerUse>,
    /// The reason for a missing `server`.
    pub(crate) server_note: Option<String>,
    /// The side that limited the throughput: client, server, both, neither or the rate.
    pub(crate) limit: String,
    pub(crate) totals: Totals,
    pub(crate) errors: Vec<ErrorCount>,
    /// The faults that make the run void.
    pub(crate) faults: Vec<String>,
    /// With `--timeline`: the measured time in slices. Latency runs from sending to response and is filed under the
    /// time of the response. With `--rate` it runs from when the request was due and is filed under that time. The
    /// server's system calls are not included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) timeline: Option<Timeline>,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Latency {
    pub(crate) mean_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p90_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p99_9_us: f64,
    pub(crate) max_us: f64,
}

/// The resources that all threads of the server used.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ServerUse {
    pub(crate) cpu_us_per_request: f64,
    /// CPU time of the server's busiest thread. In a single-threaded server this is the event loop.
    #[serde(default)]
    pub(crate) busiest_thread_us_per_request: f64,
    /// CPU time of the kernel's threads for the server's rings. With SQPOLL these threads submit.
    #[serde(default)]
    pub(crate) ring_threads_us_per_request: f64,
    /// Processors used, on average.
    pub(crate) cpus: f64,
    pub(crate) voluntary_switches_per_1000: f64,
    pub(crate) involuntary_switches_per_1000: f64,
    /// System calls per request, counted after the measured time because counting slows the server.
    pub(crate) syscalls_per_request: Option<f64>,
    /// The reason for a missing count, and how to enable it.
    pub(crate) syscalls_note: Option<String>,
}

/// Counts over the whole run, including warm-up and drain.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Totals {
    pub(crate) requests: u64,
    pub(crate) responses: u64,
    /// Requests whose connection failed before the response.
    pub(crate) dropped: u64,
    /// Requests without a response when the timeout expired.
    pub(crate) unanswered: u64,
    /// With `--rate`: requests that were due in the measured time and never sent.
    pub(crate) never_sent: u64,
    /// Redis: responses for keys without a value (nil).
    pub(crate) nils: u64,
    /// Connections open at the end of the measured time.
    pub(crate) connections_open: usize,
    pub(crate) reopened: u64,
    /// Calls of `io_uring_enter` by the client.
    pub(crate) client_enters: u64,
    pub(crate) client_out_of_buffers: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ErrorCount {
    pub(crate) kind: String,
    pub(crate) count: u64,
    /// The message of the first one.
    pub(crate) first: String,
}

/// One variant in one cell, with medians over its good runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Row {
    #[serde(flatten)]
    pub(crate) cell: AtCell,
    pub(crate) variant: String,
    /// The number of good runs.
    pub(crate) samples: usize,
    pub(crate) medians: Option<Medians>,
    /// The reason for missing samples.
    pub(crate) reason: Option<String>,
    /// The most frequent `limit` of the runs.
    pub(crate) limit: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Medians {
    pub(crate) requests_per_second: Spread,
    /// Throughput divided by that of `epoll` in the same repeat.
    pub(crate) ratio_to_epoll: Option<Spread>,
    /// For HTTP: throughput divided by that of `nginx` in the same repeat.
    #[serde(default)]
    pub(crate) ratio_to_nginx: Option<Spread>,
    /// Latency from when the request was due with `--rate`, otherwise from when it was sent.
    pub(crate) p50_us: f64,
    pub(crate) p90_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p99_9_us: f64,
    pub(crate) max_us: f64,
    /// The share of the busiest client thread.
    pub(crate) client_cpu_share: f64,
    pub(crate) server_cpus: Option<f64>,
    pub(crate) server_cpu_us_per_request: Option<f64>,
    #[serde(default)]
    pub(crate) busiest_thread_us_per_request: Option<f64>,
    pub(crate) syscalls_per_request: Option<f64>,
    pub(crate) voluntary_switches_per_1000: Option<f64>,
    pub(crate) involuntary_switches_per_1000: Option<f64>,
}

impl Medians {
    /// Returns the ratio to the reference server.
    pub(crate) fn ratio(&self) -> Option<Spread> {
        self.ratio_to_epoll.or(self.ratio_to_nginx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::output::schema_is_current;

    #[test]
    fn the_schema_of_the_network_in_the_repository_is_that_of_the_structs() {
        schema_is_current("bench-net.json", &schemars::schema_for!(Report));
    }
}
