//! The JSON of `annulus bench net`; its schema is kept in `schema/bench-net.json`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::options::Options;
use super::variants::Variant;
use crate::bench::json::Figures;
use crate::bench::machine::Machine;
use crate::bench::stats::Spread;
use crate::bench::timeline::{Timeline, on_one_line};
use crate::trace::{AtCell, Traced};

/// Changed whenever a reader of older files would misread a newer one.
pub(crate) const VERSION: u32 = 1;

/// One run of `annulus bench net`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Report {
    /// The version of this format.
    pub(crate) version: u32,
    /// The version of the command that wrote it.
    pub(crate) annulus: String,
    /// The command as it was typed.
    pub(crate) command: Vec<String>,
    /// When it began, in seconds since 1970.
    pub(crate) started_unix_s: u64,
    /// `--seed` with this number repeats the order of runs.
    pub(crate) seed: u64,
    pub(crate) machine: Machine,
    pub(crate) load: LoadFacts,
    pub(crate) variants: Vec<VariantFacts>,
    /// Every run, in the order in which they were made.
    pub(crate) runs: Vec<Run>,
    /// The tables: one row per cell and variant.
    pub(crate) rows: Vec<Row>,
    /// With `--syscalls` or `--flamegraph`: one more run of each, after those.
    #[serde(default)]
    pub(crate) traced: Vec<Traced<AtCell>>,
    /// A signal ended it early: there are fewer runs than were requested, or the last one was cut short.
    #[serde(default)]
    pub(crate) interrupted: bool,
    pub(crate) warnings: Vec<String>,
    pub(crate) verdict: String,
}

impl Figures for Report {
    fn without_timelines(&self) -> Report {
        let mut report = self.clone();
        for sample in report.runs.iter_mut().filter_map(|run| run.sample.as_mut()) {
            sample.timeline = None;
        }
        report
    }
}

/// What was asked.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct LoadFacts {
    pub(crate) protocol: String,
    pub(crate) description: String,
    pub(crate) connections: Vec<usize>,
    /// Lengths of messages or values; of HTTP those of files, or none where the server decides.
    pub(crate) sizes: Vec<Option<u64>>,
    pub(crate) pipeline: usize,
    /// Requests a second by the clock; absent in a closed loop.
    pub(crate) rate: Option<f64>,
    /// A connection for each request.
    pub(crate) reconnect: bool,
    pub(crate) client_threads: usize,
    /// Processors of the client's threads, in turn; empty: any.
    pub(crate) client_cpus: Vec<usize>,
    /// Processors of the servers that were started; empty: any.
    pub(crate) server_cpus: Vec<usize>,
    pub(crate) warmup_seconds: f64,
    pub(crate) runtime_seconds: f64,
    pub(crate) repeats: usize,
}

