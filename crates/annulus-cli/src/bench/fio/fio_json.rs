//! Results in the layout of `fio --output-format=json`, for scripts that read fio's output.
//!
//! Fields that are not measured are zero. docs/reference/job-files.md lists them.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use super::pass::JobOutcome;
use super::plan::{Job, Plan};
use super::tally::{Direction, Tally};

/// The bounds of fio's latency tables. The last bound in milliseconds has no upper limit.
const NS: [u64; 10] = [2, 4, 10, 20, 50, 100, 250, 500, 750, 1000];
const MS: [u64; 12] = [2, 4, 10, 20, 50, 100, 250, 500, 750, 1000, 2000, u64::MAX];
/// fio's names for ranges of depths, with the smallest depth of each.
const DEPTHS: [(&str, usize); 7] = [
    ("1", 1),
    ("2", 2),
    ("4", 4),
    ("8", 8),
    ("16", 16),
    ("32", 32),
    (">=64", 64),
];
const BATCHES: [&str; 7] = ["0", "4", "8", "16", "32", "64", ">=64"];
/// The value of `eta` that fio reports for a finished job.
const ETA_OVER: u64 = 2_147_483_647;

/// Returns the report of one pass.
pub(super) fn report(plan: &Plan, outcomes: &[JobOutcome]) -> Value {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let mut jobs = Vec::new();
    let mut merged: Option<usize> = None;
    for (index, (job, outcome)) in plan.jobs.iter().zip(outcomes).enumerate() {
        let rows = clones(outcome);
        if !job.options.group_reporting {
            jobs.extend(
                rows.iter()
                    .map(|(tally, back)| entry(job, tally, back.as_ref())),
            );
            continue;
        }
        // The entry of the first job covers the whole group.
        if merged == Some(job.group) {
            continue;
        }
        merged = Some(job.group);
        let mut sum = Tally::new();
        let mut back: Option<Tally> = None;
        let group = plan.jobs.iter().zip(outcomes).skip(index);
        for (_, outcome) in
            group.filter(|(other, _)| other.group == job.group && other.options.group_reporting)
        {
            for (tally, more) in clones(outcome) {
                sum.add(&tally);
                if let Some(more) = more {
                    back.get_or_insert_with(Tally::new).add(&more);
                }
            }
        }
        jobs.push(entry(job, &sum, back.as_ref()));
    }
    json!({
        "fio version": format!("annulus-{}", env!("CARGO_PKG_VERSION")),
        "timestamp": now.as_secs(),
        "timestamp_ms": now.as_millis() as u64,
        "time": date(now.as_secs()),
        "global options": options(&plan.globals),
        "jobs": jobs,
        "disk_util": [],
    })
}

fn clones(outcome: &JobOutcome) -> Vec<(Tally, Option<Tally>)> {
    outcome
        .clones
        .iter()
        .map(|clone| (clone.tally.clone(), clone.read_back.clone()))
        .collect()
}

fn options(written: &[(String, String)]) -> Value {
    let map: Map<String, Value> = written
        .iter()
        .map(|(key, value)| (key.clone(), Value::String(value.clone())))
        .collect();
    Value::Object(map)
}

