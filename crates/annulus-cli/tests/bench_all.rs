//! `annulus bench all` as a command, in its short form.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use annulus_testing::{schema, skip};
use serde_json::Value;

fn all(args: &[&str], folder: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_annulus"));
    command.args(["bench", "all", "--short"]).args(args);
    command.current_dir(folder).output().unwrap()
}

fn text(output: &Output) -> String {
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    out + &String::from_utf8_lossy(&output.stderr)
}

/// Checks the results of a part: each measured row has a spread, and the report its machine and a verdict.
fn check(part: &Value) {
    let (report, speed) = match (&part["files"], &part["network"]) {
        (Value::Null, report) => (report, "requests_per_second"),
        (report, _) => (report, "ops_per_second"),
    };
    assert!(
        report["verdict"].as_str().unwrap().contains("erdict: "),
        "{part}"
    );
    assert!(report["machine"]["processors"].as_u64() > Some(0), "{part}");
    let rows = report["rows"].as_array().unwrap();
    let measured: Vec<&Value> = rows
        .iter()
        .filter(|row| !row["medians"].is_null())
        .collect();
    assert!(!measured.is_empty(), "{part}");
    for row in measured {
        let [median, min, max] =
            ["median", "min", "max"].map(|name| row["medians"][speed][name].as_f64().unwrap());
        assert!(0.0 < min && min <= median && median <= max, "{row}");
    }
}

#[test]
fn the_short_form_measures_every_part_and_writes_a_page_and_valid_json() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let output = all(&["--out", "report"], dir.path());
    let shown = text(&output);
    if shown.contains("the load generator needs io_uring") {
        return skip::skip(shown);
    }
    assert_eq!(output.status.code(), Some(0), "{shown}");
    let json = fs::read(dir.path().join("report/report.json")).unwrap();
    let report: Value = serde_json::from_slice(&json).unwrap();
    let schema = concat!(env!("CARGO_MANIFEST_DIR"), "/schema/bench-all.json");
    let schema = serde_json::from_slice(&fs::read(schema).unwrap()).unwrap();
    schema::assert_matches(&schema, &report);
    assert_eq!(report["short"], true);

    let page = fs::read_to_string(dir.path().join("report/report.html")).unwrap();
    assert!(
        page.contains("made with --short") && !page.contains("<script"),
        "{page}"
    );
    let parts = report["parts"].as_array().unwrap();
    for name in [
        "direct reads",
        "cached reads",
        "direct writes",
        "echo servers",
        "HTTP servers",
    ] {
        let part = parts.iter().find(|part| part["name"] == name);
        check(part.unwrap_or_else(|| panic!("no {name}: {shown}")));
        assert!(page.contains(&format!(">{name}</h2>")), "{name}");
    }
    // Polled reads are measured, or their row has the reason.
    let mut rows = parts[0]["files"]["rows"].as_array().unwrap().iter();
    let polled = rows.find(|row| row["variant"] == "annulus-iopoll").unwrap();
    assert!(
        !polled["medians"].is_null() || !polled["reason"].is_null(),
        "{polled}"
    );
    // Each other part has results or a reason. The counts of processors rise to those of this process.
    for part in &parts[5..] {
        if part["reason"].is_null() {
            check(part);
        }
    }
    let counts = parts.iter().filter(|part| !part["files"].is_null());
    let most = counts.filter_map(|part| part["processors"].as_u64()).max();
    let here = std::thread::available_parallelism().unwrap().get() as u64;
    assert_eq!(most, Some(here), "{shown}");

    let again = all(&["--out", "report"], dir.path());
    assert_eq!(again.status.code(), Some(2), "{}", text(&again));
    assert!(
        text(&again).contains("report.html exists; --replace replaces it"),
        "{}",
        text(&again)
    );
    // Only the report is left.
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn a_command_with_a_port_is_compared_with_another() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_annulus"));
    let server = "epoll=/proc/self/exe serve echo --backend epoll --addr 127.0.0.1:{port}";
    let again = "annulus=/proc/self/exe serve echo --addr 127.0.0.1:{port}";
    let args = [
        "--variants",
        "none",
        "--server-cmd",
        server,
        "--server-cmd",
        again,
        "--connections",
        "4",
    ];
    command.args(["bench", "net", "echo"]).args(args);
    command.args([
        "--runtime",
        "0.05",
        "--repeats",
        "1",
        "--warmup",
        "0.01",
        "--json",
        "out.json",
    ]);
    let output = command.current_dir(dir.path()).output().unwrap();
    if output.status.code() == Some(77) {
        return skip::skip(text(&output));
    }
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let report: Value =
        serde_json::from_slice(&fs::read(dir.path().join("out.json")).unwrap()).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let row = rows.iter().find(|row| row["variant"] == "annulus").unwrap();
    assert!(
        row["medians"]["ratio_to_epoll"]["median"].as_f64() > Some(0.0),
        "{row}"
    );
}
