//! One thread per operation in flight, each reading a shared map of the file. A read makes no system call; it only
//! causes page faults.
//!
//! A read is done in place: it touches one byte per page, which brings the page in, and copies nothing. Programs use
//! maps in this way, and it is the advantage over every call that copies. A write copies into the map; a synced write
//! also calls `msync` on its block.
//!
//! # Safety
//!
//! Other processes may change the file while it is mapped, so no Rust reference into the map is created. Words are read
//! by volatile loads, and blocks are copied by pointer. If the file is truncated, the process gets `SIGBUS`, as every
//! program that maps files does. The tool's own test file is unlinked by then.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::sync::Arc;

use memmap2::{Advice, MmapOptions, MmapRaw};

use crate::threads::{next_in_time, on_threads};
use crate::tokio_blocking;
use crate::{Bench, Completed, Failure, Finished, Job, Memory, Op, Variant, Worker};

/// The size of a page. Touching one byte of each page brings a block in.
const PAGE_BYTES: usize = 4096;

const NOT_DIRECT: &str = "a map goes through the page cache; use --buffered";

/// Reads and writes through a shared map.
pub struct MappedFile {
    /// Call `msync(MS_SYNC)` after each write, even if the job does not request it.
    synced: bool,
    /// Copy each block out of the map, as fio does, instead of reading in place.
    copies: bool,
}

impl MappedFile {
    /// Returns the equivalent of fio's `mmap` engine, which copies each read out of the map.
    pub fn copying() -> MappedFile {
        MappedFile {
            synced: false,
            copies: true,
        }
    }

    /// Returns two variants that read in place, without and with a sync after every write.
    pub fn variants() -> [MappedFile; 2] {
        [false, true].map(|synced| MappedFile {
            synced,
            copies: false,
        })
    }
}

impl<B: Bench> Variant<B> for MappedFile {
    fn name(&self) -> &str {
        if self.synced { "mmap-sync" } else { "mmap" }
    }

    fn about(&self) -> &str {
        if self.synced {
            return "mmap with msync(MS_SYNC) of the block after every write";
        }
        "shared map (MADV_RANDOM when random), one thread per operation in flight; reads in place, copies nothing"
    }

    fn unfit(&self, job: &Job) -> Option<String> {
        if job.direct {
            return Some(NOT_DIRECT.into());
        }
        if self.synced && !job.writes {
            return Some("the load has no writes to sync; use `mmap`".into());
        }
        if self.synced && job.durable {
            return Some("with --sync each `mmap` does the same".into());
        }
        job.too_many_threads()
    }

    fn run(&self, job: &Job, bench: &B) -> Result<Finished, Failure> {
        let maps = (job.files.iter())
            .map(|file| View::new(job, file))
            .collect::<Result<Vec<View>, Failure>>()?;
        let synced = self.synced || job.durable;
        let setup = |_| Memory::new(1, job.block_bytes);
        let drive = |mut memory: Memory, worker: &mut B::Worker| {
            while let Some(op) = next_in_time(worker) {
                let view = &maps[op.file as usize];
                let block = view.block(&op, job);
                let mut result = Ok(block.bytes);
                let buffer = &mut memory.only()[..block.bytes];
                if op.write {
                    worker.fill(&op, buffer);
                    block.copy_from(buffer);
                    if synced {
                        result = view.sync(&op, job).map(|()| block.bytes);
                    }
                } else if self.copies {
                    block.copy_out(buffer);
                    worker.finish(op, result, &*buffer);
                    continue;
                } else {
                    block.touch();
                }
                worker.finish(op, result, &block);
            }
            Ok(0)
        };
        let (threads, fewer) = job.blocking_threads();
        on_threads(bench, threads, setup, drive)?;
        let mut note = match self.copies {
            true => "reads copy out of the map, writes into it".to_string(),
            false => "reads in place: touches a word of each page and copies nothing; writes copy into the map"
                .to_string(),
        };
        if synced && job.writes {
            note += " and msync their block";
        }
        if let Some(fewer) = fewer {
            note = format!("{note}; {fewer}");
        }
        Ok(Finished {
            calls: None,
            note: Some(note),
        })
    }
}

/// A map under Tokio: a task per operation in flight, which touches the map and blocks its worker with each page fault.
pub struct MappedInTasks;

impl<B: Bench> Variant<B> for MappedInTasks {
    fn name(&self) -> &str {
        "mmap-tokio"
    }

    fn about(&self) -> &str {
        "mmap read in place in Tokio tasks (2 workers), one per operation in flight: a page fault blocks the worker"
    }

    fn unfit(&self, job: &Job) -> Option<String> {
        if job.writes {
            return Some("it only reads; use `mmap`".into());
        }
        job.direct.then(|| NOT_DIRECT.into())
    }

    fn run(&self, job: &Job, bench: &B) -> Result<Finished, Failure> {
        let maps: Arc<[View]> = (job.files.iter())
            .map(|file| View::new(job, file))
            .collect::<Result<_, Failure>>()?;
        let runtime = tokio_blocking::runtime(job)?;
        let job = Arc::new(job.clone());
        let workers = (0..job.depth).map(|_| bench.worker()).collect();
        tokio_blocking::run_tasks(&runtime, bench, workers, |mut worker: B::Worker| {
            let (maps, job) = (Arc::clone(&maps), Arc::clone(&job));
            async move {
                while let Some(op) = worker.next() {
                    read(&maps, &job, &mut worker, op);
                    // The others are next, as if the data had come from a socket.
                    tokio::task::yield_now().await;
                }
                worker
            }
        })?;
        Ok(Finished {
            calls: None,
            note: Some("reads in place; a page fault blocks a worker with all its tasks".into()),
        })
    }
}

