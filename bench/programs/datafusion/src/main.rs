//! DataFusion on our object store and on `LocalFileSystem`: our store is registered for `file://`, and nothing else
//! differs.
//!
//! Each query runs on both stores alternately, and its answers must be equal. The parts are the 22 queries of TPC-H,
//! selective scans of a table of 100 columns and 10,000 row groups, and scans of CSV and JSON.

#![forbid(unsafe_code)]

mod as_file;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use annulus_datafusion::{Error, data, queries, rows, text_of};
use annulus_measure::{Cache, Drive, Options, Report, Stopwatch, order};
use annulus_object_store::v0_13::LocalFileSystem;
use clap::{Parser, ValueEnum};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::prelude::{
    CsvReadOptions, JsonReadOptions, ParquetReadOptions, SessionConfig, SessionContext,
};
use url::Url;

use as_file::AsFile;

const LOCAL: &str = "LocalFileSystem";
const ANNULUS: &str = "annulus";
const ANNULUS_FILE: &str = "annulus, as a file";
const DRIVE: &str = "drive alone";
/// The bytes of a direct read: a column of a row group has 4,000 bytes, which lie on two pages.
const DRIVE_BLOCK_BYTES: u64 = 8192;
/// Memory for the metadata of Parquet files, so that a cold scan waits for data.
const METADATA_BYTES: usize = 4 << 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The 22 queries of TPC-H, cached.
    Tpch,
    /// Selective scans of a wide table, cold and cached.
    Scans,
    /// Scans of CSV and JSON, cold and cached.
    Text,
}

/// DataFusion on our object store beside LocalFileSystem: TPC-H, selective scans, CSV and JSON
#[derive(Debug, Parser)]
#[command(name = "annulus-datafusion", version)]
struct Args {
    /// The folder of the data, which is created once and stays
    #[arg(long, default_value = "datafusion-data")]
    dir: PathBuf,
    /// The scale of TPC-H; 1 is about 1 GB of text
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// The parts to run
    #[arg(long, value_delimiter = ',', default_value = "tpch,scans,text")]
    parts: Vec<Part>,
    /// Runs only the queries whose names contain this text, such as "0.1 % of the groups"
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// A quick check: TPC-H at scale 0.1, a wide table of 1,000 row groups, one round
    #[arg(long)]
    short: bool,
    #[command(flatten)]
    common: Options,
}

/// A context with the tables on one store.
struct Variant {
    name: &'static str,
    context: SessionContext,
}

/// A query, and the folder of its files.
struct Query {
    name: String,
    sql: String,
    folder: PathBuf,
}

#[tokio::main]
async fn main() -> ExitCode {
    let mut args = Args::parse();
    let mut groups = data::ROW_GROUPS;
    if args.short {
        (args.scale, groups) = (0.1, 1000);
        args.common.repeat = args.common.repeat.min(1);
    }
    annulus_measure::exit_code("annulus-datafusion", run(&args, groups).await)
}

async fn run(args: &Args, groups: usize) -> Result<(), Error> {
    std::fs::create_dir_all(&args.dir)?;
    let dir = std::fs::canonicalize(&args.dir)?;
    let tpch = data::tpch(&dir, args.scale).await?;
    let mut report = Report::default();
    for part in &args.parts {
        let table = match part {
            Part::Tpch => run_tpch(&tpch, args, &mut report).await?,
            Part::Scans => {
                let wide = data::wide(&dir, groups).await?;
                run_scans(&wide, groups, args, &mut report).await?
            }
            Part::Text => {
                let text = data::text(&dir, args.scale, &tpch).await?;
                run_text(&text, args, &mut report).await?
            }
        };
        println!("{table}");
    }
    println!(
        "{} rounds, TPC-H at scale {}; ratios to `{LOCAL}`. An operation is a query. `{DRIVE}` reads as many bytes as \
         `{LOCAL}` did, in random direct reads of {DRIVE_BLOCK_BYTES} bytes, 256 at a time.",
        args.common.repeat, args.scale
    );
    Ok(report.write_json(args.common.json.as_deref())?)
}

/// Returns a context on each store. They differ only in the store of `file://`.
fn contexts(config: &SessionConfig, as_file: bool) -> Result<Vec<Variant>, Error> {
    let mut variants = Vec::new();
    for name in [LOCAL, ANNULUS, ANNULUS_FILE] {
        let runtime = RuntimeEnvBuilder::new()
            .with_metadata_cache_limit(METADATA_BYTES)
            .build_arc()?;
        let context = SessionContext::new_with_config_rt(config.clone(), runtime);
        let file = Url::parse("file://")?;
        match name {
            ANNULUS => {
                context.register_object_store(&file, Arc::new(LocalFileSystem::new()));
            }
            ANNULUS_FILE if as_file => {
                context.register_object_store(&file, Arc::new(AsFile::new(LocalFileSystem::new())));
            }
            ANNULUS_FILE => continue,
            _ => {}
        }
        variants.push(Variant { name, context });
    }
    Ok(variants)
}

