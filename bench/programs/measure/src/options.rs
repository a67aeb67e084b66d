//! The options that several programs have, and the end of a program.

use std::fmt::{self, Display};
use std::io::Result;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};

use crate::{read_into_cache, remove_from_cache};

/// The options of a program that compares variants in rounds.
#[derive(Debug, Args)]
pub struct Options {
    /// Rounds that count; in each, every variant runs once. 0 only checks the results
    #[arg(long, default_value_t = 9)]
    pub repeat: usize,
    /// Writes each run to a new file
    #[arg(long, value_name = "FILE", value_parser = new_file)]
    pub json: Option<PathBuf>,
}

/// Refuses a file that exists before anything is measured.
fn new_file(path: &str) -> std::result::Result<PathBuf, String> {
    match Path::new(path).exists() {
        true => Err("it exists; give a new file".to_owned()),
        false => Ok(path.into()),
    }
}

/// The state of the page cache before a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Cache {
    /// The files are in memory.
    Cached,
    /// The files are only on the drive.
    Cold,
}

impl Cache {
    /// Brings the files below a folder into this state.
    ///
    /// # Errors
    ///
    /// Fails if a file cannot be read.
    pub fn prepare(self, folder: &Path) -> Result<()> {
        match self {
            Cache::Cached => read_into_cache(folder),
            Cache::Cold => remove_from_cache(folder),
        }
    }
}

impl Display for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cache::Cached => "cached",
            Cache::Cold => "cold",
        })
    }
}

/// Prints the error of a program, and returns the program's exit code.
pub fn exit_code(program: &str, ended: std::result::Result<(), impl Display>) -> ExitCode {
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{program}: {error}");
            ExitCode::FAILURE
        }
    }
}
