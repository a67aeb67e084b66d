//! Runs of job files: those of the repository, one with many keys, one with wrong data, and one that fio runs, too.

use std::fs;
use std::process::Command;

use annulus_testing::{schema, skip};

use crate::command::Workspace;

#[test]
fn the_job_files_of_the_repository_are_valid_with_a_warning_on_threads() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/jobs");
    let mut count = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let workspace = Workspace::new();
        workspace.job(fs::read(entry.unwrap().path()).unwrap());
        let output = workspace.run(&["--parse-only"]);
        assert_eq!(output.code, Some(0), "{}", output.err);
        let warning = output
            .out
            .lines()
            .find(|line| line.contains("`threads`"))
            .unwrap();
        assert!(
            warning.contains("`thread`") && warning.contains("`numjobs`"),
            "{warning}"
        );
        assert!(
            output.out.contains("randread, blocks of 4096 bytes"),
            "{}",
            output.out
        );
        assert_eq!(workspace.names(), ["job.fio"]);
        count += 1;
    }
    assert_eq!(count, 2);
}

#[test]
fn a_name_is_shown_and_an_escaped_colon_is_part_of_one_file() {
    let workspace = Workspace::new();
    workspace.job("[section]\nname=shown\nsize=64k\n[other]\nfilename=a\\:b\nsize=64k\n");
    let output = workspace.run(&["--repeat", "1", "--keep-files", "--json", "own.json"]);
    assert_eq!(output.code, Some(0), "{}{}", output.out, output.err);
    assert_eq!(
        workspace.names(),
        ["a:b", "job.fio", "own.json", "section.0.0"]
    );
    let jobs = &workspace.json("own.json")["jobs"];
    assert_eq!(jobs[0]["name"], "shown");
    assert!(output.out.contains("[shown] psync read"), "{}", output.out);
}

/// The thread that watches the clones must not take away the start that they wait for.
#[test]
fn many_short_clones_start_together_and_all_of_them_end() {
    let workspace = Workspace::new();
    workspace.job("[clones]\nnumjobs=64\nsize=4k\n");
    let output = workspace.run(&["--repeat", "5", "--json", "own.json"]);
    assert_eq!(output.code, Some(0), "{}{}", output.out, output.err);
    for run in workspace.json("own.json")["runs"].as_array().unwrap() {
        assert_eq!(run["sample"]["read"]["ops"], 64);
    }
}

const MANY_KEYS: &str = "\
[global]
thread
size=1M
bs=4k
[writes]
ioengine=io_uring
rw=randwrite
iodepth=16
iodepth_batch=4
iodepth_low=4
fixedbufs
registerfiles
verify=crc32c
[others]
ioengine=libaio
rw=read
iodepth=8
numjobs=2
nrfiles=2
[reads-them]
stonewall
filename=writes.0.0
rw=read
verify=crc32c
[paced]
stonewall
ioengine=mmap
rw=randrw
bssplit=4k/50:8k/50
rate=8m
runtime=1s
time_based
";

#[test]
fn a_file_with_many_keys_runs_in_its_engines_and_in_annulus_and_leaves_nothing() {
    let workspace = Workspace::new();
    let output = workspace
        .job(MANY_KEYS)
        .run(&["--repeat", "1", "--json", "report.json"]);
    assert_eq!(output.code, Some(0), "{}{}", output.out, output.err);
    assert_eq!(workspace.names(), ["job.fio", "report.json"]);
    let report = workspace.json("report.json");
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/schema/bench-job.json");
    let schema: serde_json::Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    schema::assert_matches(&schema, &report);
    let stages: Vec<u64> = (report["jobs"].as_array().unwrap().iter())
        .map(|job| job["stage"].as_u64().unwrap())
        .collect();
    assert_eq!(stages, [0, 0, 1, 2]);
    let run = |job: usize, variant: &str| {
        let mut runs = report["runs"].as_array().unwrap().iter();
        let matching = runs.find(|run| run["job_index"] == job && run["variant"] == variant);
        matching.unwrap()["sample"].clone()
    };
    for variant in ["job", "annulus"] {
        // Every written block is read back and checked, and read again by the next job.
        let writes = run(0, variant);
        assert_eq!(writes["write"]["ops"], 256, "{variant}");
        assert_eq!(
            (&writes["verified"], &writes["wrong"]),
            (&256.into(), &0.into())
        );
        assert_eq!(run(1, variant)["read"]["ops"], 512, "{variant}: two clones");
        assert_eq!(run(2, variant)["verified"], 256, "{variant}");
        // Reads and writes at 8 MiB/s each for 1 s, and one more operation of each.
        for direction in ["read", "write"] {
            let bytes = run(3, variant)[direction]["bytes"].as_u64().unwrap_or(0);
            assert!(bytes <= (8 << 20) + 8192, "{variant} {direction}: {bytes}");
        }
    }
}

