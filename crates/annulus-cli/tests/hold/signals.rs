//! Ctrl-C and SIGTERM: the results so far are printed and written, and nothing stays behind.

use std::fs;
use std::path::Path;
use std::process::Command;

use annulus_testing::skip::skip;
use rustix::process::Signal;

use crate::command::{CommandOutput, Running, command, folder, is_root, json, names, run, until};

/// A runtime that exceeds every test.
const ENDLESS: &str = "3600";

fn bench(folder: &Path, args: &[&str]) -> Command {
    command(folder, &[&["bench"], args].concat())
}

/// Asserts that the output and the report of an interrupted command mention the signal.
fn is_interrupted(output: &CommandOutput, folder: &Path, signal: &str, code: i32) {
    output.ends(code, &format!("note: interrupted by {signal}: "));
    let report = json(&folder.join("out.json"));
    assert_eq!(report["interrupted"], true);
    assert_eq!(names(folder), ["out.json"]);
}

#[test]
fn a_signal_ends_the_current_run_and_skips_the_rest() {
    let dir = folder();
    let line = [
        "file",
        "--size",
        "4M",
        "--depth",
        "4",
        "--variants",
        "pread,annulus",
        "--runtime",
        ENDLESS,
        "--repeat",
        "2",
        "--json",
        "out.json",
    ];
    let running = Running::start(bench(dir.path(), &line));
    // The warm-up runs the base. The first measured run is of another variant, or lasts.
    until("a run began", || running.has_thread("run"));
    running.send(Signal::INT);
    let output = running.end();
    is_interrupted(&output, dir.path(), "SIGINT", 130);
    let report = json(&dir.path().join("out.json"));
    let runs = report["runs"].as_array().unwrap();
    assert!(runs.len() < 6, "{runs:?}");
    for run in runs {
        assert_eq!(run["outcome"]["kind"], "interrupted", "{run}");
    }
}

#[test]
fn complete_runs_are_in_the_tables_of_an_interrupted_comparison() {
    let dir = folder();
    let line = [
        "file",
        "--size",
        "4M",
        "--hot",
        "--variants",
        "pread",
        "--depth",
        "1",
        "--runtime",
        "0.2",
        "--repeat",
        "1000",
        "--json",
        "out.json",
    ];
    let running = Running::start(bench(dir.path(), &line));
    for name in ["run pread", "run base", "run pread"] {
        until("a run of each variant is complete", || {
            running.has_thread(name)
        });
    }
    running.send(Signal::TERM);
    let output = running.end();
    is_interrupted(&output, dir.path(), "SIGTERM", 143);
    assert!(output.out.contains("depth 1 ("), "{}", output.out);
}

#[test]
fn a_signal_ends_the_load_of_a_server_and_the_server() {
    let dir = folder();
    let line = [
        "net",
        "echo",
        "--variants",
        "epoll",
        "--connections",
        "2",
        "--size",
        "64",
        "--runtime",
        ENDLESS,
        "--json",
        "out.json",
    ];
    let running = Running::start(bench(dir.path(), &line));
    let server = || child_of(running.pid());
    until("the server runs", || server().is_some());
    let server = server().unwrap();
    until("the load runs", || {
        running.has_thread("annulus") && threads(running.pid()) >= 3
    });
    running.send(Signal::INT);
    let output = running.end();
    if output.code == Some(77) {
        return skip(&output.err);
    }
    is_interrupted(&output, dir.path(), "SIGINT", 130);
    assert!(
        !Path::new(&format!("/proc/{server}")).exists(),
        "the server still runs"
    );
}

#[test]
fn the_second_signal_ends_the_command_and_the_cgroup_is_removed() {
    if !is_root() {
        return skip("--memory needs root");
    }
    let dir = folder();
    let line = [
        "file",
        "--size",
        "4M",
        "--depth",
        "4",
        "--variants",
        "pread",
        "--runtime",
        ENDLESS,
        "--memory",
        "64M",
    ];
    let running = Running::start(bench(dir.path(), &line));
    let name = format!("annulus-bench-{}", running.pid());
    let cgroup = || {
        let text = fs::read_to_string(format!("/proc/{}/cgroup", running.pid())).unwrap();
        text.contains(&name)
    };
    until("it is in its cgroup", cgroup);
    running.send(Signal::TERM);
    running.send(Signal::INT);
    let output = running.end();
    assert!(
        matches!(output.code, Some(143 | 130)),
        "{:?}{}{}",
        output.code,
        output.out,
        output.err
    );
    let left = Command::new("find")
        .args(["/sys/fs/cgroup", "-type", "d", "-name", &name])
        .output()
        .unwrap();
    assert!(left.stdout.is_empty(), "{left:?}");
    assert_eq!(names(dir.path()), [""; 0]);
}

#[test]
fn a_signal_before_the_measurement_ends_the_command_immediately() {
    let dir = folder();
    // Too much to be written before the signal arrives, on any disk.
    let line = ["file", "--size", "4G", "--rw", "randread"];
    let running = Running::start(bench(dir.path(), &line));
    until("it listens to signals", || running.has_thread("signals"));
    running.send(Signal::INT);
    let output = running.end();
    match output.err.contains("no space") {
        true => skip("no 4 GiB free for a file that is filled"),
        false => output.ends(130, "interrupted before anything was measured"),
    }
    assert_eq!(output.out, "");
    assert_eq!(names(dir.path()), [""; 0]);
}

#[test]
fn a_complete_report_is_not_marked_as_interrupted() {
    let dir = folder();
    let line = [
        "bench",
        "file",
        "--size",
        "4M",
        "--hot",
        "--variants",
        "pread",
        "--depth",
        "1",
        "--runtime",
        "0.01",
        "--repeat",
        "1",
        "--json",
        "out.json",
    ];
    let output = run(dir.path(), &line);
    assert_eq!(output.code, Some(0), "{}{}", output.out, output.err);
    assert_eq!(json(&dir.path().join("out.json"))["interrupted"], false);
}

fn threads(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
}

/// Returns a child of the process.
fn child_of(pid: u32) -> Option<u32> {
    let parent = format!("PPid:\t{pid}");
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .find(|process: &u32| {
            let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
            status.lines().any(|line| line == parent)
        })
}
