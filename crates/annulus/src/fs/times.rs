//! The times that are set on a file.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::sys::call::{Timespec, UTIME_OMIT};

/// The times for [`File::set_times`](crate::File::set_times). Times that are not given stay as they are.
///
/// A copy with the times of its original:
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// # let dir = tempfile::tempdir()?;
/// # let engine = annulus::Engine::new()?;
/// # let (from, to) = (dir.path().join("from"), dir.path().join("to")); std::fs::write(&from, "")?;
/// use annulus::fs::FileTimes;
///
/// engine.copy(&from, &to).await?; // the copy has new times
/// let original = engine.metadata(&from).await?;
/// let times = FileTimes::new().set_modified(original.modified()); // leaves the other one
/// engine.set_times(&to, times).await?;
/// assert_eq!(engine.metadata(&to).await?.modified(), original.modified());
/// # Ok(()) }) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileTimes {
    accessed: Option<SystemTime>,
    modified: Option<SystemTime>,
}

impl FileTimes {
    /// Creates a value that changes no time.
    pub fn new() -> FileTimes {
        FileTimes::default()
    }

    /// Sets the time of the last read.
    pub fn set_accessed(mut self, time: SystemTime) -> Self {
        self.accessed = Some(time);
        self
    }

    /// Sets the time of the last change of the contents.
    pub fn set_modified(mut self, time: SystemTime) -> Self {
        self.modified = Some(time);
        self
    }

    /// Returns the argument of `utimensat(2)`.
    pub(crate) fn timespecs(self) -> [Timespec; 2] {
        [self.accessed, self.modified].map(timespec)
    }
}

fn timespec(time: Option<SystemTime>) -> Timespec {
    let Some(time) = time else {
        return Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_OMIT,
        };
    };
    let seconds = |seconds: u64| i64::try_from(seconds).unwrap_or(i64::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Timespec {
            tv_sec: seconds(after.as_secs()),
            tv_nsec: after.subsec_nanos().into(),
        },
        Err(error) => {
            // The nanoseconds count forward in any case.
            let before = error.duration();
            let part = i64::from(before.subsec_nanos() > 0);
            Timespec {
                tv_sec: -seconds(before.as_secs()) - part,
                tv_nsec: part * 1_000_000_000 - i64::from(before.subsec_nanos()),
            }
        }
    }
}
