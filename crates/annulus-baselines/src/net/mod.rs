//! The network's side: servers that Annulus's own are measured against, one file each, and the load they are
//! measured with.
//!
//! Each server is the best plain example of its kind: one thread, no option, `serve(listener)` until the process ends.

pub mod epoll_echo;
mod listening;
pub mod load;
pub mod ring_echo;
pub mod tokio_echo;
pub mod tokio_http;

#[cfg(test)]
mod echo_tests;
