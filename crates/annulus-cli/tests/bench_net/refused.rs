//! Refused input.

use super::net;

/// Arguments, and the message of the refusal.
const REFUSED: &[(&[&str], &str)] = &[
    (&["echo", "nowhere"], "`nowhere` is no address"),
    (&["echo", "127.0.0.1:0"], "names no port"),
    (
        &["echo", "unix:"],
        "a socket's path has from 1 to 107 bytes",
    ),
    (
        &["echo", "127.0.0.1:9", "--connections", "0"],
        "'--connections <LIST>': from 1 to 60000",
    ),
    (
        &["echo", "127.0.0.1:9", "--connections", "60001"],
        "from 1 to 60000",
    ),
    (
        &["echo", "127.0.0.1:9", "--pipeline", "0"],
        "'--pipeline <N>': from 1 to 1024",
    ),
    (
        &["echo", "127.0.0.1:9", "--size", "0"],
        "--size 0: from 1 to",
    ),
    (
        &["echo", "127.0.0.1:9", "--rate", "0"],
        "--rate 0: from 1 to",
    ),
    (
        &["echo", "127.0.0.1:9", "--rate", "NaN"],
        "--rate NaN: from 1 to",
    ),
    (
        &["echo", "127.0.0.1:9", "--runtime", "0"],
        "the time must be from 1 ms to a day",
    ),
    (
        &["echo", "127.0.0.1:9", "--repeats", "0"],
        "'--repeats <N>': from 1 to 1000",
    ),
    (
        &["echo", "127.0.0.1:9", "--cpu", "9999"],
        "--cpu 9999: this process may use",
    ),
    (
        &["echo", "127.0.0.1:9", "--pid", "4294967295"],
        "there is no such process",
    ),
    (
        &["echo", "127.0.0.1:9", "--variants", "epoll"],
        "cannot be used with",
    ),
    (&["echo", "--pid", "1"], "<ADDR>"),
    (
        &[
            "echo",
            "127.0.0.1:9",
            "--threads",
            "2",
            "--connections",
            "1",
        ],
        "each thread needs a connection",
    ),
    (
        &["echo", "127.0.0.1:9", "--reconnect", "--pipeline", "2"],
        "has no --pipeline",
    ),
    (&["echo", "--variants", "epol"], "did you mean `epoll`?"),
    (
        &["echo", "--variants", "epoll,epoll"],
        "two variants are called `epoll`",
    ),
    (&["echo", "--variants", "none"], "names at least one"),
    (&["echo", "--server-cmd", "x"], "no NAME="),
    (&["echo", "--server-cmd", "x=y"], "no {addr}"),
    (&["redis"], "needs the server's ADDR"),
    (&["http", "--path", "/x"], "needs the server's ADDR"),
    (&["http", "--post", "1k"], "accept no POST"),
    (&["http", "127.0.0.1:9", "--post", "1g"], "at most"),
    (
        &["http", "127.0.0.1:9", "--disconnect", "--pipeline", "2"],
        "cannot be used with",
    ),
    (&["http", "--what", "1q"], "write `respond`, or the length"),
    (&["http", "--what", "0"], "write `respond`, or the length"),
    (&["http", "--what", "1g"], "files of at most"),
    (
        &["http", "127.0.0.1:9", "--what", "1k"],
        "cannot be used with",
    ),
    (
        &["http", "--path", "/x", "--what", "1k"],
        "cannot be used with",
    ),
    (&["http", "--variants", "ngin"], "did you mean `nginx`?"),
    (
        &["http", "127.0.0.1:9", "--path", "x"],
        "a path begins with `/`",
    ),
    (
        &["http", "127.0.0.1:9", "--path", "/a b"],
        "only visible ASCII letters",
    ),
    (
        &["redis", "127.0.0.1:9", "--keys", "0"],
        "0 is not in 1..=999999999999",
    ),
    (
        &["memcached", "127.0.0.1:9", "--command", "delete"],
        "possible values: get, set",
    ),
    (
        &["redis", "127.0.0.1:9", "--fill", "--filled"],
        "cannot be used with",
    ),
    (
        &["http", "127.0.0.1:9", "--body", "/not/there"],
        "give a file with the body's bytes",
    ),
];

#[test]
fn bad_input_is_refused_with_a_hint() {
    for (args, text) in REFUSED {
        let output = net(args);
        assert_eq!(output.code, Some(2), "{args:?}: {}", output.both());
        assert!(output.err.contains(text), "{args:?}: {}", output.err);
        assert!(output.out.is_empty(), "{args:?}: {}", output.out);
    }
}

#[test]
fn a_missing_server_is_a_failed_run() {
    let port = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().to_string()
    };
    let output = net(&["echo", &port, "--connections", "1"]);
    if output.is_skipped() {
        return;
    }
    assert_eq!(output.code, Some(1), "{}", output.both());
    assert!(
        output.out.contains("is the server running"),
        "{}",
        output.both()
    );
}
