//! Reports from outside: what is written beside a run, what can be made of its JSON later, and what is refused.

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

/// The command must end with code 2, say this, and make no file.
fn refuses(folder: &Path, args: &[&str], says: &str) {
    let files = || std::fs::read_dir(folder).unwrap().count();
    let before = files();
    let output = annulus(folder, args);
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {err}");
    assert!(err.contains(says), "{args:?} says: {err}");
    assert_eq!(files(), before, "{args:?} made a file");
}

#[test]
fn a_run_is_shown_by_a_page_and_by_maps_and_its_json_shows_the_same_later() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
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
    let output = annulus(here, &run);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let page = std::fs::read_to_string(here.join("run.html")).unwrap();
    assert!(page.contains("id=\"maps\"") && page.contains("data:image/png;base64,"));
    assert!(
        std::fs::read_to_string(here.join("run.svg"))
            .unwrap()
            .contains("data:image/png")
    );
    timelines_are_whole(here);
    renders_the_same_later(here, &page);
    refuses(here, &run, "--json run.json exists; --replace replaces it");
}

/// Every answer of every run is in a slice, and so are the calls of those who can tell. A run that a busy machine let
/// answer nothing was made again, longer: how long it was is reported.
fn timelines_are_whole(here: &Path) {
    let json = std::fs::read_to_string(here.join("run.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    for run in json["runs"].as_array().unwrap() {
        let (outcome, timeline) = (&run["outcome"], &run["outcome"]["timeline"]);
        let answers = timeline["completions"].as_array().unwrap();
        let sum: u64 = answers.iter().map(|count| count.as_u64().unwrap()).sum();
        assert_eq!(
            outcome["ops"], sum,
            "{}: every operation is in a slice",
            run["variant"]
        );
        let slices = (outcome["seconds"].as_f64().unwrap() * 100.0).round() as usize;
        assert!(slices >= 20, "{slices}");
        assert_eq!(
            (answers.len(), timeline["slice_ns"].as_u64()),
            (slices, Some(10_000_000))
        );
        let calls = timeline["calls"].as_array().map(Vec::len);
        let can_tell = run["variant"] != "null";
        assert_eq!(calls, can_tell.then_some(slices), "{}", run["variant"]);
    }
}

/// The JSON gives the same page again, and can be compared.
fn renders_the_same_later(here: &Path, page: &str) {
    let later = annulus(
        here,
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
        std::fs::read_to_string(here.join("later.html")).unwrap(),
        page
    );
    let shown = text(&later.stdout);
    assert!(
        shown.contains("pread, depth 4") && !shown.contains('\x1b'),
        "{shown}"
    );
    let two = annulus(
        here,
        &[
            "bench", "report", "run.json", "run.json", "--html", "two.html",
        ],
    );
    assert!(two.status.success(), "{}", text(&two.stderr));
    let two = std::fs::read_to_string(here.join("two.html")).unwrap();
    assert!(two.contains("too few repeats to tell"));
    let page_again = ["bench", "report", "run.json", "--html", "run.html"];
    refuses(
        here,
        &page_again,
        "--html run.html exists; --replace replaces it",
    );
}

#[test]
fn without_timelines_the_json_has_a_line_per_run_and_the_report_says_what_it_cannot_draw() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    #[rustfmt::skip]
    let run = [
        "bench", "file", "--size", "2M", "--runtime", "0.2", "--repeat", "2", "--depth", "4", "--buffered", "--hot",
        "--variants", "pread", "--json", "run.json", "--html", "run.html",
    ];
    let output = annulus(here, &run);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let page = std::fs::read_to_string(here.join("run.html")).unwrap();
    assert!(
        page.contains("data:image/png;base64,"),
        "the run's own page has its maps"
    );
    let json = std::fs::read_to_string(here.join("run.json")).unwrap();
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
        here,
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
    let page = std::fs::read_to_string(here.join("later.html")).unwrap();
    assert!(page.contains("no heat maps, no speed over time and no percentile curves"));
    assert!(page.contains("id=\"tables\"") && !page.contains("data:image/png;base64,"));
    let alone = ["bench", "file", "--timeline"];
    refuses(here, &alone, "--json");
}

#[test]
fn an_unsupported_request_is_refused_with_what_to_do_instead() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    std::fs::write(here.join("text"), "no JSON").unwrap();
    std::fs::write(here.join("other.json"), "{\"layers\": []}").unwrap();
    std::fs::write(here.join("old.json"), "{\"load\": {\"rw\": \"randread\"}}").unwrap();
    let report = |rest: &[&'static str]| -> Vec<&str> { [&["bench", "report"], rest].concat() };
    let page = ["--html", "page.html"];
    for (rest, says) in [
        (vec!["text"], "text is no JSON"),
        (vec!["nowhere.json"], "reading nowhere.json: No such file"),
        (
            vec!["other.json"],
            "other.json is not from annulus bench file or annulus bench net",
        ),
        (vec!["old.json"], "old.json is not what this annulus writes"),
    ] {
        refuses(here, &[report(&rest), page.to_vec()].concat(), says);
    }
    refuses(
        here,
        &report(&["text"]),
        "nothing to make; --html FILE makes a page",
    );
    refuses(
        here,
        &report(&["text", "--html", "no/page.html"]),
        "there is no directory no",
    );
    refuses(
        here,
        &["bench", "file", "--html", ".", "--replace"],
        "--html . is a directory; name a file",
    );
    let same = ["bench", "file", "--json", "x", "--html", "x"];
    refuses(here, &same, "--json and --html both name x; name two files");
    refuses(here, &["bench", "file", "--replace"], "--json");
}
