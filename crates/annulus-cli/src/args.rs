//! What can be typed. One struct per command; what it means is decided in the command's own module.

mod receive;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

pub(crate) use receive::{FilledHow, ReceiveArgs};

use clap::{Parser, Subcommand, ValueEnum};

/// Measures file I/O on this machine: Annulus, the blocking calls, and a ring written by hand.
#[derive(Debug, Parser)]
#[command(name = "annulus", version, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure what asynchronous I/O is worth here
    Bench(Bench),
    /// Run a small server on the library's own runtime
    Serve(Serve),
}

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
}

/// How a server learns what its sockets can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ServeBackend {
    /// io_uring where it can be had, else epoll; the reason is said
    Auto,
    /// io_uring, or an error that says what to change
    Uring,
    /// epoll
    Epoll,
}

#[derive(Debug, clap::Args)]
pub(crate) struct EchoArgs {
    /// Where to listen; port 0 is any that is free, and is printed
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7000")]
    pub(crate) addr: std::net::SocketAddr,
    /// Cores: threads with a ring and a listener each
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) threads: usize,
    /// How it learns what its sockets can do
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
}

#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct Bench {
    #[command(subcommand)]
    pub(crate) target: BenchTarget,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchTarget {
    /// Read or write files through every contender and compare them
    File(Box<FileArgs>),
    /// Do nothing through each layer, and see what each layer costs
    Nop(NopArgs),
    /// Load a server, or compare echo servers
    Net(Box<NetArgs>),
    /// One of the echo servers of `bench net`, which starts it
    #[command(hide = true)]
    NetServer(NetServerArgs),
    /// Becomes another program, on given processors, that ends when its parent does
    #[command(hide = true)]
    NetChild(NetChildArgs),
}

/// Which operations, in which order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Rw {
    /// Reads, one block after the other
    Read,
    /// Writes, one block after the other
    Write,
    /// Reads in random order
    Randread,
    /// Writes in random order
    Randwrite,
    /// Both, one block after the other, in the proportion of --rwmixread
    Readwrite,
    /// Both in random order, in the proportion of --rwmixread
    Randrw,
}

/// A load by name; what it sets, every option beside it overrides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LoadName {
    /// A large file from end to end: --rw read --bs 16k --depth 64 --buffered
    SequentialRead,
    /// The same at random: --rw randread --bs 16k --depth 64 --buffered
    RandomRead,
    /// Every write safe before it is answered: --rw randwrite --bs 16k --depth 64 --sync each --buffered
    DurableWrite,
    /// 32 threads read and write: --rw readwrite --bs 16k --depth 2048 --threads 32 --buffered
    MixedThreads,
    /// A database's tables: --files 128 --bs 4k --depth 8,32,512 --buffered, best with --memory
    ManyFiles,
    /// Many tasks, each with its range: --bs 64k --depth 20000 --runtime 5 --buffered, and Annulus under Tokio
    Ranges,
}

/// When writes are flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sync {
    /// Not while it is measured
    None,
    /// Each is on stable storage before it is answered (RWF_DSYNC; msync; tokio-fs: sync_data)
    Each,
}

// Lines of at most 96 columns: the parser wraps longer ones a second time.
const FILE_HELP: &str = "\
Examples:
  annulus bench file
      a file of its own in the current directory, direct random reads, about a minute
  annulus bench file /data/table.sst --depth 1,8,64
      your file: only read, never written
  annulus bench file --dir /mnt/nvme --rw randrw --bs 16k --depth 64
  annulus bench file --hot --contenders annulus,pread,mmap --repeat 9 --json hot.json
  annulus bench file --load many-files --memory 2G
      128 files four times as large as the memory they may be cached in; needs root

How it measures:
  Every contender keeps exactly --depth operations outstanding. After a short ramp, latency is
  taken from the hand-over to the answer. Contenders take turns in a shuffled order, --repeat
  times; the table shows medians over the repeats, and ratios are taken inside one repeat.
  CPU time is that of the whole process, kernel threads of the ring included.
  Every answer is checked: in a file we made, its length and a tag in every 4 KiB; in a file of
  yours, its length, and of one answer in 64 the content, against a pread afterwards.

Writes:
  A write is done when the kernel says so; without --sync each nothing is flushed within the
  measured time. Direct writes have reached the device (perhaps its cache), buffered ones the
  page cache. After each run the file is flushed, and a sample of what was written is read back
  and checked.

Threads:
  --threads N means, for the rings and libaio, N threads with a share of the depth each; for
  Annulus, N threads that ask, and up to N drivers (--drivers); for Tokio, N workers; for pread
  and mmap, which block a thread per operation, at most N threads, so fewer outstanding.

Your data:
  Without PATH, or if PATH is a directory, a file is made; it has no name from the moment it is
  open, so nothing stays behind. An existing file or device is only read, unless --overwrite is
  given: then the tested part is filled with test data first.

Exit code:
  0 done; 1 a failed run (wrong answers, no space, a contender that hangs); 2 used wrongly.";