#[test]
fn a_job_file_gets_a_page_with_its_tables_and_its_json() {
    let workspace = Workspace::new();
    let output = workspace
        .job("[one<two>]\nsize=1M\nrw=randread #at random\nioengine=io_uring\n")
        .run(&["--repeat", "2", "--html", "page.html", "--json", "own.json"]);
    assert_eq!(output.code, Some(0), "{}{}", output.out, output.err);
    let page = fs::read_to_string(workspace.path().join("page.html")).unwrap();
    for part in [
        "<h3>one&lt;two&gt;: io_uring randread, depth 1 × 1 clones</h3>",
        "<th scope=\"row\">one&lt;two&gt;</th><td>read</td><td>annulus</td>",
        "rw=randread #at random",
        "record no timelines",
    ] {
        assert!(page.contains(part), "no {part} in {page}");
    }
    let (_, json) = page.split_once("id=\"json-0\">").unwrap();
    let (json, _) = json.split_once("</script>").unwrap();
    let json: serde_json::Value = serde_json::from_str(json).unwrap();
    assert_eq!(json["runs"].as_array().unwrap().len(), 4);
}

#[test]
fn data_without_verify_headers_fails_the_job() {
    let workspace = Workspace::new();
    workspace.file("mine", 65536);
    let output = workspace
        .job("[check]\nthread\nfilename=mine\nrw=read\nbs=4k\nverify=crc32c\n")
        .run(&["--repeat", "1"]);
    assert_eq!(output.code, Some(1), "{}{}", output.out, output.err);
    assert!(
        output.out.contains("FAILED: 16 wrong results or errors"),
        "{}",
        output.out
    );
    assert!(
        output
            .out
            .contains("the block was not written by a job with `verify`"),
        "{}",
        output.out
    );
}

#[test]
fn fio_runs_the_same_file_and_verifies_the_pattern_that_annulus_wrote() {
    if Command::new("fio").arg("--version").output().is_err() {
        return skip::skip("no fio; apt-get install fio");
    }
    let job = "[global]\nthread\nthreads=2\nsize=1M\nbs=4k\n[w]\nrw=write\nverify=pattern\nverify_pattern=0xabcd\n";
    let workspace = Workspace::new();
    let output = workspace.job(job).run(&[
        "--repeat",
        "1",
        "--with-fio",
        "--keep-files",
        "--json",
        "report.json",
    ]);
    assert_eq!(output.code, Some(0), "{}{}", output.out, output.err);
    assert!(
        output
            .out
            .contains("fio got the job file without line 3 (`threads=2`)"),
        "{}",
        output.out
    );
    let report = workspace.json("report.json");
    let runs = report["runs"].as_array().unwrap();
    let of_fio = runs.iter().find(|run| run["variant"] == "fio").unwrap();
    assert_eq!(of_fio["sample"]["write"]["ops"], 256, "{of_fio}");
    // fio verifies the kept file, which Annulus wrote last.
    let verify = "[r]\nthread\nfilename=w.0.0\nsize=1M\nrw=read\nbs=4k\nverify=pattern\nverify_pattern=0xabcd\n";
    let output = workspace.job(verify).run(&["--repeat", "1", "--with-fio"]);
    assert_eq!(output.code, Some(0), "{}{}", output.out, output.err);
    assert!(!output.out.contains("fio failed"), "{}", output.out);
}
