//! What can be typed to get pictures of a run, and behind `annulus bench report`.

use std::convert::Infallible;
use std::path::PathBuf;
use std::str::FromStr;

/// Where heat maps go.
#[derive(Clone, Debug)]
pub(crate) enum Heatmap {
    /// Into the terminal, with the table.
    Terminal,
    /// Into an SVG.
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

/// Pictures of what was measured.
#[derive(Debug, clap::Args)]
pub(crate) struct PictureArgs {
    /// Write a report to FILE: one page with tables, heat maps, the machine, and all that was measured
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,

    /// Write latency heat maps to FILE as SVG; - shows them here
    #[arg(long, value_name = "FILE")]
    pub(crate) heatmap: Option<Heatmap>,
}

const REPORT_HELP: &str = "\
Examples:
  annulus bench report run.json --html run.html
  annulus bench report before.json after.json --html compared.html
      both runs on one scale, what differs, and whether it is more than noise
  annulus bench report run.json --heatmap -
      heat maps in the terminal";

#[derive(Debug, clap::Args)]
#[command(after_long_help = REPORT_HELP)]
pub(crate) struct ReportArgs {
    /// What --json of bench file or bench net wrote
    #[arg(value_name = "JSON")]
    pub(crate) first: PathBuf,

    /// Another run of the same kind, to be compared with the first
    #[arg(value_name = "JSON")]
    pub(crate) second: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) pictures: PictureArgs,

    /// Replace files that exist
    #[arg(long)]
    pub(crate) replace: bool,
}
