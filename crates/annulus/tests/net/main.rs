//! Sockets on every backend, whatever the peer does. Each test is a future that runs on a core, once with a ring and
//! once with epoll, and on both with minimal limits: a ring of two entries and a single receive buffer of 64 bytes.
//! With a ring it also runs in each mode of the receive buffers.
#![cfg(feature = "net")]

#[cfg(feature = "bytes")]
mod append;
mod backlog;
mod bytes;
mod churn;
mod contract;
mod cut;
mod datagram;
mod dropped;
mod echo;
mod ends;
mod file;
mod fixtures;
mod groups;
mod kernel;
mod options;
mod poll;
mod ports;
mod progress;
mod resolve;
mod scarce;
mod sent;
mod shared;
mod slow;
mod splice;
mod storm;
mod stormy;
mod together;
mod vectored;
mod zero_copy;
