//! The layout of `--fio-json`: what a script reads out of fio's JSON is there, under the same names.
//!
//! `fio-3.33.json` is what fio 3.33 said of such a job.

use serde_json::Value;

use crate::command::Workspace;

const JOB: &str = "[global]\nioengine=psync\nsize=1M\nthread\n[mixed]\ndescription=both directions\nrw=randrw\nbs=4k\n\
                   percentile_list=50:99:99.9\nnumjobs=2\n";

/// What a number or a text is; fio tells whole numbers from others, and scripts rely on it.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Object(_) => "an object",
        Value::Array(_) => "a list",
        Value::String(_) => "a text",
        Value::Number(number) if number.is_f64() => "a fraction",
        Value::Number(_) => "a whole number",
        Value::Bool(_) | Value::Null => "nothing that fio writes",
    }
}

/// What `theirs` has and `ours` lacks, by path.
fn missing(path: &str, theirs: &Value, ours: &Value, list: &mut Vec<String>) {
    if kind(theirs) != kind(ours) {
        list.push(format!("{path} is {}, not {}", kind(ours), kind(theirs)));
        return;
    }
    match (theirs, ours) {
        // Which options there are is the job file's.
        (Value::Object(_), Value::Object(_)) if path.ends_with("options") => {}
        (Value::Object(theirs), Value::Object(ours)) => {
            for (key, value) in theirs {
                match ours.get(key) {
                    Some(other) => missing(&format!("{path}.{key}"), value, other, list),
                    None => list.push(format!("{path}.{key} is missing")),
                }
            }
        }
        (Value::Array(theirs), Value::Array(ours)) if !path.ends_with("disk_util") => {
            match (theirs.first(), ours.first()) {
                (Some(first), Some(other)) => missing(&format!("{path}[0]"), first, other, list),
                (Some(_), None) => list.push(format!("{path} is empty")),
                _ => {}
            }
        }
        _ => {}
    }
}

#[test]
fn every_key_of_fios_json_is_there_with_its_type() {
    let theirs: Value = serde_json::from_slice(include_bytes!("fio-3.33.json")).unwrap();
    let workspace = Workspace::new();
    let output = workspace
        .job(JOB)
        .run(&["--repeat", "1", "--fio-json", "ours.json"]);
    assert_eq!(output.code, Some(0), "{}{}", output.out, output.err);
    let ours = workspace.json("ours.json");
    let mut list = Vec::new();
    missing("", &theirs, &ours, &mut list);
    assert_eq!(list, [""; 0]);
    // Without group_reporting a clone each, as fio does it, and what they say is consistent.
    let jobs = ours["jobs"].as_array().unwrap();
    assert_eq!(jobs.len(), 2);
    for job in jobs {
        let number = |direction: &str, key: &str| job[direction][key].as_f64().unwrap();
        let all = number("read", "total_ios") + number("write", "total_ios");
        assert_eq!(all, 256.0);
        assert_eq!(
            number("read", "io_bytes"),
            4096.0 * number("read", "total_ios")
        );
        for direction in ["read", "write"] {
            let clat = &job[direction]["clat_ns"];
            let at = |name: &str| clat["percentile"][name].as_u64().unwrap();
            assert!(clat["min"].as_u64() <= Some(at("50.000000")), "{clat}");
            assert!(at("50.000000") <= at("99.900000"), "{clat}");
        }
        let tables =
            ["latency_ns", "latency_us", "latency_ms"].map(|name| job[name].as_object().unwrap());
        let shares = tables.into_iter().flat_map(|table| table.values());
        let sum: f64 = shares.map(|share| share.as_f64().unwrap()).sum();
        assert!((sum - 100.0).abs() < 0.01, "{sum}");
    }
}
