//! Data on disk: snapshots of a forked child, and the log of a server that is killed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::Signal;

use super::{Redis, redis};
use crate::resp::{Client, Reply, command};
use crate::server::until;

/// The number of commands that a client of the log sends in one pipeline.
const PIPELINE: usize = 8;

/// Writes numbers from 0 on until the server has ended. Returns the number of acknowledged writes.
fn write_until_ended(mut client: Client, name: usize) -> JoinHandle<u64> {
    thread::spawn(move || {
        let mut acknowledged = 0;
        loop {
            let mut batch = Vec::new();
            for n in acknowledged..acknowledged + PIPELINE as u64 {
                let n = n.to_string();
                batch.extend(command(&[
                    b"SET",
                    format!("client{name}").as_bytes(),
                    n.as_bytes(),
                ]));
            }
            if client.send_raw(&batch).is_err() {
                return acknowledged;
            }
            for _ in 0..PIPELINE {
                match client.read() {
                    Ok(reply) => assert_eq!(reply, Reply::ok()),
                    Err(_) => return acknowledged,
                }
                acknowledged += 1;
            }
        }
    })
}

#[test]
fn a_kill_at_any_moment_loses_no_acknowledged_write() {
    const CLIENTS: usize = 4;
    const KILLS: usize = 4;
    let options = "--appendonly yes --appendfsync always";
    let Some(mut redis) = redis(options) else {
        return;
    };
    let mut random = fastrand::Rng::new();
    println!("seed {}", random.get_seed());
    for kill in 0..KILLS {
        let writers: Vec<_> = (0..CLIENTS)
            .map(|n| write_until_ended(redis.client(), n))
            .collect();
        thread::sleep(Duration::from_micros(random.u64(20_000..150_000)));
        redis.server.signal(Signal::KILL);
        redis.server.wait();
        let acknowledged: Vec<u64> = writers
            .into_iter()
            .map(|writer| writer.join().unwrap())
            .collect();
        println!("kill {kill}: {acknowledged:?} acknowledged");
        redis.again(options);
        let mut client = redis.client();
        for (n, acknowledged) in acknowledged.into_iter().enumerate() {
            // The values count up: a value that exists proves that all before it were stored.
            let Reply::Bytes(last) = client.call(&format!("GET client{n}")) else {
                assert_eq!(acknowledged, 0, "client {n} has lost all writes");
                continue;
            };
            let written = String::from_utf8(last).unwrap().parse::<u64>().unwrap() + 1;
            assert!(
                written >= acknowledged,
                "client {n}: {acknowledged} acknowledged, {written} stored"
            );
            assert!(
                written <= acknowledged + PIPELINE as u64,
                "client {n}: {written} stored"
            );
        }
        assert_eq!(client.call("FLUSHALL"), Reply::ok());
    }
    redis.finish_served();
}

#[test]
fn a_snapshot_under_load_contains_all_earlier_writes() {
    let Some(mut redis) = redis("--dbfilename snapshot.rdb") else {
        return;
    };
    let mut client = redis.client();
    let filled = client.call("DEBUG POPULATE 20000 key 200");
    assert_eq!(filled, Reply::ok());
    static STOP: AtomicBool = AtomicBool::new(false);
    let writers: Vec<_> = (0..4)
        .map(|n| {
            let mut client = redis.client();
            thread::spawn(move || {
                let mut count = 0;
                while !STOP.load(Ordering::Relaxed) {
                    count += 1;
                    assert_eq!(
                        client.call(&format!("INCR counter{n}")),
                        Reply::Number(count)
                    );
                }
            })
        })
        .collect();
    let mut before = Vec::new();
    for _ in 0..3 {
        before = (0..4)
            .map(|n| client.call(&format!("GET counter{n}")))
            .collect();
        assert!(matches!(client.call("BGSAVE"), Reply::Status(_)));
        until("the snapshot is written", || {
            (client.info("rdb_bgsave_in_progress") == "0").then_some(())
        });
        assert_eq!(client.info("rdb_last_bgsave_status"), "ok");
    }
    STOP.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.join().unwrap();
    }
    redis.server.signal(Signal::KILL);
    redis.server.wait();
    redis.again("--dbfilename snapshot.rdb");
    let mut client = redis.client();
    assert!(client.call("DBSIZE").number() >= 20_000);
    for (n, before) in before.into_iter().enumerate() {
        let count = |reply| match reply {
            Reply::Bytes(text) => String::from_utf8(text).unwrap().parse::<i64>().unwrap(),
            _ => 0,
        };
        let after = count(client.call(&format!("GET counter{n}")));
        assert!(after >= count(before), "counter {n}: {after}");
    }
    redis.finish_served();
}

#[test]
fn the_log_is_rewritten_under_load_and_loses_nothing() {
    const WRITES: u64 = 3000;
    let options = "--appendonly yes --auto-aof-rewrite-percentage 0";
    let Some(mut redis) = redis(options) else {
        return;
    };
    let mut client = redis.client();
    let writer = {
        let mut client = redis.client();
        thread::spawn(move || (0..WRITES).for_each(|_| _ = client.call("INCR counter")))
    };
    for _ in 0..3 {
        client.call("BGREWRITEAOF");
        until("the log is rewritten", || {
            let fields = ["aof_rewrite_in_progress", "aof_rewrite_scheduled"];
            fields
                .iter()
                .all(|field| client.info(field) == "0")
                .then_some(())
        });
        assert_eq!(client.info("aof_last_bgrewrite_status"), "ok");
    }
    writer.join().unwrap();
    redis.server.signal(Signal::TERM);
    assert!(redis.server.wait().success());
    redis.again(options);
    assert_eq!(
        redis.client().call("GET counter"),
        Reply::bytes(WRITES.to_string())
    );
    redis.finish_served();
}

/// The server executes its own program again, with the same process ID.
#[test]
fn a_server_that_executes_itself_again_is_served_again() {
    let Some(redis) = redis("--appendonly yes") else {
        return;
    };
    let mut client = redis.client();
    assert_eq!(client.call("SET key value"), Reply::ok());
    client.send("DEBUG RESTART 0");
    client.assert_ended();
    until("the server responds again", || {
        let mut client = try_connect(&redis)?;
        client.send_raw(&command(&[b"GET", b"key"])).ok()?;
        (client.read().ok()? == Reply::bytes("value")).then_some(())
    });
    redis.finish_served();
}

fn try_connect(redis: &Redis) -> Option<Client> {
    let stream = std::net::TcpStream::connect(("127.0.0.1", redis.port())).ok()?;
    Some(Client::over(stream))
}
