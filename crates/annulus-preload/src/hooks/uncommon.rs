//! # Safety
//!
//! Functions that few servers use: aliases that glibc exports, vectors with flags, and functions that make their system
//! calls inside libc, where no hook sees them. For the latter, the connection is handed back and its queued bytes are
//! sent first, to keep the order of bytes (Typed, Lent: the header of `hooks` gives the contract).
#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc, reason = "the header names the contract")]

use std::ffi::{c_char, c_int, c_ulong, c_void};

use libc::{
    FILE, aiocb, fd_set, iovec, nfds_t, off64_t, pid_t, pollfd, sigevent, size_t, sockaddr,
    socklen_t, ssize_t, timeval,
};

use super::unserve::hand_back;
use super::waits::flush_before;
use super::{
    FdState, buffered, descriptor, fd_state, io, may_be_mapped, poll, process, socket, stdio,
};
use crate::counters::Why;
use crate::errno::{self, CallResult, into_return};
use crate::fd_table;

/// Exports functions that glibc exports under a second name.
macro_rules! aliases {
    ($($name:ident = $module:ident::$function:ident($($arg:ident: $type:ty),*) -> $ret:ty;)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name($($arg: $type),*) -> $ret {
                pass_on!($module::$function($($arg),*))
            }
        )*
    };
}

aliases! {
    __read = io::read(fd: c_int, base: *mut c_void, bytes: size_t) -> ssize_t;
    __write = io::write(fd: c_int, base: *const c_void, bytes: size_t) -> ssize_t;
    __send = io::send(fd: c_int, base: *const c_void, bytes: size_t, flags: c_int) -> ssize_t;
    __close = descriptor::close(fd: c_int) -> c_int;
    __dup2 = descriptor::dup2(fd: c_int, to: c_int) -> c_int;
    __fcntl = descriptor::fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int;
    __poll = poll::poll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int;
    __select = poll::select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
        timeout: *mut timeval) -> c_int;
    __connect = socket::connect(fd: c_int, address: *const sockaddr, bytes: socklen_t) -> c_int;
    __vfork = process::vfork() -> pid_t;
    _IO_fdopen = stdio::fdopen(fd: c_int, mode: *const c_char) -> *mut FILE;
    _IO_fclose = stdio::fclose(stream: *mut FILE) -> c_int;
    _IO_popen = process::popen(command: *const c_char, mode: *const c_char) -> *mut FILE;
}

/// The offset that selects the behaviour of `readv`, as streams have no offset.
const NO_OFFSET: off64_t = -1;

