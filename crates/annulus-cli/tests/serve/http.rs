//! Tests of `annulus serve http`: files, the fixed response, installed clients, the log, and the end of the server.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use annulus_testing::skip::skip;
use rustix::process::Signal;
use tempfile::TempDir;

use crate::server::{BACKENDS, Server};

fn folder() -> TempDir {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    fs::write(dir.path().join("index.html"), "<p>hello").unwrap();
    fs::write(dir.path().join("large"), vec![b'x'; 3 << 20]).unwrap();
    fs::create_dir(dir.path().join("empty")).unwrap();
    dir
}

fn serve(args: &[&str], backend: &str) -> Server {
    let common = ["--addr", "127.0.0.1:0", "--backend", backend];
    Server::start_as("http", &[&common[..], args].concat())
}

fn ask(server: &Server, path: &str) -> String {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut got = Vec::new();
    stream.read_to_end(&mut got).unwrap();
    String::from_utf8_lossy(&got).into_owned()
}

/// Returns the output of a tool. Returns `None` and skips if it is not installed.
fn tool(name: &str, args: &[&str]) -> Option<Output> {
    match Command::new(name).args(args).output() {
        Ok(output) => Some(output),
        Err(_) => {
            skip(format_args!("{name} is not installed"));
            None
        }
    }
}

#[test]
fn files_of_a_directory_are_served_by_each_core() {
    let dir = folder();
    let root = dir.path().to_str().unwrap();
    for backend in BACKENDS {
        let server = serve(&[root, "--threads", "2"], backend);
        for _ in 0..8 {
            assert!(ask(&server, "/").ends_with("<p>hello"));
            assert!(ask(&server, "/empty/").starts_with("HTTP/1.1 403 "));
            assert!(ask(&server, "/../../etc/passwd").starts_with("HTTP/1.1 400 "));
            assert!(ask(&server, "/nothing").starts_with("HTTP/1.1 404 "));
            assert!(ask(&server, "/large").len() > 3 << 20);
        }
        let listing = serve(&[root, "--listing", "--index", "nothing"], backend);
        assert!(ask(&listing, "/").contains("index.html"));
    }
}

#[test]
fn with_recheck_0_the_next_response_has_a_change() {
    let dir = folder();
    let root = dir.path().to_str().unwrap();
    let file = dir.path().join("file");
    for backend in BACKENDS {
        let server = serve(&[root, "--recheck", "0"], backend);
        for round in 0..20 {
            // The length and the inode are unchanged, so only the times differ.
            let text = format!("round {round:02}");
            fs::write(&file, &text).unwrap();
            let got = ask(&server, "/file");
            assert!(got.ends_with(&text), "{text}: {got}");
        }
        fs::remove_file(&file).unwrap();
        assert!(ask(&server, "/file").starts_with("HTTP/1.1 404 "));
        fs::write(&file, "again").unwrap();
        assert!(ask(&server, "/file").ends_with("again"));
    }
}

#[test]
fn a_fixed_response_accesses_no_file() {
    for backend in BACKENDS {
        let server = serve(&["--respond", "200"], backend);
        assert!(ask(&server, "/any/where").ends_with("\r\n\r\nHello, World!"));
        let server = serve(&["--respond", "503", "--respond-body", "later"], backend);
        let got = ask(&server, "/");
        assert!(
            got.starts_with("HTTP/1.1 503 ") && got.ends_with("\r\n\r\nlater"),
            "{got}"
        );
    }
}

#[test]
fn the_server_ends_in_order_and_writes_its_log() {
    let dir = folder();
    let root = dir.path().to_str().unwrap();
    let log = dir.path().join("access.log");
    for backend in BACKENDS {
        let args = [
            root,
            "--access-log",
            log.to_str().unwrap(),
            "--access-log-format",
            "json",
        ];
        let server = serve(&args, backend);
        ask(&server, "/");
        let mut idle = TcpStream::connect(server.address()).unwrap();
        idle.write_all(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
            .unwrap();
        idle.read_exact(&mut [0; 1000]).unwrap();
        server.signal(Signal::TERM);
        // The running response is completed, and the connection is closed.
        let mut rest = Vec::new();
        idle.read_to_end(&mut rest).unwrap();
        assert!(rest.len() > (3 << 20) - 1000, "{} bytes", rest.len());
        let (status, error) = server.wait();
        assert_eq!(status.code(), Some(0), "{error}");
    }
    let text = fs::read_to_string(&log).unwrap();
    assert_eq!(text.lines().count(), 2 * BACKENDS.len(), "{text}");
    for line in text.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(
            (&line["method"], &line["status"]),
            (&"GET".into(), &200.into())
        );
    }
}

#[test]
fn curl_gets_files_and_resumes_downloads() {
    let dir = folder();
    let root = dir.path().to_str().unwrap();
    for backend in BACKENDS {
        let server = serve(&[root], backend);
        let url = format!("http://{}/large", server.address());
        for version in ["--http1.0", "--http1.1", "--http2-prior-knowledge"] {
            let Some(got) = tool("curl", &["-sS", "--fail", version, &url]) else {
                return;
            };
            let error = String::from_utf8_lossy(&got.stderr);
            if error.contains("does not support") || error.contains("built-in") {
                skip(format_args!("curl: {error}"));
                continue;
            }
            assert_eq!(got.stdout.len(), 3 << 20, "{version}: {error}");
        }
        let part = dir.path().join("part");
        fs::write(&part, vec![b'x'; 1 << 20]).unwrap();
        tool(
            "curl",
            &["-sS", "-C", "-", "-o", part.to_str().unwrap(), &url],
        );
        assert_eq!(fs::read(&part).unwrap(), vec![b'x'; 3 << 20]);
        let many = tool(
            "curl",
            &[
                "-sS",
                "-w",
                "%{http_code} ",
                "-o",
                "/dev/null",
                &url,
                "-o",
                "/dev/null",
                &url,
            ],
        )
        .unwrap();
        assert_eq!(String::from_utf8_lossy(&many.stdout).trim(), "200 200");
    }
}

