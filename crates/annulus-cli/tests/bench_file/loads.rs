//! Small runs with many files, a memory limit, durable writes, threads, and named loads.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use annulus_testing::skip::skip;
use serde_json::Value;

use crate::command::{CommandOutput, NOT_COLD, Workspace};
use crate::runs::{SHORT, assert_correct, outcomes};

/// Variants whose streams read a single file, and do not write.
pub(crate) const ONE_FILE: [&str; 6] = [
    "annulus-many",
    "annulus-many-2",
    "annulus-own",
    "annulus-arena",
    "annulus-sqpoll",
    "annulus-iopoll",
];

fn note(outcome: &Value) -> &str {
    outcome["note"].as_str().unwrap_or_default()
}

fn of<'a>(outcomes: &'a [(String, String, Value)], name: &str) -> &'a (String, String, Value) {
    outcomes.iter().find(|one| one.0 == name).unwrap()
}

#[test]
fn every_variant_handles_many_files() {
    let workspace = Workspace::new();
    let args = [
        &SHORT[..],
        &["--files", "5", "--size", "5M", "--variants", "all"],
    ]
    .concat();
    let inapplicable = [&ONE_FILE[..], &["mmap-sync"]].concat();
    let read = workspace.report(&[&args[..], &["--hot"]].concat());
    assert_correct(&read, &inapplicable);
    assert_eq!(read["load"]["files"], 5);
    assert_eq!(read["load"]["size_bytes"], 5 << 20);
    let file = read["load"]["file"].as_str().unwrap();
    assert!(file.contains("5 files created in"), "{file}");
    let written = workspace.report(&[&args[..], &["--hot", "--rw", "randrw"]].concat());
    assert_correct(&written, &ONE_FILE);
    let direct = workspace.report(&[&args[..], &["--threads", "2"]].concat());
    assert_correct(
        &direct,
        &[&inapplicable[..], &["mmap", "tokio-fs"]].concat(),
    );
    assert!(workspace.files().is_empty(), "{:?}", workspace.files());
}

#[test]
fn a_cold_pass_over_many_files_has_every_block_once() {
    let workspace = Workspace::new();
    let args = [
        "--cold",
        "--files",
        "7",
        "--size",
        "7M",
        "--repeat",
        "1",
        "--depth",
        "1",
        "--runtime",
        "60",
        "--variants",
        "pread",
        "--json",
        "report.json",
    ];
    // A pass of 1,792 blocks may end before or after the ramp. At depth 1 no worker keeps leased blocks unread, so the
    // pass is complete.
    let output = workspace.run_patiently(&args);
    if output.out.contains(NOT_COLD) {
        return skip("the page cache cannot be evicted here");
    }
    let text = std::fs::read(workspace.path().join("report.json")).unwrap();
    let report: Value = serde_json::from_slice(&text).unwrap();
    for run in report["runs"].as_array().unwrap() {
        let outcome = &run["outcome"];
        let sample = match outcome["sample"].is_object() {
            true => &outcome["sample"],
            false => outcome,
        };
        assert_eq!(sample["ran_out_of_blocks"], true, "{outcome}");
        assert_eq!(sample["checks"]["completions"], 7 * 256, "{outcome}");
        assert_eq!(sample["checks"]["correct"], 7 * 256, "{outcome}");
    }
}

#[test]
fn a_durable_write_is_correct_in_every_variant_and_mmap_syncs() {
    let workspace = Workspace::new();
    let args = [
        &["--runtime", "0.1", "--repeat", "1", "--depth", "4"][..],
        &["--size", "4M", "--variants", "all", "--rw", "randwrite"],
    ]
    .concat();
    let each = [&args[..], &["--sync", "each"]].concat();
    let buffered = workspace.report(&[&each[..], &["--hot"]].concat());
    assert_correct(&buffered, &[&ONE_FILE[..], &["mmap-sync"]].concat());
    assert_eq!(buffered["load"]["durable"], true);
    let outcomes_each = outcomes(&buffered);
    let mmap = of(&outcomes_each, "mmap");
    assert!(note(&mmap.2).contains("msync"), "{}", mmap.2);
    let direct = workspace.report(&each);
    assert_correct(
        &direct,
        &[&ONE_FILE[..], &["mmap", "mmap-sync", "tokio-fs"]].concat(),
    );
    let plain = workspace.report(&[&args[..], &["--hot"]].concat());
    let outcomes_plain = outcomes(&plain);
    assert_eq!(plain["load"]["durable"], false);
    assert!(note(&of(&outcomes_plain, "mmap-sync").2).contains("msync"));
    assert!(!note(&of(&outcomes_plain, "mmap").2).contains("msync"));
}

