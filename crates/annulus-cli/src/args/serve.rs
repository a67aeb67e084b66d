//! What can be typed behind `annulus serve`.

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};

use super::{HttpArgs, ReceiveArgs, WatchArgs};

#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct Serve {
    #[command(subcommand)]
    pub(crate) what: ServeWhat,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ServeWhat {
    /// Send back what is received
    Echo(EchoArgs),
    /// Serve the files of a directory over HTTP/1.1, or HTTPS with HTTP/2
    Http(Box<HttpArgs>),
}

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

#[derive(Debug, clap::Args)]
pub(crate) struct EchoArgs {
    /// Where to listen; port 0 is any that is free, and is printed
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7000")]
    pub(crate) addr: std::net::SocketAddr,
    /// Cores: threads with a ring and a listener each
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) threads: usize,
    /// The backend: io_uring or the fallback
    #[arg(long, value_enum, default_value_t = ServeBackend::Auto)]
    pub(crate) backend: ServeBackend,
    #[command(flatten)]
    pub(crate) receive: ReceiveArgs,
    /// Have a kernel thread poll the submission queues (SQPOLL); it takes a processor while there is work
    #[arg(long)]
    pub(crate) sqpoll: bool,
    /// Listen at a path instead, which is removed at the end
    #[arg(long, value_name = "PATH", conflicts_with = "addr")]
    pub(crate) unix: Option<PathBuf>,
    /// Answer datagrams at that address, not connections
    #[arg(long, conflicts_with = "unix")]
    pub(crate) udp: bool,
    #[command(flatten)]
    pub(crate) watch: WatchArgs,
}
