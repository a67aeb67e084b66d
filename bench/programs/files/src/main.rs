//! Random reads of one file with other io_uring libraries.
//!
//! Each repeat runs all variants in a shuffled order. Every run is printed as a line of tab-separated values, and the
//! medians at the end. Ratios are taken within a repeat, to the hand-written ring `base`.

mod baseline;
mod load;
mod ringline;
mod runtimes;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use clap::builder::RangedU64ValueParser;
use load::{Cache, Load};
use rustix::time::{ClockId, clock_gettime};

type Run = fn(&Arc<Load>) -> io::Result<()>;
type Variant = (&'static str, Run);

const VARIANTS: [Variant; 13] = [
    ("base", |load| baseline::run(load, "base")),
    ("pread", |load| baseline::run(load, "pread")),
    ("tokio-blocking", |load| {
        baseline::run(load, "tokio-blocking")
    }),
    ("tokio-ring", |load| baseline::run(load, "tokio-ring")),
    ("annulus-tokio", runtimes::annulus_tokio),
    ("annulus-own", runtimes::annulus_own),
    ("rustfs-uring", |load| runtimes::rustfs_uring(load, 1)),
    ("rustfs-uring-2", |load| runtimes::rustfs_uring(load, 2)),
    ("monoio", runtimes::monoio),
    ("tokio-uring", runtimes::tokio_uring),
    ("compio", runtimes::compio),
    ("glommio", runtimes::glommio),
    ("ringline", ringline::run),
];

/// Random reads of one file with other io_uring libraries, beside Annulus and a hand-written ring
#[derive(Parser)]
#[command(name = "files")]
struct Options {
    /// The file, which is created with 4 GiB if it does not exist, and stays
    path: PathBuf,
    /// The state of the page cache
    #[arg(long, value_enum, default_value = "direct")]
    cache: Cache,
    /// Bytes of a read: a multiple of 4096, at most 1 GiB
    #[arg(long, default_value = "4096", value_parser = block)]
    block: usize,
    /// Reads in flight, as a list
    #[arg(long, value_delimiter = ',', default_value = "1,8,32,128")]
    #[arg(value_parser = RangedU64ValueParser::<usize>::new().range(1..=4096))]
    depth: Vec<usize>,
    /// Seconds of a run
    #[arg(long, default_value = "1", value_parser = seconds)]
    runtime: Duration,
    /// Runs of each variant
    #[arg(long, default_value_t = 5)]
    repeat: usize,
    /// Variants, as a list [default: all]
    #[arg(long, value_delimiter = ',', value_parser = variant)]
    variants: Vec<Variant>,
}

fn block(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(block) if block > 0 && block % 4096 == 0 && block <= 1 << 30 => Ok(block),
        _ => Err("use a multiple of 4096, at most 1 GiB".to_owned()),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().map_err(|_| "use a number".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

fn variant(name: &str) -> Result<Variant, String> {
    let names = VARIANTS.map(|(name, _)| name).join(", ");
    let known = VARIANTS.into_iter().find(|(known, _)| *known == name);
    known.ok_or_else(|| format!("use some of {names}"))
}

/// A run that counts.
struct Row {
    depth: usize,
    repeat: usize,
    variant: &'static str,
    per_second: f64,
    cpu_us: f64,
}

fn main() -> ExitCode {
    let mut options = Options::parse();
    if options.variants.is_empty() {
        options.variants = VARIANTS.to_vec();
    }
    if let Err(error) = load::create(&options.path) {
        eprintln!("files: creating {}: {error}", options.path.display());
        return ExitCode::FAILURE;
    }
    match measure(&options) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn cpu_us() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

/// Makes all runs. Returns whether all results were correct.
fn measure(options: &Options) -> bool {
    println!("cache\tblock\tdepth\trepeat\tvariant\tops/s\tCPU µs/op");
    let mut rows = Vec::new();
    let mut all_correct = true;
    for &depth in &options.depth {
        for repeat in 1..=options.repeat {
            let mut order = options.variants.clone();
            fastrand::shuffle(&mut order);
            for (variant, run) in order {
                match once(options, depth, run) {
                    Ok((per_second, cpu_us)) => {
                        let (cache, block) = (options.cache, options.block);
                        println!(
                            "{cache:?}\t{block}\t{depth}\t{repeat}\t{variant}\t{per_second:.0}\t{cpu_us:.2}"
                        );
                        rows.push(Row {
                            depth,
                            repeat,
                            variant,
                            per_second,
                            cpu_us,
                        });
                    }
                    Err(problem) => {
                        all_correct = false;
                        eprintln!("files: {variant} at depth {depth}: {problem}");
                    }
                }
            }
        }
    }
    summary(options, &rows);
    all_correct
}

fn once(options: &Options, depth: usize, run: Run) -> Result<(f64, f64), String> {
    let text = |error: io::Error| error.to_string();
    let load = Load::new(
        &options.path,
        options.block,
        depth,
        options.cache,
        options.runtime,
    );
    let load = Arc::new(load.map_err(text)?);
    let before = cpu_us();
    run(&load).map_err(text)?;
    let (count, time) = load.ended()?;
    let used = cpu_us() - before;
    match count {
        0 => Err("no read completed; use a longer --runtime".into()),
        count => Ok((count as f64 / time.as_secs_f64(), used / count as f64)),
    }
}

/// Prints the medians, and the ratios to `base` with their extremes.
fn summary(options: &Options, rows: &[Row]) {
    println!("\ndepth\tvariant\tops/s\t× base (min–max)\tCPU µs/op\t× base");
    for &depth in &options.depth {
        let of = |name: &str, repeat: usize| {
            rows.iter()
                .find(|row| (row.depth, row.variant, row.repeat) == (depth, name, repeat))
        };
        for (name, _) in &options.variants {
            let own: Vec<&Row> = rows
                .iter()
                .filter(|row| (row.depth, row.variant) == (depth, name))
                .collect();
            let ratio = |figure: fn(&Row) -> f64| {
                let ratios = own
                    .iter()
                    .filter_map(|row| Some(figure(row) / figure(of("base", row.repeat)?)));
                let mut ratios: Vec<f64> = ratios.collect();
                ratios.sort_by(f64::total_cmp);
                (
                    median(&ratios),
                    ratios.first().copied(),
                    ratios.last().copied(),
                )
            };
            let figure = |figure: fn(&Row) -> f64| {
                let mut values: Vec<f64> = own.iter().map(|row| figure(row)).collect();
                values.sort_by(f64::total_cmp);
                median(&values).unwrap_or(f64::NAN)
            };
            let (speed, least, most) = ratio(|row| row.per_second);
            let shown =
                |value: Option<f64>| value.map_or("–".into(), |value| format!("{value:.2}"));
            println!(
                "{depth}\t{name}\t{:.0}\t{} ({}–{})\t{:.2}\t{}",
                figure(|row| row.per_second),
                shown(speed),
                shown(least),
                shown(most),
                figure(|row| row.cpu_us),
                shown(ratio(|row| row.cpu_us).0),
            );
        }
    }
}

fn median(sorted: &[f64]) -> Option<f64> {
    sorted.get(sorted.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variant_reads_every_state_of_the_cache_correctly() {
        let path = std::env::temp_dir().join(format!("annulus-files-{}", std::process::id()));
        let mut bytes = Vec::new();
        for unit in 0..1024_u64 {
            bytes.extend(unit.to_le_bytes());
            bytes.resize(bytes.len() + 4088, 7);
        }
        std::fs::write(&path, bytes).unwrap();
        std::fs::File::open(&path).unwrap().sync_all().unwrap();
        let mut problems = Vec::new();
        for cache in ["direct", "cold", "hot"] {
            let line = [
                path.to_str().unwrap(),
                "--cache",
                cache,
                "--block",
                "8192",
                "--runtime",
                "0.3",
            ];
            let options = parse(&line.map(str::to_owned)).unwrap();
            for (name, run) in VARIANTS {
                if let Err(problem) = once(&options, 4, run) {
                    problems.push(format!("{name}, {cache}: {problem}"));
                }
            }
        }
        std::fs::remove_file(&path).unwrap();
        assert!(problems.is_empty(), "{problems:#?}");
    }

    #[test]
    fn the_error_for_a_wrong_command_line_names_the_problem() {
        let fault = |line: &[&str]| {
            let line: Vec<String> = line.iter().map(|one| (*one).to_owned()).collect();
            parse(&line).err().unwrap()
        };
        assert!(fault(&[]).contains("PATH"));
        assert!(fault(&["--help"]).contains("in the place of PATH"));
        assert!(fault(&["f", "--block", "5"]).contains("multiple of 4096"));
        assert!(fault(&["f", "--variants", "rio"]).contains("no variant rio"));
        assert!(fault(&["f", "--depth"]).contains("needs a value"));
    }
}
