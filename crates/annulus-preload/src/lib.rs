//! Runs unmodified epoll servers on io_uring: `LD_PRELOAD=libannulus_preload.so redis-server`.
//!
//! The library is found before libc, and has functions of the same names. A TCP stream that does not block and is
//! put into an epoll set is *served*: a receive that goes on for good is armed for it in a ring of the set's, what
//! comes is read from memory, what is written is queued, and one `io_uring_enter` at the place of `epoll_wait`
//! sends all of it and brings what has come. Everything else *passes through* to the next function of its name. Who
//! uses a served descriptor otherwise than by its set's own thread gets it *handed back*: what is in hand is read
//! first, and then the kernel answers as if this library were not there.
//!
//! `docs/PRELOAD.md` says which calls are served, what differs, and how it is switched off.
//!
//! # The map
//!
//! - `hooks/`: the exported functions; they convert types and call the rest, or `real`.
//! - `table`, `connection`, `set`, `sets`: what each descriptor is; what is known of a connection; an epoll set and its
//!   lock; all of them.
//! - `turn`: push, enter, take in. `wait`, `control`: `epoll_wait`, `epoll_ctl`. `receive`, `send`: reads, writes.
//! - `leave`, `descriptor`: handed back, removed, closed. `rests`, `orphans`, `room`: what the kernel had no room for,
//!   of connections that are open and of those that are closed, and how it is waited for.
//! - `classify`, `options`, `effects`: who can be served at all.
//! - `ours`: the numbers that the library has.
//! - `switch`: handed back while the program runs, and served again.
//! - `process`, `caller`, `child`: load, fork, exec, exit. `config`, `log`, `counts`, `build`: what the operator
//!   says and sees.
//!
//! # Sealed
//!
//! Nothing here calls a function that this library exports, but through `real`: the kernel is reached by direct
//! calls (`sys`), in the library `annulus` as well.

mod answers;
mod build;
mod burst;
mod bytes;
mod caller;
mod child;
mod classify;
mod config;
mod connection;
mod control;
mod counts;
mod descriptor;
mod effects;
mod ended;
mod errno;
mod hooks;
mod leave;
mod listeners;
mod lock;
mod log;
mod memory;
mod options;
mod orphans;
mod ours;
mod pace;
mod process;
mod real;
mod receive;
mod rests;
mod room;
mod sealed;
mod send;
mod set;
mod sets;
mod switch;
mod sys;
mod table;
mod turn;
mod wait;
mod watchdog;
