//! # Safety
//!
//! Memory for counters: words that anybody may read while their writer goes on, in this process and, where
//! they lie in a file of memory, in others. They are atomics and nothing else, so whatever another process
//! writes into the file is a number like any other (Atomic); a range is unmapped by its only holder (Owned).
//!
//! A child of a fork would count in its parent's file: what is mapped of it is replaced by memory of the
//! child's own as the first thing that happens in the child.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Deref;
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

/// `N` words, zero at first.
pub(crate) struct CounterStorage<const N: usize> {
    base: NonNull<[AtomicU64; N]>,
    from: From,
}

/// Where the memory comes from.
enum From {
    /// For good.
    Static,
    /// Mapped by its holder.
    Own,
    /// Mapped by its holder from a file, which is remembered at this index of `MAPPED`.
    File(usize),
}

// SAFETY: Atomic: a range of atomics, like a Box's.
unsafe impl<const N: usize> Send for CounterStorage<N> {}
// SAFETY: Atomic: a range of atomics, like a Box's.
unsafe impl<const N: usize> Sync for CounterStorage<N> {}

impl<const N: usize> CounterStorage<N> {
    const BYTES: usize = N * size_of::<u64>();

    /// Of this process alone; where there is no memory, `instead`. What is never written costs nothing.
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

    /// Those that lie in `file` from byte `offset` on, which is a multiple of a page's.
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
            // SAFETY: Owned: made just now, and nobody has its address.
            let _ = unsafe { munmap(base, bytes) };
            return Err(io::ErrorKind::OutOfMemory.into());
        };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(CounterStorage {
            base,
            from: From::File(index),
        })
    }

    /// Those at the beginning of another process's file, to be read and written.
    pub(crate) fn of_other(file: &File) -> io::Result<CounterStorage<N>> {
        // A range that its owner takes away would end this process.
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

    /// Makes them zero. Those of a file give their memory back, too; by their address, for the descriptor may mean
    /// another's file by now.
    pub(crate) fn clear(&self) {
        let base = self.base.as_ptr().cast();
        // SAFETY: Atomic: the whole of the range, which reads as zero from now on.
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
        // SAFETY: Atomic: aligned, initialised to zero, and there as long as the value.
        unsafe { self.base.as_ref() }
    }
}

impl<const N: usize> Drop for CounterStorage<N> {
    fn drop(&mut self) {
        match self.from {
            From::Static => return,
            From::Own => {}
            // First, so that a fork between the two does not map over what has become another's.
            From::File(index) => forget(index, self.base.addr().get()),
        }
        // SAFETY: Owned: mapped when it was made, and unmapped here only.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), CounterStorage::<N>::BYTES) };
    }
}

/// The half of a word that a futex is: it changes with each count.
pub(crate) fn futex_of(word: &AtomicU64) -> *mut u32 {
    let halves = word.as_ptr().cast::<u32>();
    halves.wrapping_add(usize::from(cfg!(target_endian = "big")))
}

/// Wakes all that sleep on a word, in whatever process they are.
pub(crate) fn wake_all(word: &AtomicU64) {
    let (futex, all) = (futex_of(word), libc::c_int::MAX);
    // SAFETY: Atomic: the kernel looks up who sleeps at the address, and writes nothing.
    unsafe { libc::syscall(libc::SYS_futex, futex, libc::FUTEX_WAKE, all) };
}

/// A file of memory, which other processes find among this one's descriptors. It goes with the process.
pub(crate) struct WordFile {
    /// Closed by a call of our own: libc's may be the preload library's (Sealed).
    file: ManuallyDrop<OwnedFd>,
    /// What tells it from others, on which device.
    inode: (u64, u64),
    bytes: u64,
}

