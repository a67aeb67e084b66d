//! Flame graphs of CPU time: records one run with `perf record`, folds the stacks and draws them.
//!
//! Samples use the `cpu-clock` event, because virtual machines often have no hardware counters. Stacks are unwound with
//! debug information from a copy of each sample's stack, because the release build, the C library and most servers have
//! no frame pointers. perf writes its recording to an unnamed temporary file.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

#[cfg(feature = "images")]
use inferno::collapse::Collapse;
#[cfg(feature = "images")]
use inferno::collapse::perf::{Folder, Options as FolderOptions};
#[cfg(feature = "images")]
use inferno::flamegraph::{self, Palette};

use super::tracer::Tracer;
use super::{is_installed, labelled};
use crate::bench::output::Destination;
use crate::fault::Fault;

const OPTION: &str = "--flamegraph";
/// Samples per second and processor. A prime number, so that samples do not fall in step with a program's timers.
const HERTZ: &str = "499";
/// The unwinding method and the bytes of stack per sample. With half as many bytes, three quarters of a Tokio variant's
/// stacks are cut off. Twice as many bytes do not make them longer.
const UNWIND: &str = "dwarf,16384";
const HINT: &str = "run as root, or set sysctl kernel.perf_event_paranoid=1";
/// The fields of `perf script`. The period is left out because folding would weight samples by it, and it is constant.
const FIELDS: &str = "comm,pid,tid,time,event,ip,sym,dso";
/// The message of perf 6.1 when it stops early because a traced thread has ended.
const CUT_SHORT: &str = "pollfd index mismatch";
/// The objects that mark kernel functions in perf's output. (Folding also marks the vDSO's functions as kernel
/// functions.)
const KERNEL: [&str; 2] = ["([kernel.", "vmlinux)"];

/// The destination of flame graphs.
pub(crate) struct Graphs {
    path: PathBuf,
    replace: bool,
}

/// A written flame graph.
pub(crate) struct Drawn {
    pub(crate) samples: u64,
    /// A limitation of the graph, for the reader.
    pub(crate) note: Option<String>,
}

impl Graphs {
    pub(super) fn new(path: &Path, replace: bool) -> Result<Graphs, Fault> {
        if let Some(fault) = Fault::without_images(OPTION) {
            return Err(fault);
        }
        // Several graphs get other names in the same folder.
        Destination::of(OPTION, path, true)?;
        let shown = path.display();
        if !is_installed("perf") {
            return Err(usage!(
                "{OPTION} {shown}: perf is not installed (Debian: apt install linux-perf)"
            ));
        }
        let graphs = Graphs {
            path: path.to_path_buf(),
            replace,
        };
        // Check that perf can record, so that a failure shows before minutes of measuring.
        let probe = graphs.record(&[std::process::id()]);
        probe
            .and_then(Recorder::end)
            .map_err(|why| usage!("{OPTION} {shown}: {why}"))?;
        Ok(graphs)
    }

    /// Returns one file for each label. A single graph gets the path from the command line.
    pub(crate) fn files(&self, labels: &[String]) -> Result<Vec<PathBuf>, Fault> {
        let files: Vec<PathBuf> = match labels {
            [_] => vec![self.path.clone()],
            labels => labels
                .iter()
                .map(|label| labelled(&self.path, label))
                .collect(),
        };
        for file in &files {
            Destination::of(OPTION, file, self.replace)?;
        }
        Ok(files)
    }

    /// Attaches perf to the processes and starts recording.
    pub(crate) fn record(&self, pids: &[u32]) -> Result<Recorder, String> {
        Recorder::start(pids, self.folder())
    }

    /// Folds and draws a recording, and writes the graph to `file`.
    pub(crate) fn draw(
        &self,
        recorded: Recorded,
        title: &str,
        file: &Path,
    ) -> Result<Drawn, String> {
        let cut_short = recorded.cut_short;
        let stacks = fold(recorded.file)?;
        let (mut drawn, picture) = draw(&stacks, title)?;
        let written = Destination::of(OPTION, file, self.replace)
            .and_then(|destination| destination.write_text(&picture));
        written.map_err(|fault| fault.to_string())?;
        if cut_short {
            let note = drawn
                .note
                .take()
                .map_or(String::new(), |note| format!("; {note}"));
            drawn.note = Some(format!(
                "perf ended early, with a thread that it was attached to{note}"
            ));
        }
        Ok(drawn)
    }

    fn folder(&self) -> &Path {
        let folder = self.path.parent();
        let named = folder.filter(|folder| !folder.as_os_str().is_empty());
        named.unwrap_or(Path::new("."))
    }
}

/// A running `perf record`.
pub(crate) struct Recorder {
    tracer: Tracer,
    recorded: File,
}

impl Recorder {
    fn start(pids: &[u32], folder: &Path) -> Result<Recorder, String> {
        let unnamed = |error| format!("making a temporary file in {}: {error}", folder.display());
        let recorded = tempfile::tempfile_in(folder).map_err(unnamed)?;
        let output = recorded.try_clone().map_err(unnamed)?;
        let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
        let arguments = [
            "record",
            "-F",
            HERTZ,
            "-e",
            "cpu-clock",
            "-g",
            "--call-graph",
            UNWIND,
            // Without this option perf waits up to a second for its thread for BPF events.
            "--no-bpf-event",
            "-D",
            "-1",
            "--control",
            "fd:0,2",
            "-o",
            "-",
            "-p",
            &pids.join(","),
        ];
        let mut tracer = Tracer::start("perf", &arguments.map(String::from), Some(output))?;
        tracer.send("enable\n")?;
        tracer
            .wait_for(|line| line == "ack")
            .map_err(|why| format!("perf: {why}; {HINT}"))?;
        Ok(Recorder { tracer, recorded })
    }

