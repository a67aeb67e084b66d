//! # Safety
//!
//! Registrations with a ring: its descriptor, buffers, files, buffer rings, limits of its workers. Registered memory
//! stays mapped and at its address (Lent, Still) until it is unregistered or the ring is closed. The memory of a buffer
//! ring belongs to this module (Owned).
//!
//! A registration alone does not let the kernel write. That takes an SQE that names the buffer, and its operation owns
//! the buffer like any other.
#![allow(unsafe_code)]

#[cfg(any(feature = "net", feature = "__preload"))]
mod incremental;

use std::ffi::c_void;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::BufRingEntry;
use rustix::io_uring::{IoringRegisterOp, io_uring_ptr, io_uring_register, io_uring_rsrc_update};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::call::IoVec;
use super::errno::{EACCES, EINVAL, ENOMEM, EPERM};
use super::ring::Ring;
use super::{forked, probe};
use crate::error::SetupError;

/// The kernel's limit on the entries of a buffer ring: its tail has 16 bits (trap 28).
const BUF_RING_ENTRIES_MAX: u16 = 1 << 15;

impl Ring {
    /// Registers the ring's descriptor with this thread. Returns its index, which belongs to the thread until the
    /// thread ends. Since Linux 5.18; before that, each enter looks the descriptor up.
    pub(super) fn register_ring_fd(&mut self) -> Result<i32, SetupError> {
        let mut update = io_uring_rsrc_update::default();
        update.offset = u32::MAX;
        update.data = io_uring_ptr::new(ptr::without_provenance_mut(
            self.raw().unsigned_abs() as usize
        ));
        // SAFETY: Open: the ring's own descriptor.
        let ring = unsafe { BorrowedFd::borrow_raw(self.raw()) };
        // SAFETY: Lent: `update` outlives the call, which reads and writes this one structure.
        let done = unsafe {
            io_uring_register(
                ring,
                IoringRegisterOp::RegisterRingFds,
                (&raw mut update).cast(),
                1,
            )
        };
        match done {
            Ok(1) => Ok(update.offset.cast_signed()),
            Ok(_) => Err(explain(
                io::Error::from_raw_os_error(EINVAL),
                RING_DESCRIPTOR,
                "5.18",
            )),
            Err(errno) => Err(explain(errno.into(), RING_DESCRIPTOR, "5.18")),
        }
    }

    /// Registers `buffers` under the indices from 0 on. READ_FIXED and WRITE_FIXED name a buffer by its index, with an
    /// address inside it. The memory is charged to the user's locked-memory limit (trap 50). Since Linux 5.1.
    ///
    /// # Safety
    ///
    /// Lent, Still: each range stays mapped, and at its address, until `unregister_buffers` or the end of the ring.
    pub(crate) unsafe fn register_buffers(&mut self, buffers: &[IoVec]) -> Result<(), SetupError> {
        // SAFETY: Lent: the caller upholds the contract in `# Safety`.
        let done = unsafe { self.submitter().register_buffers(iovecs(buffers)) };
        done.map_err(|error| explain(error, BUFFERS, "5.1"))
    }

    /// Replaces the buffers in the slots from `first` on by `buffers`. Since Linux 5.13; before that, all buffers have
    /// to be registered again.
    ///
    /// # Safety
    ///
    /// Lent, Still: as [`Ring::register_buffers`]. The previous buffers of these slots also stay mapped until the final
    /// CQE of every operation in flight that names them.
    pub(crate) unsafe fn update_buffers(
        &mut self,
        first: u32,
        buffers: &[IoVec],
    ) -> Result<(), SetupError> {
        // SAFETY: Lent: the caller upholds the contract in `# Safety`.
        let done = unsafe {
            self.submitter()
                .register_buffers_update(first, iovecs(buffers), None)
        };
        done.map_err(|error| match error.raw_os_error() {
            Some(ENOMEM) => explain(error, BUFFERS, "5.13"),
            _ => explain(error, "replacing registered buffers", "5.13"),
        })
    }

    /// Unregisters all buffers. Waits for operations in flight that name one.
    pub(crate) fn unregister_buffers(&mut self) -> Result<(), SetupError> {
        self.submitter()
            .unregister_buffers()
            .map_err(|error| explain(error, BUFFERS, "5.1"))
    }

    /// Registers `files` as direct descriptors 0, 1, …; -1 leaves a slot free. The ring holds its own reference to each
    /// file: closing the descriptor does not close the file. Since Linux 5.1.
    pub(crate) fn register_files(&mut self, files: &[RawFd]) -> Result<(), SetupError> {
        self.submitter()
            .register_files(files)
            .map_err(|error| explain(error, FILES, "5.1"))
    }

