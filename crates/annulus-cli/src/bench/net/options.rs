//! Validated options of `annulus bench net`: the load and the variants.

use std::path::Path;
use std::sync::Arc;

use annulus_baselines::net::load::{
    KeySpace, MemcachedCommand, Pace, Plan, RedisCommand, Target, Workload,
};

use super::pages::Pages;
use super::variants::{Variant, variants};
use crate::args::{LoadArgs, MemcachedName, NetProtocol, RedisName, ResponseLength, StoreArgs};
use crate::bench::machine::allowed_processors;
use crate::fault::Fault;
use crate::trace::{AtCell, Trace};

const SIZE_MAX: u64 = 64 << 20;
const REPEATS: usize = 5;

/// The validated command line.
pub(crate) struct Options {
    pub(crate) args: LoadArgs,
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
    pub(crate) reconnect: bool,
    pub(crate) disconnect: bool,
    pub(crate) client_cpus: Vec<usize>,
    pub(crate) server_cpus: Vec<usize>,
    pub(crate) repeats: usize,
    pub(crate) seed: u64,
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
            args: args.clone(),
            protocol,
            workload,
            fill: requested.store().is_some_and(|store| store.fill),
            pages,
            has_host,
            sizes,
            connections,
            variants,
            reconnect: args.reconnect || requested.disconnects(),
            disconnect: requested.disconnects(),
            client_cpus,
            server_cpus,
            repeats: args.repeats.unwrap_or(if compared { REPEATS } else { 1 }),
            seed,
            notes,
            trace: Trace::new(&args.trace, args.output.replace)?,
        })
    }

    pub(crate) fn cells(&self) -> Vec<AtCell> {
        AtCell::all(&self.sizes, &self.connections)
    }

    /// Returns whether `name` is a server that this command did not start.
    pub(crate) fn is_there(&self, name: &str) -> bool {
        let mut external =
            (self.variants.iter()).filter(|variant| matches!(variant, Variant::External { .. }));
        external.any(|variant| variant.name() == name)
    }

    /// Returns the load plan of one run against one server.
    pub(crate) fn plan(&self, cell: AtCell, target: Target) -> Plan {
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
            pipeline: self.args.pipeline,
            pace: self.args.rate.map_or(Pace::Closed, Pace::Rate),
            reconnect: self.reconnect,
            disconnect: self.disconnect,
            threads: self.args.threads,
            cpus: self.client_cpus.clone(),
            warmup: self.args.warmup,
            runtime: self.args.runtime,
            timeout: self.args.timeout,
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
        let pace = match self.args.rate {
            Some(rate) => format!("{rate} requests/s by the clock"),
            None => format!("{} in flight per connection", self.args.pipeline),
        };
        let kept = match (self.disconnect, self.reconnect) {
            (true, _) => "a connection for each request, closed before the response",
            (false, true) => "a connection for each request",
            (false, false) => "connections kept",
        };
        let threads = match self.args.threads {
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
    for &connections in &args.connections {
        if connections < args.threads {
            return Err(usage!(
                "--threads {}: more than --connections {connections}; each thread needs a connection",
                args.threads
            ));
        }
    }
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
