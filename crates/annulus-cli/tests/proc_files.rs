//! Processes and mounts with unusual names: cut within a character, with control characters, not UTF-8.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::process::{Command, Output, Stdio};

use annulus_testing::skip::{root_or_skip, skip};
use serde_json::Value;

fn annulus(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_annulus"));
    command.args(args).output().unwrap()
}

/// The kernel cuts a name after 15 bytes, here within the last character.
#[test]
fn a_process_whose_name_is_cut_within_a_character_is_found() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let program = dir.path().join("fourteen-bytesé");
    symlink(env!("CARGO_BIN_EXE_annulus"), &program).unwrap();
    let mut server = Command::new(&program)
        .args(["serve", "echo", "--addr", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut out = BufReader::new(server.stdout.take().unwrap());
    out.read_line(&mut line).unwrap();
    let pid = server.id().to_string();
    let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap();
    let once = annulus(&["top", &pid, "--once", "--json", "--interval", "0.1"]);
    let release = annulus(&["release", &pid]);
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(std::str::from_utf8(&name).is_err(), "{name:?}");
    assert_eq!(once.status.code(), Some(0), "{once:?}");
    let report: Value = serde_json::from_slice(&once.stdout).unwrap();
    assert_eq!(report["process"]["pid"].to_string(), pid, "{report}");
    // The process does not run under `annulus run`, but there is one.
    let error = String::from_utf8_lossy(&release.stderr);
    assert!(error.contains("cannot be released"), "{error}");
}

/// Returns what `annulus doctor` reports about a tmpfs that is mounted at `name`, in a mount namespace of its own. A
/// second mount has a name that is not UTF-8.
fn doctor_of(name: &[u8]) -> Option<Value> {
    const SCRIPT: &str = "set -e; cd \"$1\"; mkdir outer; mount -t tmpfs none outer; cd outer
        other=$(printf 'other-\\377'); mkdir -p \"$2\" \"$other\"
        mount -t tmpfs none \"$2\" && mount -t tmpfs none \"$other\"
        exec \"$3\" doctor \"$2\" --quick --json";
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", SCRIPT, "sh"]);
    command.arg(dir.path()).arg(OsStr::from_bytes(name));
    let output = command.arg(env!("CARGO_BIN_EXE_annulus")).output();
    let output = match output {
        Ok(output) => output,
        Err(error) => {
            skip(format_args!("unshare of util-linux: {error}"));
            return None;
        }
    };
    let report = serde_json::from_slice(&output.stdout);
    let report: Value = report.unwrap_or_else(|error| panic!("{error}: {output:?}"));
    Some(report["environment"]["location"].clone())
}

#[test]
fn the_file_system_of_a_mount_point_with_any_name_is_found() {
    if !root_or_skip("mounting a tmpfs") {
        return;
    }
    for name in [
        &b"plain"[..],
        b"a tab\tand a space",
        b"a\nnewline",
        b"a back\\slash \\040",
        b"not \xff UTF-8",
    ] {
        let Some(location) = doctor_of(name) else {
            return;
        };
        assert_eq!(location["filesystem"], "tmpfs", "{location}");
        let point = location["mount_point"].as_str().unwrap();
        let expected = String::from_utf8_lossy(name);
        assert!(point.ends_with(&format!("/outer/{expected}")), "{point:?}");
    }
}
