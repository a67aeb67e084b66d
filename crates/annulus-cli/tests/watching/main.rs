//! `--metrics` and `--alert` from outside, and what docs/prometheus and docs/grafana make of it.

mod alerts;
mod page;
mod prometheus;
mod server;
#[path = "../../../annulus/tests/child/skip.rs"]
#[allow(dead_code, reason = "not every test needs all of it")]
mod skip;
