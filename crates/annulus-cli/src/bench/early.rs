//! Runs that a signal ends early, and runs that are repeated for a longer time.

use std::time::Duration;

use crate::signals::Signal;

/// Returns a note on an interrupted comparison.
pub(crate) fn interruption(signal: Signal, made: usize, planned: usize) -> String {
    format!(
        "interrupted by {signal}: the tables show the {made} runs that were started, of {planned}"
    )
}

/// Returns whether a run that was cut short counts: at least half of its time was measured.
pub(crate) fn is_enough(measured: Duration, runtime: Duration) -> bool {
    measured * 2 >= runtime
}

/// Returns the longer time with which a run without completions is repeated, if any. On a busy machine a short run may
/// have none.
pub(crate) fn longer(runtime: Duration) -> Option<Duration> {
    const TIMES: u32 = 4;
    const LONGEST: Duration = Duration::from_secs(10);
    (runtime.checked_mul(TIMES)).filter(|&longer| longer <= LONGEST)
}

/// Returns a note on a run that a signal ended.
pub(crate) fn cut_short(measured: Duration, runtime: Duration) -> String {
    format!(
        "interrupted after {:.2} of {} s",
        measured.as_secs_f64(),
        runtime.as_secs_f64()
    )
}
