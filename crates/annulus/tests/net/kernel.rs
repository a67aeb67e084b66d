//! What the kernel says of a port's connections.

use std::fs;
use std::time::{Duration, Instant};

use annulus::time::sleep;

/// By then the kernel has closed what is closed, on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// States of `/proc/net/tcp`, in its own numbers.
const TIME_WAIT: u8 = 6;
const CLOSE_WAIT: u8 = 8;

/// The states of the sockets that are bound to `port`, or connected to it.
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

/// Sockets that somebody still holds a descriptor of; the rest of a closed one is the kernel's own.
pub(crate) fn held(port: u16) -> usize {
    // ESTABLISHED, SYN_SENT, SYN_RECV, CLOSE_WAIT and LISTEN.
    let held = [1, 2, 3, CLOSE_WAIT, 10];
    let states = states(port);
    states.iter().filter(|state| held.contains(state)).count()
}

/// Connections whose other end has gone, and that have not been closed.
pub(crate) fn close_wait(port: u16) -> usize {
    let states = states(port);
    states.iter().filter(|&&state| state == CLOSE_WAIT).count()
}

/// Waits until as many are held as are to stay; the kernel takes its time for some closes.
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
    panic!("{stay} sockets were to stay; what is left, by state: {left:?}");
}

/// The same, with no core to wait on.
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
