//! The command lines of `annulus bench net`, and of the servers that it starts.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Subcommand, ValueEnum};

use super::BenchWatchArgs;
use super::MORE_OPTIONS;
use super::TraceArgs;
use super::report::OutputArgs;
use super::value::{REPEATS_MAX, parse_bytes, parse_count, parse_seconds};

const NET_HELP: &str = "\
Examples:
  annulus bench net echo
      starts echo servers on one processor, loads each from the others, and compares them
  annulus bench net echo 127.0.0.1:7000 --connections 50,300 --pid 4711
      loads a running server: requests per second, latency, and CPU time per request
  annulus bench net http --what respond,1k,64k --connections 100,500
      compares `annulus serve http`, hyper on Tokio and, if installed, nginx
  annulus bench net http 127.0.0.1:8080 --path /index.html --reconnect
  annulus bench net http 127.0.0.1:8080 --path /upload --post 64k
  annulus bench net redis unix:/run/redis.sock --command set --size 1k --pipeline 16
  annulus bench net memcached 127.0.0.1:11211 --size 3,1k --fill
  annulus bench net echo --variants epoll --server-cmd mine='/opt/mine --listen {addr}'

How it measures:
  All connections are opened before the warm-up and the measurement. Every response is checked:
  echoes byte for byte; HTTP by status and length (with --body, byte for byte; for compared
  servers, 1 in 16 of the bodies above 4 KiB); redis and memcached by type, memcached also by
  key, and values byte for byte with --fill. A request without a valid response counts as an
  error. With --disconnect, requests are counted when they are sent, and no response is checked.
  A run fails on an error, on a connection that is missing at the end, and on a count that does
  not match.
  Without --rate, each connection keeps --pipeline requests in flight. Latency is then the time
  from sending to response; it does not include requests that a slow server has delayed. With
  --rate, requests are sent on a fixed schedule, and latency starts at the scheduled time.

Exit code:
  0 success; 1 a run failed; 2 the command line is wrong; 3 all runs succeeded, but a run of the
  server at ADDR or of Annulus raised an --alert; 77 io_uring, which the load generator needs, is
  not available.";

/// The last line of the short help of `bench net`.
const NET_MORE: &str = "--help explains the measurement, and gives examples.";

#[derive(Debug, clap::Args)]
#[command(after_help = NET_MORE, after_long_help = NET_HELP, arg_required_else_help = true)]
pub(crate) struct NetArgs {
    #[command(subcommand)]
    pub(crate) protocol: NetProtocol,
}

#[derive(Debug, Subcommand)]
pub(crate) enum NetProtocol {
    /// Echo server: messages that return unchanged
    #[command(after_help = MORE_OPTIONS, after_long_help = NET_HELP)]
    Echo {
        /// Length of a message, as a list
        ///
        /// Each length of the list is measured in turn.
        #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "128", value_parser = parse_bytes)]
        size: Vec<u64>,
        #[command(flatten)]
        load: LoadArgs,
    },
    /// HTTP server: GET or POST requests over HTTP/1.1
    #[command(after_help = MORE_OPTIONS, after_long_help = NET_HELP)]
    Http {
        /// Path to request from ADDR or from the servers of --server-cmd [default: /]
        #[arg(long)]
        path: Option<String>,
        /// Responses of compared servers, as a list: `respond`, or the length of a file
        ///
        /// Responses with the name `respond` come from memory. Each response of the list is measured in turn.
        #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "respond", value_parser = parse_response_length)]
        #[arg(conflicts_with_all = ["addr", "path"])]
        what: Vec<ResponseLength>,
        /// Value of the header field `Host` [default: ADDR]
        #[arg(long, hide_short_help = true)]
        host: Option<String>,
        /// Send POST requests with a body of this length, such as 64k, instead of GET
        #[arg(long, value_name = "LENGTH", value_parser = parse_bytes, conflicts_with = "what")]
        post: Option<u64>,
        /// Open a connection for each request, and close it when the request is sent, without receiving
        ///
        /// The latency is then the time to connect and send. --reconnect waits for the response.
        #[arg(long, hide_short_help = true, conflicts_with_all = ["body", "pipeline"])]
        disconnect: bool,
        /// File with the expected body of every response, compared byte for byte
        #[arg(long, value_name = "FILE", hide_short_help = true)]
        body: Option<PathBuf>,
        #[command(flatten)]
        load: LoadArgs,
    },
    /// Redis server: commands on random keys
    #[command(after_help = MORE_OPTIONS, after_long_help = NET_HELP)]
    Redis {
        /// Command to send
        #[arg(long, value_enum, default_value = "get")]
        command: RedisName,
        #[command(flatten)]
        store: StoreArgs,
        #[command(flatten)]
        load: LoadArgs,
    },
    /// Memcached server: commands on random keys, in the text protocol
    #[command(after_help = MORE_OPTIONS, after_long_help = NET_HELP)]
    Memcached {
        /// Command to send
        #[arg(long, value_enum, default_value = "get")]
        command: MemcachedName,
        #[command(flatten)]
        store: StoreArgs,
        #[command(flatten)]
        load: LoadArgs,
    },
}

