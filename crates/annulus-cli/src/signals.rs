//! SIGINT, SIGTERM and SIGHUP for the whole tool: the first signal requests an orderly end, the second ends the
//! process.
//!
//! [`listen`] starts a thread that waits for signals. Until [`end_in_order`] is called there is nothing to report, so
//! the first signal also ends the process, even if another thread blocks. After that, a working thread checks
//! [`received`] between two steps, or is woken by [`on_first`]. Code that creates something temporary registers a
//! [`Removal`]. It runs when it is dropped, or at the latest before the process ends.
//!
//! The same thread handles SIGUSR1 for a server ([`on_reopen`]): the server reopens its log, as after a rotation.

use std::fmt;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGXFSZ};
use signal_hook::iterator::{Handle, Signals};

use crate::fault::Fault;
use crate::proc_files;

/// The time that running work has to end after the first signal. After that it is abandoned.
pub(crate) const GIVE_UP: Duration = Duration::from_secs(5);

/// `true` if the first signal requests an orderly end.
static IN_ORDER: AtomicBool = AtomicBool::new(false);
/// The number of the first signal; zero before it.
static FIRST: AtomicI32 = AtomicI32::new(0);
static NEXT_ID: AtomicU64 = AtomicU64::new(1);
/// The actions of the first signal.
static HOOKS: Mutex<Vec<(u64, Action)>> = Mutex::new(Vec::new());
/// `true` if the first signal has arrived.
static ARRIVED_FLAG: AtomicBool = AtomicBool::new(false);
/// The removals that are still to run. The lock is held during a removal, so that the process does not end during it.
static REMOVALS: Mutex<Vec<(u64, Action)>> = Mutex::new(Vec::new());

/// The action of SIGUSR1.
static REOPEN: OnceLock<Box<dyn Fn() + Send + Sync>> = OnceLock::new();
/// Adds signals to those that the thread waits for.
static HANDLE: OnceLock<Handle> = OnceLock::new();

type Action = Box<dyn FnOnce() + Send>;

/// A signal that ends the tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Signal(i32);

impl Signal {
    /// Returns the exit code that a shell reports for a process that this signal ended.
    pub(crate) fn exit_code(self) -> u8 {
        128 + self.0 as u8
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            SIGINT => "SIGINT",
            SIGTERM => "SIGTERM",
            _ => "SIGHUP",
        })
    }
}

/// Starts to handle signals. From now on, a signal runs all removals before it ends the process.
pub(crate) fn listen() -> Result<(), Fault> {
    let failed = |error| failed!("cannot handle signals: {error}");
    // SIGXFSZ is handled, so that a write beyond RLIMIT_FSIZE fails with EFBIG and does not end the process.
    let mut handled = vec![SIGINT, SIGTERM, SIGXFSZ];
    // `nohup` ignores SIGHUP, and it stays ignored.
    if !is_ignored(SIGHUP) {
        handled.push(SIGHUP);
    }
    let mut signals = Signals::new(handled).map_err(failed)?;
    let _ = HANDLE.set(signals.handle());
    let wait = move || {
        for number in signals.forever() {
            match number {
                SIGUSR1 => {
                    REOPEN.get().into_iter().for_each(|reopen| reopen());
                    continue;
                }
                SIGXFSZ => continue,
                _ => {}
            }
            match FIRST.compare_exchange(0, number, SeqCst, SeqCst) {
                Ok(_) if IN_ORDER.load(SeqCst) => first(),
                Ok(_) => end_now(
                    Signal(number),
                    "annulus: interrupted before anything was measured\n",
                ),
                Err(_) => end_now(Signal(number), ""),
            }
        }
    };
    thread::Builder::new()
        .name("signals".into())
        .spawn(wait)
        .map_err(failed)?;
    Ok(())
}

/// Runs `action` at each SIGUSR1, which no longer ends the process. `action` must not block. Call this once, after
/// [`listen`].
pub(crate) fn on_reopen(action: impl Fn() + Send + Sync + 'static) -> Result<(), Fault> {
    // The action is stored before the signal is handled, so that the thread always finds it.
    let _ = REOPEN.set(Box::new(action));
    let Some(handle) = HANDLE.get() else {
        return Err(Fault::failed(
            "cannot handle SIGUSR1: no thread waits for signals",
        ));
    };
    let added = handle.add_signal(SIGUSR1);
    added.map_err(|error| failed!("cannot handle SIGUSR1: {error}"))
}

/// Makes the first signal end the running work in order. The results so far are then reported.
pub(crate) fn end_in_order() {
    IN_ORDER.store(true, SeqCst);
}

/// Returns the first signal, if one has arrived.
pub(crate) fn received() -> Option<Signal> {
    Some(FIRST.load(SeqCst))
        .filter(|&number| number != 0)
        .map(Signal)
}

