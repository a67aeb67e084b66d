//! nginx with OpenSSL and with HTTP/2; curl is the client.

use std::fs;
use std::process::Command;

use super::{Config, Nginx, nginx};
use crate::certificate::certificate;
use annulus_testing::skip::skip;
use tempfile::TempDir;

use crate::server::How;

fn secure() -> Option<Nginx> {
    let folder = TempDir::new().unwrap();
    certificate(folder.path())?;
    let config = Config {
        http: "ssl_certificate cert.pem;\nssl_certificate_key key.pem;",
        server: "location /hello { return 200 hello; }",
        listen: "ssl http2",
        ..Config::default()
    };
    let nginx = Nginx::start_in(How::With, config, folder)?;
    if Command::new("curl").arg("--version").output().is_err() {
        skip("no curl; install the package curl");
        return None;
    }
    Some(nginx)
}

/// Runs curl with these arguments, and returns its output.
#[track_caller]
fn curl(nginx: &Nginx, arguments: &[&str]) -> Vec<u8> {
    let output = Command::new("curl")
        .args([
            "--silent",
            "--show-error",
            "--fail",
            "--insecure",
            "--max-time",
            "30",
        ])
        .args(arguments)
        .current_dir(nginx.folder.path())
        .output()
        .unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "curl {arguments:?}: {complaint}");
    output.stdout
}

#[test]
fn https_serves_small_and_large_files_on_one_connection() {
    let Some(nginx) = secure() else { return };
    let (small, large) = (nginx.file("small", 1024), nginx.file("large", 3_000_000));
    let base = format!("https://127.0.0.1:{}", nginx.port());
    let [hello, a, b] = ["hello", "small", "large"].map(|path| format!("{base}/{path}"));
    let output = curl(&nginx, &["--http1.1", &hello, &a, &b, &a]);
    assert!(output == [b"hello", &small[..], &large[..], &small[..]].concat());
    let version = [
        "--http1.1",
        "--write-out",
        "%{http_version}",
        "--output",
        "got",
        &b,
    ];
    assert_eq!(curl(&nginx, &version), b"1.1");
    assert!(fs::read(nginx.folder.path().join("got")).unwrap() == large);
    nginx.finish_served();
}

#[test]
fn http_2_serves_many_streams_at_a_time() {
    let Some(nginx) = secure() else { return };
    let (small, large) = (nginx.file("small", 1024), nginx.file("large", 3_000_000));
    let base = format!("https://127.0.0.1:{}", nginx.port());
    // curl makes 20 requests of either pattern, on one connection.
    let urls = [
        format!("{base}/small?[1-20]"),
        format!("{base}/large?[1-4]"),
    ];
    let output = curl(
        &nginx,
        &[
            "--http2",
            "--parallel",
            "--write-out",
            "%{http_version} ",
            &urls[0],
            "--output",
            "small-#1",
            &urls[1],
            "--output",
            "large-#1",
        ],
    );
    assert_eq!(String::from_utf8(output).unwrap(), "2 ".repeat(24));
    let read = |name: String| fs::read(nginx.folder.path().join(name)).unwrap();
    assert!((1..=20).all(|n| read(format!("small-{n}")) == small));
    assert!((1..=4).all(|n| read(format!("large-{n}")) == large));
    nginx.finish_served();
}

/// HTTP/2 without TLS, as behind a load balancer.
#[test]
fn http_2_in_the_clear_is_served() {
    let Some(nginx) = nginx(Config {
        listen: "http2",
        ..Config::default()
    }) else {
        return;
    };
    let large = nginx.file("large", 3_000_000);
    let url = format!("http://127.0.0.1:{}/large", nginx.port());
    assert!(curl(&nginx, &["--http2-prior-knowledge", &url]) == large);
    nginx.finish_served();
}
