//! hyper's servers and clients on our streams, tasks and timers, and a router of axum's, on both backends.

mod bodies;
mod ends;
mod http1;
mod http2;
mod routers;
mod support;
mod upgrades;
