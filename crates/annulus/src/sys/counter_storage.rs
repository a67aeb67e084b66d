//! # Safety
//!
//! Storage for counters. Counters may be read while they are written: by other threads, and by other processes if they
//! are in a memory file (memfd). They are only ever accessed as atomics, so whatever another process writes into the
//! file is just a number (Atomic). Each range is unmapped by its only owner (Owned).
//!
//! A child of a fork would count in its parent's file. An atfork handler therefore replaces the mapped ranges with
//! private memory before any other code runs in the child.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::{Deref, Index};
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use rustix::process::{Resource, getrlimit};

/// `N` counters, initially zero.
pub(crate) struct CounterStorage<const N: usize> {
    base: NonNull<[AtomicU64; N]>,
    from: From,
}

/// The origin of the memory.
enum From {
    /// Static memory, never unmapped.
    Static,
    /// An anonymous mapping, or another process's file.
    Own,
    /// A mapping of this process's file, recorded at this index of `MAPPED`.
    File(usize),
}

// SAFETY: Atomic: a range of atomics, like a Box's.
unsafe impl<const N: usize> Send for CounterStorage<N> {}
// SAFETY: Atomic: a range of atomics, like a Box's.
unsafe impl<const N: usize> Sync for CounterStorage<N> {}

impl<const N: usize> CounterStorage<N> {
    const BYTES: usize = N * size_of::<u64>();

    /// Maps memory that is private to this process, or uses `instead` if that fails. Pages that are never written take
    /// no memory.
    pub(crate) fn own(instead: &'static [AtomicU64; N]) -> CounterStorage<N> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: Owned: a new mapping, at an address of the kernel's choice.
        let made = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                CounterStorage::<N>::BYTES,
                access,
                MapFlags::PRIVATE,
            )
        };
        let own = made.ok().and_then(|base| NonNull::new(base.cast()));
        match own {
            Some(base) => CounterStorage {
                base,
                from: From::Own,
            },
            None => CounterStorage {
                base: NonNull::from(instead),
                from: From::Static,
            },
        }
    }

    /// Maps the range of `file` that starts at byte `offset`, a multiple of the page size.
    pub(crate) fn of(file: &WordFile, offset: u64) -> io::Result<CounterStorage<N>> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let (bytes, flags) = (CounterStorage::<N>::BYTES, MapFlags::SHARED);
        if offset + bytes as u64 > file.bytes {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        file.check()?;
        // SAFETY: Atomic: a new mapping of a file whose size is sealed, so that all of it is there.
        let base = unsafe { mmap(ptr::null_mut(), bytes, access, flags, &*file.file, offset)? };
        let Some(index) = remember(base.expose_provenance(), bytes) else {
            // SAFETY: Owned: mapped just above, and its address has not been shared.
            let _ = unsafe { munmap(base, bytes) };
            return Err(io::ErrorKind::OutOfMemory.into());
        };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(CounterStorage {
            base,
            from: From::File(index),
        })
    }

    /// Maps the start of another process's file, for reading and writing.
    pub(crate) fn of_other(file: &File) -> io::Result<CounterStorage<N>> {
        // Without the seal the owner could shrink the file, and an access would then end this process.
        let sealed = fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
        if !sealed || file.metadata()?.len() < CounterStorage::<N>::BYTES as u64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let (bytes, flags) = (CounterStorage::<N>::BYTES, MapFlags::SHARED);
        // SAFETY: Atomic: a new mapping of a file whose size is sealed, so that all of it is there.
        let base = unsafe { mmap(ptr::null_mut(), bytes, access, flags, file, 0)? };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(CounterStorage {
            base,
            from: From::Own,
        })
    }

    /// Sets the counters to zero. The pages of a file are also given back. They are addressed by the mapping, because
    /// the descriptor's number may refer to another file by now.
    pub(crate) fn clear(&self) {
        let base = self.base.as_ptr().cast();
        // SAFETY: Atomic: the whole range, which reads as zero afterwards.
        let removed = matches!(self.from, From::File(_))
            && unsafe { madvise(base, CounterStorage::<N>::BYTES, Advice::LinuxRemove) }.is_ok();
        if !removed {
            self.iter()
                .for_each(|word| word.store(0, Ordering::Relaxed));
        }
    }
}

impl<const N: usize> Deref for CounterStorage<N> {
    type Target = [AtomicU64; N];

    #[inline]
    fn deref(&self) -> &[AtomicU64; N] {
        // SAFETY: Atomic: aligned, initialised to zero, and mapped as long as the value lives.
        unsafe { self.base.as_ref() }
    }
}

/// Refers to one counter only. Under Miri, a reference to all of them takes time in proportion to their number.
impl<const N: usize> Index<usize> for CounterStorage<N> {
    type Output = AtomicU64;

