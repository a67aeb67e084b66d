//! The kernel's state of a port's connections.

use std::fs;
use std::time::{Duration, Instant};

use annulus::time::sleep;

/// The time limit for the kernel to finish closing, on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// States in `/proc/net/tcp`, as numbers.
const TIME_WAIT: u8 = 6;
const CLOSE_WAIT: u8 = 8;

/// Returns the states of the sockets that are bound or connected to `port`.
fn states(port: u16) -> Vec<u8> {
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let port = format!("{port:04X}");
    let mut states = Vec::new();
    for line in table.lines().skip(1) {
        let mut words = line.split_whitespace().skip(1);
        let (local, remote) = (words.next().unwrap(), words.next().unwrap());
        if [local, remote].iter().any(|end| end.ends_with(&port)) {
            let state = u8::from_str_radix(words.next().unwrap(), 16).unwrap();
            states.push(state);
        }
    }
    states
}

/// Returns the number of sockets with an open descriptor. The other states of a closed socket
/// belong to the kernel.
pub(crate) fn held(port: u16) -> usize {
    // ESTABLISHED, SYN_SENT, SYN_RECV, CLOSE_WAIT and LISTEN.
    let held = [1, 2, 3, CLOSE_WAIT, 10];
    let states = states(port);
    states.iter().filter(|state| held.contains(state)).count()
}

/// Returns the number of connections that the peer has closed, and that are not closed here.
pub(crate) fn close_wait(port: u16) -> usize {
    let states = states(port);
    states.iter().filter(|&&state| state == CLOSE_WAIT).count()
}

/// Waits until `stay` sockets are left; the kernel takes its time for some closes.
pub(crate) async fn all_but(stay: usize, port: u16) {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        if held(port) == stay {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
    let mut left = states(port);
    left.retain(|&state| state != TIME_WAIT);
    panic!("{stay} sockets should be left, but these are, by state: {left:?}");
}

/// Waits until no socket is left, on a thread without a core.
pub(crate) fn all_gone(port: u16) {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        if held(port) == 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("sockets are left, by state: {:?}", states(port));
}
