//! On which processors a thread may run.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Keeps the calling thread on the `n`-th of the processors that it may use, counted round. Without effect
/// where that is refused: it costs speed at the most.
pub(crate) fn pin_to_nth(n: usize) {
    let Ok(allowed) = sched_getaffinity(None) else {
        return;
    };
    let mut processors = (0..CpuSet::MAX_CPU).filter(|&one| allowed.is_set(one));
    let count = allowed.count() as usize;
    if let Some(processor) = processors.nth(n % count.max(1)) {
        let mut only = CpuSet::new();
        only.set(processor);
        let _ = sched_setaffinity(None, &only);
    }
}
