//! Which memory of this process is mapped.

use std::time::{Duration, Instant};

/// Whether memory that can be written to lies at `from`, of at least `bytes`.
///
/// An arena that has gone and is registered with no ring any more is unmapped.
pub(crate) fn is_mapped(from: usize, bytes: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().any(|line| {
        let (range, rest) = line.split_once(' ').unwrap();
        let (start, end) = range.split_once('-').unwrap();
        let number = |hex| usize::from_str_radix(hex, 16).unwrap();
        rest.starts_with("rw") && number(start) <= from && from + bytes <= number(end)
    })
}

/// Waits until it is not.
#[track_caller]
pub(crate) fn until_unmapped(from: usize, bytes: usize) {
    let until = Instant::now() + Duration::from_secs(60);
    while is_mapped(from, bytes) {
        assert!(Instant::now() < until, "the memory is still mapped");
        std::thread::sleep(Duration::from_millis(1));
    }
}
