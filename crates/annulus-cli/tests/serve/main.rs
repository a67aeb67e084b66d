//! Tests of `annulus serve`: responses, the end of the server, and refusals.

mod addresses;
mod crowd;
mod echo;
mod ends;
mod http;
mod log;
mod memory;
mod server;
mod wrong;
