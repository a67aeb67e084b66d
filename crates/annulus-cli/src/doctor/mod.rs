//! `annulus doctor`: reports what io_uring can do on this machine, what it costs, and what to change.
//!
//! The command gathers facts (`gather`, `location`, `surroundings`) and measures a few operations (`measure`). Pure
//! rules derive advice and a verdict from both (`rules`, `traps`, `cause`). docs/reference/doctor.md explains each
//! rule.

use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use crate::args::DoctorArgs;
use crate::bench::output::print_text;
use crate::fault::Fault;

mod advice;
mod cause;
mod device;
mod echo;
mod facts;
mod figures;
mod gather;
mod json;
mod kernel;
mod location;
mod measure;
mod postgres;
mod profile;
mod rules;
mod surroundings;
#[cfg(test)]
mod tests;
mod text;
mod traps;
mod worker;

pub(crate) use device::Device;
use facts::Environment;
use figures::Figures;
pub(crate) use gather::processors_online;
use json::Report;
use location::{Location, Sample};
pub(crate) use text::{BUFFER_GROUPS, Lines};

/// Runs the command.
pub(crate) fn doctor(args: &DoctorArgs) -> Result<ExitCode, Fault> {
    if let Some(name) = args.profile {
        return profile::profile(name, args.server.as_deref());
    }
    if let Some(server) = args.server.as_deref()
        && !matches!(server, "postgresql" | "postgres")
    {
        return Err(usage!(
            "--for {server} needs --profile; without it, only --for postgresql is known. For a server under `annulus \
             run`, use annulus run --explain -- {server}"
        ));
    }
    let started = SystemTime::now();
    let measured = !args.quick;
    let (location, sample, why_no_reads) = inspect(args.path.as_deref(), measured)?;
    let environment = Environment::here(location);
    let figures = measured.then(|| Figures {
        reads_on: environment
            .location
            .as_ref()
            .and_then(|location| location.sample.clone()),
        ..measure::measure(&sample, &why_no_reads, environment.has_ring())
    });
    drop(sample);
    if args.server.is_some() {
        let connections = args.max_connections.into();
        return postgres::report(&environment, figures.as_ref(), connections);
    }
    let report = Report::new(environment, figures, started);
    let text = match args.json {
        true => {
            let json = serde_json::to_string_pretty(&report);
            json.map_err(|error| failed!("cannot write the report as JSON: {error}"))? + "\n"
        }
        false => text::text(&report),
    };
    print_text(&text)?;
    Ok(ExitCode::from(report.exit_code))
}

/// Inspects PATH. Without PATH, inspects the current directory, and leaves it out of the report on failure.
fn inspect(
    path: Option<&Path>,
    measured: bool,
) -> Result<(Option<Location>, Sample, String), Fault> {
    let result = Location::at(path.unwrap_or(Path::new(".")), measured);
    match (result, path) {
        (Ok((location, sample)), _) => {
            let why = location.no_sample.clone().unwrap_or_default();
            Ok((Some(location), sample, why))
        }
        (Err(fault), Some(_)) => Err(fault),
        (Err(fault), None) => Ok((None, Sample::default(), fault.to_string())),
    }
}
