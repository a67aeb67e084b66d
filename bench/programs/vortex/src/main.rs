//! Random rows of a Vortex file, through Vortex's own reader of local files and through ours.
//!
//! The takes are those of Vortex's benchmark `random-access-bench`, and 10 and 1,000 random rows. Each take must return
//! the rows that were written. The counters of Annulus must show that it made the reads of our reader, and no others.

#![forbid(unsafe_code)]

mod data;
mod reader;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use annulus::{Engine, OpenOptions};
use annulus_measure::{
    Cost, Options, Report, Stopwatch, order, read_into_cache, reads, remove_from_cache,
};
use clap::Parser;
use fastrand::Rng;
use vortex::VortexSessionDefault;
use vortex::array::stream::ArrayStreamExt;
use vortex::array::{Canonical, IntoArray, VortexSessionExecute};
use vortex::arrow::ArrowSessionExt;
use vortex::buffer::Buffer;
use vortex::file::{OpenOptionsSessionExt, VortexFile};
use vortex::scan::strict_sorted_buffer::StrictSortedBuffer;
use vortex::session::VortexSession;

use reader::AnnulusReadAt;

type Error = Box<dyn std::error::Error + Send + Sync>;

const FILE: &str = "trips.vortex";
const STD: &str = "std_file";
const ANNULUS: &str = "annulus";
const DIRECT: &str = "annulus-direct";
/// The rows of the taxi data in Vortex's benchmark, and those that it always takes.
const ROWS: u64 = 3_066_766;
const FIXED: [u64; 6] = [10, 11, 12, 13, 100_000, 3_000_000];
/// Clusters of adjacent rows, and the rows of each. The first takes the fixed rows.
const TAKES: [(&str, u64, u64); 5] = [
    ("6 fixed rows", 0, 1),
    ("5 clusters of 20 rows", 5, 20),
    ("10 random rows", 10, 1),
    ("100 random rows", 100, 1),
    ("1,000 random rows", 1000, 1),
];

#[derive(Parser)]
#[command(about = "Random rows of a Vortex file, from Vortex's own reader and from ours")]
struct Args {
    /// Folder for the file, which is written once and stays
    #[arg(long, default_value = "vortex-data")]
    dir: PathBuf,
    /// Takes of a run
    #[arg(long, default_value_t = 20)]
    takes: u64,
    /// A quick check: 200,000 rows, two rounds of two takes
    #[arg(long)]
    short: bool,
    #[command(flatten)]
    common: Options,
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let mut args = Args::parse();
    let mut count = ROWS;
    if args.short {
        (count, args.common.repeat, args.takes) = (200_000, 2, 2);
    }
    let taken = Taken::new(&args.dir.join(format!("{count}-rows")), count).await?;
    let (mut report, mut loads) = (Report::default(), Vec::new());
    for cache in ["cached", "cold"] {
        for (name, clusters, length) in TAKES {
            let load = format!("{name}, {cache}");
            eprintln!("{load}");
            read_into_cache(&taken.folder)?;
            let files = [
                (STD, taken.open(STD).await?),
                (ANNULUS, taken.open(ANNULUS).await?),
                (DIRECT, taken.open(DIRECT).await?),
            ];
            for round in 0..=args.common.repeat {
                for place in order(files.len(), round) {
                    let (variant, file) = &files[place];
                    let mut cost = Cost::default();
                    for take in 0..args.takes {
                        let rows = rows((round as u64) << 32 | take, count, clusters, length);
                        cost += taken.take(variant, file, &rows, cache == "cold").await?;
                    }
                    report.add(&load, round, variant, args.takes, cost);
                }
            }
            loads.push(load);
        }
    }
    println!("{}", report.table(&loads, &[STD, ANNULUS, DIRECT], STD, ""));
    println!("An operation is a take. All rows are those that were written.");
    Ok(report.write_json(args.common.json.as_deref())?)
}

