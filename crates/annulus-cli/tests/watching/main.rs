//! Tests of `--metrics` and `--alert`, and of the files in docs/prometheus and docs/grafana.

mod alerts;
mod page;
mod prometheus;
mod server;
