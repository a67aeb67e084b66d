//! `annulus serve`: small servers on the library's runtime.

mod address;
mod echo;
mod http;
mod listening;

pub(crate) use echo::echo;
pub(crate) use http::http;

use annulus::Backend;
use annulus::engine::SqPoll;
use annulus::runtime::{ReceiveMode, Runtime, RuntimeBuilder};

use crate::args::{FilledHow, ReceiveArgs, ServeBackend};

/// The runtime that a server asks for. `buffers`: receive buffers, where nothing else was typed.
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
        FilledHow::Whole => ReceiveMode::Whole,
        FilledHow::Incremental => ReceiveMode::Incremental,
    })
}
