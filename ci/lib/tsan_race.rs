//! Two threads that count in one cell, ordered by std's locks, condition variables and `Once`, or unordered.
//! `ci/sanitize thread` checks that ThreadSanitizer distinguishes the two.

use std::cell::UnsafeCell;
use std::sync::{Arc, Condvar, Mutex, Once, OnceLock, RwLock};
use std::thread;
use std::time::Duration;

/// A cell without synchronisation.
#[derive(Default)]
struct Cell(UnsafeCell<u64>);

// SAFETY: unsound on purpose; the test needs a race.
unsafe impl Sync for Cell {}
unsafe impl Send for Cell {}

impl Cell {
    fn count(&self) {
        // SAFETY: unsound on purpose; the test needs a race.
        unsafe { *self.0.get() += 1 }
    }
}

const ROUNDS: u64 = 10_000;

fn both(work: impl Fn(u64) + Send + Sync + 'static) {
    let work = Arc::new(work);
    let threads = [0, 1].map(|me| {
        let work = Arc::clone(&work);
        thread::spawn(move || work(me))
    });
    for thread in threads {
        thread.join().unwrap();
    }
}

fn ordered() {
    let mutex = Mutex::new(Cell::default());
    both(move |_| (0..ROUNDS).for_each(|_| mutex.lock().unwrap().count()));

    let lock = RwLock::new(Cell::default());
    both(move |_| (0..ROUNDS).for_each(|_| lock.write().unwrap().count()));

    // The threads alternate, each waiting for the other.
    let (turn, changed, cell) = (Mutex::new(0), Condvar::new(), Cell::default());
    both(move |me| {
        for _ in 0..ROUNDS / 10 {
            let mut turn = turn.lock().unwrap();
            while *turn != me {
                turn = if me == 0 {
                    changed.wait(turn).unwrap()
                } else {
                    changed
                        .wait_timeout(turn, Duration::from_secs(1))
                        .unwrap()
                        .0
                };
            }
            cell.count();
            *turn = 1 - me;
            changed.notify_one();
        }
    });

    let (once, cell) = (Once::new(), Cell::default());
    both(move |_| once.call_once(|| cell.count()));
    let cell = Cell::default();
    thread::scope(|scope| drop(scope.spawn(|| cell.count())));
    cell.count();
    for _ in 0..ROUNDS / 100 {
        let value = OnceLock::new();
        both(move |_| assert_eq!(*value.get_or_init(|| Box::new(7)), Box::new(7)));
    }
}

fn unordered() {
    let cell = Cell::default();
    // Each counts once, because a race with an access too far back is not reported.
    both(move |_| cell.count());
}

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("ordered") => ordered(),
        Some("unordered") => unordered(),
        _ => panic!("usage: race ordered|unordered"),
    }
}