#[test]
fn threads_share_the_depth_and_cap_blocking_variants() {
    let workspace = Workspace::new();
    let report = workspace.report(&[
        "--runtime",
        "0.05",
        "--repeat",
        "1",
        "--depth",
        "12",
        "--threads",
        "3",
        "--size",
        "4M",
        "--hot",
        "--rw",
        "readwrite",
        "--variants",
        "annulus,pread,mmap,mmap-sync,tokio-blocking",
    ]);
    assert_correct(&report, &[]);
    assert_eq!(report["load"]["rw"], "readwrite (50 % reads)");
    let outcomes = outcomes(&report);
    for name in ["pread", "mmap", "mmap-sync"] {
        let outcome = &of(&outcomes, name).2;
        assert!(
            note(outcome).contains("3 outstanding instead of 12"),
            "{outcome}"
        );
    }
    let annulus = &of(&outcomes, "annulus").2;
    assert!(note(annulus).contains("3 submitting threads"), "{annulus}");
}

/// Runs the variants with many operations of 512 bytes in flight, on a cached file.
fn deep(workspace: &Workspace, depth: &str, size: &str, variants: &str) -> Value {
    let short = ["--runtime", "0.1", "--repeat", "1", "--bs", "512", "--hot"];
    let load = ["--depth", depth, "--size", size, "--variants", variants];
    workspace.report(&[&short[..], &load].concat())
}

#[test]
fn twenty_thousand_operations_in_flight_work_if_the_variant_supports_them() {
    let workspace = Workspace::new();
    let variants = "annulus,annulus-many,pread,mmap,libaio,base-sqpoll";
    let report = deep(&workspace, "20000", "32M", variants);
    assert_correct(&report, &["pread", "mmap", "libaio", "base-sqpoll"]);
    let outcomes = outcomes(&report);
    let reason = |name: &str| {
        of(&outcomes, name).2["reason"]
            .as_str()
            .unwrap()
            .to_string()
    };
    assert!(reason("pread").contains("20000 threads"));
    assert!(reason("libaio").contains("while it submits"));
    assert!(reason("base-sqpoll").contains("65536 entries"));
    let annulus = &of(&outcomes, "annulus").2;
    if note(annulus).contains("io_uring") {
        assert!(
            note(annulus).contains("of 20000 requested operations"),
            "{annulus}"
        );
    }
}

#[test]
fn a_depth_above_tokios_blocking_threads_is_noted() {
    let workspace = Workspace::new();
    let report = deep(&workspace, "4100", "4M", "tokio-blocking");
    assert_correct(&report, &[]);
    let outcomes = outcomes(&report);
    let blocking = &of(&outcomes, "tokio-blocking").2;
    assert!(
        note(blocking).contains("512 blocking threads"),
        "{blocking}"
    );
}

#[test]
fn a_named_load_sets_the_options_that_were_not_given() {
    let workspace = Workspace::new();
    let report = workspace.report(
        &[
            &SHORT[..],
            &[
                "--load",
                "many-files",
                "--hot",
                "--size",
                "4M",
                "--variants",
                "pread",
            ],
        ]
        .concat(),
    );
    let load = &report["load"];
    assert_eq!(load["name"], "many-files");
    assert_eq!(
        (&load["files"], &load["block_bytes"]),
        (&128.into(), &4096.into())
    );
    assert_eq!(load["cache"], "buffered, hot");
    assert_eq!(load["depths"], serde_json::json!([4]));
}

#[test]
fn tokio_8367_reads_each_block_once_cold_and_cached_and_shows_resident_memory() {
    let workspace = Workspace::new();
    let args = [
        "--load",
        "tokio-8367",
        "--size",
        "64M",
        "--depth",
        "4",
        "--repeat",
        "1",
        "--variants",
        "annulus,annulus-arena-direct,pread,pread-direct,mmap",
        "--json",
        "report.json",
    ];
    let output = workspace.run_patiently(&args);
    if output.out.contains(NOT_COLD) {
        return skip("the page cache cannot be evicted here");
    }
    assert_eq!(output.code, Some(0), "{}{}", output.out, output.err);
    for word in ["cold", "hot"] {
        let path = workspace.path().join(format!("report-{word}.json"));
        let report: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        assert_eq!(report["load"]["cache"], format!("buffered, {word}"));
        assert_correct(&report, &[]);
        let outcomes = outcomes(&report);
        for (variant, _, outcome) in outcomes.iter().filter(|one| one.1 == "measured") {
            assert_eq!(outcome["ops"], 512, "{variant}: {outcome}");
            assert_eq!(outcome["checks"]["completions"], 512, "{variant}");
        }
        let rss = |name: &str| of(&outcomes, name).2["peak_rss_bytes"].as_u64().unwrap();
        let (mapped, read) = (rss("mmap"), rss("pread"));
        // The kernel may reclaim mapped pages while a cold run waits for the drive.
        if word == "hot" {
            assert!(mapped >= 64 << 20 && read < mapped, "{mapped} {read}");
        }
        let warnings = report["warnings"].to_string();
        assert!(!warnings.contains("every block"), "{warnings}");
    }
}

