//! Tests of the metrics page of a server, and of the metric names in the documents.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::server::{TIMEOUT, Watched};

const SENDS: &str = "annulus_operations_total{op=\"send\",source=\"core\"}";

const RULES: &str = include_str!("../../../../contrib/prometheus/rules.yml");
const DASHBOARD: &str = include_str!("../../../../contrib/grafana/annulus.json");
const DOCUMENT: &str = include_str!("../../../../docs/reference/metrics.md");

#[test]
fn a_server_serves_prometheus_and_reports_its_alerts() {
    let mut server = Watched::start(&[
        "--alert",
        "recv.rate >= 0/s",
        "--alert",
        "in_flight > 1000000",
    ]);
    server.echo(100);
    // This rule always holds from the second check on.
    let line = server.line_with("alert raised");
    assert!(
        line.starts_with("annulus: alert raised: recv.rate >= 0/s: "),
        "{line}"
    );
    let page = server.exchange("GET /metrics", "");
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
    assert!(
        page.contains("content-type: text/plain; version=0.0.4"),
        "{page}"
    );
    assert!(
        page.contains("annulus_alert{rule=\"recv.rate >= 0/s\"} 1.0\n"),
        "{page}"
    );
    assert!(
        page.contains("annulus_alert{rule=\"in_flight > 1000000\"} 0.0\n"),
        "{page}"
    );
    let sent = sent_at_least(&server, 100.0);
    server.echo(10);
    sent_at_least(&server, sent + 10.0);
    let open = server.exchange(
        "GET /metrics?x=1",
        "Accept: application/openmetrics-text; version=1.0.0",
    );
    assert!(
        open.contains("content-type: application/openmetrics-text; version=1.0.0"),
        "{open}"
    );
    assert!(open.ends_with("# EOF\n"), "{open}");
    let then = value(&open, SENDS);
    assert!(then >= sent + 10.0, "{then} after {sent}");
    check_names(&page);

    assert!(server.exchange("GET /", "").contains("/metrics"));
    assert!(
        server
            .exchange("GET /nothing", "")
            .starts_with("HTTP/1.1 404")
    );
    let refused = server.exchange("POST /metrics", "Content-Length: 0");
    assert!(
        refused.starts_with("HTTP/1.1 405") && refused.contains("allow: GET, HEAD"),
        "{refused}"
    );
    // The request is longer than the limit. The server may close the connection at any point, with or without an error.
    let mut stream = TcpStream::connect(&server.metrics).unwrap();
    let _ = write!(stream, "GET /{} HTTP/1.1\r\n", "x".repeat(1 << 20));
    let mut refusal = Vec::new();
    let _ = stream.read_to_end(&mut refusal);
    assert!(
        !refusal.starts_with(b"HTTP/1.1 200"),
        "the request was refused"
    );
    assert!(
        server
            .exchange("GET /metrics", "")
            .starts_with("HTTP/1.1 200"),
        "the server continues"
    );
}

/// Waits until the number of sends on the page reaches `expected`. The client may read an echo before its core counts
/// the send.
fn sent_at_least(server: &Watched, expected: f64) -> f64 {
    let until = Instant::now() + TIMEOUT;
    loop {
        let sent = value(&server.exchange("GET /metrics", ""), SENDS);
        if sent >= expected {
            return sent;
        }
        assert!(Instant::now() < until, "{sent} sends of {expected}");
    }
}

fn value(page: &str, series: &str) -> f64 {
    let line = page.lines().find_map(|line| line.strip_prefix(series));
    let line = line.unwrap_or_else(|| panic!("no {series} in {page}"));
    line.trim().parse().unwrap()
}

/// Asserts that each metric in the documents is on the page, and that each metric on the page is documented.
fn check_names(page: &str) {
    let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let known: BTreeSet<&str> = types.filter_map(|line| line.split(' ').next()).collect();
    assert!(known.len() > 20, "{page}");
    for (document, text) in [
        ("rules.yml", RULES),
        ("annulus.json", DASHBOARD),
        ("metrics.md", DOCUMENT),
    ] {
        let named = names(text);
        assert!(named.len() > 10, "{document}: {named:?}");
        // A built-in server lacks the metrics of the preload library, and that of `annulus top --serve`.
        let own =
            |name: &&&str| !name.starts_with("annulus_preload_") && **name != "annulus_processes";
        for name in named.iter().filter(own).copied() {
            let series = ["_bucket", "_count", "_sum"]
                .iter()
                .find_map(|end| name.strip_suffix(end));
            let is_known = known.contains(name) || series.is_some_and(|name| known.contains(name));
            assert!(
                is_known,
                "{document} names {name}, which a server does not have"
            );
        }
    }
    let explained = names(DOCUMENT);
    for name in known {
        assert!(
            explained.contains(name),
            "docs/reference/metrics.md does not explain {name}"
        );
    }
}

/// Returns the words that begin with `annulus_`, except modules.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !(c == '_' || c == ':' || c.is_ascii_alphanumeric()));
    let named = words.filter(|word| word.starts_with("annulus_") && !word.contains("::"));
    named.collect()
}

#[test]
fn idle_clients_do_not_delay_a_scrape() {
    // The endpoint closes an idle connection after 5 s. Without a delay one of these scrapes is faster than that.
    const IDLE_TIME: Duration = Duration::from_secs(5);
    let server = Watched::start(&[]);
    let fastest = (0..5).map(|_| {
        let idle: Vec<TcpStream> = (0..64)
            .map(|_| TcpStream::connect(&server.metrics).unwrap())
            .collect();
        let start = Instant::now();
        let page = server.exchange("GET /metrics", "");
        assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
        let taken = start.elapsed();
        drop(idle);
        taken
    });
    let fast = fastest.into_iter().find(|taken| *taken < IDLE_TIME);
    assert!(fast.is_some(), "every scrape waited for the idle clients");
}