fn entry(job: &Job, tally: &Tally, back: Option<&Tally>) -> Value {
    let seconds = tally.seconds + back.map_or(0.0, |back| back.seconds);
    let list = &job.options.percentiles;
    let (read, read_seconds) = match back {
        Some(back) => (&back.read, back.seconds),
        None => (&tally.read, tally.seconds),
    };
    let cpu = |ns: u64| ns as f64 / 1e9 / tally.seconds.max(1e-9) * 100.0;
    let usage = &tally.usage;
    let mut entry = json!({
        "jobname": job.name,
        "groupid": job.group,
        "error": tally.errno,
        "eta": ETA_OVER,
        "elapsed": seconds.ceil() as u64,
        "job options": options(&job.written),
        "read": direction(read, read_seconds, list),
        "write": direction(&tally.write, tally.seconds, list),
        "trim": direction(&Tally::new().read, 0.0, list),
        "sync": {"total_ios": 0, "lat_ns": latency_of_none()},
        "job_runtime": (tally.seconds * 1e3).round() as u64,
        "usr_cpu": cpu(usage.user_ns),
        "sys_cpu": cpu(usage.system_ns),
        "ctx": usage.switches,
        "majf": usage.major_faults,
        "minf": usage.minor_faults,
        "iodepth_level": depths(job),
        "iodepth_submit": zeros(&BATCHES),
        "iodepth_complete": zeros(&BATCHES),
        "latency_depth": job.options.iodepth,
        "latency_target": 0,
        "latency_percentile": 100.0,
        "latency_window": 0,
    });
    if let (Some(map), Some(text)) = (entry.as_object_mut(), &job.options.description) {
        map.insert("desc".into(), text.clone().into());
    }
    if let Some(map) = entry.as_object_mut() {
        map.extend(latency_tables(tally, read));
    }
    entry
}

fn direction(direction: &Direction, seconds: f64, list: &[f64]) -> Value {
    let none = direction.ios == 0;
    let per_second = |count: u64| {
        if none {
            0.0
        } else {
            count as f64 / seconds.max(1e-9)
        }
    };
    let windows = |of: fn(&(u64, u64)) -> u64| -> Vec<f64> {
        let per_second = 1e9 / super::tally::WINDOW_NS as f64;
        direction
            .windows
            .iter()
            .map(|window| of(window) as f64 * per_second)
            .collect()
    };
    let kib: Vec<f64> = windows(|window| window.0 / 1024);
    let ios: Vec<f64> = windows(|window| window.1);
    let (bw, io) = (Samples::of(&kib), Samples::of(&ios));
    let mut latency = latency_of(direction);
    let with_percentiles = {
        let mut clat = latency.clone();
        if let (Some(map), false) = (clat.as_object_mut(), none) {
            map.insert("percentile".into(), percentiles(direction, list));
        }
        clat
    };
    json!({
        "io_bytes": direction.bytes,
        "io_kbytes": direction.bytes >> 10,
        "bw_bytes": per_second(direction.bytes) as u64,
        "bw": (per_second(direction.bytes) / 1024.0) as u64,
        "iops": per_second(direction.ios),
        "runtime": if none { 0 } else { (seconds * 1e3).round() as u64 },
        "total_ios": direction.ios,
        "short_ios": direction.short,
        "drop_ios": 0,
        "slat_ns": latency_of_none(),
        "clat_ns": with_percentiles,
        "lat_ns": latency.take(),
        "bw_min": bw.min as u64,
        "bw_max": bw.max as u64,
        "bw_agg": if bw.count > 0 { 100.0 } else { 0.0 },
        "bw_mean": bw.mean,
        "bw_dev": bw.deviation,
        "bw_samples": bw.count,
        "iops_min": io.min as u64,
        "iops_max": io.max as u64,
        "iops_mean": io.mean,
        "iops_stddev": io.deviation,
        "iops_samples": io.count,
    })
}

fn latency_of(direction: &Direction) -> Value {
    if direction.ios == 0 {
        return latency_of_none();
    }
    json!({
        "min": direction.latency.min(),
        "max": direction.latency.max(),
        "mean": direction.mean(),
        "stddev": direction.deviation(),
        "N": direction.ios,
    })
}

fn latency_of_none() -> Value {
    json!({"min": 0, "max": 0, "mean": 0.0, "stddev": 0.0, "N": 0})
}

fn percentiles(direction: &Direction, list: &[f64]) -> Value {
    let map: Map<String, Value> = list
        .iter()
        .map(|&percentile| {
            let ns = direction.latency.value_at_percentile(percentile);
            (format!("{percentile:.6}"), ns.into())
        })
        .collect();
    Value::Object(map)
}

/// Statistics of the samples of a rate.
struct Samples {
    min: f64,
    max: f64,
    mean: f64,
    deviation: f64,
    count: usize,
}

