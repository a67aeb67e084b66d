//! The layout of `--fio-json`: it has the keys and the types of fio's JSON.
//!
//! `fio-3.33.json` is the output of fio 3.33 for the same job.

use serde_json::Value;

use crate::command::Workspace;

const JOB: &str = "[global]\nioengine=psync\nsize=1M\nthread\n[mixed]\ndescription=both directions\nrw=randrw\nbs=4k\n\
                   percentile_list=50:99:99.9\nnumjobs=2\n";

/// Returns the kind of a value. fio distinguishes whole numbers from fractions, and scripts rely on that.
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

/// Collects the differences of `own` from `reference`, by path.
fn missing(path: &str, reference: &Value, own: &Value, list: &mut Vec<String>) {
    if kind(reference) != kind(own) {
        list.push(format!("{path} is {}, not {}", kind(own), kind(reference)));
        return;
    }
    match (reference, own) {
        // The options depend on the job file.
        (Value::Object(_), Value::Object(_)) if path.ends_with("options") => {}
        (Value::Object(reference), Value::Object(own)) => {
            for (key, value) in reference {
                match own.get(key) {
                    Some(other) => missing(&format!("{path}.{key}"), value, other, list),
                    None => list.push(format!("{path}.{key} is missing")),
                }
            }
        }
        (Value::Array(reference), Value::Array(own)) if !path.ends_with("disk_util") => {
            match (reference.first(), own.first()) {
                (Some(first), Some(other)) => missing(&format!("{path}[0]"), first, other, list),
                (Some(_), None) => list.push(format!("{path} is empty")),
                _ => {}
            }
        }
        _ => {}
    }
}

#[test]
fn the_json_has_every_key_of_fio_with_its_type() {
    let reference: Value = serde_json::from_slice(include_bytes!("fio-3.33.json")).unwrap();
    let workspace = Workspace::new();
    let output = workspace
        .job(JOB)
        .run(&["--repeat", "1", "--fio-json", "own.json"]);
    assert_eq!(output.code, Some(0), "{}{}", output.out, output.err);
    let own = workspace.json("own.json");
    let mut list = Vec::new();
    missing("", &reference, &own, &mut list);
    assert_eq!(list, [""; 0]);
    // Without group_reporting there is an entry per clone, as in fio, and its figures are consistent.
    let jobs = own["jobs"].as_array().unwrap();
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
