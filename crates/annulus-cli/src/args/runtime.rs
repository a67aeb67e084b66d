//! The options of the runtime of a server.

use clap::ValueEnum;

/// The backend of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ServeBackend {
    /// io_uring if it is available, otherwise the fallback; the reason is printed
    Auto,
    /// io_uring, or an error that says what to change
    Uring,
    /// epoll for sockets, blocking threads for files
    #[value(alias = "epoll")]
    Fallback,
}

/// The fill mode of receive buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReceiveModeName {
    /// A buffer for each receive
    Whole,
    /// Several receives in one buffer, one after the other
    Incremental,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RuntimeArgs {
    /// Number of cores: threads with a ring and a listener each
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) threads: usize,
    /// I/O backend: io_uring or the fallback
    #[arg(long, value_enum, default_value_t = ServeBackend::Auto)]
    pub(crate) backend: ServeBackend,
    /// Fill mode of the receive buffers. If this kernel does not fill them incrementally without errors, the
    /// mode is `whole`, and the reason is printed
    #[arg(long, value_enum, value_name = "MODE", default_value_t = ReceiveModeName::Whole, hide_short_help = true)]
    pub(crate) receive_mode: ReceiveModeName,
    /// Receive buffers of a core: their number, a power of two, and the length of each [default: depends on the
    /// mode]
    #[arg(long, value_name = "COUNTxBYTES", value_parser = parse_count_and_bytes, hide_short_help = true)]
    pub(crate) receive_buffers: Option<(u16, u32)>,
    /// Let a kernel thread poll the submission queues (SQPOLL); it occupies a processor while there is work
    #[arg(long, hide_short_help = true)]
    pub(crate) sqpoll: bool,
}

/// Parses `128x4096`.
fn parse_count_and_bytes(text: &str) -> Result<(u16, u32), String> {
    let parts = text.split_once('x');
    let parsed = parts.and_then(|(count, bytes)| Some((count.parse().ok()?, bytes.parse().ok()?)));
    parsed.ok_or_else(|| "write a count, an x and a number of bytes, as in 128x4096".to_owned())
}
