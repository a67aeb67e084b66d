//! # Safety
//!
//! A pair of barriers, as one `fence(SeqCst)` on either side, of which the frequent side costs nothing: `membarrier(2)`
//! makes every running thread of the process execute a full barrier. Without it (before Linux 4.14, or refused by a
//! seccomp filter) both sides are fences.
//!
//! With a store before `light` and a load after it, the two are ordered with every thread that calls `heavy`: either
//! that thread sees the store, or the load sees what the thread wrote before `heavy`. The only unsafe code is the
//! system call, which takes no memory (Typed).
#![allow(unsafe_code)]

#[cfg(annulus_loom)]
pub(crate) use models::{heavy, is_fenced, light};
#[cfg(not(annulus_loom))]
pub(crate) use native::{heavy, is_fenced, light, prepare};

#[cfg(not(annulus_loom))]
mod native {
    use std::sync::Once;
    use std::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};

    /// True if readers execute fences, because there is no `membarrier`. Changed before the first pool exists only.
    static FENCED: AtomicBool = AtomicBool::new(false);

    /// Finds out how the barriers work. Each pool calls it before anything else.
    pub(crate) fn prepare() {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            let registered = membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
            FENCED.store(!registered, Ordering::Relaxed);
        });
    }

    /// Returns whether readers have to execute fences.
    pub(crate) fn is_fenced() -> bool {
        FENCED.load(Ordering::Relaxed)
    }

    /// The barrier of those who read pages. `fenced`: as `is_fenced`, which a hit knows from what it compares anyway.
    #[inline(always)]
    pub(crate) fn light(fenced: bool) {
        if fenced {
            fence(Ordering::SeqCst);
        } else {
            compiler_fence(Ordering::SeqCst);
        }
    }

    /// The barrier of those who evict pages. Returns `false` if it was not executed.
    #[must_use]
    pub(crate) fn heavy() -> bool {
        fence(Ordering::SeqCst);
        is_fenced() || membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED)
    }

    fn membarrier(command: libc::c_int) -> bool {
        // Miri has no such call.
        // SAFETY: Typed: the call takes three numbers and no memory.
        !cfg!(miri) && unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) } == 0
    }
}

/// The model of both: what `membarrier` does to a reader is a fence at the place where the reader is.
#[cfg(annulus_loom)]
mod models {
    use loom::sync::atomic::{Ordering, fence};

    pub(crate) fn is_fenced() -> bool {
        false
    }

    pub(crate) fn light(_: bool) {
        if !crate::mutation::broken(crate::mutation::Mutation::LightForgotten) {
            fence(Ordering::SeqCst);
        }
    }

    pub(crate) fn heavy() -> bool {
        if !crate::mutation::broken(crate::mutation::Mutation::HeavyForgotten) {
            fence(Ordering::SeqCst);
        }
        true
    }
}
