//! The driver on a simulated kernel, for behaviour that a real kernel shows too rarely to be tested.
//!
//! Every test with seeds takes `SEED=` to repeat one, `SEEDS=` for more of them and `OPS=` for longer runs. A failure
//! prints the command that repeats it.
#![cfg(feature = "test-util")]

mod buffers;
mod chance;
mod crash;
mod drain;
mod dropped;
mod faults;
mod life;
mod limits;
mod linux;
mod model;
mod queues;
mod random;
mod remove;
mod repeat;
mod seeds;
mod threads;
mod whole;
