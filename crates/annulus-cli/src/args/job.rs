//! The job file options of `annulus bench file`.

use std::path::PathBuf;

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "fio job files")]
pub(crate) struct JobArgs {
    /// Run FILE, an fio job file
    ///
    /// The jobs run with their own engines and through Annulus; see docs/reference/job-files.md.
    #[arg(
        long = "job",
        value_name = "FILE",
        conflicts_with_all = [
            "path", "load", "rw", "rwmixread", "bs", "files", "size", "offset", "direct", "buffered", "cold", "hot",
            "memory", "sync", "depth", "threads", "drivers", "runtime", "variants", "dir", "list", "heatmap",
            "timeline", "syscalls", "flamegraph", "alert"
        ]
    )]
    pub(crate) job_file: Option<PathBuf>,

    /// Print how the job file is interpreted, and run nothing
    #[arg(long, requires = "job_file", hide_short_help = true)]
    pub(crate) parse_only: bool,

    /// Run fio on the same job file as well, and compare the results
    #[arg(long, requires = "job_file", hide_short_help = true)]
    pub(crate) with_fio: bool,

    /// Keep the files that were created for the jobs
    #[arg(long, requires = "job_file", hide_short_help = true)]
    pub(crate) keep_files: bool,
}
