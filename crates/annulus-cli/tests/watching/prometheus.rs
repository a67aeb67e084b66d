//! A Prometheus server scrapes an Annulus server: the rules are evaluated, and the queries of the dashboard have
//! results.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use annulus_testing::skip::skip;
use serde_json::Value;

use crate::server::{TIMEOUT, Watched, request};

const CONTRIB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib");

#[test]
#[ignore = "needs Prometheus, which ci/lib/prometheus downloads; ci/long runs it"]
fn prometheus_evaluates_the_rules_and_the_queries_of_the_dashboard() {
    let Some(folder) = folder() else {
        return skip(
            "no prometheus on the PATH or in target/prometheus; ci/lib/prometheus downloads one",
        );
    };
    let promtool = |args: &[&str]| {
        let mut command = Command::new(folder.join("promtool"));
        let output = command
            .args(args)
            .current_dir(format!("{CONTRIB}/prometheus"))
            .output()
            .unwrap();
        assert!(output.status.success(), "promtool {args:?}: {output:?}");
    };
    promtool(&["check", "rules", "rules.yml"]);
    promtool(&["test", "rules", "rules_test.yml"]);

    let server = Watched::start(&["--alert", "send.p99 > 1ns"]);
    let prometheus = Prometheus::start(&folder, &server.metrics);
    let expressions = expressions();
    assert!(expressions.len() > 20, "{expressions:?}");
    // A rate needs two scrapes with activity between them.
    let until = Instant::now() + TIMEOUT;
    let mut without_result: Vec<&String> = expressions.iter().collect();
    while !without_result.is_empty() {
        server.echo(50);
        without_result.retain(|expression| {
            prometheus.query(expression).is_empty() && !may_be_empty(expression)
        });
        assert!(Instant::now() < until, "no result for {without_result:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
    let rules = prometheus.get("/api/v1/rules");
    let groups = rules["data"]["groups"].as_array().unwrap();
    let rules: Vec<&Value> = groups
        .iter()
        .flat_map(|group| group["rules"].as_array().unwrap())
        .collect();
    assert!(rules.len() > 10, "{rules:?}");
    for rule in rules {
        assert_ne!(rule["health"], "err", "{rule}");
    }
}

/// Returns whether the expression only has a value after an error.
fn may_be_empty(expression: &str) -> bool {
    expression.contains("annulus_operation_errors_total")
}

fn folder() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let fetched = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../target/prometheus/usr/bin"
    );
    let mut folders = std::env::split_paths(&path).chain([PathBuf::from(fetched)]);
    folders.find(|folder| folder.join("prometheus").is_file() && folder.join("promtool").is_file())
}

/// Returns the queries of the dashboard, with values for its variables.
fn expressions() -> Vec<String> {
    let text = fs::read_to_string(format!("{CONTRIB}/grafana/annulus.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels
        .filter_map(|panel| panel["targets"].as_array())
        .flatten();
    let fill = |target: &Value| {
        let expression = target["expr"].as_str().unwrap();
        let filled = expression.replace("$__rate_interval", "1m");
        ["$job", "$instance", "$op"]
            .iter()
            .fold(filled, |text, name| text.replace(name, ".+"))
    };
    targets.map(fill).collect()
}

/// A Prometheus server. It is killed and its data is removed when it is dropped.
struct Prometheus {
    child: Child,
    addr: String,
    _folder: tempfile::TempDir,
}

impl Prometheus {
    fn start(programs: &Path, target: &str) -> Prometheus {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let config = format!(
            "global: {{scrape_interval: 300ms, evaluation_interval: 500ms}}\n\
             rule_files: ['{CONTRIB}/prometheus/rules.yml']\n\
             scrape_configs:\n  - job_name: annulus\n    static_configs: [{{targets: ['{target}']}}]\n"
        );
        let path = folder.path().join("prometheus.yml");
        fs::write(&path, config).unwrap();
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = free.local_addr().unwrap().to_string();
        drop(free);
        let log = fs::File::create(folder.path().join("log")).unwrap();
        let child = Command::new(programs.join("prometheus"))
            .arg(format!("--config.file={}", path.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                folder.path().join("data").display()
            ))
            .arg(format!("--web.listen-address={addr}"))
            .args(["--web.console.templates=.", "--web.console.libraries=."])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut prometheus = Prometheus {
            child,
            addr,
            _folder: folder,
        };
        let until = Instant::now() + TIMEOUT;
        while std::net::TcpStream::connect(&prometheus.addr).is_err() {
            let ended = prometheus.child.try_wait().unwrap();
            assert!(
                ended.is_none() && Instant::now() < until,
                "{}",
                prometheus.log()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        prometheus
    }

    fn log(&self) -> String {
        fs::read_to_string(self._folder.path().join("log")).unwrap_or_default()
    }

    fn get(&self, path: &str) -> Value {
        // A response of HTTP/1.0 is not chunked.
        let response = request(&self.addr, &format!("GET {path} HTTP/1.0"), "");
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        if head.split(' ').nth(1) == Some("503") {
            // The server is still starting.
            return Value::Null;
        }
        let value: Value = serde_json::from_str(body).unwrap_or(Value::Null);
        assert_eq!(
            value["status"],
            "success",
            "{path}: {response}\n{}",
            self.log()
        );
        value
    }

    /// Returns the result of a query.
    fn query(&self, expression: &str) -> Vec<Value> {
        let encoded: String = expression
            .bytes()
            .map(|byte| format!("%{byte:02X}"))
            .collect();
        let value = self.get(&format!("/api/v1/query?query={encoded}"));
        value["data"]["result"]
            .as_array()
            .cloned()
            .unwrap_or_default()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