#[test]
fn load_generators_are_served_without_an_error() {
    let dir = folder();
    let root = dir.path().to_str().unwrap();
    for backend in BACKENDS {
        let server = serve(&[root], backend);
        let url = format!("http://{}/index.html", server.address());
        for keep in [&["-k"][..], &[]] {
            let args = [keep, &["-q", "-n", "2000", "-c", "20", &url]].concat();
            if let Some(got) = tool("ab", &args) {
                let text = String::from_utf8_lossy(&got.stdout).into_owned();
                assert!(text.contains("Complete requests:      2000"), "{text}");
                assert!(text.contains("Failed requests:        0"), "{text}");
                assert!(!text.contains("Non-2xx"), "{text}");
            }
        }
        if let Some(got) = tool("wrk", &["-t", "1", "-c", "20", "-d", "1s", &url]) {
            let text = String::from_utf8_lossy(&got.stdout).into_owned();
            assert!(
                text.contains("Requests/sec")
                    && !text.contains("Non-2xx")
                    && !text.contains("Socket errors"),
                "{text}"
            );
        }
        if let Some(got) = tool("h2load", &["-n", "2000", "-c", "10", "-m", "10", &url]) {
            let text = String::from_utf8_lossy(&got.stdout).into_owned();
            assert!(
                text.contains("2000 succeeded, 0 failed, 0 errored"),
                "{text}"
            );
        }
    }
}

/// Creates a certificate with openssl. Returns `None` and skips if it is not installed.
fn certificate(dir: &Path) -> Option<[String; 2]> {
    let [cert, key] =
        ["cert.pem", "key.pem"].map(|name| dir.join(name).to_str().unwrap().to_owned());
    let args = [
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
        "-addext",
        "subjectAltName=DNS:localhost",
        "-keyout",
        &key,
        "-out",
        &cert,
    ];
    let output = tool("openssl", &args)?;
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Some([cert, key])
}

#[test]
fn https_works_with_both_versions_of_http() {
    let dir = folder();
    let root = dir.path().to_str().unwrap();
    let Some([cert, key]) = certificate(dir.path()) else {
        return;
    };
    for backend in BACKENDS {
        let server = serve(&[root, "--tls-cert", &cert, "--tls-key", &key], backend);
        let port = server.address().port();
        let url = format!("https://localhost:{port}/large");
        let resolve = format!("localhost:{port}:127.0.0.1");
        for (option, version) in [("--http1.1", "1.1"), ("--http2", "2")] {
            let args = [
                "-sS",
                option,
                "--cacert",
                &cert,
                "--resolve",
                &resolve,
                "-w",
                "%{stderr}%{http_version}",
                &url,
            ];
            let Some(got) = tool("curl", &args) else {
                continue;
            };
            let error = String::from_utf8_lossy(&got.stderr);
            assert_eq!(got.stdout.len(), 3 << 20, "{option}: {error}");
            if error.trim() != version {
                skip(format_args!("this curl has no HTTP/{version}"));
            }
        }
        let at = format!("127.0.0.1:{port}");
        for old in ["-tls1_2", "-tls1_3"] {
            let args = [
                "s_client",
                "-connect",
                &at,
                old,
                "-brief",
                "-verify_return_error",
                "-CAfile",
                &cert,
                "-no_ign_eof",
            ];
            let got = tool("openssl", &args).unwrap();
            let error = String::from_utf8_lossy(&got.stderr);
            assert!(error.contains("CONNECTION ESTABLISHED"), "{old}: {error}");
        }
    }
}

#[test]
fn wrong_options_are_refused() {
    let dir = folder();
    let root = dir.path().to_str().unwrap();
    let refused = |args: &[&str], text: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_annulus"))
            .args(["serve", "http"])
            .args(args)
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        assert!(error.contains(text), "{args:?}: {error}");
    };
    refused(&[], "<DIR>");
    refused(&["/nowhere/at/all"], "name an existing directory");
    refused(&[&format!("{root}/large")], "is not a directory");
    refused(&[root, "--threads", "0"], "at least 1");
    refused(&[root, "--respond", "200"], "cannot be used with");
    refused(&["--respond", "100"], "is not a status");
    refused(&["--respond", "2000"], "is not a status");
    refused(&[root, "--index", "a/b"], "without a slash");
    refused(&[root, "--tls-cert", "x"], "--tls-key");
    refused(
        &[root, "--tls-cert", "/nowhere", "--tls-key", "/nowhere"],
        "/nowhere",
    );
    refused(
        &[root, "--access-log", "/nowhere/log"],
        "name a writable file",
    );
    refused(&[root, "--access-log-format", "json"], "--access-log");
    refused(&[root, "--max-fields", "500"], "--max-fields");
    refused(&[root, "--head-timeout", "soon"], "not a time");
    refused(
        &[root, "--head-timeout", "0"],
        "the time limit must be from",
    );
}