    /// Registers an empty table of `count` direct descriptors. Since Linux 5.19; before that, a list of -1 does the
    /// same.
    pub(crate) fn register_files_sparse(&mut self, count: u32) -> Result<(), SetupError> {
        let done = self.submitter().register_files_sparse(count);
        done.map_err(|error| explain(error, "an empty table of direct descriptors", "5.19"))
    }

    /// Puts `files` into the slots from `first` on; -1 closes a slot.
    pub(crate) fn update_files(&mut self, first: u32, files: &[RawFd]) -> Result<(), SetupError> {
        match self.submitter().register_files_update(first, files) {
            Ok(count) if count == files.len() => Ok(()),
            Ok(_) => Err(explain(io::Error::from_raw_os_error(EINVAL), FILES, "5.5")),
            Err(error) => Err(explain(error, FILES, "5.5")),
        }
    }

    /// Closes all direct descriptors. Waits for operations in flight that name one.
    pub(crate) fn unregister_files(&mut self) -> Result<(), SetupError> {
        self.submitter()
            .unregister_files()
            .map_err(|error| explain(error, FILES, "5.1"))
    }

    /// Registers an empty buffer group with the id `group` and space for `entries` buffers: a power of two, at most
    /// 32,768. Since Linux 5.19; before that, each receive needs a buffer.
    pub(crate) fn register_buf_ring(
        &mut self,
        entries: u16,
        group: u16,
    ) -> Result<BufRing, SetupError> {
        self.register_buf_ring_with(entries, group, 0)?
            .map_err(|error| explain(error, BUF_RING, "5.19"))
    }

    /// Does the work of `register_buf_ring`, with flags. The inner error is the kernel's refusal.
    fn register_buf_ring_with(
        &mut self,
        entries: u16,
        group: u16,
        flags: u16,
    ) -> Result<io::Result<BufRing>, SetupError> {
        if !entries.is_power_of_two() || entries > BUF_RING_ENTRIES_MAX {
            let what = format!(
                "the number of buffers of a group must be a power of two up to 32768, not {entries}"
            );
            return Err(SetupError::Config(what));
        }
        let pages = Pages::new(usize::from(entries) * size_of::<BufRingEntry>());
        let pages = pages.map_err(|error| SetupError::Os {
            what: "mmap",
            error,
        })?;
        let addr = pages.base().addr() as u64;
        // SAFETY: Lent, Still: the pages stay mapped until `unregister_buf_ring`.
        let done = unsafe {
            self.submitter()
                .register_buf_ring_with_flags(addr, entries, group, flags)
        };
        Ok(done.map(|()| BufRing {
            pages: ManuallyDrop::new(pages),
            mask: entries - 1,
            tail: 0,
            group,
        }))
    }

    /// Unregisters a buffer group: the kernel takes no further buffer from it. Operations in flight keep the buffers
    /// that they have taken. If the kernel refuses, the ring's memory is leaked.
    pub(crate) fn unregister_buf_ring(&mut self, ring: BufRing) -> Result<(), SetupError> {
        let done = self.submitter().unregister_buf_ring(ring.group);
        done.map_err(|error| explain(error, BUF_RING, "5.19"))?;
        drop(ManuallyDrop::into_inner(ring.pages));
        Ok(())
    }

    /// Limits the kernel's worker threads for the rings of this thread: bounded (files) and unbounded. 0 leaves a limit
    /// unchanged (trap 44). Since Linux 5.15; before that, there is no limit.
    pub(crate) fn limit_workers(&mut self, workers: [u32; 2]) -> Result<(), SetupError> {
        let done = self.submitter().register_iowq_max_workers(&mut { workers });
        done.map_err(|error| explain(error, "a limit of worker threads", "5.15"))
    }

    /// Restricts the kernel's worker threads to `processors`. Since Linux 5.14; before that, they run on the processors
    /// of the submitting thread.
    pub(crate) fn pin_workers(&mut self, processors: &[usize]) -> Result<(), SetupError> {
        let mut set = [0_usize; size_of::<libc::cpu_set_t>() / size_of::<usize>()];
        for &processor in processors {
            if let Some(word) = set.get_mut(processor / usize::BITS as usize) {
                *word |= 1 << (processor % usize::BITS as usize);
            }
        }
        // SAFETY: Typed: `cpu_set_t` is an array of words of that size, and any bits are valid in it.
        let set: libc::cpu_set_t = unsafe { std::mem::transmute(set) };
        self.submitter()
            .register_iowq_aff(&set)
            .map_err(|error| explain(error, WORKER_PLACES, "5.14"))
    }

