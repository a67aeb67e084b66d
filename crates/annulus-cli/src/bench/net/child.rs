//! The hidden commands that `bench net` runs in its child processes: a built-in server, and a wrapper that starts any
//! program.

use std::convert::Infallible;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use annulus_baselines::net::{epoll_echo, ring_echo, tokio_echo, tokio_http};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::args::{NetChildArgs, NetServerArgs};
use crate::fault::Fault;

/// Runs a built-in server until it is killed. The first line of output gives the address.
pub(crate) fn net_server(args: &NetServerArgs) -> Result<ExitCode, Fault> {
    let serve = match args.name.as_str() {
        "ring" => ring_echo::serve,
        "epoll" => epoll_echo::serve,
        "tokio" => tokio_echo::serve,
        "hyper" => return net_http(args),
        other => {
            return Err(usage!(
                "no server is called `{other}`; there are ring, epoll, tokio and hyper"
            ));
        }
    };
    let listener = listen(args)?;
    ended(args, serve(listener))
}

/// Runs the built-in HTTP server.
fn net_http(args: &NetServerArgs) -> Result<ExitCode, Fault> {
    let body = match &args.body {
        Some(path) => {
            std::fs::read(path).map_err(|error| failed!("reading {}: {error}", path.display()))?
        }
        None => b"Hello, World!".to_vec(),
    };
    let listener = listen(args)?;
    ended(args, tokio_http::serve(listener, body))
}

/// Opens the listener and prints its address.
fn listen(args: &NetServerArgs) -> Result<TcpListener, Fault> {
    let bind = || -> std::io::Result<TcpListener> {
        let listener = TcpListener::bind(args.addr)?;
        let mut out = std::io::stdout().lock();
        writeln!(out, "listening on {}", listener.local_addr()?)?;
        out.flush()?;
        Ok(listener)
    };
    crate::bench::machine::allow_many_open_files();
    bind().map_err(|error| failed!("listening on {}: {error}", args.addr))
}

fn ended(args: &NetServerArgs, served: std::io::Result<Infallible>) -> Result<ExitCode, Fault> {
    match served {
        Ok(never) => match never {},
        Err(error) => Err(failed!("the server {}: {error}", args.name)),
    }
}

/// Sets the CPU affinity and the parent-death signal, then replaces this process with the program.
pub(crate) fn net_child(args: &NetChildArgs) -> Result<ExitCode, Fault> {
    if !args.cpu.is_empty() {
        let mut set = CpuSet::new();
        for &cpu in args.cpu.iter().filter(|&&cpu| cpu < CpuSet::MAX_CPU) {
            set.set(cpu);
        }
        sched_setaffinity(None, &set)
            .map_err(|error| failed!("going to processors {:?}: {error}", args.cpu))?;
    }
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| failed!("asking to end with the parent: {error}"))?;
    // The parent may have exited before the signal was set.
    let parent = getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    if u32::try_from(parent) != Ok(args.parent) {
        return Err(Fault::failed("the process that started this has ended"));
    }
    let Some((program, rest)) = args.command.split_first() else {
        return Err(Fault::usage("no program to become"));
    };
    let error = Command::new(program).args(rest).exec();
    Err(failed!("starting {}: {error}", program.to_string_lossy()))
}
