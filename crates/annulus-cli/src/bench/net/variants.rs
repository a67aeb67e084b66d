//! The servers that can be loaded: a running server, built-in servers and custom commands.

use annulus_baselines::net::load::Target;

use super::pages::find_program;
use crate::args::LoadArgs;
use crate::fault::Fault;

/// The echo servers that are compared by default. The last is the reference.
const OF_ECHO: [&str; 5] = ["annulus", "annulus-epoll", "tokio", "ring", "epoll"];
/// The HTTP servers that are compared by default. nginx, the reference, is left out if it is not installed.
const OF_HTTP: [&str; 4] = ["annulus", "annulus-epoll", "hyper", "nginx"];

/// The HTTP server that is compared only on request: nginx under the preload library.
pub(super) const NGINX_PRELOAD: &str = "nginx-preload";

/// Returns the built-in variants for a protocol.
fn all_of(protocol: &str) -> &'static [&'static str] {
    match protocol {
        "echo" => &OF_ECHO,
        "http" if cfg!(feature = "http") => &OF_HTTP,
        // The servers of Annulus are missing.
        "http" => &OF_HTTP[2..],
        _ => &[],
    }
}

/// Returns the name of the reference server.
pub(crate) fn reference(protocol: &str) -> &'static str {
    all_of(protocol).last().copied().unwrap_or("epoll")
}

/// A server to load.
#[derive(Clone, Debug)]
pub(crate) enum Variant {
    /// A server that is already running.
    External { target: Target, pid: Option<u32> },
    /// A server that `bench net` knows how to start: one of this binary's servers, or nginx.
    BuiltIn { name: &'static str },
    /// A custom command (`--server-cmd`).
    Command { name: String, argv: Vec<String> },
}

impl Variant {
    pub(crate) fn name(&self) -> &str {
        match self {
            Variant::External { .. } => "server",
            Variant::BuiltIn { name } => name,
            Variant::Command { name, .. } => name,
        }
    }
}

pub(super) fn variants(
    args: &LoadArgs,
    protocol: &str,
    has_path: bool,
    notes: &mut Vec<String>,
) -> Result<Vec<Variant>, Fault> {
    if let Some(addr) = &args.addr {
        let target = Target::parse(addr).map_err(Fault::usage)?;
        return Ok(vec![Variant::External {
            target,
            pid: args.pid,
        }]);
    }
    // The built-in servers do not serve the paths that `--path` names.
    let own = if has_path { &[] } else { all_of(protocol) };
    if own.is_empty() && (args.server_cmd.is_empty() || !args.variants.is_empty()) {
        return Err(usage!(
            "bench net {protocol} needs the server's ADDR, for example 127.0.0.1:8080; only servers of echo, \
             and of http without --path, are built in (--server-cmd NAME=CMD starts others)"
        ));
    }
    let mut list: Vec<Variant> = Vec::new();
    if args.variants.is_empty() || args.variants == ["all"] {
        list.extend(own.iter().filter_map(|&name| match name {
            "nginx" if find_program("nginx").is_none() => {
                notes.push("nginx is not installed: it is left out".into());
                None
            }
            name => Some(Variant::BuiltIn { name }),
        }));
    } else if args.variants != ["none"] {
        for requested in &args.variants {
            let on_request = if protocol == "http" {
                &[NGINX_PRELOAD][..]
            } else {
                &[]
            };
            let mut known = own.iter().chain(on_request);
            let Some(&name) = known.find(|name| *name == requested) else {
                return Err(unknown(requested, own));
            };
            if name.starts_with("nginx") && find_program("nginx").is_none() {
                return Err(Fault::usage(
                    "--variants: nginx is not installed; on Debian, `apt install nginx-light`",
                ));
            }
            list.push(Variant::BuiltIn { name });
        }
    }
    for text in &args.server_cmd {
        list.push(command(text)?);
    }
    if list.is_empty() {
        return Err(Fault::usage(
            "--variants none: then --server-cmd NAME=CMD names at least one",
        ));
    }
    for (index, variant) in list.iter().enumerate() {
        if list[..index]
            .iter()
            .any(|other| other.name() == variant.name())
        {
            return Err(usage!("two variants are called `{}`", variant.name()));
        }
    }
    Ok(list)
}

fn unknown(requested: &str, own: &[&str]) -> Fault {
    let near = (own.iter())
        .map(|name| (strsim::jaro_winkler(name, requested), *name))
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .filter(|(likeness, _)| *likeness > 0.7)
        .map_or(String::new(), |(_, name)| {
            format!("; did you mean `{name}`?")
        });
    usage!("--variants {requested}: there are {}{near}", own.join(", "))
}

/// Parses `NAME=program argument {addr}`. The command is split at spaces and runs without a shell.
fn command(text: &str) -> Result<Variant, Fault> {
    let wrong = |why: &str| {
        usage!("--server-cmd {text}: {why}; write for example mine='/opt/mine --listen {{addr}}'")
    };
    let (name, command) = text.split_once('=').ok_or_else(|| wrong("no NAME="))?;
    let argv: Vec<String> = command.split_whitespace().map(str::to_string).collect();
    if name.is_empty() || argv.is_empty() {
        return Err(wrong("no name or no command"));
    }
    if !argv
        .iter()
        .any(|argument| argument.contains("{addr}") || argument.contains("{port}"))
    {
        return Err(wrong(
            "no {addr}, which stands for the address to listen on, and no {port}",
        ));
    }
    Ok(Variant::Command {
        name: name.into(),
        argv,
    })
}
