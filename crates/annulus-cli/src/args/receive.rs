//! What can be typed about a server's receive buffers.

use clap::ValueEnum;

/// How the kernel fills them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FilledHow {
    /// One for each receive
    Whole,
    /// One receive behind the other
    Incremental,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ReceiveArgs {
    /// How receive buffers are filled, where the kernel is seen to do it well; else one for each receive,
    /// and why is reported
    #[arg(long, value_enum, value_name = "MODE", default_value_t = FilledHow::Whole)]
    pub(crate) receive_mode: FilledHow,
    /// Receive buffers of a core: how many, a power of two, and of how many bytes [default: as many as the
    /// mode does well with]
    #[arg(long, value_name = "COUNTxBYTES", value_parser = count_and_bytes)]
    pub(crate) receive_buffers: Option<(u16, u32)>,
}

/// `128x4096`.
fn count_and_bytes(text: &str) -> Result<(u16, u32), String> {
    let parts = text.split_once('x');
    let parsed = parts.and_then(|(count, bytes)| Some((count.parse().ok()?, bytes.parse().ok()?)));
    parsed.ok_or_else(|| "not a count, an x and a number of bytes, as in 128x4096".to_owned())
}
