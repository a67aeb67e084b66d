//! Any words in the metrics file of another process: a snapshot of it is refused or evaluated, and nothing overflows.

#![no_main]

use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::FileExt;

use annulus::metrics::Snapshot;
use annulus::metrics::layout::{
    self, FILE_NAME, HEADER_NAMES, HEADER_PROCESS, HEADER_RECORDS, HEADER_SAYS, HEADER_VERSION,
    HEADER_WORDS, MAGIC, WORDS,
};
use annulus_observe::alert::Alerts;
use annulus_observe::snapshot_of;
use libfuzzer_sys::fuzz_target;
use rustix::fs::{MemfdFlags, memfd_create};

/// The number of records in the file.
const RECORDS: usize = 3;
/// A write of a word: the record, the word, and its value.
const WRITE_BYTES: usize = 12;
/// Words that few random indices would meet: the kind, the counters and errors, and the first sums.
const COMMON_WORDS: u32 = 1024;

thread_local! {
    static FILE: RefCell<File> =
        RefCell::new(File::from(memfd_create(FILE_NAME, MemfdFlags::CLOEXEC).unwrap()));
}

fn word_at(file: &File, offset: u64, word: usize, value: u64) {
    let offset = offset + (word * size_of::<u64>()) as u64;
    file.write_all_at(&value.to_ne_bytes(), offset).unwrap();
}

/// Starts with a file that a reader accepts: a valid header, and records of different kinds.
fn begin(file: &File) {
    file.set_len(0).unwrap();
    file.set_len(layout::offset_of(RECORDS)).unwrap();
    for (word, value) in [
        (0, MAGIC),
        (HEADER_VERSION, layout::VERSION),
        (HEADER_WORDS, WORDS as u64),
        (HEADER_RECORDS, RECORDS as u64),
        (HEADER_PROCESS, u64::from(std::process::id())),
        (HEADER_NAMES, layout::names()),
    ] {
        word_at(file, 0, word, value);
    }
    for record in 0..RECORDS {
        word_at(file, layout::offset_of(record), 0, record as u64 + 1);
    }
}

/// Writes words as the input says. Returns the snapshot that a reader takes.
fn write(file: &File, input: &[u8]) -> Option<Snapshot> {
    let (writes, _) = input.as_chunks::<WRITE_BYTES>();
    for [record, a, b, c, value @ ..] in writes {
        let word = u32::from_le_bytes([*a, *b, *c, 0]);
        let value = u64::from_le_bytes(*value);
        match usize::from(*record) {
            255 => word_at(file, 0, word as usize % HEADER_SAYS, value),
            // The upper half of the numbers writes to the common words.
            record => {
                let word = match record >= 128 {
                    true => word % COMMON_WORDS,
                    false => word,
                };
                let offset = layout::offset_of(record % RECORDS);
                word_at(file, offset, word as usize % WORDS, value);
            }
        }
    }
    snapshot_of(std::process::id()).ok()
}

fn evaluate(snapshot: &Snapshot) {
    for source in snapshot.sources.iter().chain([&snapshot.total()]) {
        assert!(source.counters.fields().count() > 0);
        for operation in &source.operations {
            for histogram in [&operation.latency, &operation.queue, &operation.device] {
                assert!(!histogram.mean_ns().is_nan());
                let (median, tail) = (histogram.quantile(0.5), histogram.quantile(0.99));
                assert!(median <= tail, "{histogram:?}");
            }
        }
    }
}

fuzz_target!(|input: &[u8]| {
    FILE.with_borrow_mut(|file| {
        begin(file);
        let half = input.len() / 2 / WRITE_BYTES * WRITE_BYTES;
        let (first, second) = input.split_at(half);
        let rules = ["p99 > 1ms", "errors > 1%", "rate > 5/s"];
        let mut alerts = Alerts::new(rules.map(|rule| rule.parse().unwrap()));
        let Some(earlier) = write(file, first) else {
            return;
        };
        evaluate(&earlier);
        alerts.look(&earlier);
        let Some(now) = write(file, second) else {
            return;
        };
        evaluate(&now);
        evaluate(&now.since(&earlier));
        alerts.look(&now);
    });
});