    /// Detaches perf and returns the recording.
    pub(crate) fn end(self) -> Result<Recorded, String> {
        let messages = self.tracer.end().map_err(|why| format!("perf: {why}"))?;
        Ok(Recorded {
            file: self.recorded,
            cut_short: messages.contains(CUT_SHORT),
        })
    }
}

/// A recording of perf.
pub(crate) struct Recorded {
    file: File,
    cut_short: bool,
}

/// Folds the samples into one line per stack: the thread's name, the frames from the outermost inwards, and a count.
fn fold(mut recorded: File) -> Result<Folded, String> {
    let failed = |error: std::io::Error| format!("perf script: {error}");
    recorded.seek(SeekFrom::Start(0)).map_err(failed)?;
    let mut child = Command::new("perf")
        // To resolve inlined functions, perf calls another program for each address.
        .args(["script", "--no-inline", "-i", "-", "-F", FIELDS])
        .env("LC_ALL", "C")
        .stdin(recorded)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let complaints = child.stderr.take().map(|mut stderr| {
        std::thread::spawn(move || {
            let mut text = String::new();
            let _ = stderr.read_to_string(&mut text);
            text
        })
    });
    let mut text = Vec::new();
    let read = child
        .stdout
        .take()
        .map(|mut out| out.read_to_end(&mut text));
    let status = child.wait().map_err(failed)?;
    let complaints = complaints.and_then(|thread| thread.join().ok());
    match read {
        Some(Ok(_)) if status.success() => fold_text(&text).map_err(failed),
        Some(Err(error)) => Err(failed(error)),
        _ => {
            let messages = complaints.unwrap_or_default();
            Err(format!("perf script: {status}: {}", messages.trim()))
        }
    }
}

/// Folded stacks. `kernel` is set if any sample has kernel frames.
pub(super) struct Folded {
    pub(super) stacks: String,
    pub(super) kernel: bool,
}

#[cfg(feature = "images")]
pub(super) fn fold_text(text: &[u8]) -> std::io::Result<Folded> {
    let mut options = FolderOptions::default();
    options.annotate_kernel = true;
    let mut stacks = Vec::new();
    Folder::from(options).collapse(text, &mut stacks)?;
    let shown = String::from_utf8_lossy(text);
    Ok(Folded {
        stacks: String::from_utf8_lossy(&stacks).into_owned(),
        kernel: KERNEL.into_iter().any(|name| shown.contains(name)),
    })
}

/// `Graphs::new` has refused the option.
#[cfg(not(feature = "images"))]
fn fold_text(_: &[u8]) -> std::io::Result<Folded> {
    Err(std::io::ErrorKind::Unsupported.into())
}

/// `Graphs::new` has refused the option.
#[cfg(not(feature = "images"))]
fn draw(_: &Folded, _: &str) -> Result<(Drawn, String), String> {
    Err("this build has no images".into())
}

/// Draws the stacks. Returns the number of samples with a note for the reader, and the SVG.
#[cfg(feature = "images")]
pub(super) fn draw(folded: &Folded, title: &str) -> Result<(Drawn, String), String> {
    let count = |line: &str| line.rsplit_once(' ')?.1.parse::<u64>().ok();
    let stacks = &folded.stacks;
    let samples: u64 = stacks.lines().filter_map(count).sum();
    if samples == 0 {
        return Err("perf took no sample: nothing was on a processor for long enough".into());
    }
    let note = match folded.kernel {
        true => None,
        false => Some(no_kernel_frames()),
    };
    let mut options = flamegraph::Options::default();
    options.title = title.to_string();
    options.subtitle = Some(format!(
        "{samples} samples at {HERTZ} Hz of processor time{}",
        note.as_ref()
            .map_or(String::new(), |note| format!("; {note}"))
    ));
    options.colors = Palette::Multi(flamegraph::color::MultiPalette::Rust);
    // The same recording always gives the same picture.
    options.deterministic = true;
    let mut picture = Vec::new();
    flamegraph::from_lines(&mut options, stacks.lines(), &mut picture)
        .map_err(|error| format!("drawing: {error}"))?;
    let picture = String::from_utf8_lossy(&picture).into_owned();
    Ok((Drawn { samples, note }, picture))
}

fn no_kernel_frames() -> String {
    if rustix::process::geteuid().is_root() {
        return "no sample was in the kernel".into();
    }
    let setting = |name: &str| {
        let text = fs::read_to_string(format!("/proc/sys/kernel/{name}"));
        text.map_or_else(|_| "unknown".to_string(), |text| text.trim().to_string())
    };
    format!(
        "no frames of the kernel: perf_event_paranoid is {}, kptr_restrict {}; root sees them",
        setting("perf_event_paranoid"),
        setting("kptr_restrict")
    )
}
