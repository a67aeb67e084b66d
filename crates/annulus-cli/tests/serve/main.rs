//! `annulus serve` from outside: what it answers, how it ends, what it refuses.

mod echo;
mod ends;
mod server;
mod wrong;
