//! The `annulus` command: parse, do, and convert the outcome into an exit code.
//!
//! 0 done, 1 something that was measured is bad, 2 used wrongly, 3 an alert was raised, 4 asked for
//! and not done in time, 128 and a signal's number ended
//! by that signal.

#![forbid(unsafe_code)]

mod args;
mod bench;
mod doctor;
mod fault;
mod release;
mod report;
mod run;
mod serve;
mod signals;
mod top;
mod trace;
mod watching;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use args::{Args, BenchTarget, Command, ServeWhat};

fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = match args.command {
        Command::Doctor(doctor) => doctor::doctor(&doctor),
        Command::Bench(bench) => match bench.target {
            BenchTarget::File(file) => bench::file(&file),
            BenchTarget::Nop(nop) => bench::nop(&nop),
            BenchTarget::Net(net) => bench::net(&net),
            BenchTarget::Report(args) => report::report(&args),
            BenchTarget::NetServer(server) => bench::net_server(&server),
            BenchTarget::NetChild(child) => bench::net_child(&child),
        },
        Command::Serve(serve) => match serve.what {
            ServeWhat::Echo(echo) => serve::echo(&echo),
            ServeWhat::Http(http) => serve::http(&http),
        },
        Command::Run(args) => run::run(&args),
        Command::Release(args) => release::release(&args.whom),
        Command::Resume(args) => release::resume(&args.whom),
        Command::Top(top) => top::top(&top),
    };
    match outcome {
        Ok(code) => code,
        Err(fault) => {
            // If even standard error is closed there is nobody left to tell.
            let _ = writeln!(std::io::stderr(), "annulus: {fault}");
            fault.exit_code()
        }
    }
}
