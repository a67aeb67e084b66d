//! io_uring for Rust: async file I/O from any executor, and a thread-per-core runtime for sockets.
//!
//! Annulus is for programs that keep many reads or writes in flight: storage engines, databases, file servers and
//! proxies. The API is safe. Where io_uring is missing or blocked, the same program runs on a thread pool and epoll.
//! For a single read at a time, `pread` is faster; for data in memory that need not be copied, `mmap` is faster.
//!
//! # First program
//!
//! ```
//! # fn main() -> std::io::Result<()> { pollster::block_on(async {
//! # let dir = tempfile::tempdir()?; let path = dir.path().join("data"); std::fs::write(&path, vec![7; 16384])?;
//! let engine = annulus::Engine::new()?;                    // io_uring if available
//! let file = engine.open(&path).await?;
//! let (n, page) = file.read_at(vec![0; 4096], 0).await?;   // the buffer moves in and comes back
//! let page = file.read_exact_at(page, 8192).await?;        // continues after short reads
//!
//! let reads = (0..4).map(|i| (vec![0; 4096], i * 4096));
//! let pages = file.read_many_at(reads).await;              // submitted together
//! # assert_eq!((n, page[0], pages.len()), (4096, 7, 4));
//! println!("{}", engine.backend());                        // the backend in use, and the reason
//! # Ok(()) }) }
//! ```
//!
//! The example runs on any executor. With the feature `tokio`, each thread of a Tokio runtime gets a ring
//! ([`tokio`](tokio/index.html)). On other executors, a background thread drives the ring. There are two alternatives:
//!
//! - A thread that only does file I/O can drive a ring itself ([`Engine::current_thread_driver`]).
//! - Sockets need the feature `net` and its runtime, with one ring per core ([`runtime`](runtime/index.html)).
//!
//! # Features
//!
//! No feature is enabled by default.
//!
//! | feature | adds |
//! |---|---|
//! | `net` | sockets, timers and the thread-per-core runtime: [`net`](net/index.html), [`runtime`](runtime/index.html), [`time`](time/index.html) |
//! | `signal` | signals on cores: [`signal`](signal/index.html); enables `net` |
//! | `tokio` | the file API of Tokio, [`tokio::fs`](tokio/fs/index.html), and rings on the threads of its runtimes: [`tokio`](tokio/index.html). With `net`, Tokio's context on cores: `RuntimeBuilder::with_tokio`. Tokio's I/O traits for [`fs::FileCursor`](fs/struct.FileCursor.html) |
//! | `bytes` | `Bytes` and `BytesMut` as buffers |
//! | `futures` | the I/O traits of futures-io for `fs::FileCursor` and, with `net`, for `net::AsyncStream`; `Stream` for types with a method `next` |
//! | `tokio-io` | the I/O traits of Tokio for `fs::FileCursor` and, with `net`, for `net::AsyncStream`, without Tokio's runtime |
//! | `test-util` | a simulated kernel for tests: [`sim`](sim/index.html) |
//!
//! # Fallback
//!
//! io_uring is used from Linux 5.11 on. On an older kernel, or where a sysctl, a seccomp filter or a resource limit
//! blocks io_uring, [`Backend::Auto`] falls back: files use system calls on blocking threads, sockets use epoll. The
//! API and the results stay the same. [`Engine::backend`] reports the backend in use and the reason.
//! [`support::Support`] probes what this machine supports, and suggests changes.
//!
//! # Other platforms
//!
//! The crate compiles on macOS, Windows and other systems, so that a library can depend on it without a `cfg`. There it
//! has the API for files, on blocking threads: [`Engine`], [`File`], [`OpenOptions`], whole files, paths, listings and
//! `fs::FileCursor`. [`Engine::backend`] says so, with the reason. Methods marked "Linux only" are missing, and so are
//! the modules `metrics`, `net`, `runtime`, `signal`, `sim`, `support` and `time`. Their features may be enabled, and
//! have no effect. docs/guide/libraries.md has the whole table.
//!
//! # Dropped futures
//!
//! A future submits nothing before its first poll, and may be dropped at any time. A dropped operation is cancelled if
//! the kernel still can; otherwise it completes unobserved, so a dropped write may still reach the file. The engine
//! owns the buffer until the kernel has finished with it. Memory is never corrupted, and a descriptor that arrives late
//! is closed.
//!
//! # Where to go next
//!
//! - The [guide](guide/index.html) explains each use with examples: [first steps](guide/getting_started/index.html),
//!   [files](guide/files/index.html), [sockets](guide/sockets/index.html), and
//!   [moving a program](guide/moving/index.html) from other libraries.
//! - [`Engine`] opens files, and [`EngineBuilder`] configures threads, limits and polling.
//! - [`File`] reads, writes and syncs. [`File::read_many_at`] submits many reads together.
//! - [`tokio::fs`](tokio/fs/index.html) has the functions and types of `tokio::fs`: one line moves a program.
//! - [`Engine::load_file`] loads a large file into memory with direct I/O.
//! - [`buf`] has aligned memory for direct I/O and registered buffers.
//! - [`EngineError`] and [`BufError`] describe failures. An error returns the buffer if the kernel no longer uses it.
//! - [`metrics`] has counters and latency histograms.
//!
//! # Examples
//!
//! Short programs, in the folder `examples` of the crate. The first lines of each show how to run it.
//!
//! | program | shows |
//! |---|---|
//! | `cat`, `cp` | reads one after another, and several in flight |
//! | `read_many` | many ranges, submitted together |
//! | `read_tokio`, `read_smol` | reads in tasks of Tokio and smol |
//! | `lines` | the lines of a file, compared with `std::io::BufReader` |
//! | `log` | durable appends |
//! | `du`, `append_only` | a program of `tokio::fs` with one line changed: many tasks, and appends with a policy of syncs |
//! | `direct` | direct I/O into registered buffers |
//! | `echo` | a TCP server with a ring per core and a graceful end |
//! | `support` | what this machine supports |

