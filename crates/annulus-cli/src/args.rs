//! What can be typed: a file for each command. What it means is decided in the command's own module.

mod address;
mod doctor;
mod file;
mod http;
mod job;
mod net;
mod nop;
mod receive;
mod release;
mod report;
mod run;
mod serve;
#[cfg(test)]
mod tests;
mod top;
mod trace;
mod value;
mod watching;

use clap::{Parser, Subcommand};

pub(crate) use address::Address;
pub(crate) use doctor::DoctorArgs;
pub(crate) use file::{FileArgs, LoadName, Rw, Sync};
pub(crate) use http::{HttpArgs, LogFormatName};
pub(crate) use net::{
    LoadArgs, MemcachedName, NetArgs, NetChildArgs, NetProtocol, NetServerArgs, RedisName,
    ResponseLength,
};
pub(crate) use nop::NopArgs;
pub(crate) use receive::{FilledHow, ReceiveArgs};
pub(crate) use release::{ReleaseArgs, ResumeArgs, TargetProcesses};
pub(crate) use report::{Heatmap, PictureArgs, ReportArgs};
pub(crate) use run::RunArgs;
pub(crate) use serve::{EchoArgs, Serve, ServeBackend, ServeWhat};
pub(crate) use top::TopArgs;
pub(crate) use trace::TraceArgs;
pub(crate) use watching::{BenchWatchArgs, WatchArgs};

/// Measures file I/O on this machine: Annulus, the blocking calls, and a ring written by hand.
#[derive(Debug, Parser)]
#[command(name = "annulus", version, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Say what io_uring can do on this machine, and what to change
    Doctor(DoctorArgs),
    /// Measure what asynchronous I/O is worth here
    Bench(Bench),
    /// Run a small server on the library's own runtime
    Serve(Serve),
    /// Run a server that is installed here on io_uring, unmodified
    Run(Box<RunArgs>),
    /// Hand a server that runs under `annulus run` back to the kernel, without a restart
    Release(ReleaseArgs),
    /// Serve it again
    Resume(ResumeArgs),
    /// Look at the rings of a running process, live
    Top(TopArgs),
}

#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct Bench {
    #[command(subcommand)]
    pub(crate) target: BenchTarget,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchTarget {
    /// Read or write files through every variant and compare them
    File(Box<FileArgs>),
    /// Do nothing through each layer, and see what each layer costs
    Nop(NopArgs),
    /// Load a server, or compare echo servers
    Net(Box<NetArgs>),
    /// Make a report of what --json wrote, or compare two such files
    Report(ReportArgs),
    /// One of the echo servers of `bench net`, which starts it
    #[command(hide = true)]
    NetServer(NetServerArgs),
    /// Becomes another program, on given processors, that ends when its parent does
    #[command(hide = true)]
    NetChild(NetChildArgs),
}
