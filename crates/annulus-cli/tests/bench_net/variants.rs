//! Servers that the command starts.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use annulus_testing::skip;
use serde_json::Value;
use tempfile::TempDir;

use super::{command, net};

const SHORT: [&str; 6] = ["--runtime", "0.1", "--warmup", "0.02", "--connections", "3"];
/// A generous limit on each wait, for a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

fn folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Writes a script that records its pid and becomes an echo server. Returns its `--server-cmd` and the file with the
/// pid.
fn script(folder: &Path) -> (String, PathBuf) {
    let (script, pid) = (folder.join("server.sh"), folder.join("pid"));
    let text = format!(
        "echo $$ > {}\nexec {} bench net-server epoll --addr $1\n",
        pid.display(),
        env!("CARGO_BIN_EXE_annulus")
    );
    fs::write(&script, text).unwrap();
    (format!("mine=sh {} {{addr}}", script.display()), pid)
}

fn pid_in(path: &Path) -> Option<u32> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn is_running(pid: u32) -> bool {
    // A zombie has ended.
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    !status.is_empty() && !status.contains("State:\tZ")
}

#[test]
fn each_cell_has_a_row_for_each_variant() {
    let dir = folder();
    let json = dir.path().join("net.json");
    let (mine, pid) = script(dir.path());
    let line = [
        "echo",
        "--variants",
        "ring,tokio,epoll",
        "--server-cmd",
        &mine,
        "--size",
        "16,64",
        "--repeats",
        "2",
        "--json",
        json.to_str().unwrap(),
    ];
    let output = net(&[&line[..], &SHORT].concat());
    if output.is_skipped() {
        return;
    }
    assert_eq!(output.code, Some(0), "{}", output.both());
    let report: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    assert_eq!(report["runs"].as_array().unwrap().len(), 2 * 2 * 4);
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * 4);
    for row in rows {
        assert_eq!(row["samples"], 2, "{row}");
        let medians = &row["medians"];
        assert!(medians["ratio_to_epoll"]["median"].as_f64().unwrap() > 0.0);
        assert!(medians["server_cpu_us_per_request"].as_f64().unwrap() > 0.0);
    }
    assert!(!is_running(pid_in(&pid).unwrap()));
}

#[test]
fn a_variant_that_cannot_start_is_named_with_its_message() {
    let dir = folder();
    let script = dir.path().join("fails.sh");
    fs::write(&script, "echo no such luck >&2\nexit 3\n").unwrap();
    let bad = format!("bad=sh {} {{addr}}", script.display());
    let line = [
        "echo",
        "--variants",
        "epoll",
        "--server-cmd",
        &bad,
        "--repeats",
        "1",
    ];
    let output = net(&[&line[..], &SHORT].concat());
    if output.is_skipped() {
        return;
    }
    assert_eq!(output.code, Some(1), "{}", output.both());
    assert!(output.out.contains("bad: FAILED"), "{}", output.out);
    assert!(output.out.contains("no such luck"), "{}", output.out);
    // The other variant is measured.
    assert!(output.out.contains("\nepoll "), "{}", output.out);
}

/// 1. The command starts a variant. 2. It is killed, and cannot clean up. 3. The variant must end.
#[test]
fn a_command_that_is_killed_leaves_no_server_behind() {
    let dir = folder();
    let (mine, pid_file) = script(dir.path());
    let line = ["echo", "--server-cmd", &mine, "--variants", "none"];
    let mut command = command(&[&line[..], &["--runtime", "60", "--connections", "3"]].concat());
    let mut child = command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let until = Instant::now() + PATIENCE;
    let pid = loop {
        if child
            .try_wait()
            .unwrap()
            .is_some_and(|status| status.code() == Some(77))
        {
            return skip::skip("no ring here");
        }
        match pid_in(&pid_file) {
            Some(pid) => break pid,
            None => thread::sleep(Duration::from_millis(10)),
        }
        assert!(Instant::now() < until, "the variant did not start");
    };
    child.kill().unwrap();
    child.wait().unwrap();
    while is_running(pid) {
        assert!(Instant::now() < until, "process {pid} still runs");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Each response is checked byte for byte. The variants that can run here differ.
#[test]
fn http_servers_are_compared_with_and_without_a_file() {
    let dir = folder();
    let json = dir.path().join("net.json");
    let own = env!("CARGO_BIN_EXE_annulus");
    let mine =
        format!("mine={own} bench net-server hyper --addr {{addr}} --body {{dir}}/100000.bin");
    let line = [
        "http",
        "--what",
        "100000,respond",
        "--repeats",
        "1",
        "--pipeline",
        "4",
        "--json",
        json.to_str().unwrap(),
        "--server-cmd",
        &mine,
    ];
    let output = net(&[&line[..], &SHORT].concat());
    if output.is_skipped() {
        return;
    }
    // `mine` always sends the file, so `respond` fails.
    assert_eq!(output.code, Some(1), "{}", output.both());
    let report: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    let rows = report["rows"].as_array().unwrap();
    for row in rows {
        let (name, size) = (row["variant"].as_str().unwrap(), row["size"].as_u64());
        let is_wrong = name == "mine" && size.is_none();
        assert_eq!(row["samples"], u8::from(!is_wrong), "{row}");
        if is_wrong {
            assert!(row["reason"].as_str().unwrap().contains("a body"), "{row}");
        }
    }
    for name in ["annulus", "annulus-epoll", "hyper", "mine"] {
        assert_eq!(rows.iter().filter(|row| row["variant"] == name).count(), 2);
    }
    let has_nginx = rows.iter().any(|row| row["variant"] == "nginx");
    assert_eq!(has_nginx, !output.out.contains("nginx is not installed"));
    assert!(output.out.contains("× nginx"), "{}", output.out);
    let of = |row: &&Value| has_nginx && row["variant"] == "annulus";
    for row in rows.iter().filter(of) {
        let ratio = &row["medians"]["ratio_to_nginx"]["median"];
        assert!(ratio.as_f64().unwrap() > 0.0, "{row}");
    }
}
