//! `annulus bench all`: runs the other benchmarks one after the other, each in a separate process, and writes one page
//! and one JSON file.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Pid, Signal, kill_process};

use crate::args::AllArgs;
use crate::bench::machine::{Machine, allowed_processors};
use crate::bench::output::{Destination, Header, print_text};
use crate::fault::Fault;
use crate::signals;

pub(crate) mod json;
pub(crate) mod parts;
mod steps;

use json::{PartReport, Report};
use steps::{Kind, Step, steps};

/// The time that a run needs besides its measurement: ramp, checks, and the start of a server.
const RUN_OVERHEAD_S: f64 = 0.8;
/// The length of a run, in seconds. A longer one adds nothing to the repeats, and a shorter one has too few operations.
const RUN_S: std::ops::RangeInclusive<f64> = 0.2..=1.5;
const SHORT_RUN_S: f64 = 0.03;
/// The time limit of `--short`, which no part reaches.
const SHORT_MINUTES: u64 = 10;
/// A part may take this much more than its share of the time that is left.
const SHARE: f64 = 1.6;
/// The time that an interrupted part has to write its results.
const ENDING: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The exit codes of a part that is not available here, and of `annulus run --explain` for a program that is not
/// served.
const EXIT_UNAVAILABLE: i32 = 77;
const EXIT_NOT_SERVED: i32 = 3;

/// Runs the command.
pub(crate) fn all(args: &AllArgs) -> Result<ExitCode, Fault> {
    if let Some(fault) = Fault::without_images("bench all") {
        return Err(fault);
    }
    signals::listen()?;
    let output = Output::new(args)?;
    let dir = args.dir.as_deref().unwrap_or(Path::new("."));
    let machine = Machine::of(File::open(dir).ok().as_ref());
    let scratch =
        tempfile::tempdir().map_err(|error| failed!("creating a temporary folder: {error}"))?;
    let processors = allowed_processors()?;
    let steps = steps(dir, scratch.path(), &processors, args.short)?;
    signals::end_in_order();
    print_text(&format!("{}\n", machine.line()))?;
    let (started, began) = (SystemTime::now(), Instant::now());
    let minutes = if args.short {
        SHORT_MINUTES
    } else {
        args.minutes
    };
    let until = began + Duration::from_secs(minutes * 60);
    let mut left: usize = steps.iter().map(|step| step.runs).sum();
    let mut parts = Vec::new();
    for (nth, step) in steps.iter().enumerate() {
        if signals::received().is_some() {
            break;
        }
        print_text(&format!("\n{}/{}: {}\n", nth + 1, steps.len(), step.name))?;
        let share = Share::of(
            step,
            left,
            until.saturating_duration_since(Instant::now()),
            args.short,
        );
        left -= step.runs;
        let part = part(step, &scratch.path().join("part.json"), &share);
        print_text(&format!("{}\n", part.verdict()))?;
        parts.push(part);
    }
    let interrupted = signals::received();
    let report = Report {
        header: Header::new(json::VERSION, started),
        seconds: began.elapsed().as_secs_f64(),
        machine,
        short: args.short,
        interrupted: interrupted.is_some(),
        parts,
    };
    output.write(&report)?;
    print_text(&format!(
        "\n{} parts in {:.0} s: {} and {}\n",
        report.parts.len(),
        report.seconds,
        output.page_path.display(),
        output.json_path.display()
    ))?;
    Ok(match interrupted {
        Some(signal) => ExitCode::from(signal.exit_code()),
        None if report.parts.iter().any(|part| part.failed) => ExitCode::from(1),
        None => ExitCode::SUCCESS,
    })
}

/// The files in the folder of `--out`.
struct Output {
    page: Destination,
    json: Destination,
    page_path: PathBuf,
    json_path: PathBuf,
}

