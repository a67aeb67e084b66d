//! Reports: an HTML page, and heat maps in a file or a terminal, of a run that was just made or of its JSON.

use std::fs;
use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;

use crate::args::{Heatmap, OutputArgs, PictureArgs, ReportArgs};
use crate::bench::all::json::Report as AllReport;
use crate::bench::file::fio::report::Report as JobReport;
use crate::bench::file::json::Report as FileReport;
use crate::bench::net::json::Report as NetReport;
use crate::bench::output::{Destination, print_text};
use crate::bench::timeline::Timeline;
use crate::fault::Fault;

#[cfg(feature = "images")]
mod all;
#[cfg(feature = "images")]
mod compare;
#[cfg(feature = "images")]
mod curve;
mod files;
mod format;
#[cfg(feature = "images")]
mod guide;
mod heatmap;
mod job;
mod model;
mod network;
#[cfg(feature = "images")]
mod page;
#[cfg(feature = "images")]
mod svg;
mod terminal;
#[cfg(all(test, feature = "images"))]
mod tests;

use heatmap::Scale;
use model::Comparison;
use terminal::Colours;

/// The budget for the JSON of all runs in a page of 1 MB.
const JSON_BYTES_MAX: usize = 300_000;

/// The requested charts and pages. Everything that can be refused is refused before the measurement.
pub(crate) struct Pictures {
    page: Option<Destination>,
    maps: Option<Maps>,
}

enum Maps {
    Terminal,
    #[cfg(feature = "images")]
    File(Destination),
}

impl Pictures {
    /// Returns the pictures that a benchmark makes.
    pub(crate) fn of(args: &OutputArgs) -> Result<Pictures, Fault> {
        Pictures::new(&args.pictures, args.json.as_deref(), args.replace)
    }

    fn new(args: &PictureArgs, json: Option<&Path>, replace: bool) -> Result<Pictures, Fault> {
        let heatmap = match &args.heatmap {
            Some(Heatmap::File(path)) => Some(path.as_path()),
            _ => None,
        };
        let named = [
            ("--json", json),
            ("--html", args.html.as_deref()),
            ("--heatmap", heatmap),
        ];
        for (nth, (option, path)) in named.iter().enumerate() {
            let refusal = (nth > 0 && path.is_some()).then(|| Fault::without_images(option));
            if let Some(fault) = refusal.flatten() {
                return Err(fault);
            }
            let twin = named[..nth]
                .iter()
                .find(|(_, other)| path.is_some() && other == path);
            if let (Some((other, _)), Some(path)) = (twin, path) {
                return Err(usage!(
                    "{other} and {option} both name {}; name two files",
                    path.display()
                ));
            }
        }
        let page = args.html.as_deref();
        let page = page
            .map(|path| Destination::of("--html", path, replace))
            .transpose()?;
        let maps = match &args.heatmap {
            None => None,
            Some(Heatmap::Terminal) => Some(Maps::Terminal),
            #[cfg(feature = "images")]
            Some(Heatmap::File(path)) => {
                Some(Maps::File(Destination::of("--heatmap", path, replace)?))
            }
            // Refused above.
            #[cfg(not(feature = "images"))]
            Some(Heatmap::File(_)) => None,
        };
        Ok(Pictures { page, maps })
    }

    /// Makes them from a comparison of `bench file`.
    pub(crate) fn of_files(&self, report: &FileReport) -> Result<(), Fault> {
        self.draw_one(|| Comparison::of_files(report, JSON_BYTES_MAX))
    }

    /// Makes them from a comparison of `bench net`.
    pub(crate) fn of_network(&self, report: &NetReport) -> Result<(), Fault> {
        self.draw_one(|| Comparison::of_network(report, JSON_BYTES_MAX))
    }

    /// Makes them from the runs of a job file. `checks` is the line on the checks of the data.
    pub(crate) fn of_job(&self, report: &JobReport, checks: &str) -> Result<(), Fault> {
        self.draw_one(|| Comparison::of_job(report, checks))
    }

    fn draw_one(
        &self,
        comparison: impl FnOnce() -> serde_json::Result<Comparison>,
    ) -> Result<(), Fault> {
        match self.page.is_some() || self.maps.is_some() {
            true => self.draw(&[comparison().map_err(unwritable)?]),
            false => Ok(()),
        }
    }

