//! `annulus serve` from outside: what it answers, how it ends, what it refuses.

mod addresses;
mod crowd;
mod echo;
mod ends;
mod http;
mod log;
mod memory;
mod server;
mod wrong;
