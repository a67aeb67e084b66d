//! SIGINT, SIGTERM and SIGHUP for the whole tool: the first asks for an end in order, the second is the end.
//!
//! One thread waits for them, from [`listen`] on. As long as there is nothing to tell yet, until [`end_in_order`], the
//! first is the end, too: whatever blocks meanwhile, it does not keep us. After that, a working thread checks
//! [`received`] between two steps, or has [`on_first`] wake it. Code that creates something that must not stay behind
//! registers its removal to [`Removal`], which is done when it is dropped or, if there is no time for that, before the
//! process ends.
//!
//! A server also takes SIGUSR1 ([`on_reopen`]), by the same thread: it opens its log again, as after a rotation.

use std::fmt;
use std::fs;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGXFSZ};
use signal_hook::iterator::{Handle, Signals};

use crate::fault::Fault;

/// How long what is under way may take to end after the first signal; then it is given up.
pub(crate) const GIVE_UP: Duration = Duration::from_secs(5);

/// There may be something to tell at the end.
static IN_ORDER: AtomicBool = AtomicBool::new(false);
/// The number of the first signal; zero until there is one.
static FIRST: AtomicI32 = AtomicI32::new(0);
static NEXT_ID: AtomicU64 = AtomicU64::new(1);
/// What the first signal does. Its lock is also that of `CAME`.
static HOOKS: Mutex<Vec<(u64, Action)>> = Mutex::new(Vec::new());
static CAME: Condvar = Condvar::new();
/// True from the first signal on.
static CAME_FLAG: AtomicBool = AtomicBool::new(false);
/// What must not stay behind. Locked while something is removed, so that the process does not end meanwhile.
static REMOVALS: Mutex<Vec<(u64, Action)>> = Mutex::new(Vec::new());

/// What SIGUSR1 does, and the way to have the thread wait for it.
static REOPEN: OnceLock<Box<dyn Fn() + Send + Sync>> = OnceLock::new();
static HANDLE: OnceLock<Handle> = OnceLock::new();

type Action = Box<dyn FnOnce() + Send>;

/// A signal that asks us to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Signal(i32);

impl Signal {
    /// As a shell reports a process that this signal ended.
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

/// From now on a signal removes what must not stay behind before it ends the process.
pub(crate) fn listen() -> Result<(), Fault> {
    let failed = |error| Fault::failed(format!("listening to signals: {error}"));
    // SIGXFSZ is taken so that a write beyond RLIMIT_FSIZE is an error (EFBIG) and not the end of the process.
    let mut handled = vec![SIGINT, SIGTERM, SIGXFSZ];
    // `nohup` has it ignored: that is a wish, too.
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
                Ok(_) => at_once(
                    Signal(number),
                    "annulus: interrupted before anything was measured\n",
                ),
                Err(_) => at_once(Signal(number), ""),
            }
        }
    };
    thread::Builder::new()
        .name("signals".into())
        .spawn(wait)
        .map_err(failed)?;
    Ok(())
}

/// From now on SIGUSR1 does this, each time, and does not end the process. It may not wait for anything. To be called
/// once, after [`listen`].
pub(crate) fn on_reopen(action: impl Fn() + Send + Sync + 'static) -> Result<(), Fault> {
    // Before the signal is taken: from then on it finds what to do.
    let _ = REOPEN.set(Box::new(action));
    let Some(handle) = HANDLE.get() else {
        return Err(Fault::failed(
            "SIGUSR1 can't be taken: no thread listens to signals",
        ));
    };
    let taken = handle.add_signal(SIGUSR1);
    taken.map_err(|error| Fault::failed(format!("listening to SIGUSR1: {error}")))
}

/// From now on the first signal ends what is under way, and what there is by then is told.
pub(crate) fn end_in_order() {
    IN_ORDER.store(true, SeqCst);
}

/// The first signal, if there was one.
pub(crate) fn received() -> Option<Signal> {
    Some(FIRST.load(SeqCst))
        .filter(|&number| number != 0)
        .map(Signal)
}

/// The same as a flag, for code that knows nothing of signals.
pub(crate) fn flag() -> &'static AtomicBool {
    &CAME_FLAG
}

/// Does work that cannot be stopped; it is left alone where a signal comes first.
pub(crate) fn unless_interrupted<T: Send + 'static>(
    doing: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Fault> {
    let (sender, receiver) = channel();
    let stop = sender.clone();
    let _hook = on_first(move || drop(stop.send(None)));
    let work = move || drop(sender.send(Some(work())));
    (thread::Builder::new().name("work".into()).spawn(work))
        .map_err(|error| Fault::failed(format!("starting a thread: {error}")))?;
    match receiver.recv() {
        Ok(Some(done)) => Ok(done),
        _ => check(doing).and(Err(Fault::failed(format!("panicked while {doing}")))),
    }
}

/// An error as soon as there was a signal; for steps of work that has no result before its end.
pub(crate) fn check(doing: &'static str) -> Result<(), Fault> {
    received().map_or(Ok(()), |signal| Err(Fault::Interrupted { signal, doing }))
}

/// Sleeps for so long; less if a signal comes, or has come.
pub(crate) fn sleep(time: Duration) {
    let until = Instant::now() + time;
    let mut hooks = locked(&HOOKS);
    while received().is_none() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        let waited = CAME.wait_timeout(hooks, left);
        hooks = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
}

/// Something that the first signal does, unless this is dropped before.
pub(crate) struct Hook(u64);

/// Has the first signal do this, now if it has come already. It may not wait for anything.
pub(crate) fn on_first(action: impl FnOnce() + Send + 'static) -> Hook {
    let id = NEXT_ID.fetch_add(1, Relaxed);
    let mut hooks = locked(&HOOKS);
    // Under the lock: either the signal's thread has not taken the hooks yet, or it is known to have come.
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

/// The removal of something that must not stay behind: when it is dropped, or when the second signal comes.
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
    CAME_FLAG.store(true, Relaxed);
    let hooks = std::mem::take(&mut *locked(&HOOKS));
    CAME.notify_all();
    for (_, action) in hooks {
        action();
    }
}

/// A second signal asks for an immediate end. What was made last goes first.
fn at_once(signal: Signal, says: &str) -> ! {
    for (_, action) in locked(&REMOVALS).drain(..).rev() {
        action();
    }
    // If even standard error is closed there is nobody left to tell.
    let _ = std::io::stderr().write_all(says.as_bytes());
    // Not `std::process::exit`, whose handlers may wait for what we have just given up.
    signal_hook::low_level::exit(i32::from(signal.exit_code()))
}

fn locked(list: &'static Mutex<Vec<(u64, Action)>>) -> MutexGuard<'static, Vec<(u64, Action)>> {
    list.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_ignored(number: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    ignored_in(&status).is_some_and(|mask| mask & 1 << (number - 1) != 0)
}

/// The mask of ignored signals in a text of `/proc/self/status`.
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
    fn a_removal_is_done_once_when_it_is_dropped() {
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
