//! The library counts every call of a program, and another process can read the counters while it runs.

mod server;
mod switch;

use std::io::ErrorKind;
use std::net::TcpStream;
use std::path::Path;

use annulus::metrics::{Snapshot, Source, SourceKind};
use annulus_observe::snapshot_of;
use annulus_testing::preload_library;

use server::{Server, Started, exchange};

const ROUNDS: usize = 400;

/// Returns the path of the preload library, which the first test of a run builds.
fn library() -> &'static Path {
    preload_library::library(Path::new(env!("CARGO_TARGET_TMPDIR")))
}

/// Returns the number of times that a call was served.
fn served(source: &Source, call: &str) -> u64 {
    source.operation(call).map_or(0, |call| call.completed)
}

fn rings(snapshot: &Snapshot) -> Vec<&Source> {
    let sources = snapshot.sources.iter();
    sources
        .filter(|source| source.kind == SourceKind::Preload)
        .collect()
}

/// Opens `count` connections to each port, all of which exchange messages at the same time.
fn busy(server: &Server, count: usize) -> Vec<TcpStream> {
    let ports = server.ports.iter().flat_map(|port| vec![*port; count]);
    let clients: Vec<_> = ports
        .map(|port| {
            std::thread::spawn(move || {
                let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
                exchange(&mut stream, b"message", ROUNDS);
                stream
            })
        })
        .collect();
    let joined = clients.into_iter().map(|client| client.join().unwrap());
    joined.collect()
}

#[test]
fn every_call_of_each_thread_and_every_open_connection_is_counted() {
    let Started(Some(mut server)) = Server::start(2, &[]) else {
        return;
    };
    let streams = busy(&server, 4);
    let [reads, writes, waits] = server.counts();
    assert!(reads >= 8 * ROUNDS as u64 && writes == 8 * ROUNDS as u64);
    let now = server.look_until(|now| now.total().preload.connections == 8);
    let total = now.total();
    // A thread creates its ring in its first rounds; from then on the ring serves every call.
    let passed = |own: u64, served: u64| own - served;
    assert!(
        passed(reads, served(&total, "read")) <= 2,
        "{reads} {total:#?}"
    );
    assert!(passed(writes, served(&total, "write")) <= 2, "{total:#?}");
    // Each thread is in a wait that it has not counted yet.
    let waited = served(&total, "epoll_wait");
    assert!(
        (waits.saturating_sub(8)..=waits + 2).contains(&waited),
        "{waits} {waited}"
    );
    assert_eq!(total.preload.rings, 2);
    assert!(total.preload.buffers > 0);
    assert_eq!(total.preload.buffers_free, total.preload.buffers);
    assert!(total.counters.in_flight >= 8, "{total:#?}");
    assert!(total.counters.enters > 0 && total.counters.entries >= writes);
    let rings = rings(&now);
    assert_eq!(rings.len(), 2, "{now:#?}");
    for ring in rings {
        assert!(ring.backend.starts_with("io_uring ("), "{}", ring.backend);
        assert!(served(ring, "write") >= 4 * ROUNDS as u64 - 1);
    }
    drop(streams);
    let idle = server.look_until(|now| now.total().preload.connections == 0);
    assert_eq!(idle.total().errors, []);
    let line = server.end();
    let total = idle.total();
    for call in ["read", "write"] {
        assert_eq!(line["served"][call].as_u64(), Some(served(&total, call)));
    }
    assert_eq!(line["rings"], 2);
}

#[test]
fn reasons_for_passing_through_and_handing_back_are_visible_live() {
    let Started(Some(mut server)) = Server::start(1, &[]) else {
        return;
    };
    let mut stream = TcpStream::connect(("127.0.0.1", server.ports[0])).unwrap();
    exchange(&mut stream, b"first", 3);
    let before = server.look_until(|now| now.total().preload.connections == 1);
    exchange(&mut stream, b"d", 1);
    let now = server.look_until(|now| now.total().preload.connections == 0);
    let back = now.since(&before).total().preload.handed_back;
    assert_eq!((back[0].reason, back[0].count), ("duplicated", 1));
    // The connection passes through from now on.
    let [reads, ..] = server.counts();
    exchange(&mut stream, b"last", 3);
    assert!(server.counts()[0] >= reads + 3);
    let later = server.look();
    assert_eq!(served(&later.since(&now).total(), "read"), 0);
}

#[test]
fn an_excluded_port_is_reported_as_the_reason() {
    // The kernel chooses one of these.
    let Started(Some(mut server)) = Server::start(1, &[("ANNULUS_PASS_PORTS", "1024-65535")])
    else {
        return;
    };
    let streams = busy(&server, 1);
    drop(streams);
    let error = snapshot_of(server.id()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let line = server.end();
    assert!(line["passed"]["port"].as_u64() >= Some(1), "{line}");
    assert_eq!(line["served"]["read"].as_u64(), None);
}

#[test]
fn a_child_of_a_fork_counts_for_itself() {
    let Started(Some(mut server)) = Server::start(1, &[]) else {
        return;
    };
    let _parents = busy(&server, 1);
    let before = server.look_until(|now| served(&now.total(), "write") + 1 >= ROUNDS as u64);
    let (child, port) = server.fork();
    let error = snapshot_of(child).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    exchange(&mut stream, b"child", ROUNDS);
    let of_child = snapshot_of(child).unwrap().total();
    assert_eq!(of_child.preload.rings, 1, "{of_child:#?}");
    let written = served(&of_child, "write");
    assert!(
        (ROUNDS as u64 - 1..=ROUNDS as u64).contains(&written),
        "{of_child:#?}"
    );
    let between = server.look().since(&before).total();
    assert_eq!(served(&between, "write"), 0);
}

#[test]
fn a_program_that_closes_foreign_descriptors_is_still_counted_and_visible() {
    let Started(Some(mut server)) = Server::start(1, &[]) else {
        return;
    };
    let streams = busy(&server, 1);
    server.close_all();
    let before = server.look();
    let more = busy(&server, 1);
    let between = server.look().since(&before).total();
    assert_eq!(served(&between, "write"), ROUNDS as u64);
    drop((streams, more));
}

#[test]
fn a_program_that_never_has_a_ring_shares_nothing() {
    let Started(Some(mut server)) = Server::start(1, &[]) else {
        return;
    };
    let error = snapshot_of(server.id()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert_eq!(server.end()["rings"], 0);
}
