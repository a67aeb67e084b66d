//! A variant that reads the first file while a thread reads the others from start to end, again and again.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Instant;

use annulus::{Engine, OpenOptions};
use annulus_baselines::{Failure, Finished, Job, Variant};
use futures_executor::block_on;

use crate::bench::file::run::{AnyVariant, Harness};

/// The length of a read of the scan.
const SCAN_BYTES: usize = 1 << 20;

/// Another variant, beside a scan.
pub(crate) struct BesideScan {
    name: String,
    about: String,
    inner: AnyVariant,
    /// The scan leaves the page cache as it was.
    uncached: bool,
}

impl BesideScan {
    pub(crate) fn of(inner: AnyVariant, uncached: bool) -> BesideScan {
        let (word, how) = match uncached {
            true => ("uncached", "OpenOptions::uncached"),
            false => ("scan", "the page cache"),
        };
        BesideScan {
            name: format!("{}-beside-{word}", inner.name()),
            about: format!("{} beside a scan by Annulus through {how}", inner.name()),
            inner,
            uncached,
        }
    }

    /// Scans until the end is set. Returns the number of bytes.
    fn scan(&self, files: &[File], end: &AtomicBool) -> Result<u64, Failure> {
        let failed = |error| Failure::failed("scanning", &error);
        let engine = Engine::new().map_err(|error| {
            Failure::Failed(format!("building the engine of the scan: {error}"))
        })?;
        let mut options = OpenOptions::new();
        options.read(true).uncached(self.uncached);
        let (mut bytes, mut buffer) = (0, vec![0; SCAN_BYTES]);
        for file in files.iter().cycle() {
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            let file = block_on(engine.open_with(&options, path)).map_err(failed)?;
            let mut at = 0;
            loop {
                if end.load(Relaxed) {
                    return Ok(bytes + at);
                }
                let read = block_on(file.read_at(buffer, at));
                let (count, returned) = read.map_err(|error| failed(error.into()))?;
                buffer = returned;
                if count == 0 {
                    break;
                }
                at += count as u64;
                if self.uncached
                    && let Err(reason) = file.uncached_support()
                {
                    return Err(Failure::Unavailable(reason.to_string()));
                }
            }
            bytes += at;
        }
        Ok(bytes)
    }
}

impl Variant<Harness> for BesideScan {
    fn name(&self) -> &str {
        &self.name
    }

    fn about(&self) -> &str {
        &self.about
    }

    fn scans(&self) -> bool {
        true
    }

    fn unfit(&self, job: &Job) -> Option<String> {
        if job.files.len() < 2 {
            return Some(
                "it scans the files after the first one: use --files with at least 2".into(),
            );
        }
        self.inner.unfit(job)
    }

    fn run(&self, job: &Job, bench: &Harness) -> Result<Finished, Failure> {
        let end = AtomicBool::new(false);
        thread::scope(|scope| {
            let begin = Instant::now();
            let scan = scope.spawn(|| self.scan(&job.files[1..], &end));
            let finished = self.inner.run(job, bench);
            end.store(true, Relaxed);
            let seconds = begin.elapsed().as_secs_f64();
            let scanned = scan.join().unwrap_or_else(|_| {
                Err(Failure::Failed(
                    "the thread of the scan has panicked".into(),
                ))
            })?;
            let note = format!("scan of {:.0} MB/s", scanned as f64 / 1e6 / seconds);
            finished.map(|finished| Finished {
                note: Some(
                    [finished.note, Some(note)]
                        .into_iter()
                        .flatten()
                        .collect::<Vec<_>>()
                        .join("; "),
                ),
                ..finished
            })
        })
    }
}
