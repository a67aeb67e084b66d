//! `annulus serve`: small servers on the runtime of the library.

mod address;
mod echo;
#[cfg(feature = "http")]
mod http;
#[cfg(feature = "http")]
mod listening;

pub(crate) use echo::echo;
#[cfg(feature = "http")]
pub(crate) use http::http;

use std::io::{self, Write};
use std::sync::OnceLock;

use annulus::Backend;
use annulus::engine::SqPoll;
use annulus::runtime::{self, CoreInfo, ReceiveMode, Runtime, RuntimeBuilder};

use crate::args::{ReceiveModeName, RuntimeArgs, ServeBackend};
use crate::fault::Fault;
use crate::signals::{self, Hook};

/// Returns the runtime for the options of a server. `buffers` is the default of `--receive-buffers`.
fn runtime_of(args: &RuntimeArgs, buffers: Option<(u16, u32)>) -> Result<RuntimeBuilder, Fault> {
    if args.threads == 0 {
        return Err(Fault::usage("--threads is 0; it must be at least 1"));
    }
    let backend = match args.backend {
        ServeBackend::Auto => Backend::Auto,
        ServeBackend::Uring => Backend::Uring,
        ServeBackend::Fallback => Backend::Fallback,
    };
    let mut builder = Runtime::builder().backend(backend).cores(args.threads);
    if args.sqpoll {
        builder = builder.sqpoll(SqPoll::new());
    }
    if let Some((count, bytes)) = args.receive_buffers.or(buffers) {
        builder = builder.receive_buffers(count, bytes);
    }
    Ok(builder.receive_mode(match args.receive_mode {
        ReceiveModeName::Whole => ReceiveMode::Whole,
        ReceiveModeName::Incremental => ReceiveMode::Incremental,
    }))
}

/// Called by each core: the first one shuts the runtime down at the first signal, until `end` is dropped.
fn end_at_signal(core: &CoreInfo, end: &OnceLock<Hook>) {
    if core.index() == 0 {
        let handle = runtime::handle();
        let _ = end.set(signals::on_first(move || handle.shutdown()));
    }
}

/// Prints the backend of the first core on standard error, and `lines` with the addresses on standard output. If
/// standard output is closed or full, the server goes on.
fn announce(core: &CoreInfo, lines: &str) {
    note!("annulus: {}", core.backend());
    let mut out = io::stdout().lock();
    if let Err(error) = out.write_all(lines.as_bytes()).and_then(|()| out.flush()) {
        note!(
            "annulus: cannot print to standard output: {error}; it would be: {}",
            lines.trim_end()
        );
    }
}
