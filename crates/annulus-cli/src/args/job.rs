//! What can be typed about job files behind `annulus bench file`.

use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(crate) struct JobArgs {
    /// Run FILE, a job file of fio's, as it is, and the same jobs through Annulus; docs/reference/job-files.md
    #[arg(
        long = "job",
        value_name = "FILE",
        conflicts_with_all = [
            "path", "load", "rw", "rwmixread", "bs", "files", "size", "offset", "direct", "buffered", "cold", "hot",
            "memory", "sync", "depth", "threads", "drivers", "runtime", "variants", "dir", "list", "html",
            "heatmap", "timeline", "syscalls", "flamegraph", "alert"
        ]
    )]
    pub(crate) job_file: Option<PathBuf>,

    /// Read the job file, say what it means, and do nothing
    #[arg(long, requires = "job_file")]
    pub(crate) parse_only: bool,

    /// Run fio itself on the same job file, too, and compare
    #[arg(long, requires = "job_file")]
    pub(crate) with_fio: bool,

    /// Write the results of the job's own engines to FILE, in the layout of fio's JSON
    #[arg(long, value_name = "FILE", requires = "job_file")]
    pub(crate) fio_json: Option<PathBuf>,

    /// Keep the files that the jobs needed and that were made for them
    #[arg(long, requires = "job_file")]
    pub(crate) keep_files: bool,
}
