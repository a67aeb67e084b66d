//! The memory that this process has mapped.

use std::time::{Duration, Instant};

/// Returns whether `bytes` bytes of writable memory are mapped at `from`.
///
/// An arena is unmapped once it was dropped and no ring has it registered.
pub fn is_mapped(from: usize, bytes: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().any(|line| {
        let (range, rest) = line.split_once(' ').unwrap();
        let (start, end) = range.split_once('-').unwrap();
        let number = |hex| usize::from_str_radix(hex, 16).unwrap();
        rest.starts_with("rw") && number(start) <= from && from + bytes <= number(end)
    })
}

/// Waits until that memory is unmapped; panics after 60 s.
#[track_caller]
pub fn until_unmapped(from: usize, bytes: usize) {
    let until = Instant::now() + Duration::from_secs(60);
    while is_mapped(from, bytes) {
        assert!(Instant::now() < until, "the memory is still mapped");
        std::thread::sleep(Duration::from_millis(1));
    }
}