hooks! {
    fn preadv2(fd: c_int, vectors: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t {
        if offset == NO_OFFSET {
            // The kernel interprets the flags for a socket, but it does not have the buffered bytes.
            if flags != 0 {
                hand_back(fd, Why::UnknownFlags);
            }
            if flags == 0 || buffered(fd) > 0 {
                return pass_on!(io::readv(fd, vectors, count));
            }
        }
        pass_on!(real(fd, vectors, count, offset, flags))
    }

    fn pwritev2(fd: c_int, vectors: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t {
        if offset == NO_OFFSET {
            if flags == 0 {
                return pass_on!(io::writev(fd, vectors, count));
            }
            let dont_wait = match flags & libc::RWF_NOWAIT {
                0 => 0,
                _ => libc::MSG_DONTWAIT,
            };
            if let Some(error) = leave_to_libc(fd, Why::UnknownFlags, dont_wait) {
                return into_return(error);
            }
        }
        pass_on!(real(fd, vectors, count, offset, flags))
    }
}

aliases! {
    preadv64v2 = self::preadv2(fd: c_int, vectors: *const iovec, count: c_int, offset: off64_t,
        flags: c_int) -> ssize_t;
    pwritev64v2 = self::pwritev2(fd: c_int, vectors: *const iovec, count: c_int, offset: off64_t,
        flags: c_int) -> ssize_t;
}

/// Prepares a descriptor for calls that no hook sees. Fails with `EBADF` if it is closed, and with `EAGAIN` if earlier
/// bytes do not fit into the send buffer, as no byte may be sent before them, and the call does not wait (`flags`). No
/// thread is cancelled meanwhile: `dprintf` jumps out of here and cannot be unwound.
fn leave_to_libc(fd: c_int, why: Why, flags: c_int) -> Option<CallResult> {
    if let FdState::Closed = fd_state(fd) {
        return Some(Err(libc::EBADF));
    }
    fd_table::on_written(fd);
    hand_back(fd, why);
    errno::without_cancel(|| pass_on!(flush_before(fd, flags))).filter(Result::is_err)
}

/// Stands in for a function that prints, and prints nothing.
extern "C" fn prints_nothing() -> c_int {
    -1
}

passes_registers! {
    fn dprintf(fd: c_int) {
        if let Some(Err(errno)) = leave_to_libc(fd, Why::Stdio, 0) {
            errno::set(errno);
            return prints_nothing as *mut c_void;
        }
    }
    fn __dprintf_chk(fd: c_int) {
        if let Some(Err(errno)) = leave_to_libc(fd, Why::Stdio, 0) {
            errno::set(errno);
            return prints_nothing as *mut c_void;
        }
    }
}

hooks! {
    fn vdprintf(fd: c_int, format: *const c_char, values: *mut c_void) -> c_int
        = leave_to_libc(fd, Why::Stdio, 0);
    fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, values: *mut c_void) -> c_int
        = leave_to_libc(fd, Why::Stdio, 0);
    fn aio_read(request: *mut aiocb) -> c_int = pass_on!(asynchronous(request, false));
    fn aio_read64(request: *mut aiocb) -> c_int = pass_on!(asynchronous(request, false));
    fn aio_write(request: *mut aiocb) -> c_int = pass_on!(asynchronous(request, true));
    fn aio_write64(request: *mut aiocb) -> c_int = pass_on!(asynchronous(request, true));
    fn lio_listio(mode: c_int, requests: *const *mut aiocb, count: c_int, event: *mut sigevent) -> c_int
        = pass_on!(each_asynchronous(requests, count));
    fn lio_listio64(mode: c_int, requests: *const *mut aiocb, count: c_int, event: *mut sigevent) -> c_int
        = pass_on!(each_asynchronous(requests, count));

    fn backtrace_symbols_fd(frames: *const *mut c_void, count: c_int, fd: c_int) -> () {
        if leave_to_libc(fd, Why::Stdio, 0).is_none() {
            pass_on!(real(frames, count, fd));
        }
    }
}

aliases! {
    __backtrace_symbols_fd = self::backtrace_symbols_fd(frames: *const *mut c_void, count: c_int, fd: c_int) -> ();
}

/// Prepares an asynchronous request. libc's own threads read for the program, and do not see its buffered bytes. EAGAIN
/// means that no more requests fit at present, so that the program reads in another way.
unsafe fn asynchronous(request: *mut aiocb, writes: bool) -> Option<CallResult> {
    // SAFETY: Lent: the program passes a request; see `may_be_mapped`.
    let fd = may_be_mapped(request).then(|| unsafe { (*request).aio_fildes })?;
    if writes {
        return leave_to_libc(fd, Why::UnknownFlags, libc::MSG_DONTWAIT);
    }
    hand_back(fd, Why::UnknownFlags);
    (buffered(fd) > 0).then_some(Err(libc::EAGAIN))
}

unsafe fn each_asynchronous(requests: *const *mut aiocb, count: c_int) -> Option<CallResult> {
    let count = c_int::from(may_be_mapped(requests)) * count;
    (0..count as isize).find_map(|nth| {
        // SAFETY: Lent: the program passes `count` pointers; see `may_be_mapped`.
        let request = unsafe { requests.offset(nth).read() };
        // SAFETY: Lent: one of the program's requests; see `may_be_mapped`.
        let operation = may_be_mapped(request).then(|| unsafe { (*request).aio_lio_opcode })?;
        match operation {
            libc::LIO_NOP => None,
            operation => pass_on!(asynchronous(request, operation == libc::LIO_WRITE)),
        }
    })
}
