//! Validated options of `annulus bench net`: the load and the variants.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use annulus_baselines::net::load::{
    KeySpace, MemcachedCommand, Pace, Plan, RedisCommand, Target, Workload,
};

use super::pages::Pages;
use super::variants::{Variant, variants};
use crate::args::{
    BenchWatchArgs, LoadArgs, MemcachedName, NetProtocol, RedisName, ResponseLength, StoreArgs,
};
use crate::bench::machine::allowed_processors;
use crate::fault::Fault;
use crate::trace::Trace;

/// The number of connections that can be opened from a few loopback addresses in reasonable time.
const CONNECTIONS_MAX: usize = 60_000;
const PIPELINE_MAX: usize = 1024;
const THREADS_MAX: usize = 64;
const REPEATS_MAX: usize = 1000;
const SIZE_MAX: u64 = 64 << 20;
const REPEATS: usize = 5;

/// A number of connections and a size. The variants are compared within a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) connections: usize,
    pub(crate) size: Option<u64>,
}

impl Cell {
    pub(crate) fn label(&self) -> String {
        match self.size {
            Some(size) => format!("{} connections, {size} bytes", self.connections),
            None => format!("{} connections", self.connections),
        }
    }
}

/// The validated command line.
pub(crate) struct Options {
    pub(crate) protocol: &'static str,
    workload: Workload,
    /// Set if every key is given a value before the load.
    pub(crate) fill: bool,
    /// The files that compared HTTP servers serve.
    pub(crate) pages: Option<Pages>,
    has_host: bool,
    pub(crate) sizes: Vec<Option<u64>>,
    pub(crate) connections: Vec<usize>,
    pub(crate) variants: Vec<Variant>,
    pub(crate) pipeline: usize,
    pub(crate) rate: Option<f64>,
    pub(crate) reconnect: bool,
    pub(crate) disconnect: bool,
    pub(crate) threads: usize,
    pub(crate) client_cpus: Vec<usize>,
    pub(crate) server_cpus: Vec<usize>,
    pub(crate) runtime: Duration,
    pub(crate) warmup: Duration,
    timeout: Duration,
    pub(crate) repeats: usize,
    pub(crate) seed: u64,
    pub(crate) json: Option<PathBuf>,
    pub(crate) replace: bool,
    pub(crate) watch: BenchWatchArgs,
    pub(crate) notes: Vec<String>,
    pub(crate) trace: Trace,
}

impl Options {
    pub(crate) fn new(requested: &NetProtocol) -> Result<Options, Fault> {
        let (protocol, workload, sizes, args, has_host) = protocol(requested)?;
        check(args)?;
        let compared = args.addr.is_none();
        let (client_cpus, server_cpus, mut notes) = processors(args, compared)?;
        let has_path = requested.path().is_some();
        let variants = variants(args, protocol, has_path, &mut notes)?;
        let seed = args.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
        let serves_pages = protocol == "http" && compared && !has_path;
        let pages = serves_pages.then(|| Pages::new(&sizes, seed)).transpose();
        let pages =
            pages.map_err(|error| failed!("writing the files that are to be served: {error}"))?;
        let mut connections = args.connections.clone();
        connections.sort_unstable();
        connections.dedup();
        Ok(Options {
            protocol,
            workload,
            fill: requested.store().is_some_and(|store| store.fill),
            pages,
            has_host,
            sizes,
            connections,
            variants,
            pipeline: args.pipeline,
            rate: args.rate,
            reconnect: args.reconnect || requested.disconnects(),
            disconnect: requested.disconnects(),
            threads: args.threads,
            client_cpus,
            server_cpus,
            runtime: args.runtime,
            warmup: args.warmup,
            timeout: args.timeout,
            repeats: args.repeats.unwrap_or(if compared { REPEATS } else { 1 }),
            seed,
            json: args.json.clone(),
            replace: args.replace,
            watch: args.watch.clone(),
            notes,
            trace: Trace::new(&args.trace, args.replace)?,
        })
    }

