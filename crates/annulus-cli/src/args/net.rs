//! What can be typed behind `annulus bench net`, and the servers that it starts.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Subcommand, ValueEnum};

use super::BenchWatchArgs;
use super::TraceArgs;
use super::report::PictureArgs;
use super::value::{parse_bytes, parse_seconds};

const NET_HELP: &str = "\
Examples:
  annulus bench net echo
      starts echo servers on one processor, loads each from the others, and compares them
  annulus bench net echo 127.0.0.1:7000 --connections 50,300 --pid 4711
      a server that runs: requests a second, latency, and what each request costs it
  annulus bench net http --what respond,1k,64k --connections 100,500
      `annulus serve http`, hyper on Tokio, and nginx if it is installed, under the same load
  annulus bench net http 127.0.0.1:8080 --path /index.html --reconnect
  annulus bench net redis unix:/run/redis.sock --command set --size 1k --pipeline 16
  annulus bench net memcached 127.0.0.1:11211 --size 3,1k --fill
  annulus bench net echo --variants epoll --server-cmd mine='/opt/mine --listen {addr}'

How it measures:
  All connections are opened first, then the load warms up, then it is measured. Every answer is
  checked: echoes byte for byte, HTTP by status and length (byte for byte, with --body; of compared
  servers, bodies above 4 KiB in one answer of 16), redis and
  memcached by kind (memcached's key too; values byte for byte, with --fill). Every request is
  answered or counted as an error of its kind; one error, a connection missing at the end or a
  count that does not match, and the run has failed.
  Without --rate each connection keeps --pipeline requests in flight: latency is from sending to
  answer and says nothing about requests that were not sent because the server was slow. With
  --rate requests are due by the clock, and latency is from when they were due.

Exit code:
  0 done; 1 a failed run; 2 used wrongly; 3 all went well, but an --alert was raised in a run of
  the server at ADDR or of Annulus; 77 this machine has no io_uring for the generator.";

#[derive(Debug, clap::Args)]
#[command(after_long_help = NET_HELP, arg_required_else_help = true)]
pub(crate) struct NetArgs {
    #[command(subcommand)]
    pub(crate) protocol: NetProtocol,
}

#[derive(Debug, Subcommand)]
pub(crate) enum NetProtocol {
    /// Messages that come back as they are
    #[command(after_long_help = NET_HELP)]
    Echo {
        /// Length of a message; several are measured one after the other
        #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "128", value_parser = parse_bytes)]
        size: Vec<u64>,
        #[command(flatten)]
        load: LoadArgs,
    },
    /// HTTP/1.1 GET
    #[command(after_long_help = NET_HELP)]
    Http {
        /// What to get from ADDR or from the servers of --server-cmd [default: /]
        #[arg(long)]
        path: Option<String>,
        /// What compared servers answer: `respond` from memory, or a file of that length; several are measured one
        /// after the other
        #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "respond", value_parser = parse_what)]
        #[arg(conflicts_with_all = ["addr", "path"])]
        what: Vec<ResponseLength>,
        /// What stands in the header `Host` [default: ADDR]
        #[arg(long)]
        host: Option<String>,
        /// What every answer's body must be, byte for byte
        #[arg(long, value_name = "FILE")]
        body: Option<PathBuf>,
        #[command(flatten)]
        load: LoadArgs,
    },
    /// Redis commands over random keys
    #[command(after_long_help = NET_HELP)]
    Redis {
        /// Which command
        #[arg(long, value_enum, default_value = "get")]
        command: RedisName,
        #[command(flatten)]
        store: StoreArgs,
        #[command(flatten)]
        load: LoadArgs,
    },
    /// Memcached commands over random keys, in the text protocol
    #[command(after_long_help = NET_HELP)]
    Memcached {
        /// Which command
        #[arg(long, value_enum, default_value = "get")]
        command: MemcachedName,
        #[command(flatten)]
        store: StoreArgs,
        #[command(flatten)]
        load: LoadArgs,
    },
}

/// What is the same for every store of values by keys.
#[derive(Debug, clap::Args)]
pub(crate) struct StoreArgs {
    /// How many keys there are
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=999_999_999_999))]
    pub(crate) keys: u64,
    /// Length of a value; several are measured one after the other
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "3", value_parser = parse_bytes)]
    pub(crate) size: Vec<u64>,
    /// Give every key a value of that length first, and check that answers have it: OVERWRITES `key:…`
    #[arg(long)]
    pub(crate) fill: bool,
    /// Every key has its value from an earlier --fill of as many keys and that length: check answers, change nothing
    #[arg(long, conflicts_with = "fill")]
    pub(crate) filled: bool,
}

