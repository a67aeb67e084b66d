//! `annulus top --serve`: one page for all processes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};

use crate::server::Server;
use crate::{code_and_error, top};

/// The endpoint, which ends when it is dropped.
struct Endpoint {
    child: Child,
    address: String,
}

impl Endpoint {
    fn start() -> Endpoint {
        let mut command = top(&["--serve", "127.0.0.1:0"]);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut err = BufReader::new(child.stderr.take().unwrap());
        err.read_line(&mut line).unwrap();
        let address = line
            .trim_end()
            .strip_prefix("annulus: metrics of all processes at http://")
            .and_then(|rest| rest.strip_suffix("/metrics"));
        let address = address.unwrap_or_else(|| panic!("{line}")).to_owned();
        Endpoint { child, address }
    }

    fn page(&self) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
            .unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        page
    }

    /// Returns the first page on which the condition holds.
    fn page_with(&self, condition: impl Fn(&str) -> bool) -> String {
        loop {
            let page = self.page();
            if condition(&page) {
                return page;
            }
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the beginning of a sample of a server.
fn sample(name: &str, server: &Server) -> String {
    let pid = server.pid();
    format!("\n{name}{{pid=\"{pid}\",program=\"annulus\"")
}

#[test]
fn two_processes_are_on_one_page_and_one_that_ended_leaves_it() {
    let (one, mut other) = (Server::start(), Server::start());
    let endpoint = Endpoint::start();
    let names = ["annulus_operations_total", "annulus_sources"];
    let has_latencies = |page: &str, server| {
        page.contains(&sample("annulus_operation_duration_seconds_bucket", server))
    };
    let page = endpoint.page_with(|page| has_latencies(page, &one) && has_latencies(page, &other));
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
    assert!(
        page.contains("\nannulus_processes{state=\"shown\"} "),
        "{page}"
    );
    for name in names {
        for server in [&one, &other] {
            assert!(page.contains(&sample(name, server)), "{page}");
        }
        let family = name.trim_end_matches("_total");
        let types = page.lines().filter(|line| line.starts_with("# TYPE "));
        let of_family = types.filter(|line| line.contains(&format!(" {family}")));
        assert_eq!(of_family.count(), 1, "{page}");
    }
    // Counts of the same process grow from page to page.
    let sends = sample("annulus_operations_total", &one) + ",op=\"send\",source=\"core\"} ";
    let sent = |page: &str| -> u64 {
        let (_, rest) = page.split_once(&*sends).unwrap_or_else(|| panic!("{page}"));
        rest.lines().next().unwrap().parse().unwrap()
    };
    let before = sent(&page);
    endpoint.page_with(|page| sent(page) > before);

    other.kill();
    let page = endpoint.page();
    assert!(!page.contains(&sample(names[0], &other)), "{page}");
    assert!(page.contains(&sample(names[0], &one)), "{page}");
}

#[test]
fn an_address_in_use_is_named_with_its_option() {
    let endpoint = Endpoint::start();
    let output = top(&["--serve", &endpoint.address]).output().unwrap();
    let (code, error) = code_and_error(&output);
    assert_eq!(code, Some(1));
    assert!(error.contains(&endpoint.address), "{error}");
    assert!(error.contains("give --serve another port"), "{error}");
}