impl Samples {
    fn of(values: &[f64]) -> Samples {
        let count = values.len();
        if count == 0 {
            return Samples {
                min: 0.0,
                max: 0.0,
                mean: 0.0,
                deviation: 0.0,
                count,
            };
        }
        let mean = values.iter().sum::<f64>() / count as f64;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        Samples {
            min: values.iter().copied().fold(f64::INFINITY, f64::min),
            max: values.iter().copied().fold(0.0, f64::max),
            mean,
            deviation: (squares / count as f64).sqrt(),
            count,
        }
    }
}

fn zeros(names: &[&str]) -> Value {
    Value::Object(
        names
            .iter()
            .map(|name| (name.to_string(), json!(0.0)))
            .collect(),
    )
}

/// Returns the distribution of queue depths. The queue is kept full, so the job's depth has 100 %.
fn depths(job: &Job) -> Value {
    use super::options::Engine;
    let depth = match job.options.engine {
        Engine::Calls | Engine::Mmap => 1,
        Engine::LinuxAio | Engine::IoUring => job.options.iodepth,
    };
    let level = DEPTHS
        .iter()
        .rposition(|(_, least)| depth >= *least)
        .unwrap_or(0);
    let share = |index: usize| if index == level { 100.0 } else { 0.0 };
    let list = DEPTHS.iter().enumerate();
    Value::Object(
        list.map(|(index, (name, _))| (name.to_string(), json!(share(index))))
            .collect(),
    )
}

/// Returns fio's latency tables: the percentage of latencies between each bound and the previous one.
fn latency_tables(tally: &Tally, read: &Direction) -> Map<String, Value> {
    let directions = [read, &tally.write];
    let all = directions
        .iter()
        .map(|direction| direction.ios)
        .sum::<u64>()
        .max(1);
    let up_to = |ns: u64| -> u64 {
        let counted = |direction: &&Direction| match ns {
            0 => 0,
            ns => direction.latency.count_between(0, ns - 1),
        };
        directions.iter().map(counted).sum()
    };
    let mut before = 0;
    let mut table = |bounds: &[u64], unit: u64| {
        let mut map = Map::new();
        for &bound in bounds {
            let count = match bound {
                u64::MAX => directions
                    .iter()
                    .map(|direction| direction.latency.len())
                    .sum(),
                bound => up_to(bound * unit),
            };
            let name = match bound {
                u64::MAX => ">=2000".to_string(),
                bound => bound.to_string(),
            };
            map.insert(
                name,
                json!(count.saturating_sub(before) as f64 * 100.0 / all as f64),
            );
            before = before.max(count);
        }
        Value::Object(map)
    };
    let mut tables = Map::new();
    tables.insert("latency_ns".into(), table(&NS, 1));
    tables.insert("latency_us".into(), table(&NS, 1000));
    tables.insert("latency_ms".into(), table(&MS, 1_000_000));
    tables
}

/// Formats a time in UTC like `ctime(3)`.
fn date(unix_s: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let (days, rest) = (unix_s / 86_400, unix_s % 86_400);
    // Days are counted from 1 March of the year 0, so that a leap day is the last day of its year.
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let of_era = shifted % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = (month + 2) % 12;
    let year = year_of_era + era * 400 + u64::from(month < 2);
    format!(
        "{} {} {day:2} {:02}:{:02}:{:02} {year}",
        DAYS[(days % 7) as usize],
        MONTHS[month as usize],
        rest / 3600,
        rest / 60 % 60,
        rest % 60,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_written_as_c_does() {
        assert_eq!(date(0), "Thu Jan  1 00:00:00 1970");
        assert_eq!(date(951_782_399), "Mon Feb 28 23:59:59 2000");
        assert_eq!(date(951_782_400), "Tue Feb 29 00:00:00 2000");
        assert_eq!(date(1_795_286_203), "Sat Nov 21 18:36:43 2026");
    }
}
