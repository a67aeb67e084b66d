//! System calls and kernel structures.
//!
//! All other modules reach the kernel through this one: only here do system calls, the ABI crate and raw errno
//! constants appear. System calls are made directly, never through libc's `read`, `close` and similar functions. In a
//! process with `annulus-preload` loaded, those names are exported by that library (Sealed).

pub(crate) mod affinity;
#[cfg(any(feature = "futures", feature = "tokio", feature = "tokio-io"))]
pub(crate) mod at_exit;
pub(crate) mod cached;
pub(crate) mod call;
pub(crate) mod counter_storage;
pub(crate) mod engine_error;
pub(crate) mod errno;
pub(crate) mod feature_probe;
pub(crate) mod filter_probe;
pub(crate) mod forked;
#[cfg(feature = "net")]
pub(crate) mod heap;
pub(crate) mod kernel;
pub(crate) mod kernel_quirks;
pub(crate) mod lent;
pub(crate) mod mapping;
#[cfg(feature = "net")]
pub(crate) mod message;
pub(crate) mod mount;
#[cfg(feature = "net")]
pub(crate) mod net;
#[cfg(feature = "net")]
pub(crate) mod on_core;
#[cfg(feature = "net")]
pub(crate) mod option;
pub(crate) mod poll_queue;
#[cfg(feature = "net")]
pub(crate) mod poller;
pub(crate) mod polling;
pub(crate) mod probe;
pub(crate) mod probe_table;
pub(crate) mod register;
pub(crate) mod ring;
#[cfg(feature = "__preload")]
pub(crate) mod server_ring;
#[cfg(feature = "test-util")]
pub(crate) mod sim;
pub(crate) mod size_limit;
pub(crate) mod sq_poll;
pub(crate) mod sqe;
pub(crate) mod syscall_probe;
#[cfg(all(feature = "net", feature = "tokio"))]
pub(crate) mod timer_fd;
pub(crate) mod transfer_call;
pub(crate) mod transfer_flags;
pub(crate) mod wait_for;
pub(crate) mod wake;