    #[inline]
    fn index(&self, position: usize) -> &AtomicU64 {
        assert!(position < N);
        // SAFETY: Atomic: as in `deref`, and the position is within the range.
        unsafe { self.base.cast::<AtomicU64>().add(position).as_ref() }
    }
}

impl<const N: usize> Drop for CounterStorage<N> {
    fn drop(&mut self) {
        match self.from {
            From::Static => return,
            From::Own => {}
            // Forgotten before the unmap, so that a fork in between does not map over memory that others use by then.
            From::File(index) => forget(index, self.base.addr().get()),
        }
        // SAFETY: Owned: mapped when it was made, and unmapped here only.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), CounterStorage::<N>::BYTES) };
    }
}

/// Returns the half of a counter that serves as its futex: the one that changes with each increment.
pub(crate) fn futex_of(word: &AtomicU64) -> *mut u32 {
    let halves = word.as_ptr().cast::<u32>();
    halves.wrapping_add(usize::from(cfg!(target_endian = "big")))
}

/// Wakes all threads that sleep on a counter, in any process.
pub(crate) fn wake_all(word: &AtomicU64) {
    let (futex, all) = (futex_of(word), libc::c_int::MAX);
    // SAFETY: Atomic: the kernel looks up the waiters of the address and writes nothing.
    unsafe { libc::syscall(libc::SYS_futex, futex, libc::FUTEX_WAKE, all) };
}

/// A memory file (memfd) that other processes find among this process's descriptors. It exists as long as the process.
pub(crate) struct WordFile {
    /// Closed by a direct system call: libc's `close` may be the preload library's (Sealed).
    file: ManuallyDrop<OwnedFd>,
    /// The device and inode, which identify the file.
    inode: (u64, u64),
    bytes: u64,
}

impl WordFile {
    /// Creates a file of `bytes` bytes with a sealed size. Its descriptor is at least `lowest` if such a number is
    /// free. Pages that are never written take no memory.
    pub(crate) fn new(name: &str, bytes: u64, lowest: RawFd) -> io::Result<WordFile> {
        // A process that exceeds RLIMIT_FSIZE is killed (SIGXFSZ).
        if getrlimit(Resource::Fsize)
            .current
            .is_some_and(|most| most < bytes)
        {
            return Err(io::Error::other(format!(
                "a memory file of {bytes} bytes, most of them never used, exceeds the limit on the size of files \
                 (RLIMIT_FSIZE); raise it (ulimit -f)"
            )));
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // Since Linux 6.3. With vm.memfd_noexec set to 2, memfds can only be created with this flag.
        let made = memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL)
            .or_else(|_| memfd_create(name, flags))?;
        let mut file = WordFile {
            inode: inode_of(&made)?,
            file: ManuallyDrop::new(made),
            bytes,
        };
        if file.file.as_raw_fd() < lowest
            && let Ok(higher) = fcntl_dupfd_cloexec(&*file.file, lowest)
        {
            file.replace(higher);
        }
        ftruncate(&*file.file, bytes)?;
        fcntl_add_seals(
            &*file.file,
            SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL,
        )?;
        if_forked();
        Ok(file)
    }

