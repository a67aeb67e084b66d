//! Resources that the kernel has charged to the calling thread: processor time, context switches, page faults.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;

/// Counts since the start of the thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct ThreadUsage {
    /// Processor time in user space.
    pub user_ns: u64,
    /// Processor time in the kernel.
    pub system_ns: u64,
    /// Context switches, voluntary and involuntary.
    pub switches: u64,
    /// Page faults that needed the disk.
    pub major_faults: u64,
    /// Page faults that did not need the disk.
    pub minor_faults: u64,
}

impl ThreadUsage {
    /// Returns the counts of the calling thread.
    pub fn now() -> ThreadUsage {
        let mut usage = MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: the call writes one `rusage`, for which `usage` has room.
        let code = unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
        if code != 0 {
            return ThreadUsage::default();
        }
        // SAFETY: zero bytes are a valid value of this plain struct, and the kernel has written it since.
        let usage = unsafe { usage.assume_init() };
        let ns =
            |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
        ThreadUsage {
            user_ns: ns(usage.ru_utime),
            system_ns: ns(usage.ru_stime),
            switches: (usage.ru_nvcsw + usage.ru_nivcsw) as u64,
            major_faults: usage.ru_majflt as u64,
            minor_faults: usage.ru_minflt as u64,
        }
    }

    /// Returns the difference from `earlier`.
    pub fn since(&self, earlier: &ThreadUsage) -> ThreadUsage {
        ThreadUsage {
            user_ns: self.user_ns.saturating_sub(earlier.user_ns),
            system_ns: self.system_ns.saturating_sub(earlier.system_ns),
            switches: self.switches.saturating_sub(earlier.switches),
            major_faults: self.major_faults.saturating_sub(earlier.major_faults),
            minor_faults: self.minor_faults.saturating_sub(earlier.minor_faults),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_of_this_thread_is_counted_for_it() {
        let before = ThreadUsage::now();
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(ThreadUsage::now().since(&before).switches > 0);
    }
}
