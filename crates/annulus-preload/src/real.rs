//! # Safety
//!
//! The functions behind the hooks: the next ones with the same names, usually libc's. The first call looks each up. The
//! types are those of the C library's headers (Typed).
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{iovec, msghdr, nfds_t, pid_t, pollfd, size_t, ssize_t};

use crate::signals;

/// The function that a child of `clone` runs.
pub(crate) type Run = unsafe extern "C-unwind" fn(*mut c_void) -> c_int;

/// The return value of a function that does not exist.
pub(crate) trait Missing {
    const MISSING: Self;
}

macro_rules! missing {
    ($($type:ty: $value:expr;)*) => {
        $(impl Missing for $type {
            const MISSING: $type = $value;
        })*
    };
}

missing! { c_int: -1; ssize_t: -1; (): (); c_uint: 0; size_t: 0; }

impl<T> Missing for *mut T {
    const MISSING: *mut T = std::ptr::null_mut();
}

/// Returns the next function with a name, which `slot` remembers.
#[inline]
pub(crate) fn find(slot: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    match slot.load(Ordering::Relaxed) {
        unknown if unknown.is_null() => resolve(slot, name),
        next => next,
    }
}

#[cold]
fn resolve(slot: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    // A handler that jumps out of the call must not leave the loader's lock taken.
    let symbol = signals::without(|| next(name));
    slot.store(symbol, Ordering::Relaxed);
    symbol
}

/// Returns the next function with a name, whatever its type.
pub(crate) fn next(name: &CStr) -> *mut c_void {
    // SAFETY: Typed: a NUL-terminated name; the handle means "after this library".
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

/// Returns the next function with a name.
macro_rules! next_of {
    ($name:ident) => {{
        use std::ffi::{CStr, c_void};
        use std::sync::atomic::AtomicPtr;
        static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
        const NAME: &CStr =
            match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"",
            };
        $crate::real::find(&NEXT, NAME)
    }};
}
pub(crate) use next_of;

/// Calls the next function with a name and a type. Fails with `ENOSYS` if there is none.
macro_rules! call_next {
    ($name:ident($($arg:ident: $type:ty),*) -> $ret:ty) => {{
        let next = $crate::real::next_of!($name);
        if next.is_null() {
            $crate::errno::set(::libc::ENOSYS);
            <$ret as $crate::real::Missing>::MISSING
        } else {
            type Function = unsafe extern "C-unwind" fn($($type),*) -> $ret;
            // SAFETY: Typed: the function of that name has this type.
            let next = unsafe { std::mem::transmute::<*mut std::ffi::c_void, Function>(next) };
            // SAFETY: Typed: the caller guarantees that function's own conditions.
            unsafe { next($($arg),*) }
        }
    }};
}
pub(crate) use call_next;

/// Defines the next functions that are called by others than their own hook.
macro_rules! real {
    ($($name:ident($($arg:ident: $type:ty),*) -> $ret:ty;)*) => {
        $(
            /// The next function with this name.
            ///
            /// # Safety
            ///
            /// Typed: that function's own conditions, which the caller of the hook guarantees.
            #[inline]
            #[allow(non_snake_case, reason = "libc's names")]
            pub(crate) unsafe fn $name($($arg: $type),*) -> $ret {
                call_next!($name($($arg: $type),*) -> $ret)
            }
        )*
    };
}

real! {
    dup2(fd: c_int, to: c_int) -> c_int;
    dup3(fd: c_int, to: c_int, flags: c_int) -> c_int;
    fork() -> pid_t;
    poll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int;
    raise(signal: c_int) -> c_int;
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    vmsplice(fd: c_int, vectors: *const iovec, count: size_t, flags: c_uint) -> ssize_t;
}
