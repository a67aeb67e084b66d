//! Reports of the command: written with a run, or later from its JSON, and refused requests.

use std::path::Path;
use std::process::{Command, Output};

fn annulus(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_annulus"));
    command.current_dir(folder).args(args);
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Asserts that the command fails with code 2 and this message, and creates no file.
fn refuses(folder: &Path, args: &[&str], message: &str) {
    let files = || std::fs::read_dir(folder).unwrap().count();
    let before = files();
    let output = annulus(folder, args);
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {err}");
    assert!(err.contains(message), "{args:?}: {err}");
    assert_eq!(files(), before, "{args:?} created a file");
}

#[test]
fn a_run_has_a_page_and_maps_and_its_json_gives_the_same_page_later() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let run = [
        "bench",
        "file",
        "--size",
        "2M",
        "--runtime",
        "0.2",
        "--repeat",
        "1",
        "--depth",
        "4",
        "--buffered",
        "--hot",
        "--variants",
        "pread,null",
        "--json",
        "run.json",
        "--timeline",
        "--html",
        "run.html",
        "--heatmap",
        "run.svg",
    ];
    let output = annulus(dir, &run);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let page = std::fs::read_to_string(dir.join("run.html")).unwrap();
    assert!(page.contains("id=\"maps\"") && page.contains("data:image/png;base64,"));
    assert!(
        std::fs::read_to_string(dir.join("run.svg"))
            .unwrap()
            .contains("data:image/png")
    );
    timelines_are_complete(dir);
    renders_the_same_page(dir, &page);
    refuses(dir, &run, "--json run.json exists; --replace replaces it");
}

/// Asserts that every completion of every run is in a slice, and the calls of variants that report them. A run without
/// completions, on a busy machine, is repeated with a longer time, which is in the JSON.
fn timelines_are_complete(dir: &Path) {
    let json = std::fs::read_to_string(dir.join("run.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    for run in json["runs"].as_array().unwrap() {
        let (outcome, timeline) = (&run["outcome"], &run["outcome"]["timeline"]);
        let completions = timeline["completions"].as_array().unwrap();
        let sum: u64 = completions
            .iter()
            .map(|count| count.as_u64().unwrap())
            .sum();
        assert_eq!(
            outcome["ops"], sum,
            "{}: every operation is in a slice",
            run["variant"]
        );
        let slices = (outcome["seconds"].as_f64().unwrap() * 100.0).round() as usize;
        assert!(slices >= 20, "{slices}");
        assert_eq!(
            (completions.len(), timeline["slice_ns"].as_u64()),
            (slices, Some(10_000_000))
        );
        let calls = timeline["calls"].as_array().map(Vec::len);
        let reports_calls = run["variant"] != "null";
        assert_eq!(calls, reports_calls.then_some(slices), "{}", run["variant"]);
    }
}

/// Asserts that the JSON gives the same page, and can be compared.
fn renders_the_same_page(dir: &Path, page: &str) {
    let later = annulus(
        dir,
        &[
            "bench",
            "report",
            "run.json",
            "--html",
            "later.html",
            "--heatmap",
            "-",
        ],
    );
    assert!(later.status.success(), "{}", text(&later.stderr));
    assert_eq!(
        std::fs::read_to_string(dir.join("later.html")).unwrap(),
        page
    );
    let shown = text(&later.stdout);
    assert!(
        shown.contains("pread, depth 4") && !shown.contains('\x1b'),
        "{shown}"
    );
    let two = annulus(
        dir,
        &[
            "bench", "report", "run.json", "run.json", "--html", "two.html",
        ],
    );
    assert!(two.status.success(), "{}", text(&two.stderr));
    let two = std::fs::read_to_string(dir.join("two.html")).unwrap();
    assert!(two.contains("too few repeats to tell"));
    let page_again = ["bench", "report", "run.json", "--html", "run.html"];
    refuses(
        dir,
        &page_again,
        "--html run.html exists; --replace replaces it",
    );
}

#[test]
fn without_timelines_the_json_has_a_line_per_run_and_the_report_has_no_charts() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    #[rustfmt::skip]
    let run = [
        "bench", "file", "--size", "2M", "--runtime", "0.2", "--repeat", "2", "--depth", "4", "--buffered", "--hot",
        "--variants", "pread", "--json", "run.json", "--html", "run.html",
    ];
    let output = annulus(dir, &run);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let page = std::fs::read_to_string(dir.join("run.html")).unwrap();
    assert!(
        page.contains("data:image/png;base64,"),
        "the page that was written with the run has maps"
    );
    let json = std::fs::read_to_string(dir.join("run.json")).unwrap();
    assert!(!json.contains("timeline"));
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    for run in value["runs"].as_array().unwrap() {
        let start = format!("{{\"position\": {},", run["position"]);
        let lines = json
            .lines()
            .filter(|line| line.trim_start().starts_with(&start));
        assert_eq!(lines.count(), 1, "{start}");
    }
    let later = annulus(
        dir,
        &[
            "bench",
            "report",
            "run.json",
            "--html",
            "later.html",
            "--heatmap",
            "-",
        ],
    );
    assert!(later.status.success(), "{}", text(&later.stderr));
    let output = text(&later.stdout);
    assert!(
        output.contains("no heat map, because the JSON has no timelines"),
        "{output}"
    );
    let page = std::fs::read_to_string(dir.join("later.html")).unwrap();
    assert!(page.contains("no heat maps, no speed over time and no percentile curves"));
    assert!(page.contains("id=\"tables\"") && !page.contains("data:image/png;base64,"));
    let alone = ["bench", "file", "--timeline"];
    refuses(dir, &alone, "--json");
}

#[test]
fn an_unsupported_request_is_refused_with_an_alternative() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    std::fs::write(dir.join("text"), "no JSON").unwrap();
    std::fs::write(dir.join("other.json"), "{\"layers\": []}").unwrap();
    std::fs::write(dir.join("old.json"), "{\"load\": {\"rw\": \"randread\"}}").unwrap();
    let report = |rest: &[&'static str]| -> Vec<&str> { [&["bench", "report"], rest].concat() };
    let page = ["--html", "page.html"];
    for (rest, message) in [
        (vec!["text"], "text is not JSON"),
        (vec!["nowhere.json"], "reading nowhere.json: No such file"),
        (
            vec!["other.json"],
            "other.json is not from annulus bench file or annulus bench net",
        ),
        (
            vec!["old.json"],
            "old.json does not have the format of this version",
        ),
    ] {
        refuses(dir, &[report(&rest), page.to_vec()].concat(), message);
    }
    refuses(
        dir,
        &report(&["text"]),
        "nothing to do; --html FILE writes a page",
    );
    refuses(
        dir,
        &report(&["text", "--html", "no/page.html"]),
        "the directory no does not exist",
    );
    refuses(
        dir,
        &["bench", "file", "--html", ".", "--replace"],
        "--html . is a directory; name a file",
    );
    let same = ["bench", "file", "--json", "x", "--html", "x"];
    refuses(dir, &same, "--json and --html both name x; name two files");
    refuses(dir, &["bench", "file", "--replace"], "--json");
}
