//! A certificate for servers of the tests.

use std::path::Path;
use std::process::Command;

use annulus_testing::skip::skip;

/// Creates a key and a self-signed certificate, `key.pem` and `cert.pem` in `folder`. `None`: openssl is missing.
pub(crate) fn certificate(folder: &Path) -> Option<()> {
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
        ])
        .args([
            "-keyout",
            "key.pem",
            "-out",
            "cert.pem",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
        ])
        .current_dir(folder)
        .output();
    let Ok(output) = made else {
        skip("no openssl; install the package openssl");
        return None;
    };
    assert!(output.status.success(), "{output:?}");
    Some(())
}