    /// Lets the worker threads run on the processors of the submitting thread again.
    pub(crate) fn unpin_workers(&mut self) -> Result<(), SetupError> {
        self.submitter()
            .unregister_iowq_aff()
            .map_err(|error| explain(error, WORKER_PLACES, "5.14"))
    }
}

const RING_DESCRIPTOR: &str = "a ring's registered descriptor";
const BUFFERS: &str = "registered buffers";
const FILES: &str = "direct descriptors";
const BUF_RING: &str = "a buffer group";
const WORKER_PLACES: &str = "a choice of processors for worker threads";

/// Explains the refusal of a registration.
pub(super) fn explain(error: io::Error, what: &'static str, need: &'static str) -> SetupError {
    match error.raw_os_error() {
        Some(ENOMEM) => probe::explain_enomem(what),
        Some(EPERM | EACCES) => probe::explain_eperm(),
        // A kernel of a sufficient version: the errno is reported unchanged.
        Some(EINVAL) if probe::kernel_version() < probe::parse_version(need) => {
            SetupError::TooOld {
                have: probe::kernel_release(),
                need,
                what,
            }
        }
        _ => SetupError::Os { what, error },
    }
}

fn iovecs(buffers: &[IoVec]) -> &[libc::iovec] {
    // SAFETY: Typed: `IoVec` has the layout of `struct iovec`; its size is asserted beside it.
    unsafe { std::slice::from_raw_parts(buffers.as_ptr().cast(), buffers.len()) }
}

/// A provided buffer ring: the buffers that the kernel may take for receives that name `group`.
///
/// If it is dropped without `Ring::unregister_buf_ring`, its memory stays mapped permanently, because the kernel may
/// read it as long as the ring exists.
pub(crate) struct BufRing {
    pages: ManuallyDrop<Pages>,
    mask: u16,
    /// The number of buffers ever added; wraps.
    tail: u16,
    group: u16,
}

impl BufRing {
    pub(crate) fn group(&self) -> u16 {
        self.group
    }

    /// Adds a buffer at the end of the ring. The kernel can use it after the next `publish`.
    ///
    /// # Safety
    ///
    /// Lent, Still: the buffer is valid for writes from now until the kernel has named `id` in a CQE and that operation
    /// has had its final CQE, or until the group is unregistered. Once: no other buffer in the ring or in use has this
    /// `id`, and the ring never holds more buffers than it has entries.
    pub(crate) unsafe fn add(&mut self, base: *mut u8, bytes: u32, id: u16) {
        let index = usize::from(self.tail & self.mask);
        // SAFETY: Owned: the pages hold `mask + 1` entries.
        let entry = unsafe { &mut *self.first().add(index) };
        // The fields are set one by one, because the rest of entry 0 is the ring's tail (trap 28).
        entry.set_addr(base.expose_provenance() as u64);
        entry.set_len(bytes);
        entry.set_bid(id);
        self.tail = self.tail.wrapping_add(1);
    }

    /// Publishes the added buffers to the kernel: the entries first, then the tail.
    pub(crate) fn publish(&mut self) {
        // SAFETY: Owned: the pages begin with an entry, and all-zero bytes are a valid one.
        let tail = unsafe { BufRingEntry::tail(self.first()) };
        // SAFETY: Owned, One side: the tail is in this ring's pages, aligned; the kernel only reads it.
        let tail = unsafe { AtomicU16::from_ptr(tail.cast_mut()) };
        tail.store(self.tail, Ordering::Release);
    }

    fn first(&self) -> *mut BufRingEntry {
        self.pages.base().cast()
    }
}

/// Zeroed pages that a forked child does not get (trap 54).
pub(super) struct Pages {
    base: NonNull<c_void>,
    bytes: usize,
    process: u64,
}

impl Pages {
    pub(super) fn new(bytes: usize) -> io::Result<Pages> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: Owned: a new mapping, at an address of the kernel's choice.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), bytes, access, MapFlags::PRIVATE)? };
        let base = NonNull::new(base).ok_or_else(|| io::Error::from_raw_os_error(ENOMEM))?;
        let pages = Pages {
            base,
            bytes,
            process: forked::process(),
        };
        // SAFETY: Owned: this value's mapping; the call does not change its contents.
        unsafe { madvise(pages.base(), bytes, Advice::LinuxDontFork)? };
        Ok(pages)
    }

    pub(super) fn base(&self) -> *mut c_void {
        self.base.as_ptr()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if self.process != forked::process() {
            return;
        }
        // SAFETY: Owned: mapped in `new`, and unmapped here only.
        let _ = unsafe { munmap(self.base(), self.bytes) };
    }
}

#[cfg(test)]
mod tests;
