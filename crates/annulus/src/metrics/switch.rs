//! The switch of a process under the preload library: an operator asks from outside that everything is handed back to
//! the kernel, or served again, and the process says what has come of it. Both stand in the header of the file that it
//! shares (`registry.rs`), behind the words that describe its counters, so that a switch can be used by a program that
//! counts other things. For `annulus-preload` and the tool alone, and of no lasting shape.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use super::record::PAGE_WORDS;
use super::registry::{HEADER_SAYS, SHARED};
use super::remote;
use crate::sys::counter_storage::{self, CounterStorage};

/// Not 0: the process looks at what is asked of it.
const LISTENS: usize = HEADER_SAYS;
/// What is asked: odd, that the kernel has everything. It grows with each change, so that none is missed.
const ASKED: usize = LISTENS + 1;
/// Where in the file that word is, in bytes.
pub const ASKED_AT: usize = ASKED * size_of::<u64>();
const COUNTERS: usize = ASKED + 1;
const _: () = assert!(COUNTERS + SwitchCounter::ALL.len() < PAGE_WORDS);

/// What the process says has come of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum SwitchCounter {
    /// Epoll sets that have a ring now.
    Serving,
    /// Epoll sets that have none now because that was asked for.
    Released,
    /// Epoll sets that were handed back, since the start.
    SetsHandedBack,
    /// Their connections.
    HandedBack,
    /// Epoll sets that were served again, since the start.
    SetsServedAgain,
    /// Their connections.
    ServedAgain,
}

impl SwitchCounter {
    const ALL: [SwitchCounter; 6] = [
        SwitchCounter::Serving,
        SwitchCounter::Released,
        SwitchCounter::SetsHandedBack,
        SwitchCounter::HandedBack,
        SwitchCounter::SetsServedAgain,
        SwitchCounter::ServedAgain,
    ];
}

/// This process looks at what is asked of it from now on, beginning with this. Of one that shares nothing it can't be
/// asked.
pub fn listen(released: bool) {
    if let Some(header) = SHARED.get() {
        header[ASKED].fetch_or(u64::from(released), Ordering::Relaxed);
        header[LISTENS].store(1, Ordering::Release);
    }
}

/// Whether the kernel is to have everything of this process. No call, no lock.
#[inline]
pub fn is_released() -> bool {
    SHARED
        .get()
        .is_some_and(|header| header[ASKED].load(Ordering::Relaxed) & 1 != 0)
}

/// The word that changes with each request, and is there as long as the process; `None` of one that shares nothing.
pub fn asked() -> Option<&'static AtomicU64> {
    SHARED.get().map(|header| &header[ASKED])
}

/// The number changes by this much. For any thread.
pub fn add(what: SwitchCounter, by: i64) {
    if let Some(header) = SHARED.get() {
        header[COUNTERS + what as usize].fetch_add(by.cast_unsigned(), Ordering::AcqRel);
    }
}

/// The switch of another process.
pub struct Switch {
    header: CounterStorage<PAGE_WORDS>,
}

impl fmt::Debug for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = SwitchCounter::ALL.map(|what| self.count(what));
        let mut debug = f.debug_struct("Switch");
        debug
            .field("released", &self.is_released())
            .field("counts", &counts)
            .finish()
    }
}

impl Switch {
    /// That of a process of the same user, or anybody's if this one is root's.
    ///
    /// # Errors
    ///
    /// `NotFound`: there is no such process. `PermissionDenied`: it may not be looked at, or written to. `Unsupported`:
    /// it has no switch, as it is not under the preload library or has not made a ring yet.
    pub fn of(process: u32) -> io::Result<Switch> {
        for file in remote::find(process)? {
            if !remote::has(&file, LISTENS)? {
                continue;
            }
            let header = CounterStorage::of_other(&file).map_err(|error| {
                let what = format!("process {process} can't be asked for anything: {error}");
                io::Error::new(error.kind(), what)
            })?;
            return Ok(Switch { header });
        }
        let what = format!(
            "process {process} has no switch: it is not under `annulus run`, or with a library of a version that has \
             none"
        );
        Err(io::Error::new(io::ErrorKind::Unsupported, what))
    }

    /// Asks that the kernel has everything, or that all is served again. False: that is what was asked last.
    pub fn ask(&self, released: bool) -> bool {
        let word = &self.header[ASKED];
        let change =
            |asked: u64| (asked & 1 != u64::from(released)).then_some(asked.wrapping_add(1));
        let changed = word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, change);
        // Also if nothing was to change: a process that slept through it looks now.
        counter_storage::wake_all(word);
        changed.is_ok()
    }

    /// Whether that was asked for last.
    pub fn is_released(&self) -> bool {
        self.header[ASKED].load(Ordering::Acquire) & 1 != 0
    }

    /// What the process says.
    pub fn count(&self, what: SwitchCounter) -> u64 {
        self.header[COUNTERS + what as usize].load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_from_outside_is_seen_and_what_is_told_is_read() {
        super::super::share().unwrap();
        let own = std::process::id();
        let error = Switch::of(own).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{error}");
        listen(false);
        let switch = Switch::of(own).unwrap();
        assert!(!is_released() && !switch.is_released());
        let before = asked().unwrap().load(Ordering::Relaxed);
        assert!(!switch.ask(false), "it is served as it is");
        assert!(switch.ask(true) && !switch.ask(true));
        assert!(is_released() && switch.is_released());
        assert!(switch.ask(false) && !is_released());
        assert_eq!(asked().unwrap().load(Ordering::Relaxed), before + 2);
        add(SwitchCounter::Serving, 3);
        add(SwitchCounter::Serving, -1);
        add(SwitchCounter::ServedAgain, 7);
        let counts = SwitchCounter::ALL.map(|what| switch.count(what));
        assert_eq!(counts, [2, 0, 0, 0, 0, 7]);
    }

    #[test]
    fn a_process_that_is_not_there_is_named() {
        let error = Switch::of(u32::MAX).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");
        assert!(error.to_string().contains("4294967295"), "{error}");
    }
}