/// What HTTP servers that are compared answer: a file of that length, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResponseLength(pub(crate) Option<u64>);

fn parse_what(text: &str) -> Result<ResponseLength, String> {
    if text == "respond" {
        return Ok(ResponseLength(None));
    }
    match parse_bytes(text) {
        Ok(bytes) if bytes > 0 => Ok(ResponseLength(Some(bytes))),
        _ => Err("write `respond`, or the length of a file such as 1k, 64k, 1m".into()),
    }
}

impl NetProtocol {
    /// The path that was given, of HTTP.
    pub(crate) fn path(&self) -> Option<&str> {
        match self {
            NetProtocol::Http { path, .. } => path.as_deref(),
            _ => None,
        }
    }

    /// What is the same for every protocol.
    pub(crate) fn load(&self) -> &LoadArgs {
        match self {
            NetProtocol::Echo { load, .. }
            | NetProtocol::Http { load, .. }
            | NetProtocol::Redis { load, .. }
            | NetProtocol::Memcached { load, .. } => load,
        }
    }

    /// What is the same for those that have keys.
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

/// What is the same for every protocol.
#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("written").multiple(true).args(["json", "html", "heatmap"]))]
pub(crate) struct LoadArgs {
    /// The server: 127.0.0.1:7000, localhost:80 or unix:/path; without it, variants are started
    #[arg(value_name = "ADDR")]
    pub(crate) addr: Option<String>,

    /// Connections in all; several numbers are measured one after the other
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "50,300,1000"
    )]
    pub(crate) connections: Vec<usize>,

    /// Requests in flight on each connection
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) pipeline: usize,

    /// Requests a second over all connections, by the clock [default: as fast as answers come]
    #[arg(long, value_name = "N")]
    pub(crate) rate: Option<f64>,

    /// A connection for each request
    #[arg(long)]
    pub(crate) reconnect: bool,

    /// Client threads
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) threads: usize,

    /// Processors of the client threads, in turn [default: with variants, all but the server's]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) cpu: Vec<usize>,

    /// How long each run is measured, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_seconds)]
    pub(crate) runtime: Duration,

    /// How long the load runs before that, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "0.3", value_parser = parse_seconds)]
    pub(crate) warmup: Duration,

    /// A request or connection that takes longer is an error
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = parse_seconds)]
    pub(crate) timeout: Duration,

    /// How often each is measured [default: 1; with variants 5]
    #[arg(long, value_name = "N", visible_alias = "repeat")]
    pub(crate) repeats: Option<usize>,

    /// The server's process, with its children: what a request costs it
    #[arg(long, value_name = "PID", requires = "addr")]
    pub(crate) pid: Option<u32>,

    /// Who is started and compared, or `none` beside --server-cmd [default: all of our own, and nginx]
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        conflicts_with = "addr"
    )]
    pub(crate) variants: Vec<String>,

    /// Another variant: its name and command, where {addr} stands for the address to listen on, and {dir} for the
    /// folder with the files of --what
    #[arg(long, value_name = "NAME=CMD", conflicts_with = "addr")]
    pub(crate) server_cmd: Vec<String>,

    /// Processors of the variants [default: the first, if there are two]
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        conflicts_with = "addr"
    )]
    pub(crate) server_cpu: Vec<usize>,

    /// Write the figures of each run to FILE
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Write the timeline of each run to the FILE of --json as well: `bench report` draws heat maps from it
    #[arg(long, requires = "json")]
    pub(crate) timeline: bool,

    #[command(flatten)]
    pub(crate) pictures: PictureArgs,

    /// Replace the FILE of --json, --html or --heatmap if it exists
    #[arg(long, requires = "written")]
    pub(crate) replace: bool,

    /// Seed of the order of runs, of keys and of messages
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,

    #[command(flatten)]
    pub(crate) watch: BenchWatchArgs,

    #[command(flatten)]
    pub(crate) trace: TraceArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct NetServerArgs {
    /// ring, epoll, tokio; hyper, of HTTP
    pub(crate) name: String,

    /// What hyper answers [default: Hello, World!]
    #[arg(long, value_name = "FILE")]
    pub(crate) body: Option<PathBuf>,

    /// Where to listen
    #[arg(long, default_value = "127.0.0.1:0")]
    pub(crate) addr: std::net::SocketAddr,
}

#[derive(Debug, clap::Args)]
pub(crate) struct NetChildArgs {
    /// Processors of the program
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) cpu: Vec<usize>,

    /// Whose child this must be
    #[arg(long)]
    pub(crate) parent: u32,

    /// The program and its arguments
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<std::ffi::OsString>,
}