/// Returns the numbers of the rows of a take.
fn rows(seed: u64, count: u64, clusters: u64, length: u64) -> BTreeSet<u64> {
    if clusters == 0 {
        return FIXED.map(|row| row.min(count - 1)).into();
    }
    let mut rng = Rng::with_seed(seed);
    let starts = (0..clusters).map(|_| rng.u64(..=count - length));
    starts.flat_map(|start| start..start + length).collect()
}

/// The file that rows are taken from.
struct Taken {
    session: VortexSession,
    engine: Engine,
    folder: PathBuf,
}

impl Taken {
    /// Uses the file in a folder. Writes it if there is none.
    async fn new(folder: &Path, count: u64) -> Result<Taken, Error> {
        let (session, path) = (VortexSession::default(), folder.join(FILE));
        if !path.exists() {
            std::fs::create_dir_all(folder)?;
            data::write(&session, &path, count).await?;
        }
        Ok(Taken {
            session,
            // Tasks that decompress keep the threads of the runtime busy. Reads must not wait for them.
            engine: Engine::builder().thread_rings(false).drivers(2).build()?,
            folder: folder.to_owned(),
        })
    }

    /// Opens the file as Vortex's benchmark does, with the reader of a variant.
    async fn open(&self, variant: &str) -> Result<VortexFile, Error> {
        let (path, options) = (self.folder.join(FILE), self.session.open_options());
        let options = options.with_layout_reader_cache();
        Ok(match variant {
            STD => options.open_path(path).await?,
            _ => {
                let mut how = OpenOptions::new();
                how.read(true).direct(variant == DIRECT);
                let file = self.engine.open_with(&how, path).await?;
                options.open(Arc::new(AnnulusReadAt(file))).await?
            }
        })
    }

    /// Takes and decompresses rows, as Vortex's benchmark does. `cold`: removes the file from the page cache first.
    /// Fails if they are not the rows that were written, or if another reader than that of the variant read them.
    async fn take(
        &self,
        variant: &str,
        file: &VortexFile,
        rows: &BTreeSet<u64>,
        cold: bool,
    ) -> Result<Cost, Error> {
        let indices = StrictSortedBuffer::try_new(rows.iter().copied().collect::<Buffer<u64>>())?;
        let mut context = self.session.create_execution_ctx();
        if cold {
            remove_from_cache(&self.folder)?;
        }
        let (before, stopwatch) = (reads(), Stopwatch::start()?);
        let stream = file.scan()?.with_row_indices(indices).into_array_stream()?;
        let array = stream.read_all().await?;
        let array = array.execute::<Canonical>(&mut context)?.into_array();
        let cost = stopwatch.stop()?;
        let count = reads() - before;
        if (count > 0) != (variant != STD) {
            return Err(format!("{variant}: Annulus made {count} of the reads").into());
        }
        let arrow = self.session.arrow();
        let written = data::rows(rows.iter().copied())?;
        let written = arrow.execute_arrow(written, None, &mut context)?;
        if arrow.execute_arrow(array, None, &mut context)? != written {
            return Err(format!("{variant}: not the rows that were written: {rows:?}").into());
        }
        Ok(cost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn readers_return_the_rows_that_were_written_and_only_ours_uses_annulus() {
        let folder = tempfile::tempdir().unwrap();
        let taken = Taken::new(folder.path(), 100_000).await.unwrap();
        for (variant, other) in [(STD, DIRECT), (ANNULUS, STD), (DIRECT, STD)] {
            let file = taken.open(variant).await.unwrap();
            for (cold, step) in [(false, 9), (false, 40_000), (true, 9), (true, 1000)] {
                let rows = (0..100_000).step_by(step).collect();
                taken.take(variant, &file, &rows, cold).await.unwrap();
            }
            // The counters tell the readers apart.
            let rows = BTreeSet::from([7]);
            let take = taken.take(other, &file, &rows, false).await;
            let error = take.unwrap_err().to_string();
            assert!(error.contains("of the reads"), "{variant}: {error}");
        }
    }
}