impl Output {
    fn new(args: &AllArgs) -> Result<Output, Fault> {
        let folder = &args.out;
        fs::create_dir_all(folder).map_err(|error| {
            usage!(
                "--out {}: cannot create the folder: {error}; name a folder that you can write in",
                folder.display()
            )
        })?;
        let (page_path, json_path) = (folder.join("report.html"), folder.join("report.json"));
        Ok(Output {
            page: Destination::of("--out", &page_path, args.replace)?,
            json: Destination::of("--out", &json_path, args.replace)?,
            page_path,
            json_path,
        })
    }

    fn write(&self, report: &Report) -> Result<(), Fault> {
        self.json.write_figures(report)?;
        #[cfg(feature = "images")]
        self.page.write_text(&crate::report::page_of_all(report)?)?;
        Ok(())
    }
}

/// The time of a part.
struct Share {
    run_s: f64,
    /// The part is interrupted after this time.
    most: Duration,
}

impl Share {
    fn of(step: &Step, runs_left: usize, left: Duration, short: bool) -> Share {
        let own = left.as_secs_f64() * step.runs as f64 / runs_left.max(1) as f64;
        let run_s = match short {
            true => SHORT_RUN_S,
            false => {
                let run_s = own / step.runs.max(1) as f64 - RUN_OVERHEAD_S;
                run_s.clamp(*RUN_S.start(), *RUN_S.end())
            }
        };
        let most = match short {
            true => left,
            false => left.min(Duration::from_secs_f64(own * SHARE)),
        };
        Share { run_s, most }
    }
}

/// Runs a part and reads its results.
fn part(step: &Step, json: &Path, share: &Share) -> PartReport {
    let began = Instant::now();
    let mut part = PartReport {
        name: step.name.clone(),
        processors: step.processors,
        ..PartReport::default()
    };
    let not_served = step.server.as_deref().and_then(not_served);
    if let Some(why) = not_served {
        part.reason = Some(format!("not available here: {why}"));
        return part;
    }
    let ended = measure(step, json, share);
    part.seconds = began.elapsed().as_secs_f64();
    let Ended { code, stderr, cut } = match ended {
        Ok(ended) => ended,
        Err(error) => {
            (part.failed, part.reason) = (true, Some(format!("FAILED: starting annulus: {error}")));
            return part;
        }
    };
    let read = fs::read(json).ok();
    let _ = fs::remove_file(json);
    if let Some(bytes) = read {
        let parsed = match step.kind {
            Kind::Files => serde_json::from_slice(&bytes).map(|report| part.files = Some(report)),
            Kind::Network => {
                serde_json::from_slice(&bytes).map(|report| part.network = Some(report))
            }
        };
        part.reason = parsed
            .err()
            .map(|error| format!("FAILED: its JSON cannot be read: {error}"));
    }
    let has_results = part.files.is_some() || part.network.is_some();
    let message = stderr.trim().trim_start_matches("annulus: ");
    // A signal to this process ended the part as well.
    let cut = cut || signals::received().is_some();
    if let Some((failed, reason)) = judge(code, cut, has_results, message) {
        part.failed = failed;
        part.reason.get_or_insert(reason);
    }
    part
}

/// Returns whether a part with this exit code has failed, and the reason; `None` if it has all its results.
fn judge(code: Option<i32>, cut: bool, has_results: bool, message: &str) -> Option<(bool, String)> {
    match code {
        Some(0) => None,
        _ if cut && has_results => Some((false, "cut short: its time was over".to_owned())),
        _ if cut => Some((
            false,
            "not measured: its time was over; use more --minutes".to_owned(),
        )),
        Some(EXIT_UNAVAILABLE) => Some((false, format!("not available here: {message}"))),
        _ => Some((true, format!("FAILED: {message}"))),
    }
}

