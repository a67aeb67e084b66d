//! Runs fio as a child process on the same job file and reads its JSON for the table.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::plan::{Job, Plan};
use super::report::{Percentile, Sample, Side};
use crate::fault::Fault;
use crate::signals::Removal;

/// An installed fio, and the job file to run with it.
pub(super) struct External {
    pub(super) version: String,
    job_file: PathBuf,
    /// The temporary directory for fio's output, removed at exit.
    folder: PathBuf,
    _removal: Removal,
    pub(super) notes: Vec<String>,
}

/// fio's result of one job: a sample, or the reason why there is none.
pub(super) type FioReport = Result<Sample, String>;

impl External {
    /// Finds fio and prepares a copy of the job file if lines must be left out.
    pub(super) fn new(path: &Path, bytes: &[u8], plan: &Plan) -> Result<External, Fault> {
        let version = Command::new("fio")
            .arg("--version")
            .stdin(Stdio::null())
            .output();
        let version = version.map_err(|error| {
            usage!(
                "--with-fio: cannot run fio: {error}; install it, such as by `apt-get install fio`"
            )
        })?;
        let folder = std::env::temp_dir().join(format!("annulus-fio-{}", std::process::id()));
        fs::create_dir(&folder).map_err(|error| failed!("making {}: {error}", folder.display()))?;
        let mut external = External {
            version: String::from_utf8_lossy(&version.stdout).trim().to_string(),
            job_file: path.to_path_buf(),
            _removal: {
                let folder = folder.clone();
                // A directory that is already removed is no error.
                Removal::new(move || drop(fs::remove_dir_all(folder)))
            },
            folder,
            notes: Vec::new(),
        };
        if let Some((text, lines)) = without_lines(bytes, plan) {
            let copy = external.folder.join("job.fio");
            fs::write(&copy, text)
                .map_err(|error| failed!("writing {}: {error}", copy.display()))?;
            external.job_file = copy;
            external
                .notes
                .push(format!("fio got the job file without {}", lines.join(", ")));
        }
        Ok(external)
    }