const NOP_HELP: &str = "\
Layers, from the ground up:
  abi, abi-defer       the ABI crate by hand: push --depth NOPs, one enter, take all; a plain
                       ring, and one with SINGLE_ISSUER and DEFER_TASKRUN
  null-executor        --depth tasks on the plain executor, each yielding: no engine, no kernel
  null-hand-over       the same tasks, answered by another thread: a hop there and back, no ring
  annulus              Engine::nop() awaited by --depth tasks on the plain executor
  annulus-tokio        the same on Tokio's current_thread runtime
  annulus-tokio-mt     the same on Tokio's multi_thread runtime with two workers

Runs take turns in a shuffled order, --repeat times; the table shows medians. CPU is that of the
whole process. A row less the row below it is what its layer costs.";

const NET_HELP: &str = "\
Examples:
  annulus bench net echo
      starts echo servers on one processor, loads each from the others, and compares them
  annulus bench net echo 127.0.0.1:7000 --connections 50,300 --pid 4711
      a server that runs: requests a second, latency, and what each request costs it
  annulus bench net http 127.0.0.1:8080 --path /index.html --reconnect
  annulus bench net redis unix:/run/redis.sock --command set --size 1k --pipeline 16
  annulus bench net echo --contenders epoll --server-cmd mine='/opt/mine --listen {addr}'

How it measures:
  All connections are opened first, then the load warms up, then it is measured. Every answer is
  checked: echoes byte for byte, HTTP by status and length, redis by kind (and length, with
  --fill). Every request is answered or counted as an error of its kind; one error, a connection
  missing at the end or a count that does not match, and the run has failed.
  Without --rate each connection keeps --pipeline requests in flight: latency is from sending to
  answer and says nothing about requests that were not sent because the server was slow. With
  --rate requests are due by the clock, and latency is from when they were due.

Exit code:
  0 done; 1 a failed run; 2 used wrongly; 77 this machine has no io_uring for the generator.";

#[derive(Debug, clap::Args)]
#[command(after_long_help = FILE_HELP)]
pub(crate) struct FileArgs {
    /// A file or device to read, or a directory to make a test file in
    pub(crate) path: Option<PathBuf>,

    /// A load by name; options beside it override what it sets
    #[arg(long, value_enum, value_name = "NAME")]
    pub(crate) load: Option<LoadName>,

    /// What to do [default: randread]
    #[arg(long, value_enum)]
    pub(crate) rw: Option<Rw>,

    /// Of readwrite and randrw, the percentage of reads
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) rwmixread: u8,

    /// Length of each operation; k, M and G are powers of 1024 [default: 4k]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) bs: Option<u64>,

    /// Spread the data over N files of our own; every operation picks one [default: 1]
    #[arg(long, value_name = "N")]
    pub(crate) files: Option<usize>,

    /// Length of what is used, of all files together [default: all; what we make: 1 GiB, a quarter of the free space]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) size: Option<u64>,

    /// Where in PATH that part begins
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = parse_bytes)]
    pub(crate) offset: u64,

    /// Bypass the page cache (O_DIRECT); the default where the file system can
    #[arg(long, conflicts_with_all = ["buffered", "cold", "hot"])]
    pub(crate) direct: bool,

    /// Go through the page cache
    #[arg(long)]
    pub(crate) buffered: bool,

    /// Buffered, with nothing of the file in the page cache, no block twice (the default for --buffered)
    #[arg(long, conflicts_with = "hot")]
    pub(crate) cold: bool,

    /// Buffered, with all of the file in the page cache
    #[arg(long)]
    pub(crate) hot: bool,

    /// Let everything measured use BYTES of memory, its page cache included (a cgroup; needs root)
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) memory: Option<u64>,

    /// When writes are flushed [default: none]
    #[arg(long, value_enum, value_name = "WHEN")]
    pub(crate) sync: Option<Sync>,

    /// Operations outstanding in all; several are measured one after the other [default: 8,32]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) depth: Vec<usize>,

    /// Threads that ask: rings, contexts, callers, workers; at most so many for pread and mmap [default: 1; tokio: 2]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,

    /// Driver threads of Annulus [default: as --threads, at most one per processor]
    #[arg(long, value_name = "N")]
    pub(crate) drivers: Option<usize>,

    /// How long each run is measured, in seconds [default: 1]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub(crate) runtime: Option<Duration>,

    /// How often each contender is measured
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) repeat: usize,

    /// Who is measured: `default`, `all` or names (see --list); the base always is
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "default"
    )]
    pub(crate) contenders: Vec<String>,

    /// Write everything that was measured to FILE
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Replace the FILE of --json if it exists
    #[arg(long, requires = "json")]
    pub(crate) replace: bool,

    /// Where to make the test file [default: the current directory]
    #[arg(long, value_name = "DIR", conflicts_with = "path")]
    pub(crate) dir: Option<PathBuf>,

    /// Allow writing to PATH: its content between --offset and --size is DESTROYED
    #[arg(long)]
    pub(crate) overwrite: bool,

    /// Seed of all that is random, to repeat a run exactly
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,

    /// List the contenders and do nothing
    #[arg(long)]
    pub(crate) list: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_long_help = NOP_HELP)]