/// Returns the tool's cgroups anywhere under the mounts.
fn cgroups() -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(folder) else {
            continue;
        };
        for entry in entries.flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            match entry
                .file_name()
                .to_string_lossy()
                .starts_with("annulus-bench-")
            {
                true => files.push(entry.path()),
                false => folders.push(entry.path()),
            }
        }
    }
    files
}

fn has_cgroup(pid: u32) -> bool {
    let name = format!("annulus-bench-{pid}");
    cgroups().iter().any(|path| path.ends_with(&name))
}

#[test]
fn a_memory_limit_applies_and_its_cgroup_is_removed() {
    let workspace = Workspace::new();
    let args = [
        "--memory",
        "64M",
        "--files",
        "4",
        "--size",
        "192M",
        "--cold",
        "--runtime",
        "0.2",
        "--repeat",
        "1",
        "--depth",
        "4",
        "--variants",
        "pread,annulus",
        "--json",
        "report.json",
    ];
    let CommandOutput {
        pid,
        code,
        out,
        err,
    } = workspace.run_patiently(&args);
    if err.contains("--memory needs root") || err.contains("no cgroup with the memory controller") {
        return skip(format_args!("no memory cgroup can be created here: {err}"));
    }
    assert!(!has_cgroup(pid), "{:?}", cgroups());
    if out.contains(NOT_COLD) {
        return skip("the page cache cannot be evicted here");
    }
    assert_eq!(code, Some(0), "{out}{err}");
    let text = std::fs::read(workspace.path().join("report.json")).unwrap();
    let report: Value = serde_json::from_slice(&text).unwrap();
    assert_correct(&report, &[]);
    assert_eq!(report["load"]["memory_limit_bytes"], 64 << 20);
    let notes = report["notes"].to_string();
    assert!(
        notes.contains("holds the whole process while it measures"),
        "{notes}"
    );
    assert!(notes.contains("starts another pass"), "{notes}");
}

#[test]
fn small_files_are_opened_and_read_by_each_variant_that_can() {
    each_variant_reads_small_files("small-files");
}

#[test]
fn small_files_are_read_whole_by_each_variant_that_can() {
    each_variant_reads_small_files("whole-files");
}

fn each_variant_reads_small_files(load: &str) {
    let workspace = Workspace::new();
    let args = [
        "--load", load, "--files", "50", "--depth", "4", "--repeat", "1",
    ];
    let report = workspace.report(&[&args[..], &["--hot", "--variants", "all"]].concat());
    let outcomes = outcomes(&report);
    for (variant, kind, outcome) in &outcomes {
        match kind.as_str() {
            "measured" => assert_eq!(outcome["checks"]["correct"], 50, "{variant}: {outcome}"),
            "not_applicable" => assert!(!outcome["reason"].is_null()),
            _ => skip(format_args!("{variant}: {outcome}")),
        }
    }
    for name in [
        "annulus",
        "annulus-own-tasks",
        "annulus-tokio-mt",
        "annulus-tokio-main",
        "base",
        "pread",
        "tokio-fs",
    ] {
        assert_eq!(of(&outcomes, name).1, "measured", "{outcomes:?}");
    }
    assert_eq!(report["load"]["files"], 50);
    assert!(!report["traced"].as_array().unwrap().is_empty());
    assert!(workspace.files().is_empty(), "{:?}", workspace.files());
    let refused = workspace.run(&[&args[..], &["--size", "4M"]].concat());
    assert_eq!(refused.code, Some(2), "{}", refused.err);
}

/// Runs a load that has to fill its memory limit, which takes longer on a busy machine.
fn run_until_memory_is_full(workspace: &Workspace, args: &[&str]) -> CommandOutput {
    let run = |runtime| workspace.run(&[args, &["--runtime", runtime]].concat());
    let mut output = run("0.3");
    for runtime in ["3", "30"] {
        let report = std::fs::read_to_string(workspace.path().join("report.json"));
        if report.is_ok_and(|report| report.contains("the memory limit was not reached")) {
            output = run(runtime);
        }
    }
    output
}

