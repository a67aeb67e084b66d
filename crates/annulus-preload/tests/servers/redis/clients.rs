//! One server and its clients: subscriptions, blocking commands, transactions, scripts.

use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use super::{moment, redis};
use crate::resp::{Client, Reply};
use crate::server::{free_port, until};

fn push_of(words: &[&str]) -> Reply {
    Reply::List(words.iter().map(Reply::bytes).collect())
}

#[test]
fn subscribers_receive_all_messages_in_order() {
    const SUBSCRIBERS: usize = 20;
    const MESSAGES: usize = 200;
    let Some(server) = redis("") else { return };
    let mut subscribers: Vec<Client> = (0..SUBSCRIBERS).map(|_| server.client()).collect();
    for (n, subscriber) in subscribers.iter_mut().enumerate() {
        let line = if n % 2 == 0 {
            "SUBSCRIBE news"
        } else {
            "PSUBSCRIBE n*s"
        };
        subscriber.call(line);
    }
    let mut publisher = server.client();
    for message in 0..MESSAGES {
        publisher.send(&format!("PUBLISH news {message}"));
    }
    for _ in 0..MESSAGES {
        assert_eq!(publisher.read().unwrap().number(), SUBSCRIBERS as i64);
    }
    for (n, subscriber) in subscribers.iter_mut().enumerate() {
        for message in 0..MESSAGES {
            let message = message.to_string();
            let expected = match n % 2 {
                0 => push_of(&["message", "news", &message]),
                _ => push_of(&["pmessage", "n*s", "news", &message]),
            };
            assert_eq!(subscriber.read().unwrap(), expected);
        }
    }
    drop(subscribers);
    until("no client is subscribed", || {
        (publisher.call("PUBLISH news x").number() == 0).then_some(())
    });
    server.finish_served();
}

#[test]
fn a_command_that_blocks_ends_by_a_push_or_by_its_timeout() {
    let Some(server) = redis("") else { return };
    let mut other = server.client();
    let mut waiting = server.client();

    let start = Instant::now();
    assert_eq!(waiting.call("BLPOP queue 0.2"), Reply::Nothing);
    assert!(
        start.elapsed() >= Duration::from_millis(200),
        "{:?}",
        start.elapsed()
    );

    waiting.send("BLPOP queue 0");
    until("the client blocks", || {
        (other.info("blocked_clients") == "1").then_some(())
    });
    assert_eq!(other.call("RPUSH queue a b"), Reply::Number(2));
    assert_eq!(waiting.read().unwrap(), push_of(&["queue", "a"]));

    waiting.send("BLMOVE queue done LEFT RIGHT 0");
    assert_eq!(waiting.read().unwrap(), Reply::bytes("b"));
    waiting.send("XREAD BLOCK 0 STREAMS log $");
    until("the client blocks", || {
        (other.info("blocked_clients") == "1").then_some(())
    });
    assert_eq!(other.call("XADD log 1-1 f v"), Reply::bytes("1-1"));
    assert!(matches!(waiting.read().unwrap(), Reply::List(_)));
    server.finish_served();
}

#[test]
fn a_client_that_disconnects_while_it_blocks_takes_no_element() {
    let Some(server) = redis("") else { return };
    let mut other = server.client();
    let mut leaving = server.client();
    leaving.send("BLPOP queue 0");
    until("the client blocks", || {
        (other.info("blocked_clients") == "1").then_some(())
    });
    drop(leaving);
    until("the server has dropped the client", || {
        (other.info("blocked_clients") == "0").then_some(())
    });
    assert_eq!(other.call("RPUSH queue kept"), Reply::Number(1));
    assert_eq!(other.call("LPOP queue"), Reply::bytes("kept"));

    let mut unblocked = server.client();
    let id = unblocked.call("CLIENT ID").number();
    unblocked.send("BLPOP queue 0");
    until("the client blocks", || {
        (other.info("blocked_clients") == "1").then_some(())
    });
    assert_eq!(
        other.call(&format!("CLIENT UNBLOCK {id}")),
        Reply::Number(1)
    );
    assert_eq!(unblocked.read().unwrap(), Reply::Nothing);
    server.finish_served();
}

#[test]
fn transactions_are_whole_and_a_watched_key_ends_them() {
    let Some(server) = redis("") else { return };
    let (mut one, mut two) = (server.client(), server.client());
    for line in ["MULTI", "INCR n", "INCR n", "EXEC"] {
        one.send(line);
    }
    assert_eq!(one.read().unwrap(), Reply::ok());
    for _ in 0..2 {
        assert_eq!(one.read().unwrap(), Reply::Status("QUEUED".to_owned()));
    }
    let both = Reply::List(vec![Reply::Number(1), Reply::Number(2)]);
    assert_eq!(one.read().unwrap(), both);

    assert_eq!(one.call("WATCH n"), Reply::ok());
    assert_eq!(two.call("INCR n"), Reply::Number(3));
    one.call("MULTI");
    one.call("INCR n");
    assert_eq!(one.call("EXEC"), Reply::Nothing);
    assert_eq!(two.call("GET n"), Reply::bytes("3"));
    server.finish_served();
}

