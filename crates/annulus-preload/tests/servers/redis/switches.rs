//! Settings with which an operator, or the server itself, stops using the library: the replies stay the same.

use std::thread;

use super::{Redis, redis};
use crate::library::library;
use crate::resp::Reply;
use crate::server::How;

/// Runs pipelined sets and gets by several clients at a time.
fn use_it(redis: &Redis) {
    let clients: Vec<_> = (0..6)
        .map(|name| {
            let mut client = redis.client();
            thread::spawn(move || {
                for round in 0..20 {
                    for n in 0..20 {
                        client.send(&format!("SET key{name}-{n} {}", "v".repeat(round * n)));
                        client.send(&format!("STRLEN key{name}-{n}"));
                    }
                    for n in 0..20 {
                        assert_eq!(client.read().unwrap(), Reply::ok());
                        assert_eq!(client.read().unwrap(), Reply::Number((round * n) as i64));
                    }
                }
            })
        })
        .collect();
    for client in clients {
        client.join().unwrap();
    }
}

/// Threads of Redis read from and write to clients at the same time as the thread that waits.
#[test]
fn server_threads_that_read_and_write_return_the_same_responses() {
    let Some(redis) = redis("--io-threads 2 --io-threads-do-reads yes") else {
        return;
    };
    use_it(&redis);
    redis.server.finish();
}

#[test]
fn a_process_that_is_switched_off_serves_nothing() {
    let Some(redis) = Redis::start_with(How::With, "", &[("ANNULUS_DISABLE", "1")]) else {
        return;
    };
    use_it(&redis);
    let stats = redis.server.finish();
    if library().is_some() {
        let process = &stats.0[0];
        assert_eq!(process["served"], serde_json::json!({}), "{process}");
        assert_eq!(process["rings"], 0, "{process}");
    }
}

#[test]
fn a_port_that_is_switched_off_is_left_to_the_kernel() {
    let Some(redis) = Redis::start_with(How::With, "", &[("ANNULUS_PASS_PORTS", "1,12000-19999")])
    else {
        return;
    };
    use_it(&redis);
    let stats = redis.server.finish();
    if library().is_some() {
        let process = &stats.0[0];
        let port = process["passed"]["port"].as_u64();
        assert!(
            stats.served("read") == 0 && port.is_some_and(|port| port > 0),
            "{process}"
        );
    }
}