pub(crate) struct NopArgs {
    /// Operations outstanding; several are measured one after the other
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "1,8,32"
    )]
    pub(crate) depth: Vec<usize>,

    /// How long each run is measured, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "0.3", value_parser = parse_seconds)]
    pub(crate) runtime: Duration,

    /// How often each layer is measured
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) repeat: usize,

    /// Write everything that was measured to FILE
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Replace the FILE of --json if it exists
    #[arg(long, requires = "json")]
    pub(crate) replace: bool,

    /// Seed of the order of runs
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
}

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
        /// What to get
        #[arg(long, default_value = "/")]
        path: String,
        /// What stands in the header `Host` [default: ADDR]
        #[arg(long)]
        host: Option<String>,
        #[command(flatten)]
        load: LoadArgs,
    },
    /// Redis commands over random keys
    #[command(after_long_help = NET_HELP)]
    Redis {
        /// Which command
        #[arg(long, value_enum, default_value = "get")]
        command: RedisName,
        /// How many keys there are
        #[arg(long, value_name = "N", default_value_t = 100_000)]
        #[arg(value_parser = clap::value_parser!(u64).range(1..=999_999_999_999))]
        keys: u64,
        /// Length of a value; several are measured one after the other
        #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "3", value_parser = parse_bytes)]
        size: Vec<u64>,
        /// Give every key a value of that length first, and check that answers have it: OVERWRITES `key:…`
        #[arg(long)]
        fill: bool,
        #[command(flatten)]
        load: LoadArgs,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RedisName {
    Get,
    Set,
    Ping,
}

/// What is the same for every protocol.
#[derive(Debug, clap::Args)]
pub(crate) struct LoadArgs {
    /// The server: 127.0.0.1:7000, localhost:80 or unix:/path; without it, contenders are started
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

    /// Processors of the client threads, in turn [default: with contenders, all but the server's]
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

    /// How often each is measured [default: 1; with contenders 5]
    #[arg(long, value_name = "N", visible_alias = "repeat")]
    pub(crate) repeats: Option<usize>,

    /// The server's process, with its children: what a request costs it
    #[arg(long, value_name = "PID", requires = "addr")]
    pub(crate) pid: Option<u32>,

    /// Who is started and compared, or `none` beside --server-cmd [default: all of our echo servers]
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        conflicts_with = "addr"
    )]
    pub(crate) contenders: Vec<String>,

    /// Another contender: its name and command, where {addr} stands for the address to listen on
    #[arg(long, value_name = "NAME=CMD", conflicts_with = "addr")]
    pub(crate) server_cmd: Vec<String>,

    /// Processors of the contenders [default: the first, if there are two]
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        conflicts_with = "addr"
    )]
    pub(crate) server_cpu: Vec<usize>,

    /// Write everything that was measured to FILE
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Replace the FILE of --json if it exists
    #[arg(long, requires = "json")]
    pub(crate) replace: bool,

    /// Seed of the order of runs, of keys and of messages
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct NetServerArgs {
    /// ring, epoll or tokio
    pub(crate) name: String,

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

/// `512`, `4k`, `16KiB`, `1M`, `2G`: powers of 1024, as fio reads them.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let lower = text.trim().to_ascii_lowercase();
    let digits = lower.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit: u64 = match &lower[digits.len()..] {
        "" | "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        "t" | "tb" | "tib" => 1 << 40,
        other => {
            return Err(format!(
                "`{other}` is no unit; write for example 4k, 1M or 8G"
            ));
        }
    };
    let count: u64 = digits
        .parse()
        .map_err(|_| "not a number of bytes; write for example 4096, 4k or 1G".to_string())?;
    count
        .checked_mul(unit)
        .ok_or_else(|| "more bytes than 64 bits can count".to_string())
}

/// `1`, `0.5`, `3s`, `200ms`, `1m`: a positive time of at most a day.
pub(crate) fn parse_seconds(text: &str) -> Result<Duration, String> {
    const DAY_SECONDS: f64 = 86_400.0;
    let text = text.trim();
    let (digits, unit) = match text {
        _ if text.ends_with("ms") => (&text[..text.len() - 2], 0.001),
        _ if text.ends_with('s') => (&text[..text.len() - 1], 1.0),
        _ if text.ends_with('m') => (&text[..text.len() - 1], 60.0),
        _ => (text, 1.0),
    };
    let seconds = digits
        .parse::<f64>()
        .map_err(|_| "not a time; write for example 3, 0.5 or 200ms".to_string())?
        * unit;
    if !(0.001..=DAY_SECONDS).contains(&seconds) {
        return Err("a run lasts from 1 ms to a day".into());
    }
    Ok(Duration::from_secs_f64(seconds))
}