    pub(crate) fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for &size in &self.sizes {
            for &connections in &self.connections {
                cells.push(Cell { connections, size });
            }
        }
        cells
    }

    /// Returns whether `name` is a server that this command did not start.
    pub(crate) fn is_there(&self, name: &str) -> bool {
        let mut external =
            (self.variants.iter()).filter(|variant| matches!(variant, Variant::External { .. }));
        external.any(|variant| variant.name() == name)
    }

    /// Returns the load plan of one run against one server.
    pub(crate) fn plan(&self, cell: Cell, target: Target) -> Plan {
        let mut workload = self.workload.clone();
        match &mut workload {
            Workload::Echo { bytes } => *bytes = cell.size.unwrap_or(1) as usize,
            Workload::Redis(_, space) | Workload::Memcached(_, space) => {
                space.value_bytes = cell.size.unwrap_or(0) as usize;
            }
            Workload::Http {
                host,
                path,
                body,
                compared,
                ..
            } => {
                if let Some(pages) = &self.pages {
                    let (expected, one_of) = pages.body(cell.size);
                    *path = Pages::path(cell.size);
                    (*body, *compared) = (Some(expected), one_of);
                }
                if !self.has_host {
                    *host = match &target {
                        Target::Tcp(address) => address.to_string(),
                        Target::Unix(_) => "localhost".into(),
                    };
                }
            }
        }
        Plan {
            target,
            workload,
            connections: cell.connections,
            pipeline: self.pipeline,
            pace: self.rate.map_or(Pace::Closed, Pace::Rate),
            reconnect: self.reconnect,
            disconnect: self.disconnect,
            threads: self.threads,
            cpus: self.client_cpus.clone(),
            warmup: self.warmup,
            runtime: self.runtime,
            timeout: self.timeout,
            seed: self.seed,
        }
    }

    /// Returns the length of the body of HTTP's requests.
    pub(crate) fn post_bytes(&self) -> Option<usize> {
        match self.workload {
            Workload::Http { post_bytes, .. } => post_bytes,
            _ => None,
        }
    }

    pub(crate) fn description(&self) -> String {
        let pace = match self.rate {
            Some(rate) => format!("{rate} requests/s by the clock"),
            None => format!("{} in flight per connection", self.pipeline),
        };
        let kept = match (self.disconnect, self.reconnect) {
            (true, _) => "a connection for each request, closed before the response",
            (false, true) => "a connection for each request",
            (false, false) => "connections kept",
        };
        let threads = match self.threads {
            1 => "1 client thread".to_string(),
            threads => format!("{threads} client threads"),
        };
        let target = match self.variants.first() {
            Some(Variant::External { target, .. }) => format!("{} to {target}", self.protocol),
            _ => self.protocol.to_string(),
        };
        let posts = match self.post_bytes() {
            Some(bytes) => format!(", POST of {bytes} bytes"),
            None => String::new(),
        };
        format!("{target}{posts}, {pace}, {kept}, {threads}")
    }
}

type ProtocolSetup<'a> = (&'static str, Workload, Vec<Option<u64>>, &'a LoadArgs, bool);

fn protocol(requested: &NetProtocol) -> Result<ProtocolSetup<'_>, Fault> {
    Ok(match requested {
        NetProtocol::Echo { size, load } => (
            "echo",
            Workload::Echo { bytes: 1 },
            sizes(size, 1)?,
            load,
            false,
        ),
        NetProtocol::Http {
            path,
            host,
            post,
            body,
            what,
            load,
            ..
        } => {
            if post.is_some() && load.addr.is_none() && path.is_none() {
                return Err(Fault::usage(
                    "--post: the built-in servers accept no POST; give the server's ADDR, or --path with --server-cmd",
                ));
            }
            let workload = page(path.as_deref(), host.as_ref(), *post, body.as_deref())?;
            ("http", workload, lengths(what)?, load, host.is_some())
        }
        NetProtocol::Redis {
            command,
            store,
            load,
        } => {
            let command = match command {
                RedisName::Get => RedisCommand::Get,
                RedisName::Set => RedisCommand::Set,
                RedisName::Ping => RedisCommand::Ping,
            };
            let workload = Workload::Redis(command, key_space(store));
            ("redis", workload, sizes(&store.size, 0)?, load, false)
        }
        NetProtocol::Memcached {
            command,
            store,
            load,
        } => {
            let command = match command {
                MemcachedName::Get => MemcachedCommand::Get,
                MemcachedName::Set => MemcachedCommand::Set,
            };
            let workload = Workload::Memcached(command, key_space(store));
            ("memcached", workload, sizes(&store.size, 0)?, load, false)
        }
    })
}

/// Returns the keys of a store. The length of their values is that of a cell.
fn key_space(store: &StoreArgs) -> KeySpace {
    KeySpace {
        keys: store.keys,
        value_bytes: 0,
        filled: store.fill || store.filled,
    }
}

/// Returns the HTTP workload for a path, a host, the length of the request's body, and the expected body.
fn page(
    path: Option<&str>,
    host: Option<&String>,
    post: Option<u64>,
    body: Option<&Path>,
) -> Result<Workload, Fault> {
    if let Some(bytes) = post.filter(|&bytes| bytes > SIZE_MAX) {
        return Err(usage!("--post {bytes}: at most {SIZE_MAX} bytes"));
    }
    let path = path.unwrap_or("/");
    let host = host.cloned().unwrap_or_default();
    for (name, value) in [("path", path), ("host", &host)] {
        if !value.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(usage!(
                "--{name}: only visible ASCII letters; write others as %20"
            ));
        }
    }
    if !path.starts_with('/') {
        return Err(usage!("--path {path}: a path begins with `/`"));
    }
    Ok(Workload::Http {
        path: path.into(),
        post_bytes: post.map(|bytes| bytes as usize),
        host,
        body: body.map(expected).transpose()?,
        compared: 1,
    })
}

