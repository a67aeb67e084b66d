//! The code that the programs share: the cost of a run, cold files, the drive's limit, a limit of memory, and tables of
//! ratios.

#![forbid(unsafe_code)]

mod files;
mod limit;
mod options;
mod report;

use std::io::{Error, Result};
use std::ops::AddAssign;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use serde::Serialize;

pub use files::{Drive, read_into_cache, remove_from_cache};
pub use limit::in_limited_memory;
pub use options::{Cache, Options, exit_code};
pub use report::Report;

/// The cost of a run.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Cost {
    /// The time that passed, seconds.
    pub seconds: f64,
    /// User and system time of all threads of the process, with kernel workers, seconds.
    pub cpu_seconds: f64,
    /// The bytes that the process read from drives.
    pub drive_bytes: u64,
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Cost) {
        self.seconds += other.seconds;
        self.cpu_seconds += other.cpu_seconds;
        self.drive_bytes += other.drive_bytes;
    }
}

/// A running measurement.
#[derive(Debug)]
pub struct Stopwatch {
    start: Instant,
    cpu: Duration,
    drive_bytes: u64,
}

impl Stopwatch {
    /// Starts a measurement.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not report the resource usage of the process.
    pub fn start() -> Result<Stopwatch> {
        Ok(Stopwatch {
            cpu: cpu()?,
            drive_bytes: drive_bytes()?,
            start: Instant::now(),
        })
    }

    /// Returns the cost since the start.
    ///
    /// # Errors
    ///
    /// Fails like [`start`](Stopwatch::start).
    pub fn stop(self) -> Result<Cost> {
        Ok(Cost {
            seconds: self.start.elapsed().as_secs_f64(),
            cpu_seconds: cpu()?.saturating_sub(self.cpu).as_secs_f64(),
            drive_bytes: drive_bytes()?.saturating_sub(self.drive_bytes),
        })
    }
}

fn cpu() -> Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let of = |time: TimeVal| {
        Duration::from_secs(time.tv_sec().unsigned_abs())
            + Duration::from_micros(time.tv_usec().unsigned_abs())
    };
    Ok(of(usage.user_time()) + of(usage.system_time()))
}

fn drive_bytes() -> Result<u64> {
    let path = "/proc/self/io";
    let text = std::fs::read_to_string(path)?;
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix("read_bytes: "));
    value
        .and_then(|value| value.parse().ok())
        .ok_or_else(|| Error::other(format!("{path} has no line `read_bytes`")))
}

/// Returns the number of reads that Annulus has completed in this process.
pub fn reads() -> u64 {
    let total = annulus::metrics::snapshot().total();
    let reads = total.operation("read_at");
    reads.map_or(0, |reads| reads.completed)
}

/// Returns the order of `count` variants in a round. Each variant is at each place in turn, and every other round is
/// reversed, so that a drift of the machine affects all variants alike.
pub fn order(count: usize, round: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count)
        .map(|place| (place + round / 2) % count)
        .collect();
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

/// Returns the first quartile, the median and the third quartile.
pub fn quartiles(values: impl IntoIterator<Item = f64>) -> [f64; 3] {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    [1, 2, 3].map(|quarter| values.get(last * quarter / 4).copied().unwrap_or(f64::NAN))
}

#[cfg(test)]
mod tests {
    use super::{order, quartiles};

    #[test]
    fn each_variant_is_first_equally_often() {
        let mut first = [0; 3];
        for round in 0..6 {
            let order = order(3, round);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2]);
            first[order[0]] += 1;
        }
        assert_eq!(first, [2, 2, 2]);
    }

    #[test]
    fn quartiles_of_five_values_are_the_second_third_and_fourth() {
        assert_eq!(quartiles([5.0, 1.0, 4.0, 2.0, 3.0]), [2.0, 3.0, 4.0]);
    }
}
