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

use annulus::Backend;
use annulus::engine::SqPoll;
use annulus::runtime::{ReceiveMode, Runtime, RuntimeBuilder};

use crate::args::{ReceiveArgs, ReceiveModeName, ServeBackend};

/// Returns the runtime for the options of a server. `buffers` is the default of `--receive-buffers`.
fn runtime_of(
    backend: ServeBackend,
    threads: usize,
    sqpoll: bool,
    receive: &ReceiveArgs,
    buffers: Option<(u16, u32)>,
) -> RuntimeBuilder {
    let backend = match backend {
        ServeBackend::Auto => Backend::Auto,
        ServeBackend::Uring => Backend::Uring,
        ServeBackend::Fallback => Backend::Fallback,
    };
    let mut builder = Runtime::builder().backend(backend).threads(threads);
    if sqpoll {
        builder = builder.sqpoll(SqPoll::new());
    }
    if let Some((count, bytes)) = receive.receive_buffers.or(buffers) {
        builder = builder.receive_buffers(count, bytes);
    }
    builder.receive_mode(match receive.receive_mode {
        ReceiveModeName::Whole => ReceiveMode::Whole,
        ReceiveModeName::Incremental => ReceiveMode::Incremental,
    })
}
