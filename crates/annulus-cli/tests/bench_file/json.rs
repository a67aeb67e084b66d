//! The JSON: its schema, the order of runs, and the description of the load.

use std::collections::BTreeSet;

use annulus_testing::schema;
use serde_json::Value;

use crate::command::Workspace;

fn schema() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/schema/bench-file.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn report(workspace: &Workspace, more: &[&str]) -> Value {
    let args = [
        "--size",
        "2M",
        "--runtime",
        "0.1",
        "--repeat",
        "4",
        "--depth",
        "2,4",
        "--seed",
        "11",
    ];
    workspace.report(&[&args[..], more].concat())
}

#[test]
fn the_json_of_a_run_matches_the_schema() {
    let report = report(&Workspace::new(), &["--variants", "default"]);
    schema::assert_matches(&schema(), &report);
    // The schema must also reject a wrong type.
    let mut wrong = report.clone();
    wrong["runs"][0]["depth"] = "two".into();
    assert_eq!(schema::mismatches(&schema(), &wrong).len(), 1);
}

#[test]
fn each_repeat_runs_the_variants_in_a_new_order() {
    let workspace = Workspace::new();
    let more = ["--variants", "pread,mmap,libaio,null", "--hot"];
    let report = report(&workspace, &more);
    let runs = report["runs"].as_array().unwrap();
    // Two depths, four repeats each, and five variants each: the base is added.
    assert_eq!(runs.len(), 2 * 4 * 5);
    let mut orders = BTreeSet::new();
    for (block, runs) in runs.chunks(5).enumerate() {
        for (index, run) in runs.iter().enumerate() {
            assert_eq!(run["position"], block * 5 + index);
            assert_eq!(run["depth"], if block < 4 { 2 } else { 4 });
            assert_eq!(run["repeat"], block % 4 + 1);
        }
        let order: Vec<&str> = runs
            .iter()
            .map(|run| run["variant"].as_str().unwrap())
            .collect();
        let variants: BTreeSet<&str> = order.iter().copied().collect();
        assert_eq!(
            variants,
            BTreeSet::from(["base", "libaio", "mmap", "null", "pread"])
        );
        orders.insert(order);
    }
    assert!(orders.len() > 4, "hardly shuffled: {orders:?}");
    // The seed determines the order.
    let again = self::report(&workspace, &more);
    let order = |report: &Value| -> Vec<Value> {
        report["runs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|run| run["variant"].clone())
            .collect()
    };
    assert_eq!(order(&report), order(&again));
}

#[test]
fn the_json_describes_the_load_and_the_machine() {
    let report = report(
        &Workspace::new(),
        &[
            "--variants",
            "pread",
            "--rw",
            "randrw",
            "--rwmixread",
            "70",
            "--hot",
        ],
    );
    assert_eq!(report["version"], 1);
    assert_eq!(report["seed"], 11);
    assert_eq!(report["load"]["rw"], "randrw (70 % reads)");
    assert_eq!(report["load"]["write_percent"], 30);
    assert_eq!(report["load"]["cache"], "buffered, hot");
    assert_eq!(report["load"]["contents_known"], true);
    assert!(report["machine"]["processors"].as_u64().unwrap() > 0);
    let command: Vec<&str> = report["command"]
        .as_array()
        .unwrap()
        .iter()
        .map(|arg| arg.as_str().unwrap())
        .collect();
    assert_eq!(command[1..3], ["bench", "file"]);
    // A busy machine gets "No verdict", with the reason.
    assert!(report["verdict"].as_str().unwrap().contains("erdict: "));
    // A row per depth and variant.
    assert_eq!(report["rows"].as_array().unwrap().len(), 4);
}

#[test]
fn an_existing_json_is_replaced_when_requested() {
    let workspace = Workspace::new();
    workspace.file("kept.json", 10);
    let args = [
        "--size",
        "1M",
        "--runtime",
        "0.1",
        "--repeat",
        "1",
        "--depth",
        "2",
        "--variants",
        "pread",
    ];
    let output =
        workspace.run_patiently(&[&args[..], &["--json", "kept.json", "--replace"]].concat());
    assert_eq!(output.code, Some(0), "{}", output.err);
    let files = workspace.files();
    assert_eq!(files.len(), 1);
    assert!(serde_json::from_slice::<Value>(&files[0].1).is_ok());
}