/// Reads the expected body from a file.
fn expected(path: &Path) -> Result<Arc<[u8]>, Fault> {
    let wrong = |why: String| usage!("--body {}: {why}", path.display());
    let bytes = std::fs::read(path)
        .map_err(|error| wrong(format!("{error}; give a file with the body's bytes")))?;
    match bytes.len() as u64 > SIZE_MAX {
        true => Err(wrong(format!("more than {SIZE_MAX} bytes"))),
        false => Ok(bytes.into()),
    }
}

/// Returns the response lengths of `--what`, sorted and without duplicates. `None` is the response without a file.
fn lengths(what: &[ResponseLength]) -> Result<Vec<Option<u64>>, Fault> {
    let mut lengths: Vec<Option<u64>> = what.iter().map(|what| what.0).collect();
    if let Some(size) = lengths.iter().flatten().find(|size| **size > SIZE_MAX) {
        return Err(usage!("--what {size}: files of at most {SIZE_MAX} bytes"));
    }
    lengths.sort_unstable();
    lengths.dedup();
    if lengths.is_empty() {
        lengths.push(None);
    }
    Ok(lengths)
}

fn sizes(requested: &[u64], least: u64) -> Result<Vec<Option<u64>>, Fault> {
    for &size in requested {
        if size < least || size > SIZE_MAX {
            return Err(usage!("--size {size}: from {least} to {SIZE_MAX} bytes"));
        }
    }
    let mut sizes = requested.to_vec();
    sizes.sort_unstable();
    sizes.dedup();
    Ok(sizes.into_iter().map(Some).collect())
}

fn check(args: &LoadArgs) -> Result<(), Fault> {
    let within = |option: &str, value: usize, max: usize| match (1..=max).contains(&value) {
        true => Ok(()),
        false => Err(usage!("--{option} {value}: from 1 to {max}")),
    };
    for &connections in &args.connections {
        within("connections", connections, CONNECTIONS_MAX)?;
        if connections < args.threads {
            return Err(usage!(
                "--threads {}: more than --connections {connections}; each thread needs a connection",
                args.threads
            ));
        }
    }
    within("pipeline", args.pipeline, PIPELINE_MAX)?;
    within("threads", args.threads, THREADS_MAX)?;
    within("repeats", args.repeats.unwrap_or(1), REPEATS_MAX)?;
    if args.reconnect && args.pipeline > 1 {
        return Err(Fault::usage(
            "--reconnect: a connection for each request has no --pipeline",
        ));
    }
    if let Some(rate) = args.rate
        && !(1.0..=100e6).contains(&rate)
    {
        return Err(usage!(
            "--rate {rate}: from 1 to 100000000 requests a second"
        ));
    }
    if (args.trace.syscalls || args.trace.flamegraph.is_some())
        && args.addr.is_some()
        && args.pid.is_none()
    {
        return Err(Fault::usage(
            "--syscalls and --flamegraph look at the server's process; give its --pid",
        ));
    }
    if let Some(pid) = args.pid
        && !std::path::Path::new(&format!("/proc/{pid}/task")).is_dir()
    {
        return Err(usage!(
            "--pid {pid}: there is no such process; give the server's"
        ));
    }
    Ok(())
}

type Processors = (Vec<usize>, Vec<usize>, Vec<String>);

/// Assigns processors to the client and the servers, and returns notes for the user. By default the servers get the
/// first allowed processor and the client gets the others.
fn processors(args: &LoadArgs, compared: bool) -> Result<Processors, Fault> {
    let allowed = allowed_processors()?;
    for (option, requested) in [("cpu", &args.cpu), ("server-cpu", &args.server_cpu)] {
        for cpu in requested {
            if !allowed.contains(cpu) {
                return Err(usage!("--{option} {cpu}: this process may use {allowed:?}"));
            }
        }
    }
    if !compared {
        return Ok((args.cpu.clone(), Vec::new(), Vec::new()));
    }
    let mut notes = Vec::new();
    if allowed.len() < 2 {
        notes.push("one processor for server and client: they take it from each other".to_string());
    }
    let servers = match (args.server_cpu.is_empty(), allowed.len() < 2) {
        (false, _) => args.server_cpu.clone(),
        (true, true) => Vec::new(),
        (true, false) => {
            let free = allowed.iter().find(|cpu| !args.cpu.contains(cpu));
            free.into_iter().copied().collect()
        }
    };
    let clients = match args.cpu.is_empty() {
        false => args.cpu.clone(),
        true => (allowed.iter().copied())
            .filter(|cpu| !servers.contains(cpu))
            .collect(),
    };
    Ok((clients, servers, notes))
}
