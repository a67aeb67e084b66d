//! The operator's side of the switch of a process under the preload library. It requests that the process hands
//! everything back to the kernel, or serves it again, and reads its counters. For the tool only; the interface is not
//! stable.

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
        let counts = SwitchCounter::ALL.map(|counter| self.count(counter));
        let mut debug = f.debug_struct("Switch");
        debug
            .field("released", &self.is_released())
            .field("counts", &counts)
            .finish()
    }
}

impl Switch {
    /// Returns the switch of a process. The process must belong to the same user, unless this process runs as root.
    ///
    /// # Errors
    ///
    /// - `NotFound` if there is no such process.
    /// - `PermissionDenied` if this process may not read and write its shared memory.
    /// - `Unsupported` if it has no switch: it does not run under the preload library, or has no ring yet.
    pub fn of(process: u32) -> io::Result<Switch> {
        for file in process::shared_files(process)? {
            if !process::is_set(&file, LISTENS)? {
                continue;
            }
            let header = MappedHeader::of(&file).map_err(|error| {
                let message = format!("cannot use the switch of process {process}: {error}");
                io::Error::new(error.kind(), message)
            })?;
            return Ok(Switch { header });
        }
        let message = format!(
            "process {process} has no switch: it does not run under `annulus run`, or its preload library has none"
        );
        Err(io::Error::new(io::ErrorKind::Unsupported, message))
    }

    /// Requests that the process hands everything back to the kernel, or serves it again. Returns `false` if this was
    /// the last request already.
    pub fn request(&self, released: bool) -> bool {
        let word = &self.header[REQUEST];
        let change =
            |request: u64| (request & 1 != u64::from(released)).then_some(request.wrapping_add(1));
        let changed = word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, change);
        // Repeated requests wake the process too, in case it missed the first one while it slept.
        wake_all(word);
        changed.is_ok()
    }

    /// Returns whether the last request was to release the process.
    pub fn is_released(&self) -> bool {
        self.header[REQUEST].load(Ordering::Acquire) & 1 != 0
    }

    /// Returns a counter of the process.
    pub fn count(&self, counter: SwitchCounter) -> u64 {
        self.header[COUNTERS + counter as usize].load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use annulus::metrics::layout::switch::{add, is_released, listen, request_word};

    use super::*;

    #[test]
    fn a_request_reaches_the_process_and_its_counters_can_be_read() {
        annulus::metrics::share().unwrap();
        let own = std::process::id();
        let error = Switch::of(own).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{error}");
        listen(false);
        let switch = Switch::of(own).unwrap();
        assert!(!is_released() && !switch.is_released());
        let before = request_word().unwrap().load(Ordering::Relaxed);
        assert!(!switch.request(false), "it is served already");
        assert!(switch.request(true) && !switch.request(true));
        assert!(is_released() && switch.is_released());
        assert!(switch.request(false) && !is_released());
        assert_eq!(request_word().unwrap().load(Ordering::Relaxed), before + 2);
        add(SwitchCounter::Serving, 3);
        add(SwitchCounter::Serving, -1);
        add(SwitchCounter::ServedAgain, 7);
        let counts = SwitchCounter::ALL.map(|counter| switch.count(counter));
        assert_eq!(counts, [2, 0, 0, 0, 0, 7]);
    }

    #[test]
    fn the_error_for_a_missing_process_names_it() {
        let error = Switch::of(u32::MAX).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");
        assert!(error.to_string().contains("4294967295"), "{error}");
    }
}
