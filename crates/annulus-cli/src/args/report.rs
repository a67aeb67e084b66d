//! The command line of `annulus bench report`, and the picture options of the benchmarks.

use std::convert::Infallible;
use std::path::PathBuf;
use std::str::FromStr;

use clap::ArgGroup;

/// The destination of heat maps.
#[derive(Clone, Debug)]
pub(crate) enum Heatmap {
    /// The terminal, next to the table.
    Terminal,
    /// An SVG file.
    File(PathBuf),
}

impl FromStr for Heatmap {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Heatmap, Infallible> {
        Ok(match text {
            "-" => Heatmap::Terminal,
            path => Heatmap::File(path.into()),
        })
    }
}

/// Pictures of the results.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct PictureArgs {
    /// Write an HTML report to FILE
    ///
    /// The report is one page with tables, heat maps, the machine and all results.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,

    /// Write latency heat maps to FILE as SVG; - prints them
    #[arg(long, value_name = "FILE")]
    pub(crate) heatmap: Option<Heatmap>,
}

/// The files that a benchmark writes.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Output")]
#[command(group = ArgGroup::new("written").multiple(true).args(["json", "html", "heatmap", "flamegraph"]))]
pub(crate) struct OutputArgs {
    /// Write the results of each run to FILE as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Add the timeline of each run to the FILE of --json, from which `bench report` draws heat maps
    #[arg(long, requires = "json", hide_short_help = true)]
    pub(crate) timeline: bool,

    #[command(flatten)]
    pub(crate) pictures: PictureArgs,

    /// Replace output files that exist
    #[arg(long, requires = "written")]
    pub(crate) replace: bool,
}

const REPORT_HELP: &str = "\
Examples:
  annulus bench report run.json --html run.html
  annulus bench report before.json after.json --html compared.html
      shows both runs on one scale, the differences, and which of them exceed the noise
  annulus bench report run.json --heatmap -
      prints heat maps to the terminal";

#[derive(Debug, clap::Args)]
#[command(after_long_help = REPORT_HELP)]
pub(crate) struct ReportArgs {
    /// Results that `bench file --json` or `bench net --json` wrote
    #[arg(value_name = "JSON")]
    pub(crate) first: PathBuf,

    /// Results of another run of the same kind, to compare with the first
    #[arg(value_name = "JSON")]
    pub(crate) second: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) pictures: PictureArgs,

    /// Replace files that exist
    #[arg(long)]
    pub(crate) replace: bool,
}