#[test]
fn a_run_with_memory_to_spare_shows_nothing_and_one_without_is_measured() {
    let workspace = Workspace::new();
    let args = |memory| {
        let small = ["--files", "4", "--size", "96M", "--depth", "4"];
        let short = ["--repeat", "1", "--variants", "pread,mmap"];
        let rest = [
            "--load",
            "many-files",
            "--memory",
            memory,
            "--json",
            "report.json",
        ];
        [&small[..], &short, &rest, &["--replace"]].concat()
    };
    let report = || {
        let text = std::fs::read(workspace.path().join("report.json")).unwrap();
        serde_json::from_slice::<Value>(&text).unwrap()
    };
    let spare = workspace.run(&[&args("512M")[..], &["--runtime", "0.3"]].concat());
    if spare.err.contains("--memory") {
        return skip(format_args!(
            "no memory cgroup can be created: {}",
            spare.err
        ));
    }
    assert_eq!(spare.code, Some(1), "{}{}", spare.out, spare.err);
    for (variant, kind, outcome) in outcomes(&report()) {
        let reason = outcome["reason"].as_str().unwrap();
        assert_eq!(kind, "not_prepared", "{variant}: {outcome}");
        assert!(reason.contains("it shows nothing"), "{variant}: {outcome}");
    }
    let full = run_until_memory_is_full(&workspace, &args("32M"));
    assert_eq!(full.code, Some(0), "{}{}", full.out, full.err);
    let report = report();
    assert_correct(&report, &[]);
    assert_eq!(report["load"]["cache"], "buffered, memory full");
}

/// Returns the hits, misses and evictions that the note of a pool's run has.
fn pool_counts(outcome: &Value) -> [u64; 3] {
    let note = note(outcome);
    ["hits", "misses", "evictions"].map(|word| {
        let before = note.split(&format!(" {word}")).next().unwrap();
        let number = before.rsplit(' ').next().unwrap();
        number.parse().unwrap_or_else(|_| panic!("{word}: {note}"))
    })
}

#[test]
fn a_pool_is_filled_to_the_memory_limit_and_evicts_and_a_map_blocks_tokio_tasks() {
    let workspace = Workspace::new();
    let args = |exponent: &[&'static str]| {
        let load = ["--load", "many-files", "--memory", "48M", "--files", "4"];
        let rest = ["--size", "160M", "--repeat", "1", "--depth", "8"];
        let variants = ["--variants", "pool,pool-tokio,pool-tokio-1,mmap-tokio"];
        let output = ["--json", "report.json", "--replace"];
        [&load[..], &rest, &variants, &output, exponent].concat()
    };
    for exponent in [&[][..], &["--zipf", "0.9"]] {
        let output = run_until_memory_is_full(&workspace, &args(exponent));
        if output.err.contains("--memory") {
            return skip(format_args!("no memory cgroup: {}", output.err));
        }
        assert_eq!(output.code, Some(0), "{}{}", output.out, output.err);
        let text = std::fs::read(workspace.path().join("report.json")).unwrap();
        let outcomes = outcomes(&serde_json::from_slice(&text).unwrap());
        assert_eq!(of(&outcomes, "mmap-tokio").1, "measured", "{outcomes:?}");
        for name in ["pool", "pool-tokio", "pool-tokio-1"] {
            let (_, kind, outcome) = of(&outcomes, name);
            assert_eq!(kind, "measured", "{outcome}");
            let [hits, misses, evictions] = pool_counts(outcome);
            // Filled before the start, so each miss that is complete has evicted a page.
            assert!(hits > 0 && misses > 0 && evictions > 0, "{outcome}");
        }
    }
}

#[test]
fn resident_pages_are_all_found_in_memory_by_each_of_its_variants() {
    let workspace = Workspace::new();
    let rest = ["--load", "resident", "--size", "16M", "--runtime", "0.05"];
    let report = workspace.report(&[&rest[..], &["--repeat", "1"]].concat());
    let outcomes = outcomes(&report);
    let measured: Vec<_> = outcomes.iter().filter(|one| one.1 == "measured").collect();
    // Seven, each with one thread and with two.
    assert_eq!(measured.len(), 14, "{outcomes:?}");
    for (variant, _, outcome) in measured {
        let completions = outcome["checks"]["completions"].as_u64().unwrap();
        assert_eq!(outcome["checks"]["correct"], completions, "{variant}");
        if variant.starts_with("pool") {
            let [hits, misses, _] = pool_counts(outcome);
            assert!(
                hits >= 256 * completions && misses == 0,
                "{variant}: {outcome}"
            );
        }
    }
    let refused = workspace.run(&["--load", "resident", "--zipf", "1.5"]);
    assert_eq!(refused.code, Some(2), "{}", refused.err);
}

