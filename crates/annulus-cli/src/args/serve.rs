//! The command line of `annulus serve`.

use std::path::PathBuf;

use clap::Subcommand;

use super::{HttpArgs, MORE_OPTIONS, RuntimeArgs, WatchArgs};

#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct Serve {
    #[command(subcommand)]
    pub(crate) protocol: ServeProtocol,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ServeProtocol {
    /// Send received messages back: TCP, UDP or Unix sockets
    Echo(EchoArgs),
    /// Serve the files of a directory over HTTP/1.1 and HTTP/2, with or without TLS
    #[cfg(feature = "http")]
    Http(Box<HttpArgs>),
}

#[derive(Debug, clap::Args)]
#[command(after_help = MORE_OPTIONS, after_long_help = "")]
pub(crate) struct EchoArgs {
    /// Address to listen on; port 0 selects a free port, which is printed
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7000")]
    pub(crate) addr: std::net::SocketAddr,
    #[command(flatten)]
    pub(crate) runtime: RuntimeArgs,
    /// Listen on a Unix socket at PATH instead; it is removed at the end
    #[arg(long, value_name = "PATH", conflicts_with = "addr")]
    pub(crate) unix: Option<PathBuf>,
    /// Echo UDP datagrams instead of TCP connections
    #[arg(long, conflicts_with = "unix")]
    pub(crate) udp: bool,
    #[command(flatten)]
    pub(crate) watch: WatchArgs,
}