/// The options of key-value stores.
#[derive(Debug, clap::Args)]
pub(crate) struct StoreArgs {
    /// Number of keys
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=999_999_999_999))]
    pub(crate) keys: u64,
    /// Length of a value, as a list
    ///
    /// Each length of the list is measured in turn.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "3", value_parser = parse_bytes)]
    pub(crate) size: Vec<u64>,
    /// Store all values first, and check them. OVERWRITES `key:…`
    ///
    /// A value of the given length is stored under every key. Responses must contain it.
    #[arg(long)]
    pub(crate) fill: bool,
    /// Check the values of an earlier --fill with the same number of keys and length, without storing them again
    #[arg(long, conflicts_with = "fill", hide_short_help = true)]
    pub(crate) filled: bool,
}

/// The response of compared HTTP servers: a file of this length, or a response from memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResponseLength(pub(crate) Option<u64>);

fn parse_response_length(text: &str) -> Result<ResponseLength, String> {
    if text == "respond" {
        return Ok(ResponseLength(None));
    }
    match parse_bytes(text) {
        Ok(bytes) if bytes > 0 => Ok(ResponseLength(Some(bytes))),
        _ => Err("write `respond`, or the length of a file, such as 1k, 64k or 1m".into()),
    }
}

impl NetProtocol {
    /// Returns `--path` of HTTP.
    pub(crate) fn path(&self) -> Option<&str> {
        match self {
            NetProtocol::Http { path, .. } => path.as_deref(),
            _ => None,
        }
    }

    /// Returns `--disconnect` of HTTP.
    pub(crate) fn disconnects(&self) -> bool {
        matches!(
            self,
            NetProtocol::Http {
                disconnect: true,
                ..
            }
        )
    }

    /// Returns the options that all protocols have.
    pub(crate) fn load(&self) -> &LoadArgs {
        match self {
            NetProtocol::Echo { load, .. }
            | NetProtocol::Http { load, .. }
            | NetProtocol::Redis { load, .. }
            | NetProtocol::Memcached { load, .. } => load,
        }
    }

    /// Returns the options of a key-value store.
    pub(crate) fn store(&self) -> Option<&StoreArgs> {
        match self {
            NetProtocol::Redis { store, .. } | NetProtocol::Memcached { store, .. } => Some(store),
            NetProtocol::Echo { .. } | NetProtocol::Http { .. } => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RedisName {
    Get,
    Set,
    Ping,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MemcachedName {
    Get,
    Set,
}

/// The number of connections that can be opened from a few loopback addresses in reasonable time.
const CONNECTIONS_MAX: usize = 60_000;
const PIPELINE_MAX: usize = 1024;
const THREADS_MAX: usize = 64;

/// The options that all protocols have.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Load")]
pub(crate) struct LoadArgs {
    /// Running server; without it, servers are started and compared
    ///
    /// Examples: 127.0.0.1:7000, localhost:80, unix:/path
    #[arg(value_name = "ADDR", help_heading = None)]
    pub(crate) addr: Option<String>,

    /// Total number of connections, as a list
    ///
    /// Each number of the list is measured in turn.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "50,300,1000",
        value_parser = parse_count::<CONNECTIONS_MAX>
    )]
    pub(crate) connections: Vec<usize>,

    /// Requests in flight on each connection
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parse_count::<PIPELINE_MAX>)]
    pub(crate) pipeline: usize,

