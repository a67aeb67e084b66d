//! The retry rule of all drivers.

use super::Resume;
use crate::sys::errno::{EAGAIN, EINTR, ENOMEM, ERESTARTSYS};

/// The maximum number of immediate repeats of a refused request in a row. A file that always returns EAGAIN, or a
/// kernel that always refuses an enter call, would otherwise keep a driver busy without end.
pub(crate) const REFUSALS_MAX: u8 = 64;

/// The maximum number for an operation that returns ENOMEM. Some kernels return it once without need (trap 57); a real
/// shortage of memory does not end within microseconds.
const SHORTAGES_MAX: u8 = 2;

/// Retries after EINTR and ERESTARTSYS (a signal), and after EAGAIN and ENOMEM, which report a temporary shortage in
/// the kernel (XFS reads, request memory). The caller gets one of them only if it repeats (traps 43 and 57); see
/// [`Refusals`].
#[inline]
pub(crate) fn retry_interrupted(res: i32) -> Resume {
    match -res {
        EINTR | EAGAIN | ENOMEM | ERESTARTSYS => Resume::Again,
        _ => Resume::Done(res),
    }
}

/// Counts the refusals of an operation since it last made progress.
#[derive(Debug, Default)]
pub(crate) struct Refusals(u8);

impl Refusals {
    /// Decides what to do after `res`, for which the operation chose `resume`.
    #[inline]
    pub(crate) fn judge(&mut self, res: i32, resume: Resume) -> Resume {
        match resume {
            Resume::Again => self.judge_again(res),
            done => done,
        }
    }

    #[cold]
    fn judge_again(&mut self, res: i32) -> Resume {
        let max = match -res {
            ..=0 => {
                self.0 = 0;
                return Resume::Again;
            }
            // Each one has a signal as its cause.
            EINTR | ERESTARTSYS => return Resume::Again,
            ENOMEM => SHORTAGES_MAX,
            _ => REFUSALS_MAX,
        };
        if self.0 >= max {
            return Resume::Done(res);
        }
        self.0 += 1;
        Resume::Again
    }
}
