//! Tests of `--metrics` and `--alert`, and of the files in contrib/prometheus and contrib/grafana.

mod alerts;
mod page;
mod prometheus;
mod server;
