//! Data in pieces, in large amounts, or none: clients that disconnect, do not read, or request much data.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::thread;
use std::time::Duration;

use super::{moment, redis};
use crate::resp::{Client, Reply, command};
use crate::server::until;

fn connected(client: &mut Client) -> usize {
    client.info("connected_clients").parse().unwrap()
}

/// Returns random bytes that depend on the seed only.
fn bytes_of(seed: u64, length: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut bytes = vec![0; length];
    random.fill(&mut bytes);
    bytes
}

#[test]
fn a_client_that_disconnects_within_a_command_changes_nothing() {
    let Some(server) = redis("") else { return };
    let mut other = server.client();
    let set = command(&[b"SET", b"key", &bytes_of(1, 1 << 20)]);
    for at in [1, 5, 30, 4_096, 70_000, set.len() - 1] {
        let mut leaving = server.client();
        leaving.send_raw(&set[..at]).unwrap();
        if at % 2 == 0 {
            moment();
        }
    }
    until("the server has dropped all clients", || {
        (connected(&mut other) == 1).then_some(())
    });
    assert_eq!(other.call("EXISTS key"), Reply::Number(0));
    server.finish_served();
}

#[test]
fn a_reset_in_the_middle_of_a_pipeline_harms_no_other_client() {
    let Some(server) = redis("") else { return };
    let mut other = server.client();
    other.call_words(&[b"SET", b"big", &bytes_of(2, 100_000)]);
    for _ in 0..20 {
        let mut leaving = server.client();
        let pipeline = command(&[b"GET", b"big"]).repeat(50);
        leaving.send_raw(&pipeline).unwrap();
        // Closing a socket with unread data resets the connection.
        let mut some = [0; 1000];
        leaving.stream().read_exact(&mut some).unwrap();
        drop(leaving);
        assert_eq!(other.call("PING"), Reply::Status("PONG".to_owned()));
    }
    until("the server has dropped all clients", || {
        (connected(&mut other) == 1).then_some(())
    });
    server.finish_served();
}

#[test]
fn a_client_that_has_shut_down_its_side_still_gets_its_responses() {
    let Some(server) = redis("") else { return };
    let mut client = server.client();
    for n in 0..100 {
        client.send(&format!("ECHO {n}"));
    }
    client.stream().shutdown(Shutdown::Write).unwrap();
    // Redis closes a connection when it reads the FIN, which comes after all that was sent before.
    for n in 0..100 {
        assert_eq!(client.read().unwrap(), Reply::bytes(n.to_string()));
    }
    client.assert_ended();
    let mut other = server.client();
    until("the server has dropped the client", || {
        (connected(&mut other) == 1).then_some(())
    });
    server.finish_served();
}

#[test]
fn a_pipeline_of_ten_thousand_commands_returns_in_order() {
    const COMMANDS: usize = 10_000;
    let Some(server) = redis("") else { return };
    let mut client = server.client();
    let mut writer = client.stream().try_clone().unwrap();
    let sender = thread::spawn(move || {
        for n in 0..COMMANDS {
            let number = n.to_string();
            let value = number.repeat(1 + n % 90);
            writer
                .write_all(&command(&[b"SET", number.as_bytes(), value.as_bytes()]))
                .unwrap();
            writer
                .write_all(&command(&[b"GET", number.as_bytes()]))
                .unwrap();
        }
    });
    for n in 0..COMMANDS {
        assert_eq!(client.read().unwrap(), Reply::ok());
        assert_eq!(
            client.read().unwrap(),
            Reply::bytes(n.to_string().repeat(1 + n % 90))
        );
    }
    sender.join().unwrap();
    server.finish_served();
}

