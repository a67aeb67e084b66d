//! `--syscalls` and `--flamegraph` as a command: traced runs, and refused input.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use annulus_testing::{schema, skip};
use serde_json::Value;
use tempfile::TempDir;

/// The options of a short run on a cached file.
const SHORT: [&str; 11] = [
    "bench",
    "file",
    "--hot",
    "--size",
    "1M",
    "--runtime",
    "0.05",
    "--repeat",
    "1",
    "--seed",
    "1",
];

struct CommandOutput {
    code: Option<i32>,
    out: String,
    err: String,
}

fn workspace() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn command(workspace: &TempDir, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_annulus"));
    command
        .args(args)
        .current_dir(workspace.path())
        .stdin(Stdio::null());
    command
}

fn output(command: &mut Command) -> CommandOutput {
    let output = command.output().unwrap();
    CommandOutput {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

fn find_program(program: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut candidates = std::env::split_paths(&path).map(|folder| folder.join(program));
    let find_program = candidates.find(|file| file.is_file());
    if find_program.is_none() {
        skip::skip(format_args!("{program} is not installed"));
    }
    find_program
}

fn report(workspace: &TempDir, schema: &str) -> Value {
    let read =
        |path: &Path| -> Value { serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap() };
    let report = read(&workspace.path().join("report.json"));
    let schema = read(
        &Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("schema")
            .join(schema),
    );
    schema::assert_matches(&schema, &report);
    report
}

/// Returns the calls with this name, and the operations, of a variant.
fn counts(report: &Value, variant: &str, name: &str) -> (u64, u64) {
    let traced = report["traced"].as_array().unwrap();
    let one = traced.iter().find(|one| one["variant"] == variant);
    let calls = &one.unwrap_or_else(|| panic!("{variant}: {report:#}"))["syscalls"];
    let of = (calls["calls"].as_array().unwrap().iter()).find(|calls| calls["name"] == name);
    let count = of.map_or(0, |calls| calls["count"].as_u64().unwrap());
    (count, calls["ops"].as_u64().unwrap())
}

/// Returns the calls per operation of a variant: with this name, or all.
fn per_op(report: &Value, variant: &str, name: Option<&str>) -> f64 {
    let traced = report["traced"].as_array().unwrap();
    let one = traced.iter().find(|one| one["variant"] == variant);
    let calls = &one.unwrap_or_else(|| panic!("{variant}: {report:#}"))["syscalls"];
    let Some(name) = name else {
        return calls["all_per_op"].as_f64().unwrap();
    };
    let all = calls["calls"].as_array().unwrap();
    let of = all.iter().find(|calls| calls["name"] == name);
    of.map_or(0.0, |calls| calls["per_op"].as_f64().unwrap())
}

/// Returns the frames of a flame graph, and asserts that it is well-formed XML.
fn functions(graph: &Path) -> String {
    let text = std::fs::read_to_string(graph).unwrap();
    let options = roxmltree::ParsingOptions {
        allow_dtd: true,
        ..Default::default()
    };
    let picture = roxmltree::Document::parse_with_options(&text, options).unwrap();
    let frames = (picture.descendants()).filter(|node| node.has_tag_name("title"));
    frames
        .filter_map(|node| node.text())
        .collect::<Vec<_>>()
        .join("\n")
}

/// The number of attempts of a test that a busy machine may disturb.
const ATTEMPTS: u32 = 20;

/// Repeats `attempt` until it succeeds; its error is the disturbance.
fn undisturbed(mut attempt: impl FnMut() -> Result<(), String>) {
    let mut failure = String::new();
    for _ in 0..ATTEMPTS {
        match attempt() {
            Ok(()) => return,
            Err(why) => failure = why,
        }
    }
    panic!("{ATTEMPTS} times: {failure}");
}

/// Returns an error unless `is_true`.
fn expect(is_true: bool, error: impl FnOnce() -> String) -> Result<(), String> {
    is_true.then_some(()).ok_or_else(error)
}

/// The most calls with one name at the start and the end of a run.
const CALLS_OF_RUN: u64 = 16;

fn near(value: f64, expected: f64) -> bool {
    (value - expected).abs() <= 0.1 * expected
}

#[test]
fn calls_are_counted_by_name_and_drawn_for_the_named_variant() {
    if find_program("perf").is_none() {
        return;
    }
    let workspace = workspace();
    let more = [
        "--depth",
        "4",
        "--variants",
        "pread",
        "--syscalls",
        "--flamegraph",
        "graph.svg",
        "--json",
        "report.json",
        "--replace",
    ];
    let mut out = String::new();
    undisturbed(|| {
        let output = output(&mut command(&workspace, &[&SHORT[..], &more].concat()));
        assert_eq!(output.code, Some(0), "{}{}", output.out, output.err);
        out = output.out;
        let report = report(&workspace, "bench-file.json");
        let (calls, ops) = counts(&report, "pread", "pread64");
        assert!((ops..=ops + CALLS_OF_RUN).contains(&calls), "{report:#}");
        // The ring's own count in an untraced run, if threads were scheduled alike.
        let rows = report["rows"].as_array().unwrap();
        let base = rows.iter().find(|row| row["variant"] == "base").unwrap();
        let enters = base["medians"]["calls_per_op"].as_f64().unwrap();
        expect(
            near(per_op(&report, "base", Some("io_uring_enter")), enters),
            || format!("enters: {report:#}"),
        )?;
        // The harness reads the clock without a call, so `null` has only the few calls of the run.
        expect(per_op(&report, "null", None) < 0.05, || {
            format!("null: {report:#}")
        })
    });
    assert!(out.contains("system calls per operation, depth 4"), "{out}");

    let mut names: Vec<_> = (std::fs::read_dir(workspace.path()).unwrap())
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(
        names,
        ["graph.svg", "report.json"],
        "no other file stays behind"
    );
    let shown = functions(&workspace.path().join("graph.svg"));
    assert!(shown.contains("annulus_baselines::"), "{shown}");
    assert!(
        out.contains("flame graph of pread, depth 4: graph.svg ("),
        "{out}"
    );
}

#[test]
fn without_perf_the_reason_is_reported() {
    let workspace = workspace();
    let more = [
        "--depth",
        "1",
        "--variants",
        "pread",
        "--syscalls",
        "--json",
    ];
    let args = [&SHORT[..], &more, &["report.json"]].concat();
    let without = output(command(&workspace, &args).env("PATH", workspace.path()));
    assert_eq!(without.code, Some(0), "{}{}", without.out, without.err);
    let reason = "not available: perf is not installed (Debian: apt install linux-perf)";
    assert!(without.out.contains(reason), "{}", without.out);
    let report = report(&workspace, "bench-file.json");
    assert_eq!(report["traced"][0]["syscalls_note"], reason);
}

const CONNECTIONS: u64 = 4;

/// A server that ends with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn a_servers_calls_are_counted_and_drawn_by_its_process() {
    if find_program("perf").is_none() {
        return;
    }
    let workspace = workspace();
    let mut child = command(&workspace, &["bench", "net-server", "epoll"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let server = Server(child);
    let address = line.trim().strip_prefix("listening on ").unwrap();
    let pid = server.0.id().to_string();
    let net = [
        "bench",
        "net",
        "echo",
        address,
        "--connections",
        &CONNECTIONS.to_string(),
        "--runtime",
        "0.05",
        "--warmup",
        "0.05",
    ];
    let tracing = ["--syscalls", "--flamegraph", "graph.svg"];
    let refused = output(&mut command(&workspace, &[&net[..], &tracing].concat()));
    assert_eq!(refused.code, Some(2), "{}", refused.err);
    assert!(refused.err.contains("give its --pid"), "{}", refused.err);

    let more = ["--pid", &pid, "--json", "report.json", "--replace"];
    undisturbed(|| {
        let output = output(&mut command(
            &workspace,
            &[&net[..], &tracing, &more].concat(),
        ));
        let without_load = [
            "no request completed within the measured time",
            "no flame graph of",
        ];
        if let Some(why) = without_load.iter().find(|why| output.err.contains(**why)) {
            return Err((*why).into());
        }
        if output.code == Some(77) {
            skip::skip(&output.err);
            return Ok(());
        }
        assert_eq!(output.code, Some(0), "{}{}", output.out, output.err);
        let report = report(&workspace, "bench-net.json");
        let note = &report["traced"][0]["syscalls_note"];
        expect(note != "no operation completed meanwhile", || {
            note.to_string()
        })?;
        for name in ["sendto", "recvfrom"] {
            // Each counted response was received and sent in that time, except one message of each connection.
            let (calls, ops) = counts(&report, "server", name);
            assert!(calls + CONNECTIONS >= ops, "{report:#}");
        }
        // One call per response. Calls while perf stops are counted, too.
        expect(near(per_op(&report, "server", Some("sendto")), 1.0), || {
            format!("{report:#}")
        })?;
        let shown = functions(&workspace.path().join("graph.svg"));
        expect(shown.contains("annulus_baselines::net::epoll_echo"), || {
            shown
        })
    });
}

#[test]
fn an_unusable_graph_file_is_refused_before_the_measurement() {
    let workspace = workspace();
    std::fs::write(workspace.path().join("there.svg"), "kept").unwrap();
    let refuses = |file: &str, path: Option<&Path>, text: &str| {
        let args = [
            &SHORT[..],
            &["--variants", "pread", "--depth", "1", "--flamegraph", file],
        ]
        .concat();
        let mut command = command(&workspace, &args);
        if let Some(path) = path {
            command.env("PATH", path);
        }
        let output = output(&mut command);
        assert_eq!(output.code, Some(2), "{file}: {}{}", output.out, output.err);
        assert!(output.err.contains(text), "{file}: {}", output.err);
        assert!(output.out.is_empty(), "{}", output.out);
    };
    refuses(
        "nowhere/graph.svg",
        None,
        "the directory nowhere does not exist",
    );
    refuses(".", None, "is a directory; name a file");
    let lacks = "perf is not installed (Debian: apt install linux-perf)";
    refuses("graph.svg", Some(workspace.path()), lacks);
    if find_program("perf").is_some() {
        refuses("there.svg", None, "there.svg exists; --replace replaces it");
    }
    assert_eq!(
        std::fs::read_to_string(workspace.path().join("there.svg")).unwrap(),
        "kept"
    );
    assert_eq!(std::fs::read_dir(workspace.path()).unwrap().count(), 1);
}