    fn draw(&self, comparisons: &[Comparison]) -> Result<(), Fault> {
        let scale = scale(comparisons);
        #[cfg(feature = "images")]
        if let Some(page) = &self.page {
            page.write_text(&page::page(comparisons, scale.as_ref()))?;
        }
        match (&self.maps, &scale) {
            (None, _) => Ok(()),
            (Some(_), None) if comparisons.iter().any(Comparison::has_runs) => print_text(
                "note: no heat map, because the JSON has no timelines; measure again with --json FILE --timeline\n",
            ),
            (Some(_), None) => print_text("note: no heat map, because no operation completed\n"),
            #[cfg(feature = "images")]
            (Some(Maps::File(file)), Some(scale)) => {
                file.write_text(&svg::document(&comparisons[0], scale))
            }
            (Some(Maps::Terminal), Some(scale)) => {
                let get = |name: &str| std::env::var(name).ok();
                let colours = Colours::of(std::io::stdout().is_terminal(), get);
                let maps = comparisons
                    .iter()
                    .map(|comparison| terminal::maps(comparison, scale, colours));
                print_text(&maps.collect::<String>())
            }
        }
    }
}

/// Returns the page of `bench all`.
#[cfg(feature = "images")]
pub(crate) fn page_of_all(report: &AllReport) -> Result<String, Fault> {
    let comparisons = report
        .parts
        .iter()
        .map(|part| match (&part.files, &part.network) {
            (Some(files), _) => Comparison::of_files(files, JSON_BYTES_MAX).map(Some),
            (_, Some(network)) => Comparison::of_network(network, JSON_BYTES_MAX).map(Some),
            _ => Ok(None),
        });
    let comparisons = comparisons.collect::<serde_json::Result<Vec<_>>>();
    Ok(all::page(report, &comparisons.map_err(unwritable)?))
}

/// Returns the scale of all charts.
fn scale(comparisons: &[Comparison]) -> Option<Scale> {
    let variants = comparisons
        .iter()
        .flat_map(|comparison| &comparison.groups)
        .flat_map(|group| group.drawn());
    let repeats = variants.flat_map(|variant| &variant.repeats);
    let timelines: Vec<&Timeline> = repeats
        .filter_map(|repeat| repeat.timeline.as_ref())
        .collect();
    Scale::over(&timelines)
}

fn unwritable(error: serde_json::Error) -> Fault {
    failed!("writing the measurements as JSON: {error}")
}

/// Makes a report on one JSON file, or a comparison of two.
pub(crate) fn report(args: &ReportArgs) -> Result<ExitCode, Fault> {
    if args.pictures.html.is_none() && args.pictures.heatmap.is_none() {
        return Err(Fault::usage(
            "nothing to do; --html FILE writes a page, --heatmap FILE.svg or --heatmap - draws heat maps",
        ));
    }
    if args.second.is_some() && matches!(args.pictures.heatmap, Some(Heatmap::File(_))) {
        return Err(Fault::usage(
            "--heatmap FILE shows one run; give one JSON file, or use --html",
        ));
    }
    let pictures = Pictures::new(&args.pictures, None, args.replace)?;
    let paths = || std::iter::once(&args.first).chain(&args.second);
    let budget = JSON_BYTES_MAX / paths().count();
    let comparisons = paths()
        .map(|path| read(path, budget))
        .collect::<Result<Vec<Comparison>, Fault>>()?;
    if comparisons
        .iter()
        .any(|comparison| comparison.kind != comparisons[0].kind)
    {
        return Err(Fault::usage(
            "one JSON file is from bench file and the other from bench net; give two of the same kind",
        ));
    }
    pictures.draw(&comparisons).map(|()| ExitCode::SUCCESS)
}

/// Reads a JSON file of `bench file` or `bench net`.
fn read(path: &Path, budget_bytes: usize) -> Result<Comparison, Fault> {
    let shown = path.display();
    let text = fs::read_to_string(path).map_err(|error| usage!("reading {shown}: {error}"))?;
    let value: serde_json::Value = serde_json::from_str(&text)
        .map_err(|error| usage!("{shown} is not JSON: {error}; give a file that --json wrote"))?;
    let unfit = |error: serde_json::Error| {
        usage!(
            "{shown} does not have the format of this version: {error}; measure again, or use the version that wrote it"
        )
    };
    let load = &value["load"];
    if load["rw"].is_string() {
        let report: FileReport = serde_json::from_value(value).map_err(unfit)?;
        return Comparison::of_files(&report, budget_bytes).map_err(unwritable);
    }
    if load["protocol"].is_string() {
        let report: NetReport = serde_json::from_value(value).map_err(unfit)?;
        return Comparison::of_network(&report, budget_bytes).map_err(unwritable);
    }
    Err(usage!(
        "{shown} is not from annulus bench file or annulus bench net; give a file that their --json wrote"
    ))
}
