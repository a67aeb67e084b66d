//! The kernel's state of a port's connections.

use std::fs;
use std::time::{Duration, Instant};

use annulus::time::sleep;

/// The time limit for the kernel to finish closing, on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A state in `/proc/net/tcp`, as a number.
const CLOSE_WAIT: u8 = 8;
/// ESTABLISHED, SYN_SENT, SYN_RECV, CLOSE_WAIT and LISTEN.
const HELD: [u8; 5] = [1, 2, 3, CLOSE_WAIT, 10];

/// Returns the states and inodes of the sockets that are bound or connected to `port`.
fn sockets(port: u16) -> Vec<(u8, String)> {
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let port = format!(":{port:04X}");
    let mut sockets = Vec::new();
    for line in table.lines().skip(1) {
        let words: Vec<&str> = line.split_whitespace().collect();
        if words[1].ends_with(&port) || words[2].ends_with(&port) {
            let state = u8::from_str_radix(words[3], 16).unwrap();
            sockets.push((state, words[9].to_owned()));
        }
    }
    sockets
}

fn states(port: u16) -> Vec<u8> {
    sockets(port).into_iter().map(|(state, _)| state).collect()
}

/// Returns whether a socket is another process's, which has got the same port since.
fn is_foreign(inode: &str) -> bool {
    let link = format!("socket:[{inode}]");
    let me = std::process::id().to_string();
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let mut others = processes.filter(|process| *process.file_name() != *me);
    others.any(|process| {
        let numbers = fs::read_dir(process.path().join("fd"));
        let mut numbers = numbers.into_iter().flatten().flatten();
        numbers.any(|fd| fs::read_link(fd.path()).is_ok_and(|is| is.as_os_str() == &*link))
    })
}

/// Returns the number of sockets with an open descriptor. The other states of a closed socket
/// belong to the kernel.
pub(crate) fn held(port: u16) -> usize {
    let states = states(port);
    states.iter().filter(|state| HELD.contains(state)).count()
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
    let mut left = sockets(port);
    left.retain(|(state, inode)| HELD.contains(state) && !is_foreign(inode));
    if left.len() == stay {
        return;
    }
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
