//! `--metrics` and `--alert` from outside, and what docs/prometheus and docs/grafana make of it.

mod alerts;
mod page;
mod prometheus;
mod server;
