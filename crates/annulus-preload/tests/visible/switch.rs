//! The switch hands a running server back to the kernel, and has it served again.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use annulus_observe::snapshot_of;
use annulus_observe::switch::{Switch, SwitchCounter};

use crate::server::{PATIENCE, Server, Started, exchange};
use crate::{busy, served};

fn until(switch: &Switch, counter: SwitchCounter, count: u64) {
    let until = Instant::now() + PATIENCE;
    while switch.count(counter) != count {
        assert!(
            Instant::now() < until,
            "{counter:?} is not {count}: {switch:?}"
        );
        thread::sleep(Duration::from_millis(1));
    }
}

fn written(pid: u32) -> u64 {
    served(&snapshot_of(pid).unwrap().total(), "write")
}

/// Returns whether a ring can wait for the switch. On older kernels, a set that sleeps checks it at its next event.
fn is_woken() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split('.').map(|part| part.parse().unwrap_or(0));
    let version: (u32, u32) = (numbers.next().unwrap(), numbers.next().unwrap());
    version >= (6, 7)
}

#[test]
fn sets_that_sleep_are_handed_back_and_served_again_with_their_connections_and_new_ones() {
    let Started(Some(mut server)) = Server::start(2, &[]) else {
        return;
    };
    let mut streams = busy(&server, 4);
    server.look_until(|now| now.total().preload.connections == 8);
    let switch = Switch::of(server.id()).unwrap();
    assert_eq!(switch.count(SwitchCounter::Serving), 2, "{switch:?}");

    assert!(switch.request(true));
    if !is_woken() {
        streams
            .iter_mut()
            .for_each(|stream| exchange(stream, b"up", 1));
    }
    // A set is counted as released last, after its ring was closed.
    until(&switch, SwitchCounter::Released, 2);
    assert_eq!(switch.count(SwitchCounter::Serving), 0, "{switch:?}");
    assert_eq!(switch.count(SwitchCounter::SetsHandedBack), 2, "{switch:?}");
    assert_eq!(switch.count(SwitchCounter::HandedBack), 8, "{switch:?}");
    let before = written(server.id());
    streams
        .iter_mut()
        .for_each(|stream| exchange(stream, b"kernel", 5));
    let mut more = busy(&server, 1);
    assert_eq!(written(server.id()), before, "the kernel serves them");
    let total = server.look().total();
    assert_eq!((total.preload.rings, total.preload.connections), (0, 0));
    let back = &total.preload.handed_back;
    assert_eq!((back[0].reason, back[0].count), ("released", 8));

    assert!(switch.request(false));
    // Sets that sleep in the kernel check the switch at their next event.
    streams
        .iter_mut()
        .for_each(|stream| exchange(stream, b"up", 2));
    until(&switch, SwitchCounter::Released, 0);
    assert_eq!(
        switch.count(SwitchCounter::SetsServedAgain),
        2,
        "{switch:?}"
    );
    assert_eq!(switch.count(SwitchCounter::ServedAgain), 10, "{switch:?}");
    assert_eq!(switch.count(SwitchCounter::Serving), 2, "{switch:?}");
    let [reads, writes, _] = server.counts();
    let before = written(server.id());
    streams.extend(busy(&server, 1));
    streams.append(&mut more);
    streams
        .iter_mut()
        .for_each(|stream| exchange(stream, b"ring", 5));
    let [more_reads, more_writes, _] = server.counts();
    let after = written(server.id());
    assert_eq!(
        after - before,
        more_writes - writes,
        "rings serve all writes"
    );
    assert!(more_reads > reads);
    drop(streams);
    server.look_until(|now| now.total().preload.connections == 0);
    server.end();
}

#[test]
fn a_wait_continues_in_the_kernel_for_its_remaining_time() {
    for timeout in ["-1", "3600000"] {
        let Started(Some(mut server)) = Server::start(1, &[("ECHO_TIMEOUT_MS", timeout)]) else {
            return;
        };
        let mut stream = busy(&server, 1).remove(0);
        let switch = Switch::of(server.id()).unwrap();
        let [.., waits] = server.counts();
        assert!(switch.request(true));
        if is_woken() {
            until(&switch, SwitchCounter::Serving, 0);
            assert_eq!(server.counts()[2], waits, "the wait ended without an event");
        }
        exchange(&mut stream, b"event", 1);
        assert_eq!(server.counts()[2], waits + 1);
        until(&switch, SwitchCounter::Serving, 0);
        server.end();
    }
}

