//! What can be typed behind `annulus serve http`.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;

use super::address::{Address, parse_address};
use super::value::{parse_bytes, parse_limit, parse_time};
use super::{ReceiveArgs, ServeBackend, WatchArgs};

/// How a line of the access log looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormatName {
    /// NCSA's, which most tools read
    Common,
    /// The same, with the referring page and the client's name
    Combined,
    /// An object a line
    Json,
}

#[derive(Debug, clap::Args)]
pub(crate) struct HttpArgs {
    /// The directory whose files are served
    #[arg(value_name = "DIR", required_unless_present = "respond")]
    pub(crate) dir: Option<PathBuf>,
    /// Where to listen: HOST:PORT (each address of the host), unix:PATH, or systemd (the sockets that it passes);
    /// port 0 is any that is free, and is printed
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080", value_parser = parse_address)]
    pub(crate) addr: Address,
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
    #[command(flatten)]
    pub(crate) files: FilesArgs,
    /// Answer every GET with this status and touch no file
    #[arg(long, value_name = "STATUS", conflicts_with = "dir")]
    pub(crate) respond: Option<u16>,
    /// The body of that answer
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "Hello, World!",
        requires = "respond"
    )]
    pub(crate) respond_body: String,
    /// HTTPS, with HTTP/2: the certificate and its chain, PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The certificate's private key, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Append a line for each answer to a file, which SIGUSR1 opens again; a FIFO never delays the server
    #[arg(long, value_name = "FILE")]
    pub(crate) access_log: Option<PathBuf>,
    /// How such a line looks
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = LogFormatName::Combined, requires = "access_log")]
    pub(crate) access_log_format: LogFormatName,
    /// After a signal, what is under way has so long to finish; 0 drops it at once
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_time)]
    pub(crate) grace: Duration,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
    #[command(flatten)]
    pub(crate) watch: WatchArgs,
}

/// Which files, and how they are kept.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Files")]
pub(crate) struct FilesArgs {
    /// A name that stands for its directory; may be given several times, the first that is there counts
    #[arg(long, value_name = "NAME", default_value = "index.html")]
    pub(crate) index: Vec<String>,
    /// List a directory that has no index
    #[arg(long)]
    pub(crate) listing: bool,
    /// Serve names that begin with a dot, too
    #[arg(long)]
    pub(crate) hidden: bool,
    /// Don't send FILE.br, FILE.zst or FILE.gz for FILE to clients that take them
    #[arg(long)]
    pub(crate) no_precompressed: bool,
    /// Memory of each core for small files
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = parse_bytes)]
    pub(crate) cache: u64,
    /// For how long what was found under a path is believed; 0 looks before every answer
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_time)]
    pub(crate) recheck: Duration,
}

/// How much of everything; see docs/reference/http.md.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Limits")]
pub(crate) struct LimitArgs {
    /// Bytes of a request's line and fields; 431 beyond
    #[arg(long, value_name = "BYTES", default_value = "16k", value_parser = parse_bytes)]
    pub(crate) max_head: u64,
    /// Bytes of a request's target; 414 beyond
    #[arg(long, value_name = "BYTES", default_value = "8k", value_parser = parse_bytes)]
    pub(crate) max_target: u64,
    /// Fields of a request, at most 128; 431 beyond
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u8).range(1..=128))]
    pub(crate) max_fields: u8,
    /// Bytes of a request's body, which is read and thrown away; 413 beyond
    #[arg(long, value_name = "BYTES", default_value = "1M", value_parser = parse_bytes)]
    pub(crate) max_body: u64,
    /// Requests of one connection; 0 is no limit
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) max_requests: u64,
    /// Connections of each core, if RLIMIT_NOFILE allows them; then the longest idle one is closed
    #[arg(long, value_name = "N", default_value_t = 65_536)]
    pub(crate) max_connections: usize,
    /// Streams of one connection of HTTP/2 at once
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) max_streams: u32,
    /// From the first byte of a request to the end of its fields
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_limit)]
    pub(crate) head_timeout: Duration,
    /// From there to the end of its body
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_limit)]
    pub(crate) body_timeout: Duration,
    /// For a connection without a request
    #[arg(long, value_name = "TIME", default_value = "75s", value_parser = parse_limit)]
    pub(crate) idle_timeout: Duration,
    /// For a client that takes nothing of its answer
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_limit)]
    pub(crate) send_timeout: Duration,
    /// For the handshake of TLS
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_limit)]
    pub(crate) handshake_timeout: Duration,
}
