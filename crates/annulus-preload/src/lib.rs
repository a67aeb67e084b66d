//! Runs unmodified epoll servers on io_uring: `annulus run -- redis-server`.
//!
//! This crate is the code of the shared object `libannulus_preload`, for glibc on x86-64 and aarch64 Linux.
//! `annulus-cli` links the shared object and installs it beside the tool. Do not link this crate into a program: it
//! exports `read`, `close` and other names of libc.
//!
//! The dynamic loader finds this library before libc, so its functions replace libc functions with the same names. A
//! non-blocking TCP stream that is added to an epoll set is *served*: the set's ring keeps a receive armed for it,
//! reads return bytes that the ring has already received, and writes are queued. One `io_uring_enter` in place of
//! `epoll_wait` sends the queued bytes and reaps completions. Every other call *passes through* to the next function
//! with its name.
//!
//! A served descriptor is *handed back* to the kernel when the program uses it in a way that the ring cannot serve,
//! for example from a thread other than its set's owner. From then on it is un-served: reads first return the bytes
//! that are still buffered, and the kernel then serves every call as if this library were not there.
//!
//! `docs/reference/preload.md` says which calls are served, what differs, and how to switch the library off.
//!
//! # Modules
//!
//! - `hooks/`: the exported functions. They convert types and call the other modules, or `real`.
//! - `fd_table`: the kind of each descriptor. `connection`: a connection. `inbound`, `outbound`, `member`: its states.
//!   `events`: the events that follow from them.
//! - `epoll_set`, `epoll_set_list`: an epoll set and its lock; the list of all sets. `member_list`: the descriptors of
//!   a set. `ready_list`: connections with events to report. `set_members`: members that are not served.
//! - `young_set`, `early_members`: a set and its members before it has a ring.
//! - `poll_cycle`, `completions`, `token`: push, enter, reap; completion handlers; the tokens of requests.
//! - `epoll_wait`, `reports`, `epoll_ctl`: the two calls with these names. `receive`, `send`, `shut_down`: reads,
//!   writes and their end.
//! - `vectors`: the memory that the program passes to a read or a write. `unread`, `output`: the received and the
//!   written bytes of a connection. `send_errors`: which errors of a send end a connection.
//! - `gate`: which calls for a connection are served. `hand_back`, `removal`, `set_end`: handing back and removing
//!   a connection; the end of a set. `duplicates`, `closing`, `descriptor`: duplicating and closing descriptors.
//! - `deferred_output`, `draining`, `writability`: bytes that did not fit into the socket's send buffer, of open and of
//!   closed connections; the kernel epoll set that waits until they can be sent. `flush_thread`: the thread that waits
//!   on it; `flush_request` starts it.
//! - `batching`, `accept_burst`: how long writes are held back, and how long a wait for connections may be.
//! - `byte_queue`, `buffers`: buffered bytes of one connection; receive buffers and the send arena of a ring.
//!   `mapping`: memory for these and for tables.
//! - `program_rings`: rings that the program makes; that of libuv for `epoll_ctl` is refused.
//! - `classify`, `listeners`, `sockopts`, `sockopt_effects`: which sockets can be served.
//! - `reserved_fds`, `fd_limit`: descriptors that belong to the library; their release before the program has none
//!   left. `fd_budget`: how many of them rings may take. `placeholders`: keep low numbers free for the program while a
//!   ring is made.
//! - `stops`: reports of sets and listeners that are left to the kernel permanently.
//! - `switch`, `switch_position`: the operator's switch, which hands all connections back while the program runs, and
//!   serves them again.
//! - `executed`: the entry point for a user who executes the shared object.
//! - `signals`: blocked while a lock is held, in a program whose handlers may jump.
//! - `process`, `identity`, `inherited_set`, `ring_teardown`: load, fork, exec and exit. `ring_policy`: when the
//!   library may make rings. `arch`: what differs by processor. `config`, `log`, `counters`, `publish`, `build_id`:
//!   settings, messages and counters.
//!
//! # Sealed
//!
//! No code here calls a function that this library exports, except through `real`. System calls are made directly
//! (`sys`, `raw_libc`), also in the library `annulus`.

mod accept_burst;
mod arch;
mod batching;
mod buffers;
mod build_id;
mod byte_queue;
mod classify;
mod closing;
mod completions;
mod config;
mod connection;
mod counters;
mod ctl_request;
mod deferred_output;
mod descriptor;
mod draining;
mod duplicates;
mod early_members;
mod epoll_ctl;
mod epoll_set;
mod epoll_set_list;
mod epoll_wait;
mod errno;
mod events;
mod executed;
mod fd_budget;
mod fd_limit;
mod fd_table;
mod flush_request;
mod flush_thread;
mod gate;
mod hand_back;
mod hooks;
mod identity;
mod inbound;
mod inherited_set;
mod listeners;
mod lock;
mod log;
mod mapping;
mod member;
mod member_list;
mod outbound;
mod output;
mod placeholders;
mod poll_cycle;
mod process;
mod program_rings;
mod publish;
mod raw_libc;
mod ready_list;
mod real;
mod receive;
mod removal;
mod reports;
mod reserved_fds;
mod ring_policy;
mod ring_teardown;
mod send;
mod send_errors;
mod set_end;
mod set_members;
mod shut_down;
mod signals;
mod sockopt_effects;
mod sockopts;
mod stops;
mod switch;
mod switch_position;
mod sys;
mod token;
mod unread;
mod vectors;
mod writability;
mod young_set;
