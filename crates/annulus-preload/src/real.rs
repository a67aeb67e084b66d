//! # Safety
//!
//! The functions behind the hooks: the next ones with the same names, usually libc's. The first call looks each up. The
//! types are those of the C library's headers (Typed).
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulong, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    FILE, aiocb, epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, off64_t, pid_t, pollfd,
    sigevent, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval,
};

/// The function that a child of `clone` runs.
pub(crate) type Run = unsafe extern "C-unwind" fn(*mut c_void) -> c_int;

/// The return value of a function that does not exist.
pub(crate) trait Missing {
    const MISSING: Self;
}

impl Missing for c_int {
    const MISSING: c_int = -1;
}

impl Missing for ssize_t {
    const MISSING: ssize_t = -1;
}

impl Missing for () {
    const MISSING: () = ();
}

impl Missing for c_uint {
    const MISSING: c_uint = 0;
}

impl Missing for size_t {
    const MISSING: size_t = 0;
}

impl<T> Missing for *mut T {
    const MISSING: *mut T = std::ptr::null_mut();
}

#[cold]
pub(crate) fn resolve(slot: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let symbol = next(name);
    slot.store(symbol, Ordering::Relaxed);
    symbol
}

/// Returns the next function with a name, whatever its type.
pub(crate) fn next(name: &CStr) -> *mut c_void {
    // SAFETY: Typed: a NUL-terminated name; the handle means "after this library".
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

/// Calls the next function with a name and a type. Fails with `ENOSYS` if there is none.
macro_rules! call_next {
    ($name:ident($($arg:ident: $type:ty),*) -> $ret:ty) => {{
        use std::ffi::{CStr, c_void};
        use std::sync::atomic::{AtomicPtr, Ordering};
        static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
        const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
            Ok(name) => name,
            Err(_) => c"",
        };
        let mut next = NEXT.load(Ordering::Relaxed);
        if next.is_null() {
            next = $crate::real::resolve(&NEXT, NAME);
        }
        if next.is_null() {
            $crate::errno::set(::libc::ENOSYS);
            <$ret as $crate::real::Missing>::MISSING
        } else {
            type Function = unsafe extern "C-unwind" fn($($type),*) -> $ret;
            // SAFETY: Typed: the function of that name has this type.
            let next = unsafe { std::mem::transmute::<*mut c_void, Function>(next) };
            // SAFETY: Typed: the caller guarantees that function's own conditions.
            unsafe { next($($arg),*) }
        }
    }};
}
pub(crate) use call_next;

/// Defines the next functions that several places call. A hook that only prepares the call is in a table `hooks!`.
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
    read(fd: c_int, base: *mut c_void, bytes: size_t) -> ssize_t;
    write(fd: c_int, base: *const c_void, bytes: size_t) -> ssize_t;
    readv(fd: c_int, vectors: *const iovec, count: c_int) -> ssize_t;
    writev(fd: c_int, vectors: *const iovec, count: c_int) -> ssize_t;
    recv(fd: c_int, base: *mut c_void, bytes: size_t, flags: c_int) -> ssize_t;
    send(fd: c_int, base: *const c_void, bytes: size_t, flags: c_int) -> ssize_t;
    recvfrom(fd: c_int, base: *mut c_void, bytes: size_t, flags: c_int, from: *mut sockaddr,
        from_bytes: *mut socklen_t) -> ssize_t;
    sendto(fd: c_int, base: *const c_void, bytes: size_t, flags: c_int, to: *const sockaddr,
        to_bytes: socklen_t) -> ssize_t;
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int;
    sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    preadv2(fd: c_int, vectors: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t;
    pwritev2(fd: c_int, vectors: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t;
    vdprintf(fd: c_int, format: *const c_char, values: *mut c_void) -> c_int;
    __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, values: *mut c_void) -> c_int;
    backtrace_symbols_fd(frames: *const *mut c_void, count: c_int, fd: c_int) -> ();
    lio_listio(mode: c_int, requests: *const *mut aiocb, count: c_int, event: *mut sigevent) -> c_int;
    lio_listio64(mode: c_int, requests: *const *mut aiocb, count: c_int, event: *mut sigevent) -> c_int;
    connect(fd: c_int, address: *const sockaddr, bytes: socklen_t) -> c_int;
    accept(fd: c_int, from: *mut sockaddr, from_bytes: *mut socklen_t) -> c_int;
    accept4(fd: c_int, from: *mut sockaddr, from_bytes: *mut socklen_t, flags: c_int) -> c_int;
    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    close(fd: c_int) -> c_int;
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    dup(fd: c_int) -> c_int;
    dup2(fd: c_int, to: c_int) -> c_int;
    dup3(fd: c_int, to: c_int, flags: c_int) -> c_int;
    fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int;
    ioctl(fd: c_int, request: c_ulong, argument: c_ulong) -> c_int;
    shutdown(fd: c_int, how: c_int) -> c_int;
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, bytes: socklen_t) -> c_int;
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, bytes: *mut socklen_t) -> c_int;
    sendfile64(to: c_int, from: c_int, offset: *mut off64_t, count: size_t) -> ssize_t;
    splice(from: c_int, from_offset: *mut off64_t, to: c_int, to_offset: *mut off64_t, bytes: size_t,
        flags: c_uint) -> ssize_t;
    poll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int;
    ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int;
    pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec,
        mask: *const sigset_t) -> c_int;
    epoll_create(size: c_int) -> c_int;
    epoll_create1(flags: c_int) -> c_int;
    epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    epoll_wait(set: c_int, events: *mut epoll_event, max: c_int, timeout_ms: c_int) -> c_int;
    epoll_pwait(set: c_int, events: *mut epoll_event, max: c_int, timeout_ms: c_int, mask: *const sigset_t) -> c_int;
    epoll_pwait2(set: c_int, events: *mut epoll_event, max: c_int, timeout: *const timespec,
        mask: *const sigset_t) -> c_int;
    fdopen(fd: c_int, mode: *const c_char) -> *mut FILE;
    fclose(stream: *mut FILE) -> c_int;
    freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE;
    freopen64(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE;
    fork() -> pid_t;
    clone(run: Option<Run>, stack: *mut c_void, flags: c_int, argument: *mut c_void, parent: *mut pid_t,
        thread: *mut c_void, child: *mut pid_t) -> c_int;
    raise(signal: c_int) -> c_int;
    prctl(what: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int;
}
