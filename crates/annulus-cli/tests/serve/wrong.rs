//! Tests of refusals and their exit codes.

use std::net::{TcpListener, UdpSocket};

use crate::server::{Server, command};

fn refused(args: &[&str], code: i32, text: &str) {
    let output = command(args).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {error}");
    assert!(error.contains(text), "{args:?}: {error}");
    assert!(!error.contains("panicked"), "{error}");
}

#[test]
fn an_address_in_use_is_refused() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    refused(&["--addr", &address], 1, "choose another port");
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    refused(&["--udp", "--addr", &address], 1, "choose another port");
}

#[test]
fn an_address_of_another_annulus_server_is_refused() {
    for kind in [&[][..], &["--udp"]] {
        let mut args = vec!["--threads", "2", "--addr", "127.0.0.1:0"];
        args.extend_from_slice(kind);
        let first = Server::start(&args);
        let address = first.address().to_string();
        args[3] = &address;
        for threads in ["1", "2"] {
            args[1] = threads;
            refused(&args, 1, "choose another port");
        }
    }
}

#[test]
fn an_address_of_another_machine_is_refused() {
    // TEST-NET-1: no machine has it.
    refused(&["--addr", "192.0.2.1:0"], 1, "does not have that address");
}

#[test]
fn wrong_options_are_refused_with_exit_code_2() {
    refused(&["--threads", "0"], 2, "at least 1");
    refused(&["--addr", "localhost"], 2, "--addr");
    refused(&["--udp", "--unix", "x"], 2, "cannot be used with");
    refused(
        &["--unix", "x", "--addr", "127.0.0.1:0"],
        2,
        "cannot be used with",
    );
    refused(
        &["--unix", "/nowhere/at/all"],
        2,
        "its directory must exist",
    );
    refused(&["--unix", &"long".repeat(40)], 2, "choose a shorter one");
    refused(&["--backend", "kqueue"], 2, "kqueue");
}

#[test]
fn a_path_that_is_not_a_socket_stays_unchanged() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("file");
    std::fs::write(&path, b"mine").unwrap();
    refused(&["--unix", path.to_str().unwrap()], 2, "is not a socket");
    assert_eq!(std::fs::read(&path).unwrap(), b"mine");
}
