//! The engine of the process.

use std::io;
use std::panic::resume_unwind;
use std::sync::OnceLock;

use tokio::runtime::Handle;

use crate::engine::{Engine, EngineBuilder};
use crate::sys::forked;

/// The engines of this process and of the processes that it was forked from, which a child must not use.
static FIRST: Cell = OnceLock::new();

type Cell = OnceLock<Box<OfProcess>>;

struct OfProcess {
    process: u64,
    engine: Engine,
    next: Cell,
}

/// Returns the engine of this process, or the cell for it.
fn find() -> Result<&'static Engine, &'static Cell> {
    let process = forked::process();
    let mut cell = &FIRST;
    while let Some(known) = cell.get() {
        if known.process == process {
            return Ok(&known.engine);
        }
        cell = &known.next;
    }
    Err(cell)
}

/// Fails if another thread was faster.
fn set(cell: &Cell, engine: Engine) -> io::Result<()> {
    let process = forked::process();
    let next = OnceLock::new();
    let of_process = OfProcess {
        process,
        engine,
        next,
    };
    cell.set(Box::new(of_process)).map_err(|_| exists())
}

fn exists() -> io::Error {
    let what = "the engine of the process has been started already; call `set_engine` once, and before any other \
                function of `annulus::tokio::fs`";
    io::Error::new(io::ErrorKind::AlreadyExists, what)
}

/// Returns the engine of the process, and starts it if needed.
pub(super) fn of_process() -> &'static Engine {
    loop {
        match find() {
            Ok(engine) => return engine,
            // If another thread is faster, the next round finds its engine.
            Err(cell) => _ = set(cell, EngineBuilder::build_anyway()),
        }
    }
}

/// Runs `work` on a blocking thread: of the runtime, as Tokio does, or outside of one on a thread of the engine. If the
/// future is dropped, work that has begun runs to its end.
pub(super) async fn run_blocking<T, W>(work: W) -> io::Result<T>
where
    T: Send + 'static,
    W: FnOnce() -> io::Result<T> + Send + 'static,
{
    // In a forked child, the runtime may be its parent's, whose threads do not exist there.
    if let Ok(runtime) = Handle::try_current()
        && !forked::is_child()
    {
        return match runtime.spawn_blocking(work).await {
            Ok(done) => done,
            Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
            Err(_) => Err(io::Error::other(
                "the operation was not begun, because its Tokio runtime has ended; use another runtime",
            )),
        };
    }
    of_process().run_blocking(work).await
}

/// Returns the engine of the process, which all functions and files of this module use. The first call of any of them
/// starts it, with the default settings of [`EngineBuilder`]. If io_uring cannot be set up, whatever the reason, it
/// uses blocking threads. After a [`shutdown`](Engine::shutdown) of this engine, all operations of the process fail.
///
/// ```
/// let engine = annulus::tokio::fs::engine();
/// println!("{}", engine.backend()); // io_uring or threads, and why
/// println!("{} operations", engine.metrics().completed);
/// ```
pub fn engine() -> Engine {
    of_process().clone()
}

/// Makes `engine` the engine of the process, in place of one with the default settings. Call it before any other
/// function of this module, for example at the start of `main`.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use annulus::{Backend, Engine};
///
/// let engine = Engine::builder().backend(Backend::Fallback).blocking_threads(8).build()?;
/// annulus::tokio::fs::set_engine(engine)?;
/// let error = annulus::tokio::fs::set_engine(Engine::new()?).unwrap_err(); // it stays for the whole process
/// assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists);
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// Fails with `AlreadyExists` if the process has an engine, and with `Unsupported` for a simulated kernel, which has no
/// files of std.
pub fn set_engine(engine: Engine) -> io::Result<()> {
    if engine.is_simulated() {
        let what = "set_engine: a simulated kernel has no files of std; set another engine";
        return Err(io::Error::new(io::ErrorKind::Unsupported, what));
    }
    match find() {
        Ok(_) => Err(exists()),
        Err(cell) => set(cell, engine),
    }
}