#[test]
fn requests_during_repeated_switching_are_served_in_full() {
    switch_repeatedly(&[]);
}

#[test]
fn a_kernel_thread_that_polls_is_switched_as_well() {
    switch_repeatedly(&[("ANNULUS_SQPOLL", "1")]);
}

fn switch_repeatedly(variables: &[(&str, &str)]) {
    const SWITCHES: u64 = 60;
    let Started(Some(mut server)) = Server::start(2, variables) else {
        return;
    };
    drop(busy(&server, 1));
    let switch = Switch::of(server.id()).unwrap();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for (nth, &port) in server.ports.iter().cycle().take(6).enumerate() {
            let over = &over;
            scope.spawn(move || {
                let mut dice = fastrand::Rng::with_seed(nth as u64);
                while !over.load(Ordering::Relaxed) {
                    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
                    for _ in 0..dice.usize(1..50) {
                        // Not a message that makes the server duplicate the connection.
                        let message: Vec<u8> = (0..dice.usize(1..4000))
                            .map(|_| dice.u8(b'e'..=b'z'))
                            .collect();
                        exchange(&mut stream, &message, 1);
                    }
                }
            });
        }
        for nth in 1..=SWITCHES {
            assert!(switch.request(true));
            until(&switch, SwitchCounter::Serving, 0);
            until(&switch, SwitchCounter::SetsHandedBack, 2 * nth);
            assert!(switch.request(false));
            until(&switch, SwitchCounter::Released, 0);
            until(&switch, SwitchCounter::Serving, 2);
        }
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(
        switch.count(SwitchCounter::SetsServedAgain),
        2 * SWITCHES,
        "{switch:?}"
    );
    server.end();
}

#[test]
fn a_child_of_a_released_process_passes_through_until_it_is_resumed() {
    let Started(Some(mut server)) = Server::start(1, &[]) else {
        return;
    };
    drop(busy(&server, 1));
    let switch = Switch::of(server.id()).unwrap();
    assert!(switch.request(true));
    drop(busy(&server, 1));
    let (child, port) = server.fork();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    exchange(&mut stream, b"child", 3);
    let of_child = Switch::of(child).unwrap();
    assert!(of_child.is_released());
    assert_eq!(
        (
            of_child.count(SwitchCounter::Serving),
            of_child.count(SwitchCounter::Released)
        ),
        (0, 1)
    );
    assert_eq!(written(child), 0);
    assert!(of_child.request(false) && switch.is_released());
    exchange(&mut stream, b"child", 3);
    assert_eq!(
        (
            of_child.count(SwitchCounter::Serving),
            of_child.count(SwitchCounter::Released)
        ),
        (1, 0)
    );
    assert!((1..=3).contains(&written(child)));
    server.end();
}

#[test]
fn a_process_without_a_ring_has_no_switch() {
    let Started(Some(server)) = Server::start(1, &[]) else {
        return;
    };
    let error = Switch::of(server.id()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}

/// Returns the virtual memory of a process, KiB.
fn mapped_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
    let words = line.unwrap().trim().trim_end_matches(" kB");
    words.parse().unwrap()
}

#[test]
fn a_ring_that_ends_leaves_no_memory_behind() {
    const RINGS: u64 = 60;
    let Started(Some(mut server)) = Server::start(1, &[]) else {
        return;
    };
    let mut stream = busy(&server, 1).remove(0);
    let switch = Switch::of(server.id()).unwrap();
    let mut again = |times| {
        for _ in 0..times {
            for released in [true, false] {
                assert!(switch.request(released));
                exchange(&mut stream, b"event", 2);
                until(&switch, SwitchCounter::Serving, u64::from(!released));
            }
        }
        mapped_kib(server.id())
    };
    // By then, the allocator has all the memory that it keeps.
    let before = again(RINGS);
    let after = again(RINGS);
    assert!(after < before + 2 * RINGS, "{before} KiB, then {after} KiB");
    server.end();
}
