//! Reads random documents of a tantivy index that is four times as large as the memory, from maps and from a page pool.

#![forbid(unsafe_code)]

mod directory;
mod load;

use std::error::Error;
use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use annulus_measure::order;
use clap::Parser;
use load::{Sample, VARIANTS};
use serde::Serialize;

/// The index is this number of times as large as the memory.
const MEMORIES: u64 = 4;

#[derive(Parser)]
#[command(about)]
struct Args {
    /// Folder for the index, on the disk to measure; the index is kept there
    #[arg(long)]
    dir: PathBuf,
    /// Memory limit of each run, in MiB
    #[arg(long, default_value_t = 512)]
    memory: usize,
    /// Readers, as a list
    #[arg(long, value_delimiter = ',', default_values_t = [32, 512])]
    readers: Vec<usize>,
    /// Rounds
    #[arg(long, default_value_t = 7)]
    repeat: usize,
    /// Length of a run, in seconds
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Compare all documents first
    #[arg(long)]
    compare: bool,
    /// Write the results of each run to FILE
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// One run, in the cgroup of this process
    #[arg(long, hide = true)]
    run: Option<String>,
}

#[derive(Serialize)]
struct Run {
    variant: &'static str,
    depth: usize,
    repeat: usize,
    outcome: Sample,
}

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let args = Args::parse();
    let (folder, memory) = (args.dir.join("annulus-tantivy"), args.memory << 20);
    if let Some(variant) = &args.run {
        let time = Duration::from_secs_f64(args.seconds);
        let sample = load::run(&folder, variant, args.readers[0], memory, time)?;
        println!("{}", serde_json::to_string(&sample)?);
        return Ok(());
    }
    let wanted = MEMORIES * memory as u64;
    if !folder.exists() || load::size(&folder)? < wanted {
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder)?;
        load::fill(&folder, wanted)?;
    }
    if args.compare {
        println!("{} documents are equal", load::compare(&folder, memory)?);
    }
    let mut runs = Vec::new();
    for &readers in &args.readers {
        for repeat in 1..=args.repeat {
            for nth in order(VARIANTS.len(), repeat) {
                let variant = VARIANTS[nth];
                annulus_measure::remove_from_cache(&folder)?;
                let outcome = limited(&args, variant, readers, memory)?;
                println!("{readers} readers, round {repeat}: {variant}: {outcome:?}");
                runs.push(Run {
                    variant,
                    depth: readers,
                    repeat,
                    outcome,
                });
            }
        }
    }
    if let Some(path) = &args.json {
        fs::write(
            path,
            serde_json::to_string(&serde_json::json!({ "runs": runs }))?,
        )?;
    }
    Ok(())
}

/// Makes a run in its own process, with the memory limit.
fn limited(
    args: &Args,
    variant: &str,
    readers: usize,
    memory: usize,
) -> Result<Sample, Box<dyn Error + Send + Sync>> {
    let (readers, mebibytes) = (readers.to_string(), args.memory.to_string());
    let seconds = args.seconds.to_string();
    let words = [
        ["--run", variant],
        ["--readers", &readers],
        ["--memory", &mebibytes],
        ["--seconds", &seconds],
    ];
    let mut words: Vec<&OsStr> = words.as_flattened().iter().map(OsStr::new).collect();
    words.extend([OsStr::new("--dir"), args.dir.as_os_str()]);
    let said = annulus_measure::in_limited_memory(memory as u64, &words)?;
    Ok(serde_json::from_str(&said)?)
}