/// During a long script, Redis waits on its epoll set from within the command.
#[test]
fn a_long_script_is_killed_by_another_client() {
    let Some(server) = redis("--busy-reply-threshold 50") else {
        return;
    };
    let mut scripter = server.client();
    let sum = "local s = 0 for i = 1, 1000 do s = s + i end return s";
    assert_eq!(
        scripter.call_words(&[b"EVAL", sum.as_bytes(), b"0"]),
        Reply::Number(500_500)
    );
    let hash = scripter
        .call_words(&[b"SCRIPT", b"LOAD", sum.as_bytes()])
        .text();
    assert_eq!(
        scripter.call(&format!("EVALSHA {hash} 0")),
        Reply::Number(500_500)
    );

    scripter
        .send_raw(&crate::resp::command(&[
            b"EVAL",
            b"while true do end",
            b"0",
        ]))
        .unwrap();
    let mut other = server.client();
    until("other clients get BUSY", || {
        matches!(other.call("PING"), Reply::Error(error) if error.starts_with("BUSY")).then_some(())
    });
    assert_eq!(other.call("SCRIPT KILL"), Reply::ok());
    assert!(matches!(scripter.read().unwrap(), Reply::Error(error) if error.contains("killed")));
    assert_eq!(other.call("PING"), Reply::Status("PONG".to_owned()));
    assert_eq!(scripter.call("PING"), Reply::Status("PONG".to_owned()));
    server.finish_served();
}

#[test]
fn a_client_that_is_killed_by_its_id_receives_the_end() {
    let Some(server) = redis("") else { return };
    let (mut victim, mut other) = (server.client(), server.client());
    let id = victim.call("CLIENT ID").number();
    assert_eq!(
        other.call(&format!("CLIENT KILL ID {id}")),
        Reply::Number(1)
    );
    victim.assert_ended();

    let mut itself = server.client();
    let id = itself.call("CLIENT ID").number();
    // The reply comes first, then the end.
    assert_eq!(
        itself.call(&format!("CLIENT KILL ID {id} SKIPME no")),
        Reply::Number(1)
    );
    itself.assert_ended();
    assert_eq!(other.call("QUIT"), Reply::ok());
    other.assert_ended();
    server.finish_served();
}

#[test]
fn monitoring_shows_what_other_clients_do() {
    let Some(server) = redis("") else { return };
    let mut monitor = server.client();
    assert_eq!(monitor.call("MONITOR"), Reply::ok());
    let clients: Vec<_> = (0..4)
        .map(|n| {
            let mut client = server.client();
            thread::spawn(move || {
                for i in 0..50 {
                    client.call(&format!("SET k{n} {i}"));
                }
            })
        })
        .collect();
    let mut next = [0; 4];
    for _ in 0..200 {
        let line = monitor.read().unwrap().text();
        let words: Vec<_> = line.split('"').collect();
        let client: usize = words[3].strip_prefix('k').unwrap().parse().unwrap();
        assert_eq!(words[5], next[client].to_string(), "{line}");
        next[client] += 1;
    }
    for client in clients {
        client.join().unwrap();
    }
    moment();
    server.finish_served();
}

/// Redis closes its listener and opens another on the same port, or on a new one, from within a command.
#[test]
fn a_closed_listeners_port_can_be_bound_again_immediately() {
    let Some(server) = redis("") else { return };
    let mut client = server.client();
    for addresses in ["127.0.0.1 127.0.0.2", "127.0.0.1"] {
        let bind = ["CONFIG", "SET", "bind", addresses];
        assert_eq!(client.call_words(&bind.map(str::as_bytes)), Reply::ok());
        assert_eq!(
            server.client().call("PING"),
            Reply::Status("PONG".to_owned())
        );
    }
    let other = free_port();
    assert_eq!(
        client.call(&format!("CONFIG SET port {other}")),
        Reply::ok()
    );
    assert_eq!(
        Client::connect(other).call("PING"),
        Reply::Status("PONG".to_owned())
    );
    assert!(TcpStream::connect(("127.0.0.1", server.port())).is_err());
    assert_eq!(
        client.call(&format!("CONFIG SET port {}", server.port())),
        Reply::ok()
    );
    assert_eq!(
        server.client().call("PING"),
        Reply::Status("PONG".to_owned())
    );
    server.finish_served();
}
