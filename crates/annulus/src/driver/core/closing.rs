//! Streams that were dropped during a send. The send goes on to its end unless the peer stops taking data. Each core
//! has one list. A stream is first checked one close timeout after its drop.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

use slab::Slab;

use crate::fd::Socket;
use crate::narrow::to_ns;
use crate::sys::{call, net};

/// The time that means that no check is due.
const NEVER: u64 = u64::MAX;

pub(super) struct Closing {
    /// The default time that a peer may take no data, ns.
    timeout_ns: u64,
    streams: RefCell<Slab<Dropped>>,
    /// The time of the next check, ns.
    next_ns: Cell<u64>,
    /// True if all streams so far had the default timeout.
    all_usual: Cell<bool>,
}

struct Dropped {
    socket: Weak<Socket>,
    /// The progress at the last check; `None` before the first one.
    progress: Option<Progress>,
}

/// The amount that the peer had taken, and the time when that last changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Progress {
    taken: u64,
    at_ns: u64,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Check {
    /// The time of the next check, ns.
    Later(Progress, u64),
    /// The peer has taken no data for the whole timeout.
    Stuck,
}

fn check_progress(before: Option<Progress>, now: Progress, timeout_ns: u64) -> Check {
    let progress = before.filter(|before| before.taken == now.taken);
    let progress = progress.unwrap_or(now);
    let due_ns = progress.at_ns.saturating_add(timeout_ns);
    if now.at_ns >= due_ns && progress != now {
        return Check::Stuck;
    }
    Check::Later(progress, due_ns)
}

impl Closing {
    pub(super) fn new(timeout: Duration) -> Closing {
        Closing {
            timeout_ns: to_ns(timeout),
            streams: RefCell::default(),
            next_ns: Cell::new(NEVER),
            all_usual: Cell::new(true),
        }
    }

    fn timeout_ns(&self, socket: &Socket) -> u64 {
        socket.close_timeout_ns().unwrap_or(self.timeout_ns)
    }

    /// Adds a stream that was dropped during a send. Returns its index in the list.
    pub(super) fn add(&self, socket: &Rc<Socket>) -> Option<usize> {
        let timeout_ns = self.timeout_ns(socket);
        if timeout_ns == NEVER {
            return None;
        }
        let is_usual = timeout_ns == self.timeout_ns;
        self.all_usual.set(self.all_usual.get() && is_usual);
        // Otherwise the next check is early enough, and the clock need not be read.
        if self.next_ns.get() == NEVER || !self.all_usual.get() {
            let due_ns = call::now_ns().saturating_add(timeout_ns);
            self.next_ns.set(self.next_ns.get().min(due_ns));
        }
        let socket = Rc::downgrade(socket);
        let dropped = Dropped {
            socket,
            progress: None,
        };
        Some(self.streams.borrow_mut().insert(dropped))
    }

    /// Removes a stream that is closed.
    pub(super) fn remove(&self, index: usize) {
        self.streams.borrow_mut().try_remove(index);
    }

    pub(super) fn next_ns(&self) -> Option<u64> {
        Some(self.next_ns.get()).filter(|&at| at != NEVER)
    }

    /// Returns whether it is time to look for stuck streams.
    #[inline]
    pub(super) fn must_check(&self) -> bool {
        self.next_ns()
            .is_some_and(|due_ns| call::now_ns() >= due_ns)
    }

    /// Checks all streams if a check is due. Returns each stream whose peer takes no data, once.
    pub(super) fn stuck(&self) -> Vec<Rc<Socket>> {
        self.stuck_at(call::now_ns())
    }

    fn stuck_at(&self, now_ns: u64) -> Vec<Rc<Socket>> {
        let mut stuck = Vec::new();
        let mut next_ns = NEVER;
        for (_, dropped) in self.streams.borrow_mut().iter_mut() {
            let Some(socket) = dropped.socket.upgrade() else {
                continue;
            };
            if socket.is_released() && !socket.is_closing() {
                // The kernel has closed it.
                continue;
            }
            let now = Progress {
                taken: net::acknowledged(socket.raw()).map_or(0, |(taken, _)| taken),
                at_ns: now_ns,
            };
            match check_progress(dropped.progress, now, self.timeout_ns(&socket)) {
                Check::Later(progress, due_ns) => {
                    dropped.progress = Some(progress);
                    next_ns = next_ns.min(due_ns);
                }
                Check::Stuck => {
                    // It is not checked again: the rest of its send fails with an error.
                    dropped.socket = Weak::new();
                    stuck.push(socket);
                }
            }
        }
        self.next_ns.set(next_ns);
        stuck
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(taken: u64, at_ns: u64) -> Progress {
        Progress { taken, at_ns }
    }

    #[test]
    fn a_peer_that_takes_a_byte_within_each_timeout_is_never_stuck() {
        let mut before = None;
        let mut at_ns = 1000;
        for taken in 0..50 {
            let Check::Later(next, due_ns) = check_progress(before, progress(taken, at_ns), 60)
            else {
                panic!("{taken} taken");
            };
            assert_eq!(due_ns, at_ns + 60);
            (before, at_ns) = (Some(next), due_ns);
        }
    }

    #[test]
    fn a_peer_that_takes_nothing_is_stuck_when_the_timeout_has_passed_and_not_before() {
        assert_eq!(
            check_progress(None, progress(7, 1000), 60),
            Check::Later(progress(7, 1000), 1060)
        );
        let before = Some(progress(7, 1000));
        assert_eq!(
            check_progress(before, progress(7, 1059), 60),
            Check::Later(progress(7, 1000), 1060)
        );
        assert_eq!(check_progress(before, progress(7, 1060), 60), Check::Stuck);
        assert_eq!(
            check_progress(before, progress(8, 1060), 60),
            Check::Later(progress(8, 1060), 1120)
        );
    }
}