#[test]
fn reads_beside_a_scan_are_of_the_first_file_and_the_scan_reads_the_others() {
    let workspace = Workspace::new();
    let rest = [
        "--load",
        "beside-scan",
        "--memory",
        "64M",
        "--size",
        "256M",
        "--runtime",
        "0.1",
    ];
    let output = workspace.run(&[&rest[..], &["--repeat", "1", "--json", "report.json"]].concat());
    if output.err.contains("--memory") {
        return skip(format_args!("no memory cgroup: {}", output.err));
    }
    assert_eq!(output.code, Some(0), "{}{}", output.out, output.err);
    let text = std::fs::read(workspace.path().join("report.json")).unwrap();
    let outcomes = outcomes(&serde_json::from_slice(&text).unwrap());
    for inner in ["pread", "annulus-tokio"] {
        for (suffix, scans) in [
            ("", false),
            ("-beside-scan", true),
            ("-beside-uncached", true),
        ] {
            let name = format!("{inner}{suffix}");
            let (_, kind, outcome) = of(&outcomes, &name);
            let note = note(outcome);
            if kind == "unavailable" && suffix == "-beside-uncached" {
                return skip(format_args!("{name}: {outcome}"));
            }
            assert_eq!(kind, "measured", "{name}: {outcome}");
            assert_eq!(note.contains("scan of "), scans, "{name}: {outcome}");
            assert!(!note.contains("scan of 0 MB/s"), "{name}: {outcome}");
        }
    }
    let plain = ["--size", "4M", "--runtime", "0.05", "--depth", "1"];
    let refused = workspace.run(&[&plain[..], &["--variants", "pread-beside-scan"]].concat());
    assert!(
        refused.out.contains("use --load beside-scan"),
        "{}",
        refused.out
    );
    let one = ["--files", "1", "--variants", "pread-beside-scan"];
    let refused = workspace.run(&[&rest[..], &one].concat());
    assert!(refused.out.contains("--files"), "{}", refused.out);
}

#[test]
fn aio_uring_and_ranges_measure_their_variants() {
    let workspace = Workspace::new();
    let report = workspace.report(
        &[
            &SHORT[..],
            &["--load", "aio-uring", "--size", "4M", "--hot"],
        ]
        .concat(),
    );
    assert_correct(&report, &[]);
    let outcomes = outcomes(&report);
    for name in [
        "libaio",
        "base-unregistered",
        "base-sqpoll",
        "annulus-sqpoll",
    ] {
        of(&outcomes, name);
    }
    let args = [
        "--load",
        "ranges",
        "--size",
        "64M",
        "--hot",
        "--runtime",
        "0.1",
    ];
    let rest = ["--depth", "600", "--repeat", "1", "--bs", "4k"];
    let report = workspace.report(&[&args[..], &rest].concat());
    assert_correct(&report, &[]);
    let outcomes = crate::runs::outcomes(&report);
    of(&outcomes, "annulus-tokio-arena-direct");
    let capped = &of(&outcomes, "pread-512-direct").2;
    assert!(
        note(capped).contains("512 outstanding instead of 600"),
        "{capped}"
    );
}

#[test]
fn an_interrupt_leaves_no_cgroup_behind() {
    let workspace = Workspace::new();
    let args = [
        "--memory",
        "64M",
        "--size",
        "32M",
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
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut heading = String::new();
    out.read_line(&mut heading).unwrap();
    if heading.is_empty() {
        child.wait().unwrap();
        return skip("no memory cgroup can be created here");
    }
    let pid = child.id();
    assert!(has_cgroup(pid), "{heading}");
    let killed = Command::new("kill")
        .args(["-INT", &pid.to_string()])
        .status();
    assert!(killed.unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(!has_cgroup(pid), "{:?}", cgroups());
    assert!(workspace.files().is_empty(), "{:?}", workspace.files());
}

#[test]
fn depths_that_exceed_the_memory_limit_are_refused() {
    let workspace = Workspace::new();
    let output = workspace.run(&["--memory", "16M", "--size", "64M", "--depth", "512"]);
    if output.err.contains("--memory needs root")
        || output.err.contains("no cgroup with the memory controller")
    {
        return skip("no memory cgroup can be created here");
    }
    assert_eq!(output.code, Some(2), "{}{}", output.out, output.err);
    let text = "the buffers and threads of --depth 512 may take";
    assert!(output.err.contains(text), "{}", output.err);
}