/// Returns a flag that the first signal sets, for code that does not depend on this module.
pub(crate) fn flag() -> &'static AtomicBool {
    &ARRIVED_FLAG
}

/// Runs work that cannot be stopped on another thread, and returns early if a signal arrives first.
pub(crate) fn unless_interrupted<T: Send + 'static>(
    doing: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Fault> {
    let (sender, receiver) = channel();
    let stop = sender.clone();
    let _hook = on_first(move || drop(stop.send(None)));
    let work = move || drop(sender.send(Some(work())));
    (thread::Builder::new().name("work".into()).spawn(work))
        .map_err(|error| failed!("cannot start a thread: {error}"))?;
    match receiver.recv() {
        Ok(Some(done)) => Ok(done),
        _ => check(doing).and(Err(failed!("panicked while {doing}"))),
    }
}

/// Fails if a signal has arrived. Called between the steps of work that has no result before its end.
pub(crate) fn check(doing: &'static str) -> Result<(), Fault> {
    received().map_or(Ok(()), |signal| Err(Fault::Interrupted { signal, doing }))
}

/// An action of the first signal, which does not run if this is dropped earlier.
pub(crate) struct Hook(u64);

/// Runs `action` at the first signal, or immediately if it has arrived already. `action` must not block.
pub(crate) fn on_first(action: impl FnOnce() + Send + 'static) -> Hook {
    let id = NEXT_ID.fetch_add(1, Relaxed);
    let mut hooks = locked(&HOOKS);
    // Under the lock: either the signal thread has not taken the hooks yet, or `received` reports the signal.
    if received().is_none() {
        hooks.push((id, Box::new(action)));
        return Hook(id);
    }
    drop(hooks);
    action();
    Hook(id)
}

impl Drop for Hook {
    fn drop(&mut self) {
        locked(&HOOKS).retain(|(id, _)| *id != self.0);
    }
}

/// The removal of something temporary. It runs when this is dropped, or at the second signal.
pub(crate) struct Removal(u64);

impl Removal {
    pub(crate) fn new(action: impl FnOnce() + Send + 'static) -> Removal {
        let id = NEXT_ID.fetch_add(1, Relaxed);
        locked(&REMOVALS).push((id, Box::new(action)));
        Removal(id)
    }
}

impl Drop for Removal {
    fn drop(&mut self) {
        let mut removals = locked(&REMOVALS);
        if let Some(at) = removals.iter().position(|(id, _)| *id == self.0) {
            let (_, action) = removals.swap_remove(at);
            action();
        }
    }
}

fn first() {
    ARRIVED_FLAG.store(true, Relaxed);
    let hooks = std::mem::take(&mut *locked(&HOOKS));
    for (_, action) in hooks {
        action();
    }
}

/// Ends the process immediately, after all removals, the latest first.
fn end_now(signal: Signal, message: &str) -> ! {
    for (_, action) in locked(&REMOVALS).drain(..).rev() {
        action();
    }
    // If standard error is closed too, the message is lost.
    let _ = std::io::stderr().write_all(message.as_bytes());
    // `std::process::exit` runs handlers that may wait for abandoned work.
    signal_hook::low_level::exit(i32::from(signal.exit_code()))
}

fn locked(list: &'static Mutex<Vec<(u64, Action)>>) -> MutexGuard<'static, Vec<(u64, Action)>> {
    list.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_ignored(number: i32) -> bool {
    let status = proc_files::read("/proc/self/status").unwrap_or_default();
    ignored_in(&status).is_some_and(|mask| mask & 1 << (number - 1) != 0)
}

/// Returns the mask of ignored signals from the text of `/proc/self/status`.
fn ignored_in(status: &str) -> Option<u64> {
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_removal_runs_once_when_it_is_dropped() {
        let count = Arc::new(AtomicU64::new(0));
        let removal = Removal::new({
            let count = Arc::clone(&count);
            move || {
                count.fetch_add(1, Relaxed);
            }
        });
        assert_eq!(count.load(Relaxed), 0);
        drop(removal);
        assert_eq!(count.load(Relaxed), 1);
    }

    #[test]
    fn a_signal_has_a_name_and_the_exit_code_of_shells() {
        let texts = [SIGHUP, SIGINT, SIGTERM].map(|number| {
            let signal = Signal(number);
            (signal.to_string(), signal.exit_code())
        });
        let expected = [("SIGHUP", 129), ("SIGINT", 130), ("SIGTERM", 143)];
        assert_eq!(texts, expected.map(|(name, code)| (name.to_owned(), code)));
    }

    #[test]
    fn an_ignored_signal_is_found_in_the_mask() {
        let mask = ignored_in("Name:\tx\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n");
        assert_eq!(mask, Some(0x1001));
        assert_eq!(ignored_in("Name:\tx\n"), None);
    }
}
