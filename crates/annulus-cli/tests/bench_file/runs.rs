//! Small runs of every variant and every kind of operation, and the files that they leave.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use annulus_testing::skip::skip;
use serde_json::Value;

use crate::command::{NOT_COLD, Workspace};
use crate::loads::ONE_FILE;

pub(crate) const SHORT: [&str; 8] = [
    "--runtime",
    "0.05",
    "--repeat",
    "1",
    "--depth",
    "4",
    "--seed",
    "7",
];

/// Returns the variant, the kind of the outcome, and the outcome of each run.
pub(crate) fn outcomes(report: &Value) -> Vec<(String, String, Value)> {
    let runs = report["runs"].as_array().unwrap();
    runs.iter()
        .map(|run| {
            let outcome = run["outcome"].clone();
            let text = |value: &Value| value.as_str().unwrap().to_string();
            (text(&run["variant"]), text(&outcome["kind"]), outcome)
        })
        .collect()
}

/// Returns whether a variant only reads through a cache, only pages that are in memory, or beside a scan. `loads.rs`
/// asserts that these are measured.
fn has_a_load(variant: &str) -> bool {
    let is_map = variant.starts_with("mmap-") && variant != "mmap-sync";
    variant.starts_with("pool") || is_map || variant.contains("-beside-")
}

/// Asserts that every completion of every run is correct, or that the run has an expected reason.
pub(crate) fn assert_correct(report: &Value, may_be_inapplicable: &[&str]) {
    for (variant, kind, outcome) in outcomes(report) {
        match kind.as_str() {
            "measured" => {
                let checks = &outcome["checks"];
                assert!(
                    checks["completions"].as_u64().unwrap() > 0,
                    "{variant}: {outcome}"
                );
                assert_eq!(
                    checks["completions"], checks["correct"],
                    "{variant}: {outcome}"
                );
                assert_eq!(checks["wrong"], 0, "{variant}: {outcome}");
                assert_eq!(checks["errors"], 0, "{variant}: {outcome}");
                assert_eq!(checks["wrong_afterwards"], 0, "{variant}: {outcome}");
            }
            "not_applicable" => assert!(
                outcome["reason"] == "all variants are direct here"
                    || has_a_load(&variant)
                    || may_be_inapplicable.contains(&variant.trim_end_matches("-direct")),
                "{variant}: {outcome}"
            ),
            // Drives with poll queues are rare, so this tests the refusal; `ci/kernel` tests the polling.
            "unavailable" if variant == "annulus-iopoll" => {
                let reason = outcome["reason"].as_str().unwrap();
                let known = ["open it with OpenOptions::direct", "has no queues to poll"];
                assert!(known.iter().any(|why| reason.contains(why)), "{reason}");
            }
            "unavailable" => skip(format_args!("{variant}: {}", outcome["reason"])),
            _ => panic!("{variant}: {outcome}"),
        }
    }
}

#[test]
fn every_variant_reads_correctly_from_a_created_file() {
    let workspace = Workspace::new();
    let args = [&SHORT[..], &["--size", "4M", "--variants", "all"]].concat();
    assert_correct(&workspace.report(&args), &["mmap", "mmap-sync", "tokio-fs"]);
    assert_correct(
        &workspace.report(&[&args[..], &["--hot"]].concat()),
        &["mmap-sync"],
    );
    assert_correct(
        &workspace.report(
            &[
                &args[..],
                &["--hot", "--rw", "read", "--bs", "16k", "--threads", "2"],
            ]
            .concat(),
        ),
        &["mmap-sync"],
    );
    assert!(workspace.files().is_empty(), "{:?}", workspace.files());
}

#[test]
fn the_writes_of_every_variant_can_be_read_back() {
    let workspace = Workspace::new();
    let args = [&SHORT[..], &["--size", "4M", "--variants", "all"]].concat();
    let inapplicable = [&["mmap", "mmap-sync", "tokio-fs"][..], &ONE_FILE].concat();
    for (direct, buffered) in [("randwrite", "randrw"), ("readwrite", "write")] {
        let direct = workspace.report(&[&args[..], &["--rw", direct]].concat());
        assert_correct(&direct, &inapplicable);
        let buffered = workspace.report(&[&args[..], &["--rw", buffered, "--hot"]].concat());
        assert_correct(&buffered, &inapplicable[3..]);
        for (variant, kind, outcome) in outcomes(&buffered) {
            // A worker keeps one of 64 completions, if it is a write. On a busy machine there may be too few.
            let enough = outcome["checks"]["completions"].as_u64() > Some(1000);
            if kind == "measured" && variant != "null" && enough {
                assert!(
                    outcome["checks"]["compared_afterwards"].as_u64().unwrap() > 0,
                    "{variant}"
                );
            }
        }
    }
    assert!(workspace.files().is_empty(), "{:?}", workspace.files());
}

#[test]
fn a_users_file_is_read_cold_and_stays_unchanged() {
    let workspace = Workspace::new();
    workspace.file("data", 64 << 20);
    let before = workspace.files();
    let args = [&SHORT[..], &["data", "--cold", "--variants", "default"]].concat();
    let output = workspace.run_patiently(&args);
    if output.out.contains(NOT_COLD) {
        skip("the page cache cannot be evicted here");
        return;
    }
    let report = workspace.report(&args);
    assert_correct(&report, &[]);
    assert_eq!(report["load"]["contents_known"], false);
    for (variant, _, outcome) in outcomes(&report) {
        assert!(
            outcome["resident_before"].as_f64().unwrap() <= 0.01,
            "{variant}: {outcome}"
        );
        if variant != "null" {
            assert!(
                outcome["checks"]["compared_afterwards"].as_u64().unwrap() > 0,
                "{variant}: {outcome}"
            );
        }
    }
    assert!(workspace.files() == before, "the file was changed");
}

