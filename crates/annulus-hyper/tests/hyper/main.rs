//! hyper's servers and clients, and an axum router, on Annulus's streams, tasks and timers, on both backends.

mod bodies;
mod ends;
mod http1;
mod http2;
mod routers;
mod sends;
mod support;
mod upgrades;
