//! The driver on a simulated kernel: what no real kernel shows often enough to be tested.
//!
//! Every test that draws a seed takes `SEED=` to repeat one, `SEEDS=` for more of them and `OPS=` for
//! longer runs; a failure prints the command that repeats it.

mod buffers;
mod chance;
mod crash;
mod drain;
mod dropped;
mod faults;
mod limits;
mod linux;
mod model;
mod queues;
mod random;
mod repeat;
mod seeds;
mod threads;
