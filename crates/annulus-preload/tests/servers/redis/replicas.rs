//! A replica and its master, both under the library.

use std::thread;

use super::{Redis, redis};
use crate::resp::{Client, Reply};
use crate::server::until;

fn replica_of(master: &Redis, options: &str) -> Option<Redis> {
    redis(&format!(
        "--replicaof 127.0.0.1 {} {options}",
        master.port()
    ))
}

fn link_is_up(client: &mut Client) -> Option<()> {
    (client.info("master_link_status") == "up").then_some(())
}

/// Waits until the replica has the master's data.
fn same_data(master: &mut Client, replica: &mut Client) {
    until("the replica has all data", || {
        let digest = master.call("DEBUG DIGEST");
        (replica.call("DEBUG DIGEST") == digest).then_some(())
    });
}

fn write(redis: &Redis, from: usize, to: usize) {
    let mut client = redis.client();
    for n in from..to {
        client.send(&format!("SET key{n} {}", "x".repeat(n % 500)));
    }
    for _ in from..to {
        assert_eq!(client.read().unwrap(), Reply::ok());
    }
}

#[test]
fn a_replica_has_its_masters_data_and_catches_up_after_a_broken_link() {
    for diskless in ["yes", "no"] {
        let options = format!("--repl-diskless-sync {diskless} --repl-backlog-size 10000000");
        let Some(master) = redis(&options) else {
            return;
        };
        write(&master, 0, 3000);
        let Some(replica) = replica_of(&master, "--repl-diskless-load swapdb") else {
            return;
        };
        let (mut to_master, mut to_replica) = (master.client(), replica.client());
        until("the link is up", || link_is_up(&mut to_replica));
        write(&master, 3000, 6000);
        assert_eq!(to_master.call("SET last one"), Reply::ok());
        assert_eq!(to_master.call("WAIT 1 10000"), Reply::Number(1));
        assert_eq!(to_replica.call("GET last"), Reply::bytes("one"));
        same_data(&mut to_master, &mut to_replica);
        assert!(
            matches!(to_replica.call("SET a b"), Reply::Error(error) if error.starts_with("READONLY"))
        );

        assert_eq!(to_master.call("CLIENT KILL TYPE replica"), Reply::Number(1));
        write(&master, 6000, 7000);
        until("the link is up again", || link_is_up(&mut to_replica));
        same_data(&mut to_master, &mut to_replica);
        assert_eq!(to_master.info("sync_full"), "1");
        assert_eq!(to_master.info("sync_partial_ok"), "1");
        master.finish_served();
        replica.finish_served();
    }
}

#[test]
fn a_replica_takes_over_and_the_old_master_follows_it() {
    let Some(master) = redis("") else { return };
    let Some(replica) = replica_of(&master, "") else {
        return;
    };
    let (mut to_master, mut to_replica) = (master.client(), replica.client());
    until("the link is up", || link_is_up(&mut to_replica));
    write(&master, 0, 500);
    assert_eq!(to_master.call("FAILOVER"), Reply::ok());
    until("the replica is master", || {
        (to_replica.info("role") == "master").then_some(())
    });
    until("the master is replica", || {
        (to_master.info("role") == "slave").then_some(())
    });
    until("the link is up", || link_is_up(&mut to_master));
    write(&replica, 500, 1000);
    same_data(&mut to_replica, &mut to_master);
    assert_eq!(to_master.call("DBSIZE"), Reply::Number(1000));
    master.finish_served();
    replica.finish_served();
}

#[test]
fn a_replica_is_filled_while_its_master_is_written_to() {
    let Some(master) = redis("--client-output-buffer-limit replica 0 0 0") else {
        return;
    };
    let mut to_master = master.client();
    assert_eq!(to_master.call("DEBUG POPULATE 20000 key 500"), Reply::ok());
    let writer = {
        let mut client = master.client();
        thread::spawn(move || (0..3000).for_each(|_| _ = client.call("INCR counter")))
    };
    let replicas: Vec<_> = (0..2).filter_map(|_| replica_of(&master, "")).collect();
    writer.join().unwrap();
    for replica in replicas {
        let mut to_replica = replica.client();
        until("the link is up", || link_is_up(&mut to_replica));
        same_data(&mut to_master, &mut to_replica);
        replica.finish_served();
    }
    master.finish_served();
}
