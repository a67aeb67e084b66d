//! What the kernel has charged to the calling thread so far: processor time, switches, faults.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;

/// Counts since the thread began.
#[derive(Clone, Copy, Debug, Default)]
pub struct ThreadUsage {
    /// Time in user space.
    pub user_ns: u64,
    /// Time in the kernel.
    pub system_ns: u64,
    /// How often it was taken off a processor, by its own wish or not.
    pub switches: u64,
    /// Page faults that needed the disk.
    pub major_faults: u64,
    /// Page faults that did not.
    pub minor_faults: u64,
}

impl ThreadUsage {
    /// Of the calling thread, up to now.
    pub fn now() -> ThreadUsage {
        let mut usage = MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: the call writes one `rusage` to where there is room for one.
        let code = unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
        if code != 0 {
            return ThreadUsage::default();
        }
        // SAFETY: zeroed, which is a value of this plain struct, and since then written by the kernel.
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

    /// What was added since `earlier`.
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
