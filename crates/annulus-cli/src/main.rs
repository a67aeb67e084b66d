//! The `annulus` command: parses the command line, runs the command, and returns its exit code.
//!
//! Exit codes: 0 for success, 1 for a failure, 2 for a wrong command line, 3 if an alert was raised, 4 for a request
//! that was not completed in time, and 128 + N after signal N. Some commands define others in their help.

#![forbid(unsafe_code)]
// They panic if the output is closed or full; `note!` does not.
#![cfg_attr(not(test), warn(clippy::print_stderr, clippy::print_stdout))]
#![cfg_attr(
    not(all(feature = "http", feature = "images", feature = "screen")),
    allow(
        dead_code,
        unused_imports,
        reason = "some code is only for a feature that is off"
    )
)]

#[macro_use]
mod fault;
#[macro_use]
mod note;

mod args;
mod bench;
mod doctor;
mod proc_files;
mod release;
mod report;
mod run;
mod serve;
mod services;
mod signals;
mod top;
mod trace;
mod watching;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use args::{Args, BenchTarget, Command, ServeProtocol};

fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = match args.command {
        Command::Doctor(doctor) => doctor::doctor(&doctor),
        Command::Bench(bench) => match bench::begin(bench.target) {
            BenchTarget::File(file) => bench::file::file(&file),
            BenchTarget::Net(net) => bench::net::net(&net),
            BenchTarget::All(args) => bench::all::all(&args),
            BenchTarget::Multiget(args) => bench::multiget::multiget(&args),
            BenchTarget::Report(args) => report::report(&args),
            BenchTarget::NetServer(server) => bench::net::net_server(&server),
            BenchTarget::NetChild(child) => bench::net::net_child(&child),
        },
        Command::Serve(serve) => match serve.protocol {
            ServeProtocol::Echo(echo) => serve::echo(&echo),
            #[cfg(feature = "http")]
            ServeProtocol::Http(http) => serve::http(&http),
        },
        Command::Run(args) => run::run(&args),
        Command::Release(args) => release::release(&args.target),
        Command::Resume(args) => release::resume(&args.target),
        Command::Top(top) => top::top(&top),
        Command::Enable(args) => services::enable(&args),
        Command::Disable(args) => services::disable(&args),
        Command::Status => services::status(),
    };
    match outcome {
        Ok(code) => code,
        Err(fault) => {
            // If standard error is closed too, the message is lost.
            let _ = writeln!(std::io::stderr(), "annulus: {fault}");
            fault.exit_code()
        }
    }
}