// Shows on docs.rs which feature an item needs.
#![cfg_attr(docsrs, feature(doc_cfg))]
// These choose between implementations of the same items.
#![cfg_attr(docsrs, doc(auto_cfg(hide(target_os = "linux", annulus_portable))))]
// Warns about each cast that can lose information. Use `narrow`, or state the reason at the cast: a truncated length
// once caused memory to be freed with the wrong size.
#![warn(
    clippy::cast_lossless,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss
)]

/// Chooses between modules. rustfmt finds the files of modules only in a macro of this name.
macro_rules! cfg_if {
    (if #[cfg($test:meta)] { $($item:item)* } else { $($other:item)* }) => {
        $(#[cfg($test)] $item)*
        $(#[cfg(not($test))] $other)*
    };
}

// The one place that chooses the implementation. That of `portable` has the same API for files, on blocking threads.
// `--cfg annulus_portable` selects it on Linux, for tests.
cfg_if! {
    if #[cfg(all(target_os = "linux", not(annulus_portable)))] {
        mod backend;
        pub mod buf;
        mod driver;
        pub mod engine;
        mod fd;
        pub mod fs;
        pub mod metrics;
        mod narrow;
        #[cfg(feature = "net")]
        pub mod net;
        pub mod op;
        /// Private to `annulus-preload`. May change in any release.
        #[cfg(feature = "__preload")]
        #[doc(hidden)]
        pub mod preload {
            pub use crate::sys::server_ring::{Completion, ServerRing, Sqe, Wait, request};
        }
        mod ring_options;
        #[cfg(feature = "net")]
        pub mod runtime;
        #[cfg(feature = "signal")]
        pub mod signal;
        #[cfg(feature = "test-util")]
        pub mod sim;
        pub mod support;
        mod sync;
        mod sys;
        #[cfg(feature = "net")]
        pub mod time;
        #[cfg(feature = "tokio")]
        pub mod tokio;
    } else {
        #[path = "portable/backend.rs"]
        mod backend;
        #[path = "portable/buf.rs"]
        pub mod buf;
        #[path = "portable/driver.rs"]
        mod driver;
        #[path = "portable/engine.rs"]
        pub mod engine;
        #[path = "portable/fs.rs"]
        pub mod fs;
        #[allow(dead_code, reason = "Linux uses more of it")]
        mod narrow;
        #[path = "portable/op.rs"]
        pub mod op;
        #[path = "portable/sys.rs"]
        mod sys;
        #[cfg(feature = "tokio")]
        #[path = "portable/tokio.rs"]
        pub mod tokio;
    }
}

#[cfg(any(feature = "futures", feature = "tokio", feature = "tokio-io"))]
mod byte_stream;
mod error;
#[cfg(all(doc, not(doctest)))]
pub mod guide;
mod idle_threads;
mod item_stream;

// The root has fourteen items; everything else is in a module (`tests/root.rs`).
pub use backend::{Backend, BackendInUse};
pub use buf::{IoBuf, IoBufMut};
pub use driver::Operation;
pub use engine::{Engine, EngineBuilder};
pub use error::{BufError, BufResult, SetupError, WholeResult};
pub use fs::{File, OpenOptions};
pub use sys::engine_error::EngineError;

/// The Rust code of the README as doctests.
#[cfg(all(doctest, feature = "net"))]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// The Rust code of a page of the guide as doctests.
#[cfg(all(doctest, feature = "net"))]
#[doc = include_str!("../../../docs/guide/getting-started.md")]
struct GuideGettingStarted;

/// The Rust code of a page of the guide as doctests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/libraries.md")]
struct GuideLibraries;

/// The Rust code of a page of the guide as doctests.
#[cfg(all(doctest, feature = "tokio"))]
#[doc = include_str!("../../../docs/guide/files.md")]
struct GuideFiles;
