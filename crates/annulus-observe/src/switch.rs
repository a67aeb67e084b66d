//! The operator's half of the switch that a process under the preload library shares. An operator requests that
//! everything is handed back to the kernel, or served again, and reads what the process counts. For the tool; it has
//! no stable interface.

use std::fmt;
use std::io;
use std::sync::atomic::Ordering;

pub use annulus::metrics::layout::switch::SwitchCounter;
use annulus::metrics::layout::switch::{COUNTERS, LISTENS, REQUEST};
use annulus::metrics::layout::{MappedHeader, wake_all};

use crate::process;

/// The switch of another process.
pub struct Switch {
    header: MappedHeader,
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
    /// Returns the switch of a process of the same user, or of any user if this process is root's.
    ///
    /// # Errors
    ///
    /// `NotFound`: there is no such process. `PermissionDenied`: it may not be looked at, or written to. `Unsupported`:
    /// it has no switch, as it is not under the preload library or has not made a ring yet.
    pub fn of(process: u32) -> io::Result<Switch> {
        for file in process::shared_files(process)? {
            if !process::is_set(&file, LISTENS)? {
                continue;
            }
            let header = MappedHeader::of(&file).map_err(|error| {
                let what = format!("process {process} accepts no requests: {error}");
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

    /// Requests that the kernel has everything, or that all is served again. Returns `false` if that was the last
    /// request already.
    pub fn request(&self, released: bool) -> bool {
        let word = &self.header[REQUEST];
        let change =
            |request: u64| (request & 1 != u64::from(released)).then_some(request.wrapping_add(1));
        let changed = word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, change);
        // Also if the request is not new: a process that missed it while it slept looks now.
        wake_all(word);
        changed.is_ok()
    }

    /// Returns whether the last request was to release the process.
    pub fn is_released(&self) -> bool {
        self.header[REQUEST].load(Ordering::Acquire) & 1 != 0
    }

    /// Returns a counter of the process.
    pub fn count(&self, what: SwitchCounter) -> u64 {
        self.header[COUNTERS + what as usize].load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use annulus::metrics::layout::switch::{add, is_released, listen, request_word};

    use super::*;

    #[test]
    fn requests_from_outside_reach_the_process_and_its_counters_are_read() {
        annulus::metrics::share().unwrap();
        let own = std::process::id();
        let error = Switch::of(own).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{error}");
        listen(false);
        let switch = Switch::of(own).unwrap();
        assert!(!is_released() && !switch.is_released());
        let before = request_word().unwrap().load(Ordering::Relaxed);
        assert!(!switch.request(false), "it is served as it is");
        assert!(switch.request(true) && !switch.request(true));
        assert!(is_released() && switch.is_released());
        assert!(switch.request(false) && !is_released());
        assert_eq!(request_word().unwrap().load(Ordering::Relaxed), before + 2);
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
