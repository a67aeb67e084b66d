//! The command line of `annulus serve http`.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;

use super::address::{Address, parse_address};
use super::value::{parse_bytes, parse_limit, parse_time};
use super::{MORE_OPTIONS, RuntimeArgs, WatchArgs};

/// The format of the access log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormatName {
    /// NCSA common log format, which most tools read
    Common,
    /// The common format, with the Referer and User-Agent fields
    Combined,
    /// A JSON object for each line
    Json,
}

const HTTP_HELP: &str = "\
Examples:
  annulus serve http /var/www
  annulus serve http /var/www --addr 0.0.0.0:8443 --tls-cert chain.pem --tls-key key.pem
  annulus serve http --respond 200 --respond-body ok --threads 2";

#[derive(Debug, clap::Args)]
#[command(after_help = MORE_OPTIONS, after_long_help = HTTP_HELP)]
pub(crate) struct HttpArgs {
    /// Directory whose files are served
    #[arg(value_name = "DIR", required_unless_present = "respond")]
    pub(crate) dir: Option<PathBuf>,
    /// Address to listen on: HOST:PORT (every address of the host), unix:PATH, or systemd (the sockets that it passes).
    /// Port 0 selects a free port, which is printed
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080", value_parser = parse_address)]
    pub(crate) addr: Address,
    #[command(flatten)]
    pub(crate) runtime: RuntimeArgs,
    /// Time that running requests have to finish after SIGINT, SIGTERM or SIGHUP; 0 drops them immediately
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_time)]
    pub(crate) grace: Duration,
    /// Respond to every GET with this status, without access to files
    #[arg(
        long,
        value_name = "STATUS",
        conflicts_with = "dir",
        hide_short_help = true
    )]
    pub(crate) respond: Option<u16>,
    /// Body of that response
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "Hello, World!",
        requires = "respond",
        hide_short_help = true
    )]
    pub(crate) respond_body: String,
    #[command(flatten)]
    pub(crate) files: FilesArgs,
    /// Serve HTTPS with HTTP/2: file with the certificate and its chain (PEM)
    #[arg(help_heading = "HTTPS")]
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// File with the private key of the certificate (PEM)
    #[arg(help_heading = "HTTPS")]
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Append a line for each response to FILE. SIGUSR1 reopens it; a FIFO never delays the server
    #[arg(help_heading = "Access log")]
    #[arg(long, value_name = "FILE")]
    pub(crate) access_log: Option<PathBuf>,
    /// Format of the access log
    #[arg(help_heading = "Access log")]
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = LogFormatName::Combined, requires = "access_log", hide_short_help = true)]
    pub(crate) access_log_format: LogFormatName,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
    #[command(flatten)]
    pub(crate) watch: WatchArgs,
}

/// The choice of files and their cache.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Files")]
pub(crate) struct FilesArgs {
    /// Index file of a directory; may be repeated, and the first that exists is served
    #[arg(long, value_name = "NAME", default_value = "index.html")]
    pub(crate) index: Vec<String>,
    /// List the content of directories that have no index file
    #[arg(long)]
    pub(crate) listing: bool,
    /// Also serve names that begin with a dot
    #[arg(long, hide_short_help = true)]
    pub(crate) hidden: bool,
    /// Do not send FILE.br, FILE.zst or FILE.gz instead of FILE to clients that accept them
    #[arg(long, hide_short_help = true)]
    pub(crate) no_precompressed: bool,
    /// Memory of each core for the cache of small files
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = parse_bytes)]
    pub(crate) cache: u64,
    /// Time after which a cached path is checked again; 0 checks it before every response
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_time, hide_short_help = true)]
    pub(crate) recheck: Duration,
}

/// The limits of requests and connections; see docs/reference/http.md.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Limits")]
pub(crate) struct LimitArgs {
    /// Maximum length of a request's line and header fields; a longer one gets status 431
    #[arg(long, value_name = "BYTES", default_value = "16k", value_parser = parse_bytes, hide_short_help = true)]
    pub(crate) max_head: u64,
    /// Maximum length of a request's target; a longer one gets status 414
    #[arg(long, value_name = "BYTES", default_value = "8k", value_parser = parse_bytes, hide_short_help = true)]
    pub(crate) max_target: u64,
    /// Maximum number of header fields of a request, at most 128; more get status 431
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u8).range(1..=128), hide_short_help = true)]
    pub(crate) max_fields: u8,
    /// Maximum length of a request's body, which is read and discarded; a longer one gets status 413
    #[arg(long, value_name = "BYTES", default_value = "1M", value_parser = parse_bytes, hide_short_help = true)]
    pub(crate) max_body: u64,
    /// Maximum number of requests on one connection; 0 means no limit
    #[arg(long, value_name = "N", default_value_t = 0, hide_short_help = true)]
    pub(crate) max_requests: u64,
    /// Maximum number of connections of each core, subject to RLIMIT_NOFILE; beyond it, the connection that has been
    /// idle longest is closed
    #[arg(long, value_name = "N", default_value_t = 65_536)]
    pub(crate) max_connections: usize,
    /// Maximum number of concurrent streams on an HTTP/2 connection
    #[arg(long, value_name = "N", default_value_t = 100, hide_short_help = true)]
    pub(crate) max_streams: u32,
    /// Time from the first byte of a request to the end of its header fields
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_limit, hide_short_help = true)]
    pub(crate) head_timeout: Duration,
    /// Time from the end of the header fields to the end of the body
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_limit, hide_short_help = true)]
    pub(crate) body_timeout: Duration,
    /// Time that a connection may stay open without a request
    #[arg(long, value_name = "TIME", default_value = "75s", value_parser = parse_limit, hide_short_help = true)]
    pub(crate) idle_timeout: Duration,
    /// Time without progress of a response, for a client that does not read it
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_limit, hide_short_help = true)]
    pub(crate) send_timeout: Duration,
    /// Time of the TLS handshake
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_limit, hide_short_help = true)]
    pub(crate) handshake_timeout: Duration,
}