impl LoadFacts {
    pub(crate) fn of(options: &Options) -> LoadFacts {
        LoadFacts {
            protocol: options.protocol.into(),
            description: options.description(),
            connections: options.connections.clone(),
            sizes: options.sizes.clone(),
            pipeline: options.pipeline,
            rate: options.rate,
            reconnect: options.reconnect,
            client_threads: options.threads,
            client_cpus: options.client_cpus.clone(),
            server_cpus: options.server_cpus.clone(),
            warmup_seconds: options.warmup.as_secs_f64(),
            runtime_seconds: options.runtime.as_secs_f64(),
            repeats: options.repeats,
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Run {
    pub(crate) connections: usize,
    pub(crate) size: Option<u64>,
    /// From 1.
    pub(crate) repeat: usize,
    pub(crate) variant: String,
    pub(crate) sample: Option<Sample>,
    /// Why there is no sample.
    pub(crate) reason: Option<String>,
    /// A signal ended it before its time; there is a sample if at least half of that was measured.
    pub(crate) cut_short: bool,
}

impl Run {
    /// Whether it is void.
    pub(crate) fn failed(&self) -> bool {
        self.good().is_none() && !self.cut_short
    }

    /// Its sample, if it is worth something.
    pub(crate) fn good(&self) -> Option<&Sample> {
        self.sample
            .as_ref()
            .filter(|sample| sample.faults.is_empty())
    }
}

/// The numbers of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Sample {
    pub(crate) requests_per_second: f64,
    /// Answers within the measured time.
    pub(crate) responses: u64,
    pub(crate) measured_seconds: f64,
    pub(crate) sent_bytes: u64,
    pub(crate) received_bytes: u64,
    /// From sending to answer: not corrected for requests that a slow server kept from being sent.
    pub(crate) latency_uncorrected: Latency,
    /// With `--rate`: from when a request was due to its answer, corrected for coordinated omission.
    pub(crate) latency_since_due: Option<Latency>,
    /// Of each client thread, the share of the measured time that it was on a processor.
    pub(crate) client_cpu_share: Vec<f64>,
    /// Processors that neither client nor server used and that were busy all the same; absent without `--pid`.
    pub(crate) others_busy: Option<f64>,
    pub(crate) server: Option<ServerUse>,
    /// Why there is none.
    pub(crate) server_note: Option<String>,
    /// Who was the limit.
    pub(crate) limit: String,
    pub(crate) totals: Totals,
    pub(crate) errors: Vec<ErrorCount>,
    /// What makes the run void.
    pub(crate) faults: Vec<String>,
    /// The measured time in slices, with `--timeline`. A latency is from sending to answer, by when the answer came;
    /// with `--rate` from when the request was due, by that time. The client does not see the server's calls.
    #[serde(
        default,
        serialize_with = "on_one_line",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(with = "Option<Timeline>")]
    pub(crate) timeline: Option<Timeline>,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Latency {
    pub(crate) mean_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p90_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p99_9_us: f64,
    pub(crate) max_us: f64,
}

/// What the server used, all of its threads together.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct ServerUse {
    pub(crate) cpu_us_per_request: f64,
    /// Of the program's own threads, the one that used most: the loop of a server that has one.
    #[serde(default)]
    pub(crate) busiest_thread_us_per_request: f64,
    /// The threads that the kernel has for its rings, together: with SQPOLL it is they who submit.
    #[serde(default)]
    pub(crate) ring_threads_us_per_request: f64,
    /// Processors used on average.
    pub(crate) cpus: f64,
    pub(crate) voluntary_switches_per_1000: f64,
    pub(crate) involuntary_switches_per_1000: f64,
    /// Counted after the measured time, because counting slows the server.
    pub(crate) syscalls_per_request: Option<f64>,
    /// Why that is absent, and how to get it.
    pub(crate) syscalls_note: Option<String>,
}

/// Counts over the whole run, warm-up and end included.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Totals {
    pub(crate) requests: u64,
    pub(crate) responses: u64,
    /// With their connection.
    pub(crate) dropped: u64,
    /// When patience was over.
    pub(crate) unanswered: u64,
    /// With `--rate`: due in the measured time, and never sent.
    pub(crate) never_sent: u64,
    /// Redis: keys without a value.
    pub(crate) nils: u64,
    /// Connections open when the measured time ended.
    pub(crate) connections_open: usize,
    pub(crate) reopened: u64,
    /// The client's, not the server's.
    pub(crate) client_enters: u64,
    pub(crate) client_out_of_buffers: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct ErrorCount {
    pub(crate) kind: String,
    pub(crate) count: u64,
    /// The first of them in words.
    pub(crate) first: String,
}

/// One variant in one cell: medians over its good runs.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Row {
    pub(crate) connections: usize,
    pub(crate) size: Option<u64>,
    pub(crate) variant: String,
    /// How many of its runs are good.
    pub(crate) samples: usize,
    pub(crate) medians: Option<Medians>,
    /// Why there are none, or why some are missing.
    pub(crate) reason: Option<String>,
    /// Who was the limit in most runs.
    pub(crate) limit: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Medians {
    pub(crate) requests_per_second: Spread,
    /// Requests a second over those of `epoll` in the same repeat.
    pub(crate) ratio_to_epoll: Option<Spread>,
    /// Of HTTP, over those of `nginx`.
    #[serde(default)]
    pub(crate) ratio_to_nginx: Option<Spread>,
    /// Since due with `--rate`, since sent without.
    pub(crate) p50_us: f64,
    pub(crate) p90_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p99_9_us: f64,
    pub(crate) max_us: f64,
    /// The busiest client thread's.
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
    /// The ratio to the server that all are compared with.
    pub(crate) fn ratio(&self) -> Option<Spread> {
        self.ratio_to_epoll.or(self.ratio_to_nginx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::json::schema_is_current;

    #[test]
    fn the_schema_of_the_network_in_the_repository_is_that_of_the_structs() {
        schema_is_current("bench-net.json", &schemars::schema_for!(Report));
    }
}