/// Returns the reason why the preload library would not serve a program.
fn not_served(program: &str) -> Option<String> {
    let own = std::env::current_exe().ok()?;
    let mut command = Command::new(own);
    let output = command
        .args(["run", "--explain", "--", program])
        .output()
        .ok()?;
    match output.status.code() {
        Some(0) => None,
        Some(EXIT_NOT_SERVED) => {
            let text = String::from_utf8_lossy(&output.stdout);
            Some(text.lines().next().unwrap_or_default().to_owned())
        }
        _ => {
            let text = String::from_utf8_lossy(&output.stderr);
            let words: Vec<&str> = text.split_whitespace().collect();
            Some(words.join(" ").trim_start_matches("annulus: ").to_owned())
        }
    }
}

/// The end of a child process.
struct Ended {
    code: Option<i32>,
    stderr: String,
    /// `true` if it was interrupted, because its time was over.
    cut: bool,
}

/// Runs the part in a child process, which ends with this one.
fn measure(step: &Step, json: &Path, share: &Share) -> std::io::Result<Ended> {
    let own = std::env::current_exe()?;
    let mut command = Command::new(&own);
    command
        .args(["bench", "net-child", "--parent"])
        .arg(std::process::id().to_string())
        .arg("--")
        .arg(own)
        .arg("bench")
        .args(&step.arguments)
        .args(["--runtime", &format!("{:.3}", share.run_s), "--json"])
        .arg(json)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let stderr = child.stderr.take().map(|mut stderr| {
        thread::spawn(move || {
            let mut text = String::new();
            // A part that prints no UTF-8 has no message.
            let _ = stderr.read_to_string(&mut text);
            text
        })
    });
    let (code, cut) = wait(&mut child, Instant::now() + share.most)?;
    let stderr = stderr.and_then(|thread| thread.join().ok());
    Ok(Ended {
        code,
        stderr: stderr.unwrap_or_default(),
        cut,
    })
}

/// Waits for the end. A child that is too late is interrupted, and writes what it has. Returns its exit code, and
/// whether it was interrupted.
fn wait(child: &mut Child, until: Instant) -> std::io::Result<(Option<i32>, bool)> {
    let mut cut = false;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok((status.code(), cut));
        }
        if !cut && Instant::now() >= until {
            cut = true;
            // Fails if it has just ended.
            let _ = kill_process(Pid::from_child(child), Signal::INT);
        }
        if cut && Instant::now() >= until + ENDING {
            let _ = child.kill();
        }
        thread::sleep(POLL_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_whose_time_is_over_has_not_failed() {
        assert_eq!(judge(Some(0), false, true, ""), None);
        let (failed, reason) = judge(Some(130), true, true, "").unwrap();
        assert!(!failed && reason.starts_with("cut short"), "{reason}");
        let (failed, reason) = judge(Some(1), true, false, "interrupted").unwrap();
        assert!(!failed && reason.contains("--minutes"), "{reason}");
        let (failed, reason) = judge(Some(77), false, false, "io_uring").unwrap();
        assert_eq!(
            (failed, reason.as_str()),
            (false, "not available here: io_uring")
        );
        let (failed, reason) = judge(Some(1), false, true, "a wrong result").unwrap();
        assert_eq!((failed, reason.as_str()), (true, "FAILED: a wrong result"));
        assert!(judge(None, false, false, "").unwrap().0, "killed");
    }

    #[test]
    fn the_time_is_divided_by_runs_and_bounded() {
        let step = |runs| Step {
            name: String::new(),
            kind: Kind::Files,
            arguments: Vec::new(),
            runs,
            processors: None,
            server: None,
        };
        let minutes = |minutes: u64| Duration::from_secs(minutes * 60);
        let share = Share::of(&step(100), 300, minutes(18), false);
        assert_eq!(share.run_s, *RUN_S.end());
        assert_eq!(share.most, Duration::from_secs_f64(360.0 * SHARE));
        let share = Share::of(&step(100), 300, minutes(1), false);
        assert_eq!(share.run_s, *RUN_S.start());
        // The last part may not exceed what is left.
        let share = Share::of(&step(100), 100, minutes(2), false);
        assert_eq!(share.most, minutes(2));
    }
}
