//! The command line: one file for each command. The command's own module interprets the values.

mod address;
mod all;
mod doctor;
mod file;
mod http;
mod job;
mod loads;
mod multiget;
mod net;
mod release;
mod report;
mod run;
mod runtime;
mod serve;
mod service;
#[cfg(test)]
mod tests;
mod top;
mod trace;
mod value;
mod watching;

use clap::{Parser, Subcommand};

pub(crate) use address::Address;
pub(crate) use all::AllArgs;
pub(crate) use doctor::{DoctorArgs, ProfileName};
pub(crate) use file::{FileArgs, Sync};
pub(crate) use http::{HttpArgs, LogFormatName};
pub(crate) use loads::{Cache, Load, Rw};
pub(crate) use multiget::MultigetArgs;
pub(crate) use net::{
    LoadArgs, MemcachedName, NetArgs, NetChildArgs, NetProtocol, NetServerArgs, RedisName,
    ResponseLength, StoreArgs,
};
pub(crate) use release::{ReleaseArgs, ResumeArgs, TargetProcesses};
pub(crate) use report::{Heatmap, OutputArgs, PictureArgs, ReportArgs};
pub(crate) use run::RunArgs;
pub(crate) use runtime::{ReceiveModeName, RuntimeArgs, ServeBackend};
pub(crate) use serve::{EchoArgs, Serve, ServeProtocol};
pub(crate) use service::{DisableArgs, EnableArgs};
pub(crate) use top::TopArgs;
pub(crate) use trace::TraceArgs;
pub(crate) use watching::{BenchWatchArgs, WatchArgs};

/// The last line of a short help that leaves options out.
const MORE_OPTIONS: &str = "This is a summary. --help lists all options, with details.";

const FIRST_STEPS: &str = "\
First steps:
  annulus doctor                  check this machine for io_uring
  annulus bench file              compare ways to read files
  annulus serve http DIR          serve DIR at http://127.0.0.1:8080
  annulus run -- redis-server     run an installed Redis server on io_uring
  annulus enable redis-server     put an installed service on io_uring, as root
  annulus top                     show what the rings of that server do

Each command has a summary (-h), and a full description with examples (--help).";

/// I/O through io_uring on Linux: check a machine, run servers, measure the gain
#[derive(Debug, Parser)]
#[command(name = "annulus", version, arg_required_else_help = true, after_help = FIRST_STEPS)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Check what io_uring can do on this machine, and recommend changes
    Doctor(DoctorArgs),
    /// Measure I/O through io_uring, and compare it with the alternatives
    Bench(Bench),
    /// Serve a directory over HTTP, or echo messages, on the Annulus runtime
    Serve(Serve),
    /// Run an installed server on io_uring, unmodified
    Run(Box<RunArgs>),
    /// Return a server under `annulus run` to the kernel's epoll while it runs
    Release(ReleaseArgs),
    /// Serve a released server through io_uring again
    Resume(ResumeArgs),
    /// Show live figures of the rings of a running process
    Top(TopArgs),
    /// Put a systemd service on io_uring, and undo it if it is not served
    Enable(EnableArgs),
    /// Undo `annulus enable`, and restart the service
    Disable(DisableArgs),
    /// List the services on io_uring, and what passes through to the kernel
    Status,
}

#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct Bench {
    #[command(subcommand)]
    pub(crate) target: BenchTarget,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchTarget {
    /// Read or write files with every variant, and compare the variants
    File(Box<FileArgs>),
    /// Load a running server, or start echo or HTTP servers and compare them
    Net(Box<NetArgs>),
    /// Measure this machine: files, network, HTTP, installed servers, scaling; one page and one JSON file
    All(AllArgs),
    /// Batches of gets in SlateDB on two object stores, beside RocksDB's MultiGet; a separate build
    Multiget(MultigetArgs),
    /// Create a report from the output of --json, or compare two such files
    Report(ReportArgs),
    /// One of the servers that `bench net` starts
    #[command(hide = true)]
    NetServer(NetServerArgs),
    /// Executes another program on the given processors, and ends it when the parent ends
    #[command(hide = true)]
    NetChild(NetChildArgs),
}