async fn run_tpch(tpch: &Path, args: &Args, report: &mut Report) -> Result<String, Error> {
    let variants = contexts(&SessionConfig::new(), false)?;
    for variant in &variants {
        data::register_tpch(&variant.context, tpch).await?;
    }
    let mut loads = Vec::new();
    for (number, sql) in queries::TPCH {
        let query = Query {
            name: format!("TPC-H {number}"),
            sql: sql.to_owned(),
            folder: tpch.to_owned(),
        };
        measure(&variants, &query, Cache::Cached, args, report).await?;
        loads.push(query.name);
    }
    let sum = "TPC-H, sum";
    report.add_sum(&loads, sum);
    let lower = loads.iter().map(|load| {
        let [lower, ..] = report.ratio(load, ANNULUS, LOCAL, |cost| cost.seconds);
        (lower, load.as_str())
    });
    let highest = lower.max_by(|one, other| one.0.total_cmp(&other.0));
    let highest = match highest.filter(|(lower, _)| !lower.is_nan()) {
        Some((lower, load)) => format!(" The highest lower quartile is {lower:.3}, of {load}."),
        None => String::new(),
    };
    loads.push(sum.to_owned());
    let table = report.table(&loads, &[LOCAL, ANNULUS], LOCAL, DRIVE);
    Ok(format!(
        "{table}\nThe answers of both stores are equal.{highest}\n"
    ))
}

async fn run_scans(
    wide: &Path,
    groups: usize,
    args: &Args,
    report: &mut Report,
) -> Result<String, Error> {
    let variants = contexts(&SessionConfig::new(), false)?;
    for variant in &variants {
        let options = ParquetReadOptions::default();
        variant
            .context
            .register_parquet("wide", text_of(wide)?, options)
            .await?;
    }
    let mut loads = Vec::new();
    for cache in [Cache::Cached, Cache::Cold] {
        for (thousandths, percent) in [(1, "0.1"), (10, "1"), (100, "10")] {
            for columns in [1, 5] {
                let sums: Vec<String> = (0..columns)
                    .map(|column| format!("sum(c{:02})", 7 + 19 * column))
                    .collect();
                let below = (groups * thousandths / 1000).max(1);
                let query = Query {
                    name: format!("{percent} % of the groups, {columns} columns, {cache}"),
                    sql: format!("SELECT {} FROM wide WHERE tag < {below}", sums.join(", ")),
                    folder: wide.to_owned(),
                };
                measure(&variants, &query, cache, args, report).await?;
                loads.push(query.name);
            }
        }
    }
    Ok(report.table(&loads, &[LOCAL, ANNULUS, DRIVE], LOCAL, DRIVE))
}

async fn run_text(text: &Path, args: &Args, report: &mut Report) -> Result<String, Error> {
    let variants = contexts(&SessionConfig::new(), true)?;
    for variant in &variants {
        let (csv, json) = (text.join("orders.csv"), text.join("orders.json"));
        let context = &variant.context;
        context
            .register_csv("csv", text_of(&csv)?, CsvReadOptions::new())
            .await?;
        let whole = CsvReadOptions::new().newlines_in_values(true);
        context
            .register_csv("csv_whole", text_of(&csv)?, whole)
            .await?;
        context
            .register_json("json", text_of(&json)?, JsonReadOptions::default())
            .await?;
    }
    let mut loads = Vec::new();
    for cache in [Cache::Cached, Cache::Cold] {
        for (table, name) in [
            ("csv", "CSV in two parts"),
            ("csv_whole", "CSV as a whole"),
            ("json", "JSON in two parts"),
        ] {
            let columns = "count(*), sum(o_orderkey), sum(o_custkey), max(o_comment)";
            let query = Query {
                name: format!("{name}, {cache}"),
                sql: format!("SELECT {columns} FROM {table}"),
                folder: text.to_owned(),
            };
            measure(&variants, &query, cache, args, report).await?;
            loads.push(query.name);
        }
    }
    Ok(report.table(&loads, &[LOCAL, ANNULUS, ANNULUS_FILE, DRIVE], LOCAL, DRIVE))
}

/// Runs the rounds of a query. The first reads metadata, and compares the answers.
async fn measure(
    variants: &[Variant],
    query: &Query,
    cache: Cache,
    args: &Args,
    report: &mut Report,
) -> Result<(), Error> {
    if !query.name.contains(&args.only) {
        return Ok(());
    }
    eprintln!("{}", query.name);
    cache.prepare(&query.folder)?;
    let drive = match cache {
        Cache::Cached => None,
        Cache::Cold => Some(Drive::new(&query.folder)?),
    };
    let mut expected: Option<Vec<String>> = None;
    for round in 0..=args.common.repeat {
        let mut drive_bytes = 0;
        for place in order(variants.len(), round) {
            let variant = &variants[place];
            if cache == Cache::Cold {
                cache.prepare(&query.folder)?;
            }
            let stopwatch = Stopwatch::start()?;
            let batches = variant.context.sql(&query.sql).await?.collect().await?;
            let cost = stopwatch.stop()?;
            let answer = rows(&batches)?;
            let expected = expected.get_or_insert_with(|| answer.clone());
            if *expected != answer {
                let (name, query) = (variant.name, &query.name);
                let says = format!(
                    "{name}: {query}: other rows than before\n{answer:?}\nbefore:\n{expected:?}"
                );
                return Err(says.into());
            }
            if variant.name == LOCAL {
                drive_bytes = cost.drive_bytes;
            }
            report.add(&query.name, round, variant.name, 1, cost);
        }
        if let Some(drive) = drive.as_ref().filter(|_| round > 0) {
            let reads = (drive_bytes / DRIVE_BLOCK_BYTES).max(1);
            let cost = drive.read(reads, DRIVE_BLOCK_BYTES).await?;
            report.add(&query.name, round, DRIVE, 1, cost);
        }
    }
    Ok(())
}
