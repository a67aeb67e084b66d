//! Ten thousand idle clients.

use std::fs;
use std::net::TcpStream;
use std::time::Instant;

use annulus_testing::skip::skip;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, setrlimit};

use super::Redis;
use crate::resp::{Client, Reply};
use crate::server::{How, until};

const IDLE: usize = 10_000;

/// The memory that the library may use for each client, and for itself: rings, buffers, tables.
const BYTES_EACH: usize = 2048;
const BYTES_ITSELF: usize = 8 << 20;

/// Returns the resident memory of a process, bytes.
fn resident(pid: Pid) -> usize {
    let path = format!("/proc/{}/smaps_rollup", pid.as_raw_nonzero());
    let text = fs::read_to_string(path).unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Pss:"))
        .unwrap();
    line.trim()
        .strip_suffix(" kB")
        .unwrap()
        .trim()
        .parse::<usize>()
        .unwrap()
        * 1024
}

/// Returns the server's memory with [`IDLE`] clients, half of which have sent one request.
fn with_clients(how: How) -> Option<usize> {
    let server = Redis::start(how, "--maxclients 10500 --tcp-backlog 2048")?;
    let mut active = server.client();
    let start = Instant::now();
    let idle: Vec<TcpStream> = (0..IDLE)
        .map(|n| {
            let mut client = server.client();
            if n % 2 == 0 {
                assert_eq!(client.call("PING"), Reply::Status("PONG".to_owned()));
            }
            client.stream().try_clone().unwrap()
        })
        .collect();
    let all = (IDLE + 1).to_string();
    until("all are connected", || {
        (active.info("connected_clients") == all).then_some(())
    });
    println!("{how:?}: {IDLE} clients after {:?}", start.elapsed());
    for n in 0..1000 {
        assert_eq!(
            active.call(&format!("ECHO {n}")),
            Reply::bytes(n.to_string())
        );
    }
    let memory = resident(server.server.pid());
    for stream in idle.iter().step_by(1000) {
        let mut client = Client::over(stream.try_clone().unwrap());
        assert_eq!(client.call("PING"), Reply::Status("PONG".to_owned()));
    }
    drop(idle);
    until("all clients are disconnected", || {
        (active.info("connected_clients") == "1").then_some(())
    });
    let stats = server.server.finish();
    if how == How::With {
        stats.assert_served();
    }
    Some(memory)
}

#[test]
fn ten_thousand_idle_clients_cost_little_memory_and_the_server_responds() {
    let limit = getrlimit(Resource::Nofile);
    let needed = IDLE as u64 + 500;
    if limit.maximum.is_some_and(|most| most < needed) {
        return skip(format_args!(
            "{needed} descriptors are more than ulimit -Hn allows: {limit:?}"
        ));
    }
    let raised = Rlimit {
        current: limit.current.map(|now| now.max(needed)),
        ..limit
    };
    setrlimit(Resource::Nofile, raised).unwrap();
    let (Some(with), Some(without)) = (with_clients(How::With), with_clients(How::Without)) else {
        return;
    };
    println!("{with} bytes with the library, {without} without");
    let extra = with.saturating_sub(without);
    assert!(
        extra <= BYTES_ITSELF + IDLE * BYTES_EACH,
        "{extra} bytes more with the library"
    );
}