#[test]
fn a_cold_run_ends_when_every_block_has_been_read() {
    let workspace = Workspace::new();
    let args = [
        "--cold",
        "--size",
        "1M",
        "--runtime",
        "60",
        "--repeat",
        "1",
        "--depth",
        "4",
        "--variants",
        "pread",
        "--json",
        "report.json",
    ];
    let output = workspace.run(&args);
    if output.code == Some(0) {
        // The disk is so slow that 256 blocks took longer than the ramp of 0.2 s.
        let text = std::fs::read(workspace.path().join("report.json")).unwrap();
        let report: Value = serde_json::from_slice(&text).unwrap();
        for (variant, _, outcome) in outcomes(&report) {
            assert_eq!(outcome["ran_out_of_blocks"], true, "{variant}: {outcome}");
        }
        return;
    }
    assert_eq!(output.code, Some(1), "{}{}", output.out, output.err);
    let residency_notes = [
        "every block had been used before the ramp was over",
        NOT_COLD,
    ];
    assert!(
        residency_notes.iter().any(|text| output.out.contains(text)),
        "{}",
        output.out
    );
}

#[test]
fn overwriting_changes_only_the_used_part() {
    let workspace = Workspace::new();
    workspace.file("data", 1 << 20);
    let before = workspace.files()[0].1.clone();
    let args = [
        "data",
        "--rw",
        "randwrite",
        "--overwrite",
        "--offset",
        "256k",
        "--size",
        "512k",
        "--hot",
    ];
    assert_correct(
        &workspace.report(&[&SHORT[..], &args].concat()),
        &["annulus-many", "annulus-own", "annulus-arena"],
    );
    let after = workspace.files()[0].1.clone();
    let (from, to) = (256 << 10, 768 << 10);
    assert_eq!(before.len(), after.len());
    assert!(
        before[..from] == after[..from] && before[to..] == after[to..],
        "outside the used part"
    );
    assert!(before[from..to] != after[from..to], "nothing was written");
}

#[test]
fn the_file_created_in_a_directory_has_no_name() {
    let workspace = Workspace::new();
    let args = [
        ".",
        "--size",
        "1M",
        "--runtime",
        "60",
        "--variants",
        "pread",
    ];
    let mut child = workspace
        .command(&args)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // The heading is printed after the file has been filled.
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut heading = String::new();
    out.read_line(&mut heading).unwrap();
    assert!(heading.contains("a file created in"), "{heading}");
    assert!(workspace.files().is_empty(), "{:?}", workspace.files());
    // Killed, so that it cannot clean up.
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(workspace.files().is_empty(), "{:?}", workspace.files());
}

#[test]
fn a_file_system_in_memory_is_measured_buffered_with_a_note() {
    if !std::path::Path::new("/dev/shm").is_dir() {
        skip("no /dev/shm");
        return;
    }
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let dir = memory.path().to_str().unwrap();
    let workspace = Workspace::new();
    let output = workspace.run_patiently(
        &[
            &SHORT[..],
            &["--dir", dir, "--size", "1M", "--variants", "pread"],
        ]
        .concat(),
    );
    assert_eq!(output.code, Some(0), "{}{}", output.out, output.err);
    assert!(
        output
            .out
            .contains("so this measures buffered, hot instead of direct"),
        "{}",
        output.out
    );
}

#[test]
fn a_closed_pipe_is_no_error() {
    let workspace = Workspace::new();
    let args = ["--size", "1M", "--variants", "pread", "--repeat", "1"];
    let mut child = workspace
        // Long enough for a measurement on any machine, because its result is not visible.
        .command(&[&args[..], &["--depth", "4", "--runtime", "1"]].concat())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut err = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut err)
        .unwrap();
    assert_eq!((child.wait().unwrap().code(), err.as_str()), (Some(0), ""));
}

#[test]
fn a_pipe_gets_no_progress_bar() {
    let workspace = Workspace::new();
    let output =
        workspace.run_patiently(&[&SHORT[..], &["--size", "1M", "--variants", "pread"]].concat());
    assert_eq!((output.code, output.err.as_str()), (Some(0), ""));
    assert!(
        !output.out.contains('\r') && !output.out.contains('\u{1b}'),
        "{:?}",
        output.out
    );
}

#[test]
fn the_list_describes_every_variant() {
    let output = Workspace::new().run(&["--list"]);
    assert_eq!(output.code, Some(0));
    for name in [
        "annulus",
        "annulus-many",
        "annulus-tokio",
        "annulus-tokio-mt",
        "base",
        "base-chunk8",
        "pread",
        "mmap",
        "mmap-sync",
        "libaio",
        "tokio-fs",
        "null",
    ] {
        assert!(
            output
                .out
                .lines()
                .any(|line| line[2..].starts_with(&format!("{name} "))),
            "{name}: {}",
            output.out
        );
    }
}