    /// Total requests per second [default: no limit]
    ///
    /// With a rate, requests are sent on a fixed schedule. Otherwise the next request is sent after a response.
    #[arg(long, value_name = "N")]
    pub(crate) rate: Option<f64>,

    /// Open a new connection for each request
    #[arg(long, hide_short_help = true)]
    pub(crate) reconnect: bool,

    /// Number of client threads
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parse_count::<THREADS_MAX>)]
    pub(crate) threads: usize,

    /// Processors of the client threads, one after the other [default: with variants, all but the server's]
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        hide_short_help = true
    )]
    pub(crate) cpu: Vec<usize>,

    /// Length of each run, in seconds
    #[arg(help_heading = "Runs")]
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_seconds)]
    pub(crate) runtime: Duration,

    /// Length of the warm-up before each run, in seconds
    #[arg(help_heading = "Runs", hide_short_help = true)]
    #[arg(long, value_name = "SECONDS", default_value = "0.3", value_parser = parse_seconds)]
    pub(crate) warmup: Duration,

    /// Time after which a request or connection fails, in seconds
    #[arg(help_heading = "Runs", hide_short_help = true)]
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = parse_seconds)]
    pub(crate) timeout: Duration,

    /// Number of runs of each server [default: 1; with variants: 5]
    #[arg(help_heading = "Runs")]
    #[arg(long, value_name = "N", visible_alias = "repeat", value_parser = parse_count::<REPEATS_MAX>)]
    pub(crate) repeats: Option<usize>,

    /// Process of the server at ADDR, to measure its CPU time
    ///
    /// The CPU time per request includes that of its children.
    #[arg(long, value_name = "PID", requires = "addr", help_heading = "Server")]
    pub(crate) pid: Option<u32>,

    /// Servers to start and compare [default: all]
    ///
    /// The default is all built-in servers, and nginx if it is installed. For HTTP, `nginx-preload` is nginx under
    /// `annulus run`. `none` starts only those of --server-cmd.
    #[arg(
        long,
        help_heading = "Server",
        value_name = "LIST",
        value_delimiter = ',',
        conflicts_with = "addr"
    )]
    pub(crate) variants: Vec<String>,

    /// Another server to compare, such as mine='./mine {addr}'
    ///
    /// {addr} is replaced by the address to listen on, {port} by its port, and {dir} by the directory with the files of
    /// --what.
    #[arg(help_heading = "Server")]
    #[arg(long, value_name = "NAME=CMD", conflicts_with = "addr")]
    pub(crate) server_cmd: Vec<String>,

    /// Processors of the started servers [default: the first, if there are at least two]
    #[arg(
        long,
        help_heading = "Server",
        hide_short_help = true,
        value_name = "LIST",
        value_delimiter = ',',
        conflicts_with = "addr"
    )]
    pub(crate) server_cpu: Vec<usize>,

    #[command(flatten)]
    pub(crate) output: OutputArgs,

    /// Seed of the order of runs, of keys and of messages
    #[arg(long, value_name = "N", help_heading = "Runs", hide_short_help = true)]
    pub(crate) seed: Option<u64>,

    #[command(flatten)]
    pub(crate) watch: BenchWatchArgs,

    #[command(flatten)]
    pub(crate) trace: TraceArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct NetServerArgs {
    /// Server: ring, epoll, tokio, or hyper for HTTP
    pub(crate) name: String,

    /// Body of hyper's responses [default: Hello, World!]
    #[arg(long, value_name = "FILE")]
    pub(crate) body: Option<PathBuf>,

    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1:0")]
    pub(crate) addr: std::net::SocketAddr,
}

#[derive(Debug, clap::Args)]
pub(crate) struct NetChildArgs {
    /// Processors of the program
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) cpu: Vec<usize>,

    /// Process ID of the expected parent
    #[arg(long)]
    pub(crate) parent: u32,

    /// The program and its arguments
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<std::ffi::OsString>,
}
