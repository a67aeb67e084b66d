//! TPC-H on clusters of Ballista whose stores for `file://` differ: ours, and `LocalFileSystem`.
//!
//! Each query runs on both clusters alternately. The answers must equal those of DataFusion in this process.

#![forbid(unsafe_code)]

mod cluster;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use annulus_datafusion::{Error, data, queries, rows};
use annulus_measure::{Cost, Options, Report, order, read_into_cache};
use clap::Parser;
use datafusion::prelude::SessionContext;

use cluster::{ANNULUS, Cluster, LOCAL, Role};

/// Ballista on our object store beside LocalFileSystem: TPC-H on a scheduler and two executors
#[derive(Debug, Parser)]
#[command(name = "annulus-ballista", version)]
struct Args {
    /// The part in a cluster that this process plays; without one, the program starts the clusters
    #[command(subcommand)]
    role: Option<Role>,
    /// The folder of the data, which is created once and stays
    #[arg(long, default_value = "datafusion-data")]
    dir: PathBuf,
    /// The scale of TPC-H; 1 is about 1 GB of text
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    #[command(flatten)]
    common: Options,
}

#[tokio::main]
async fn main() -> ExitCode {
    let mut args = Args::parse();
    let done = match args.role.take() {
        Some(role) => cluster::serve(role).await,
        None => compare(&args).await,
    };
    annulus_measure::exit_code("annulus-ballista", done)
}

async fn compare(args: &Args) -> Result<(), Error> {
    std::fs::create_dir_all(&args.dir)?;
    let tables = data::tpch(&std::fs::canonicalize(&args.dir)?, args.scale).await?;
    let results = tempfile::tempdir_in(&args.dir)?;
    let folder = std::fs::canonicalize(&results)?;
    let mut clusters = Vec::new();
    for store in [LOCAL, ANNULUS] {
        clusters.push(Cluster::start(store, &tables, &folder).await?);
    }
    let report = measure(&clusters, &tables, args.common.repeat).await?;
    for cluster in clusters {
        let store = cluster.store;
        let reads = cluster.stop()?;
        println!("{store}: reads through our store, by executor, scheduler last: {reads:?}");
        if reads.iter().any(|reads| (*reads > 0) != (store == ANNULUS)) {
            return Err("a process did not read through the store of its cluster".into());
        }
    }
    Ok(report.write_json(args.common.json.as_deref())?)
}

/// Runs the rounds of each query, and prints their table.
async fn measure(clusters: &[Cluster], tables: &Path, repeat: usize) -> Result<Report, Error> {
    let alone = SessionContext::new();
    data::register_tpch(&alone, tables).await?;
    read_into_cache(tables)?;
    let mut report = Report::default();
    let mut loads = Vec::new();
    for (number, sql) in queries::TPCH {
        let load = format!("TPC-H {number}");
        eprintln!("{load}");
        let expected = rows(&alone.sql(sql).await?.collect().await?)?;
        for round in 0..=repeat {
            for place in order(clusters.len(), round) {
                let cluster = &clusters[place];
                let (cpu, start) = (cluster.cpu()?, Instant::now());
                let answer = cluster.context.sql(sql).await?.collect().await?;
                let cost = Cost {
                    seconds: start.elapsed().as_secs_f64(),
                    cpu_seconds: cluster.cpu()?.saturating_sub(cpu).as_secs_f64(),
                    drive_bytes: 0,
                };
                let (answer, variant) = (rows(&answer)?, cluster.store);
                if answer != expected {
                    let says = format!(
                        "{variant}: {load}: other rows than in one process\n{answer:?}\nin one process:\n{expected:?}"
                    );
                    return Err(says.into());
                }
                report.add(&load, round, variant, 1, cost);
            }
        }
        loads.push(load);
    }
    println!(
        "The answers of {} queries are those of DataFusion in one process.",
        loads.len()
    );
    let sum = "TPC-H, sum".to_owned();
    report.add_sum(&loads, &sum);
    loads.push(sum);
    println!("{}", report.table(&loads, &[LOCAL, ANNULUS], LOCAL, ""));
    Ok(report)
}
