//! # Safety
//!
//! Memory for counters: words that anybody may read while their writer goes on, in this process and, where
//! they lie in a file of memory, in others. They are atomics and nothing else, so whatever another process
//! writes into the file is a number like any other (Words); a range is unmapped by its only holder (Owned).
//!
//! A child of a fork would count in its parent's file: what is mapped of it is replaced by memory of the
//! child's own as the first thing that happens in the child.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use rustix::process::{Resource, getrlimit};

/// `N` words, zero at first.
pub(crate) struct Words<const N: usize> {
    base: NonNull<[AtomicU64; N]>,
    from: From,
}

/// Where the memory comes from.
enum From {
    /// For good.
    Static,
    /// Mapped by its holder.
    Own,
    /// Likewise, of a file; remembered at this place of `MAPPED`.
    File(usize),
}

// SAFETY: Words: a range of atomics, like a Box's.
unsafe impl<const N: usize> Send for Words<N> {}
// SAFETY: Words, as above.
unsafe impl<const N: usize> Sync for Words<N> {}

impl<const N: usize> Words<N> {
    const BYTES: usize = N * size_of::<u64>();

    /// Of this process alone; where there is no memory, `instead`. What is never written costs nothing.
    pub(crate) fn own(instead: &'static [AtomicU64; N]) -> Words<N> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: Owned: a new mapping, at an address of the kernel's choice.
        let made = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                Words::<N>::BYTES,
                access,
                MapFlags::PRIVATE,
            )
        };
        let own = made.ok().and_then(|base| NonNull::new(base.cast()));
        match own {
            Some(base) => Words {
                base,
                from: From::Own,
            },
            None => Words {
                base: NonNull::from(instead),
                from: From::Static,
            },
        }
    }

    /// Those that lie in `file` from byte `offset` on, which is a multiple of a page's.
    pub(crate) fn of(file: &WordFile, offset: u64) -> io::Result<Words<N>> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let (bytes, flags) = (Words::<N>::BYTES, MapFlags::SHARED);
        if offset + bytes as u64 > file.bytes {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        // SAFETY: Words: a new mapping of a file whose size is sealed, so that all of it is there.
        let base = unsafe { mmap(ptr::null_mut(), bytes, access, flags, &file.file, offset)? };
        let Some(place) = remember(base.expose_provenance(), bytes) else {
            // SAFETY: Owned: made just now, and nobody has its address.
            let _ = unsafe { munmap(base, bytes) };
            return Err(io::ErrorKind::OutOfMemory.into());
        };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Words {
            base,
            from: From::File(place),
        })
    }
}

impl<const N: usize> Deref for Words<N> {
    type Target = [AtomicU64; N];

    #[inline]
    fn deref(&self) -> &[AtomicU64; N] {
        // SAFETY: Words: aligned, initialised to zero, and there as long as the value.
        unsafe { self.base.as_ref() }
    }
}

impl<const N: usize> Drop for Words<N> {
    fn drop(&mut self) {
        match self.from {
            From::Static => return,
            From::Own => {}
            // First, so that a fork between the two does not map over what has become another's.
            From::File(place) => forget(place, self.base.addr().get()),
        }
        // SAFETY: Owned: mapped when it was made, and unmapped here only.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), Words::<N>::BYTES) };
    }
}

/// A file of memory, which other processes find among this one's descriptors. It goes with the process.
pub(crate) struct WordFile {
    file: File,
    bytes: u64,
}

impl WordFile {
    /// Of so many bytes, for good. What is never written costs nothing.
    pub(crate) fn new(name: &str, bytes: u64) -> io::Result<WordFile> {
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
        let file = memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL)
            .or_else(|_| memfd_create(name, flags))?;
        let file = File::from(file);
        file.set_len(bytes)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        if_forked();
        Ok(WordFile { file, bytes })
    }

    /// Makes so many bytes from `offset` on zero, and gives their memory back.
    pub(crate) fn clear(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(&self.file, flags, offset, bytes)?)
    }
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
/// For the moment between the choice of a place and its use.
const TAKEN: usize = 1;

fn remember(base: usize, bytes: usize) -> Option<usize> {
    let take = |(address, _): &(AtomicUsize, AtomicUsize)| {
        let taken = address.compare_exchange(0, TAKEN, Ordering::Relaxed, Ordering::Relaxed);
        taken.is_ok()
    };
    let place = MAPPED.iter().position(take)?;
    MAPPED[place].1.store(bytes, Ordering::Relaxed);
    MAPPED[place].0.store(base, Ordering::Release);
    Some(place)
}

/// In a child of a fork the place may be another's by now.
fn forget(place: usize, base: usize) {
    let (address, _) = &MAPPED[place];
    let _ = address.compare_exchange(base, 0, Ordering::Release, Ordering::Relaxed);
}

/// Has children of this process count for themselves.
fn if_forked() {
    static ASKED: Once = Once::new();
    ASKED.call_once(|| {
        // SAFETY: Words: the function may be called at any time; it takes no lock and allocates nothing.
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
        // SAFETY: Words: in place of a range that is mapped, for the same use; the child has one thread.
        let _ = unsafe { mmap_anonymous(base, bytes.load(Ordering::Relaxed), access, flags) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    const N: usize = 1024;
    static INSTEAD: [AtomicU64; N] = [const { AtomicU64::new(0) }; N];

    #[test]
    fn words_of_a_file_are_what_others_read_in_it_and_are_zero_when_cleared() {
        let file = WordFile::new("annulus-test", 3 * 8192).unwrap();
        let words = Words::<N>::of(&file, 8192).unwrap();
        words[7].store(5, Ordering::Relaxed);
        let mut read = [0; 8];
        file.file.read_exact_at(&mut read, 8192 + 7 * 8).unwrap();
        assert_eq!(u64::from_ne_bytes(read), 5);
        file.clear(8192, 8192).unwrap();
        assert_eq!(words[7].load(Ordering::Relaxed), 0);
        assert!(Words::<N>::of(&file, 3 * 8192).is_err(), "there is no more");
        assert!(file.file.set_len(4096).is_err(), "its size is sealed");
        let own = Words::own(&INSTEAD);
        assert!(own.iter().all(|word| word.load(Ordering::Relaxed) == 0));
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