/// Reads a block in place.
fn read<L: Worker>(maps: &[View], job: &Job, worker: &mut L, op: Op) {
    let block = maps[op.file as usize].block(&op, job);
    block.touch();
    worker.finish(op, Ok(block.bytes), &block);
}

/// A job's only file in a shared map, with all its pages in memory and mapped.
pub struct MappedPages(View);

impl MappedPages {
    /// Maps the file, and touches each page.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be mapped.
    pub fn new(job: &Job) -> Result<MappedPages, Failure> {
        let pages = MappedPages(View::new(job, &job.files[0])?);
        pages.block(0, job.size_bytes as usize).touch();
        Ok(pages)
    }

    /// Returns the first eight bytes of the page at `at`, little endian.
    #[inline]
    pub fn word(&self, at: usize) -> u64 {
        self.block(at, PAGE_BYTES).word(0)
    }

    /// Copies from `at` on.
    #[inline]
    pub fn copy(&self, at: usize, buffer: &mut [u8]) {
        self.block(at, buffer.len()).copy_out(buffer);
    }

    /// Asks the processor for the bytes at `at`.
    #[inline]
    pub fn prefetch(&self, at: usize) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let start = self.block(at, PAGE_BYTES).start;
            // SAFETY: a hint, which reads nothing and faults nowhere.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(start.cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }

    #[inline]
    fn block(&self, at: usize, bytes: usize) -> Block<'_> {
        self.0.range(at, bytes)
    }
}

/// The mapped part of a file.
struct View {
    map: MmapRaw,
}

impl View {
    fn new(job: &Job, file: &File) -> Result<View, Failure> {
        let len = usize::try_from(job.size_bytes).map_err(|_| {
            Failure::Unavailable(format!(
                "{} bytes do not fit the address space",
                job.size_bytes
            ))
        })?;
        let mut options = MmapOptions::new();
        options.offset(job.offset_bytes).len(len);
        let map = if job.writes {
            options.map_raw(file)
        } else {
            options.map_raw_read_only(file)
        };
        let map = map.map_err(|error| match error.raw_os_error() {
            Some(libc::ENODEV) => {
                Failure::Unavailable("this file system does not allow mapping the file".into())
            }
            _ => Failure::failed(&format!("mapping {len} bytes of the file"), &error),
        })?;
        if job.random {
            map.advise(Advice::Random)
                .map_err(|error| Failure::failed("madvise(MADV_RANDOM)", &error))?;
        }
        Ok(View { map })
    }

    /// Blocks until the block of `op` is on stable storage.
    fn sync(&self, op: &Op, job: &Job) -> io::Result<()> {
        let at = (op.offset - job.offset_bytes) as usize;
        self.map.flush_range(at, op.bytes as usize)
    }

    fn block(&self, op: &Op, job: &Job) -> Block<'_> {
        let at = (op.offset - job.offset_bytes) as usize;
        self.range(at, op.bytes as usize)
    }

    #[inline]
    fn range(&self, at: usize, bytes: usize) -> Block<'_> {
        assert!(
            at + bytes <= self.map.len(),
            "block at {at} outside the map"
        );
        Block {
            start: self.map.as_mut_ptr().wrapping_add(at),
            bytes,
            _map: &self.map,
        }
    }
}

/// One block of the map. It is never made into a reference, because other processes may change its bytes.
struct Block<'a> {
    start: *mut u8,
    bytes: usize,
    _map: &'a MmapRaw,
}

impl Block<'_> {
    fn touch(&self) {
        let mut at = 0;
        while at < self.bytes {
            // SAFETY: `View::block` has checked that the block lies inside the map, which `_map` keeps alive. The load
            // is volatile, so a change by another process only yields another value.
            unsafe { self.start.add(at).read_volatile() };
            at += PAGE_BYTES;
        }
    }

    fn copy_out(&self, buffer: &mut [u8]) {
        assert!(buffer.len() == self.bytes);
        // SAFETY: both ranges are `bytes` long: the block inside the map, and the buffer by the assertion. Private
        // memory cannot overlap the map.
        unsafe { std::ptr::copy_nonoverlapping(self.start, buffer.as_mut_ptr(), self.bytes) };
    }

    fn copy_from(&self, buffer: &[u8]) {
        assert!(buffer.len() == self.bytes);
        // SAFETY: both ranges are `bytes` long: the block inside the map, and the buffer by the assertion. The map is
        // writable because the job writes. Private memory cannot overlap the map.
        unsafe { std::ptr::copy_nonoverlapping(buffer.as_ptr(), self.start, self.bytes) };
    }
}

impl Completed for Block<'_> {
    #[inline]
    fn word(&self, at: usize) -> u64 {
        if at + 8 > self.bytes {
            return !0;
        }
        // SAFETY: by the check above the eight bytes lie inside the block, which lies inside the map. Every caller
        // passes a multiple of 512, and the block begins at a multiple of 512, so the address is aligned.
        u64::from_le(unsafe { self.start.add(at).cast::<u64>().read_volatile() })
    }

    fn copy_to(&self, into: &mut Vec<u8>) -> bool {
        into.clear();
        into.resize(self.bytes, 0);
        // SAFETY: the block is `bytes` long and lies inside the map. `into` has just been resized to that length, and
        // does not overlap it.
        unsafe { std::ptr::copy_nonoverlapping(self.start, into.as_mut_ptr(), self.bytes) };
        true
    }
}