impl WordFile {
    /// Of `bytes`, permanently; its descriptor is not below `lowest` where there is room. What is never written
    /// costs nothing.
    pub(crate) fn new(name: &str, bytes: u64, lowest: RawFd) -> io::Result<WordFile> {
        // A process that exceeds this one is killed.
        if getrlimit(Resource::Fsize)
            .current
            .is_some_and(|most| most < bytes)
        {
            return Err(io::Error::other(format!(
                "a file of memory of {bytes} bytes, most of them never used, is over the limit on the size of \
                 files (RLIMIT_FSIZE); raise it (ulimit -f)"
            )));
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // Since Linux 6.3; where vm.memfd_noexec is 2, none is made without it.
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

    /// The number of its descriptor.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// A program that closes all descriptors that are not its own, as daemons do, closed this one, and its number may
    /// mean a file by now that must not be written to.
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
            // SAFETY: Owned: taken once, for it is not used after this.
            close(unsafe { ManuallyDrop::take(&mut self.file) });
        }
    }
}

fn close(file: OwnedFd) {
    // SAFETY: Owned: whose descriptor it was has given it up.
    unsafe { rustix::io::close(file.into_raw_fd()) };
}

fn inode_of(file: impl AsFd) -> io::Result<(u64, u64)> {
    let stat = fstat(file)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// A value that is there for good once it is set; another may take its place.
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
        // SAFETY: Owned: it is null, or a box that is never freed.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }
}

/// What is mapped of files: address and bytes, or 0.
static MAPPED: [(AtomicUsize, AtomicUsize); FILED_MAX] =
    [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; FILED_MAX];
/// How many ranges of files may be mapped.
pub(crate) const FILED_MAX: usize = 1040;
/// For the moment between the choice of an index and its use.
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

/// In a child of a fork the entry may have another owner by now.
fn forget(index: usize, base: usize) {
    let (address, _) = &MAPPED[index];
    let _ = address.compare_exchange(base, 0, Ordering::Release, Ordering::Relaxed);
}

/// Has children of this process count for themselves.
fn if_forked() {
    static ASKED: Once = Once::new();
    ASKED.call_once(|| {
        // SAFETY: Atomic: the function may be called at any time; it takes no lock and allocates nothing.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// Puts memory of the child's own, zeroed, where its parent's is mapped.
unsafe extern "C" fn in_child() {
    for (address, bytes) in &MAPPED {
        let base = address.swap(0, Ordering::Acquire);
        if base <= TAKEN {
            continue;
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        let base = ptr::with_exposed_provenance_mut(base);
        // SAFETY: Atomic: in place of a range that is mapped, for the same use; the child has one thread.
        let _ = unsafe { mmap_anonymous(base, bytes.load(Ordering::Relaxed), access, flags) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::pread;

    const N: usize = 1024;
    static INSTEAD: [AtomicU64; N] = [const { AtomicU64::new(0) }; N];

    #[test]
    fn words_of_a_file_are_what_others_read_in_it_and_are_zero_when_cleared() {
        let file = WordFile::new("annulus-test", 3 * 8192, 200).unwrap();
        assert!(
            (200..300).contains(&file.descriptor()),
            "{}",
            file.descriptor()
        );
        let words = CounterStorage::<N>::of(&file, 8192).unwrap();
        words[7].store(5, Ordering::Relaxed);
        let mut read = [0; 8];
        pread(&*file.file, &mut read, 8192 + 7 * 8).unwrap();
        assert_eq!(u64::from_ne_bytes(read), 5);
        words.clear();
        assert_eq!(words[7].load(Ordering::Relaxed), 0);
        pread(&*file.file, &mut read, 8192 + 7 * 8).unwrap();
        assert_eq!(u64::from_ne_bytes(read), 0);
        assert!(
            CounterStorage::<N>::of(&file, 3 * 8192).is_err(),
            "there is no more"
        );
        assert!(ftruncate(&*file.file, 4096).is_err(), "its size is sealed");
        let own = CounterStorage::own(&INSTEAD);
        assert!(own.iter().all(|word| word.load(Ordering::Relaxed) == 0));
    }

    #[test]
    fn a_file_whose_descriptor_was_reused_is_not_mapped_and_the_other_not_closed() {
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
    fn what_lasts_is_what_was_set_last() {
        static LASTING: Lasting<u32> = Lasting::new();
        assert_eq!(LASTING.get(), None);
        LASTING.set(Some(3));
        let three = LASTING.get();
        LASTING.set(Some(4));
        assert_eq!((three, LASTING.get()), (Some(&3), Some(&4)));
    }
}
