//! # Safety
//!
//! Identifies the calling thread and process (Typed: functions of the C library). A child process is recognised by a
//! page that the kernel zeroes in it, whether it was created by `fork`, `clone` or a raw system call (Owned: a page of
//! this library's own memory, all of it).
#![allow(unsafe_code)]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, Ordering};

use crate::arch::{PAGE_BYTES_MAX, PageAligned};

/// Returns the ID of the calling thread: unique while it lives, and never 0.
pub(crate) use crate::arch::thread_id;

/// A page that holds one number.
#[repr(C)]
struct Page {
    align: PageAligned,
    process: AtomicU32,
    padding: [AtomicU32; PAGE_BYTES_MAX / size_of::<u32>() - 1],
}

/// The number of forks between this process and the one that loaded the library, plus one. 0: not determined in this
/// process yet.
static GENERATION: Page = Page {
    align: PageAligned,
    process: AtomicU32::new(0),
    padding: [const { AtomicU32::new(0) }; PAGE_BYTES_MAX / size_of::<u32>() - 1],
};
/// The generation of the parent, which a child inherits; 0: the library is being loaded.
static LAST_GENERATION: AtomicU32 = AtomicU32::new(0);

/// The function of [`on_new_process`].
static RESET: OnceLock<fn()> = OnceLock::new();

/// Sets the function that each child runs before it uses anything that it inherited: it drops what belongs to the
/// parent.
pub(crate) fn on_new_process(reset: fn()) {
    RESET.get_or_init(|| reset);
}

/// Returns the generation of this process. Anything with another number was created by a parent, and must not be used.
#[inline]
pub(crate) fn fork_generation() -> u32 {
    match GENERATION.process.load(Ordering::Relaxed) {
        0 => begin(),
        number => number,
    }
}

#[cold]
fn begin() -> u32 {
    let last = LAST_GENERATION.load(Ordering::Relaxed);
    if last == 0 {
        // Linux 4.14. On an older kernel no ring is made.
        // SAFETY: Owned: all of a page of zeros, or of several, which nothing else lies in.
        unsafe {
            libc::madvise(
                (&raw const GENERATION).cast_mut().cast(),
                PAGE_BYTES_MAX,
                libc::MADV_WIPEONFORK,
            )
        };
    }
    // A child first drops everything that belongs to its parent.
    let next = last.wrapping_add(1).max(1);
    let swap = (GENERATION.process).compare_exchange(0, next, Ordering::AcqRel, Ordering::Acquire);
    if let Err(other) = swap {
        return other;
    }
    LAST_GENERATION.store(next, Ordering::Relaxed);
    if last != 0 {
        PID.store(0, Ordering::Relaxed);
        if let Some(reset) = RESET.get() {
            reset();
        }
    }
    next
}

/// The C library's flag: not 0 while the process has made no thread (since glibc 2.32).
static SINGLE: AtomicPtr<AtomicU8> = AtomicPtr::new(std::ptr::null_mut());

/// Runs when the library is loaded.
pub(crate) fn init() {
    // SAFETY: Typed: a name that ends; a byte that the C library writes, or null.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) };
    SINGLE.store(symbol.cast(), Ordering::Relaxed);
}

/// Returns whether the calling thread is the only one and always was.
pub(crate) fn is_single_threaded() -> bool {
    // SAFETY: Typed: null, or that byte, which is never freed.
    unsafe { SINGLE.load(Ordering::Relaxed).as_ref() }
        .is_some_and(|single| single.load(Ordering::Relaxed) != 0)
}

/// The process ID; 0: not determined yet.
static PID: AtomicU32 = AtomicU32::new(0);

pub(crate) fn pid() -> u32 {
    match PID.load(Ordering::Relaxed) {
        0 => {
            let pid = std::process::id();
            PID.store(pid, Ordering::Relaxed);
            pid
        }
        pid => pid,
    }
}

/// Returns the name of the process as `ps` shows it, without characters that JSON would escape.
pub(crate) fn command() -> &'static str {
    static COMMAND: OnceLock<String> = OnceLock::new();
    COMMAND.get_or_init(|| {
        let mut name = [0_u8; 16];
        // SAFETY: Lent: sixteen bytes, which is what the kernel writes.
        unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
        let plain = |&&byte: &&u8| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\';
        name.iter()
            .filter(plain)
            .map(|&byte| byte as char)
            .collect()
    })
}
