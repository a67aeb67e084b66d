//! Network baselines: the servers that Annulus is compared with, one file each, and the load generator.
//!
//! Each server is a good plain example of its kind, with one thread and no options. `serve(listener)` runs until the
//! process ends.

pub mod epoll_echo;
mod listening;
pub mod load;
mod provided;
pub mod ring_echo;
pub mod tokio_echo;
pub mod tokio_http;

#[cfg(test)]
mod echo_tests;