/// The server has more to send than the kernel takes, and must continue to read: otherwise the client would wait
/// indefinitely.
#[test]
fn a_client_that_writes_all_before_it_reads_gets_all_its_responses() {
    const GETS: usize = 100;
    const SETS: usize = 30;
    let Some(server) = redis("") else { return };
    let mut client = server.client();
    let (small, large) = (bytes_of(5, 100_000), bytes_of(6, 500_000));
    assert_eq!(client.call_words(&[b"SET", b"big", &small]), Reply::ok());
    client
        .send_raw(&command(&[b"GET", b"big"]).repeat(GETS))
        .unwrap();
    // The server has replied until the kernel took no more.
    let mut other = server.client();
    until("all have a reply", || {
        (other
            .call("INFO commandstats")
            .text()
            .contains("cmdstat_get:calls=100"))
        .then_some(())
    });
    for _ in 0..SETS {
        client
            .send_raw(&command(&[b"SET", b"bulk", &large]))
            .unwrap();
    }
    for _ in 0..GETS {
        assert!(client.read().unwrap() == Reply::bytes(&small));
    }
    for _ in 0..SETS {
        assert_eq!(client.read().unwrap(), Reply::ok());
    }
    assert!(client.call("GET bulk") == Reply::Bytes(large));
    server.finish_served();
}

#[test]
fn values_of_megabytes_return_unchanged() {
    let Some(server) = redis("") else { return };
    let mut clients: Vec<_> = (0..3).map(|_| server.client()).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        let value = bytes_of(n as u64, 5_000_000 + n);
        let key = n.to_string();
        client
            .send_raw(&command(&[b"SET", key.as_bytes(), &value]))
            .unwrap();
        client.send(&format!("GET {n}"));
    }
    for (n, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.read().unwrap(), Reply::ok());
        assert!(client.read().unwrap() == Reply::Bytes(bytes_of(n as u64, 5_000_000 + n)));
    }
    server.finish_served();
}

#[test]
fn others_are_served_while_twenty_megabytes_wait_for_a_slow_reader() {
    let Some(server) = redis("") else { return };
    let mut slow = server.client();
    let value = bytes_of(3, 20_000_000);
    assert_eq!(slow.call_words(&[b"SET", b"big", &value]), Reply::ok());
    slow.send("GET big");
    let mut other = server.client();
    for n in 0..1000 {
        assert_eq!(
            other.call(&format!("ECHO {n}")),
            Reply::bytes(n.to_string())
        );
    }
    assert!(slow.read().unwrap() == Reply::Bytes(value));
    assert_eq!(slow.call("PING"), Reply::Status("PONG".to_owned()));
    server.finish_served();
}

#[test]
fn a_client_over_its_output_limit_is_ended_and_others_are_not() {
    let Some(server) = redis("") else { return };
    let mut other = server.client();
    let limit = [
        "CONFIG",
        "SET",
        "client-output-buffer-limit",
        "normal 1000000 0 0",
    ];
    assert_eq!(other.call_words(&limit.map(str::as_bytes)), Reply::ok());
    let value = bytes_of(4, 500_000);
    assert_eq!(other.call_words(&[b"SET", b"big", &value]), Reply::ok());
    assert!(other.call("GET big") == Reply::Bytes(value));
    let mut greedy = server.client();
    // More than the kernel buffers for a client that does not read.
    greedy
        .send_raw(&command(&[b"GET", b"big"]).repeat(200))
        .unwrap();
    until("the client is disconnected", || {
        (connected(&mut other) == 1).then_some(())
    });
    greedy.assert_ended();

    let mut subscriber = server.client();
    let limit = [
        "CONFIG",
        "SET",
        "client-output-buffer-limit",
        "pubsub 1000000 0 0",
    ];
    assert_eq!(other.call_words(&limit.map(str::as_bytes)), Reply::ok());
    subscriber.call("SUBSCRIBE news");
    until("the subscriber is disconnected", || {
        let message = vec![b'x'; 500_000];
        (other.call_words(&[b"PUBLISH", b"news", &message]).number() == 0).then_some(())
    });
    subscriber.assert_ended();
    server.finish_served();
}

#[test]
fn a_command_may_arrive_one_byte_at_a_time() {
    let Some(server) = redis("") else { return };
    let mut client = server.client();
    for byte in command(&[b"SET", b"key", b"value"]) {
        client.send_raw(&[byte]).unwrap();
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(client.read().unwrap(), Reply::ok());
    assert_eq!(client.call("GET key"), Reply::bytes("value"));
    server.finish_served();
}