    /// Returns the number of the descriptor.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Fails if the descriptor no longer refers to the file. A program that closes all descriptors it does not know, as
    /// daemons do, closes this one too; its number may then refer to a file that must not be written to.
    fn check(&self) -> io::Result<()> {
        match inode_of(&*self.file) {
            Ok(inode) if inode == self.inode => Ok(()),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn replace(&mut self, file: OwnedFd) {
        let before = std::mem::replace(&mut self.file, ManuallyDrop::new(file));
        close(ManuallyDrop::into_inner(before));
    }
}

impl Drop for WordFile {
    fn drop(&mut self) {
        if self.check().is_ok() {
            // SAFETY: Owned: taken once; the field is not used after `drop`.
            close(unsafe { ManuallyDrop::take(&mut self.file) });
        }
    }
}

fn close(file: OwnedFd) {
    // SAFETY: Owned: the previous owner has given up the descriptor.
    unsafe { rustix::io::close(file.into_raw_fd()) };
}

fn inode_of(file: impl AsFd) -> io::Result<(u64, u64)> {
    let stat = fstat(file)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// A value that is never freed once it is set. It may be replaced by another one.
pub(crate) struct Lasting<T>(AtomicPtr<T>);

impl<T: Sync> Lasting<T> {
    pub(crate) const fn new() -> Lasting<T> {
        Lasting(AtomicPtr::new(ptr::null_mut()))
    }

    pub(crate) fn set(&self, value: Option<T>) {
        let value = value.map_or(ptr::null_mut(), |value| Box::into_raw(Box::new(value)));
        self.0.store(value, Ordering::Release);
    }

    #[inline]
    pub(crate) fn get(&self) -> Option<&'static T> {
        // SAFETY: Owned: null, or a box that is never freed.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }
}

/// The mapped ranges of files: address (0 if the entry is free) and length in bytes.
static MAPPED: [(AtomicUsize, AtomicUsize); FILED_MAX] =
    [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; FILED_MAX];
/// The maximum number of mapped ranges of files.
pub(crate) const FILED_MAX: usize = 1040;
/// The address of an entry that is reserved but not filled yet.
const TAKEN: usize = 1;

fn remember(base: usize, bytes: usize) -> Option<usize> {
    let take = |(address, _): &(AtomicUsize, AtomicUsize)| {
        let taken = address.compare_exchange(0, TAKEN, Ordering::Relaxed, Ordering::Relaxed);
        taken.is_ok()
    };
    let index = MAPPED.iter().position(take)?;
    MAPPED[index].1.store(bytes, Ordering::Relaxed);
    MAPPED[index].0.store(base, Ordering::Release);
    Some(index)
}

/// Frees an entry unless it belongs to another range: in a child of a fork it may have a new owner.
fn forget(index: usize, base: usize) {
    let (address, _) = &MAPPED[index];
    let _ = address.compare_exchange(base, 0, Ordering::Release, Ordering::Relaxed);
}

/// Registers the handler that gives children of this process their own counters.
fn if_forked() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: Atomic: the function may be called at any time; it takes no lock and allocates nothing.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// Replaces the parent's mapped ranges with zeroed memory of the child.
unsafe extern "C" fn in_child() {
    for (address, bytes) in &MAPPED {
        let base = address.swap(0, Ordering::Acquire);
        if base <= TAKEN {
            continue;
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        let base = ptr::with_exposed_provenance_mut(base);
        // SAFETY: Atomic: replaces a mapped range for the same use; the child has one thread.
        let _ = unsafe { mmap_anonymous(base, bytes.load(Ordering::Relaxed), access, flags) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::pread;

    const N: usize = 1024;
    /// The largest page of a kernel that the library supports.
    const PAGE_BYTES_MAX: u64 = 64 << 10;
    static INSTEAD: [AtomicU64; N] = [const { AtomicU64::new(0) }; N];

    #[test]
    fn counters_in_a_file_are_shared_with_its_readers_and_zero_after_clear() {
        let file = WordFile::new("annulus-test", 3 * PAGE_BYTES_MAX, 200).unwrap();
        assert!(
            (200..300).contains(&file.descriptor()),
            "{}",
            file.descriptor()
        );
        let words = CounterStorage::<N>::of(&file, PAGE_BYTES_MAX).unwrap();
        words[7].store(5, Ordering::Relaxed);
        let mut read = [0; 8];
        pread(&*file.file, &mut read, PAGE_BYTES_MAX + 7 * 8).unwrap();
        assert_eq!(u64::from_ne_bytes(read), 5);
        words.clear();
        assert_eq!(words[7].load(Ordering::Relaxed), 0);
        pread(&*file.file, &mut read, PAGE_BYTES_MAX + 7 * 8).unwrap();
        assert_eq!(u64::from_ne_bytes(read), 0);
        assert!(
            CounterStorage::<N>::of(&file, 3 * PAGE_BYTES_MAX).is_err(),
            "there is no more"
        );
        assert!(ftruncate(&*file.file, 4096).is_err(), "its size is sealed");
        let own = CounterStorage::own(&INSTEAD);
        assert!(own.iter().all(|word| word.load(Ordering::Relaxed) == 0));
    }

    #[test]
    fn a_file_whose_descriptor_was_reused_is_not_mapped_and_the_other_file_stays_open() {
        let mut file = WordFile::new("annulus-test", 8192, 0).unwrap();
        let mut other = WordFile::new("annulus-other", 8192, 0).unwrap();
        let theirs = format!("/proc/self/fd/{}", other.descriptor());
        std::mem::swap(&mut file.file, &mut other.file);
        assert!(CounterStorage::<N>::of(&file, 0).is_err());
        drop(file);
        let named = std::fs::read_link(theirs).unwrap();
        assert!(
            named.to_string_lossy().contains("annulus-other"),
            "{named:?}"
        );
    }

    #[test]
    fn a_lasting_value_is_the_one_that_was_set_last() {
        static LASTING: Lasting<u32> = Lasting::new();
        assert_eq!(LASTING.get(), None);
        LASTING.set(Some(3));
        let three = LASTING.get();
        LASTING.set(Some(4));
        assert_eq!((three, LASTING.get()), (Some(&3), Some(&4)));
    }
}