    /// Runs fio. Returns its result of each job of the plan.
    pub(super) fn pass(&self, plan: &Plan) -> Result<Vec<FioReport>, Fault> {
        let json = self.folder.join("output.json");
        let failed = |error: std::io::Error| failed!("running fio: {error}");
        let child = Command::new("fio")
            .args(["--output-format=json", "--eta=never", "--output"])
            .arg(&json)
            .arg("--aux-path")
            .arg(&self.folder)
            .arg(&self.job_file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let (pid, over) = (Pid::from_child(&child), Arc::new(AtomicBool::new(false)));
        // A signal that ends this process also ends fio, which would otherwise keep using the files.
        let _end = {
            let over = Arc::clone(&over);
            Removal::new(move || {
                if !over.load(Relaxed) {
                    let _ = kill_process(pid, Signal::TERM);
                }
            })
        };
        let output = child.wait_with_output();
        over.store(true, Relaxed);
        let output = output.map_err(failed)?;
        let failure = || {
            let err = String::from_utf8_lossy(&output.stderr);
            let first = err
                .lines()
                .next()
                .unwrap_or("it printed no reason")
                .to_string();
            format!("fio failed ({}): {first}", output.status)
        };
        let text = fs::read(&json).unwrap_or_default();
        let Ok(report) = serde_json::from_slice::<Value>(json_part(&text)) else {
            return Ok(plan.jobs.iter().map(|_| Err(failure())).collect());
        };
        let entries = report["jobs"].as_array().cloned().unwrap_or_default();
        let reports = (0..plan.jobs.len()).map(|index| report_of(plan, index, &entries));
        Ok(reports
            .map(|report| {
                report.map_err(|why| {
                    if output.status.success() {
                        why
                    } else {
                        failure()
                    }
                })
            })
            .collect())
    }
}

/// Skips the notes that fio may write before its JSON.
fn json_part(text: &[u8]) -> &[u8] {
    let start = text
        .iter()
        .position(|&byte| byte == b'{')
        .unwrap_or(text.len());
    &text[start..]
}

/// Returns the job file without `unlink` and the keys that fio refuses, or `None` if it contains none of them.
fn without_lines(bytes: &[u8], plan: &Plan) -> Option<(Vec<u8>, Vec<String>)> {
    let mut left_out = Vec::new();
    let mut text = Vec::with_capacity(bytes.len());
    for (index, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
        let key = String::from_utf8_lossy(line).trim().to_ascii_lowercase();
        let unlinks = key == "unlink"
            || (key.starts_with("unlink") && key[6..].trim_start().starts_with('='));
        if unlinks || plan.mistaken_lines.contains(&(index + 1)) {
            left_out.push(format!("line {} (`{}`)", index + 1, key));
        } else {
            text.extend_from_slice(line);
        }
        text.push(b'\n');
    }
    (!left_out.is_empty()).then_some((text, left_out))
}

/// Returns the result of a job from its entries in fio's JSON. There is one entry, or one per clone.
fn report_of(plan: &Plan, index: usize, entries: &[Value]) -> FioReport {
    let job = &plan.jobs[index];
    let together = plan
        .jobs
        .iter()
        .filter(|other| other.group == job.group)
        .count();
    if together > 1 && job.options.group_reporting {
        return Err("fio reports this group of jobs as one (group_reporting)".into());
    }
    let same_name = plan
        .jobs
        .iter()
        .filter(|other| other.name == job.name)
        .count();
    if same_name > 1 {
        return Err(
            "several jobs have this name, so their results in fio's report cannot be told apart"
                .into(),
        );
    }
    let own: Vec<&Value> = entries
        .iter()
        .filter(|entry| entry["jobname"] == job.name.as_str())
        .collect();
    if own.is_empty() {
        return Err("fio reported no job of this name".into());
    }
    if let Some(error) = own
        .iter()
        .filter_map(|entry| entry["error"].as_i64())
        .find(|&error| error != 0)
    {
        let error = std::io::Error::from_raw_os_error(error as i32);
        return Err(format!("fio's job ended with an error: {error}"));
    }
    let read = side(job, &own, "read");
    let write = side(job, &own, "write");
    let ops = [&read, &write]
        .into_iter()
        .flatten()
        .map(|side| side.ops)
        .sum::<u64>();
    let cpu_us: f64 = own.iter().map(|entry| cpu_us(entry)).sum();
    Ok(Sample {
        read,
        write,
        cpu_us_per_op: cpu_us / ops.max(1) as f64,
        ..Sample::default()
    })
}

fn cpu_us(entry: &Value) -> f64 {
    let percent = |key: &str| entry[key].as_f64().unwrap_or(0.0);
    let runtime_ms = entry["job_runtime"].as_f64().unwrap_or(0.0);
    (percent("usr_cpu") + percent("sys_cpu")) / 100.0 * runtime_ms * 1e3
}

fn side(job: &Job, entries: &[&Value], name: &str) -> Option<Side> {
    let sum = |key: &str| {
        entries
            .iter()
            .filter_map(|entry| entry[name][key].as_u64())
            .sum::<u64>()
    };
    let (ops, bytes) = (sum("total_ios"), sum("io_bytes"));
    if ops == 0 {
        return None;
    }
    let runtime_ms = entries
        .iter()
        .filter_map(|entry| entry[name]["runtime"].as_u64())
        .max()?;
    let seconds = runtime_ms.max(1) as f64 / 1e3;
    let latency = |key: &str| {
        entries
            .iter()
            .filter_map(|entry| entry[name]["lat_ns"][key].as_f64())
            .collect::<Vec<f64>>()
    };
    let weight = |entry: &&Value| entry[name]["total_ios"].as_f64().unwrap_or(0.0);
    let mean: f64 = entries
        .iter()
        .map(|entry| entry[name]["lat_ns"]["mean"].as_f64().unwrap_or(0.0) * weight(entry))
        .sum();
    Some(Side {
        seconds,
        ops,
        bytes,
        ops_per_second: ops as f64 / seconds,
        megabytes_per_second: bytes as f64 / seconds / 1e6,
        mean_ns: mean / ops as f64,
        min_ns: latency("min").into_iter().fold(f64::INFINITY, f64::min) as u64,
        max_ns: latency("max").into_iter().fold(0.0, f64::max) as u64,
        // Percentiles of several clones cannot be added up.
        percentiles: match (entries, job.options.numjobs) {
            ([one], _) => percentiles(&one[name]["clat_ns"]["percentile"]),
            _ => Vec::new(),
        },
    })
}

fn percentiles(list: &Value) -> Vec<Percentile> {
    let list = list.as_object().into_iter().flatten();
    list.filter_map(|(key, ns)| {
        Some(Percentile {
            percentile: key.parse().ok()?,
            ns: ns.as_u64()?,
        })
    })
    .collect()
}
