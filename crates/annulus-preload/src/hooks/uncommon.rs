//! # Safety
//!
//! Functions that few servers use: aliases that glibc exports, vectors with flags, and functions that make their system
//! calls inside libc, where no hook sees them. For the latter, the connection is handed back and its queued bytes are
//! sent first, to keep the order of bytes (Typed, Lent: the header of `hooks` gives the contract).
#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc, reason = "the header names the contract")]

use std::ffi::{c_char, c_int, c_ulong, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    FILE, aiocb, fd_set, iovec, nfds_t, off64_t, pid_t, pollfd, sigevent, size_t, sockaddr,
    socklen_t, ssize_t, timeval,
};

use super::unserve::hand_back;
use super::waits::flush_before;
use super::{
    FdState, catch_panic, descriptor, fd_state, io, may_be_mapped, poll, process, socket, stdio,
};
use crate::counters::Why;
use crate::errno::{self, into_return};
use crate::fd_table;
use crate::real::{self, call_next};
use crate::receive;

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
            if flags == 0 || has_buffered(fd) {
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
            if let Err(errno) = leave_to_libc(fd, Why::UnknownFlags, dont_wait) {
                return into_return(Err(errno));
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

/// Returns whether the library has received bytes that the program has not read.
fn has_buffered(fd: c_int) -> bool {
    let mut count = 0;
    if let FdState::Connection(entry) = fd_state(fd) {
        catch_panic(|| {
            count = receive::readable(entry, fd).unwrap_or(0);
            None
        });
    }
    count > 0
}

/// Prepares a descriptor for calls that no hook sees. Fails with `EBADF` if it is closed, and with `EAGAIN` if earlier
/// bytes do not fit into the send buffer, as no byte may be sent before them, and the call does not wait (`flags`). No
/// thread is cancelled meanwhile: `dprintf` jumps out of here and cannot be unwound.
fn leave_to_libc(fd: c_int, why: Why, flags: c_int) -> Result<(), c_int> {
    if let FdState::Closed = fd_state(fd) {
        return Err(libc::EBADF);
    }
    fd_table::on_written(fd);
    hand_back(fd, why);
    match errno::without_cancel(|| pass_on!(flush_before(fd, flags))) {
        Some(Err(errno)) => Err(errno),
        _ => Ok(()),
    }
}

hooks! {
    fn vdprintf(fd: c_int, format: *const c_char, values: *mut c_void) -> c_int {
        if let Err(errno) = leave_to_libc(fd, Why::Stdio, 0) {
            errno::set(errno);
            return -1;
        }
        pass_on!(real(fd, format, values))
    }

    fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, values: *mut c_void) -> c_int {
        if let Err(errno) = leave_to_libc(fd, Why::Stdio, 0) {
            errno::set(errno);
            return -1;
        }
        pass_on!(real(fd, flag, format, values))
    }
}

/// Stands in for a function that prints, and prints nothing.
extern "C" fn prints_nothing() -> c_int {
    -1
}

/// Defines functions that print a list of values. They leave the descriptor to libc, then jump to the next function
/// with their name, with registers and stack unchanged. Floating-point values are in the vector registers.
macro_rules! prints {
    ($($name:ident, $next:ident, $symbol:literal;)*) => {
        $(
            extern "C" fn $next(fd: c_int) -> *mut c_void {
                static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
                if let Err(errno) = leave_to_libc(fd, Why::Stdio, 0) {
                    errno::set(errno);
                    return prints_nothing as *mut c_void;
                }
                let mut next = NEXT.load(Ordering::Relaxed);
                if next.is_null() {
                    next = real::next($symbol);
                    NEXT.store(next, Ordering::Relaxed);
                }
                if next.is_null() { prints_nothing as *mut c_void } else { next }
            }

            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            unsafe extern "C" fn $name() {
                std::arch::naked_asm!(
                    "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
                    "sub rsp, 128",
                    "movups [rsp], xmm0", "movups [rsp + 16], xmm1",
                    "movups [rsp + 32], xmm2", "movups [rsp + 48], xmm3",
                    "movups [rsp + 64], xmm4", "movups [rsp + 80], xmm5",
                    "movups [rsp + 96], xmm6", "movups [rsp + 112], xmm7",
                    "call {next}",
                    "mov r11, rax",
                    "movups xmm0, [rsp]", "movups xmm1, [rsp + 16]",
                    "movups xmm2, [rsp + 32]", "movups xmm3, [rsp + 48]",
                    "movups xmm4, [rsp + 64]", "movups xmm5, [rsp + 80]",
                    "movups xmm6, [rsp + 96]", "movups xmm7, [rsp + 112]",
                    "add rsp, 128",
                    "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
                    "jmp r11",
                    next = sym $next,
                )
            }
        )*
    };
}

prints! {
    dprintf, next_dprintf, c"dprintf";
    __dprintf_chk, next_dprintf_chk, c"__dprintf_chk";
}

hooks! {
    fn backtrace_symbols_fd(frames: *const *mut c_void, count: c_int, fd: c_int) -> () {
        if leave_to_libc(fd, Why::Stdio, 0).is_ok() {
            pass_on!(real(frames, count, fd));
        }
    }

    fn __backtrace_symbols_fd(frames: *const *mut c_void, count: c_int, fd: c_int) -> () {
        pass_on!(backtrace_symbols_fd(frames, count, fd));
    }
}

/// Prepares an asynchronous request. libc's own threads read for the program, and do not see its buffered bytes. EAGAIN
/// means that no more requests fit at present, so that the program reads in another way.
unsafe fn asynchronous(request: *mut aiocb, writes: bool) -> c_int {
    if !may_be_mapped(request) {
        return 0;
    }
    // SAFETY: Lent: the program passes a request; see `may_be_mapped`.
    let fd = unsafe { (*request).aio_fildes };
    if writes {
        if let Err(errno) = leave_to_libc(fd, Why::UnknownFlags, libc::MSG_DONTWAIT) {
            errno::set(errno);
            return -1;
        }
    } else {
        hand_back(fd, Why::UnknownFlags);
        if has_buffered(fd) {
            errno::set(libc::EAGAIN);
            return -1;
        }
    }
    0
}

macro_rules! asynchronous {
    ($($name:ident: $writes:literal;)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(request: *mut aiocb) -> c_int {
                match pass_on!(asynchronous(request, $writes)) {
                    0 => call_next!($name(request: *mut aiocb) -> c_int),
                    error => error,
                }
            }
        )*
    };
}

asynchronous! {
    aio_read: false;
    aio_read64: false;
    aio_write: true;
    aio_write64: true;
}

unsafe fn each_asynchronous(requests: *const *mut aiocb, count: c_int) -> c_int {
    if !may_be_mapped(requests) {
        return 0;
    }
    for nth in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: Lent: the program passes `count` pointers; see `may_be_mapped`.
        let request = unsafe { requests.add(nth).read() };
        let opcode = if may_be_mapped(request) {
            // SAFETY: Lent: one of the program's requests; see `may_be_mapped`.
            unsafe { (*request).aio_lio_opcode }
        } else {
            libc::LIO_NOP
        };
        let passes = opcode == libc::LIO_NOP
            || pass_on!(asynchronous(request, opcode == libc::LIO_WRITE)) == 0;
        if !passes {
            return -1;
        }
    }
    0
}

hooks! {
    fn lio_listio(mode: c_int, requests: *const *mut aiocb, count: c_int, event: *mut sigevent) -> c_int {
        match pass_on!(each_asynchronous(requests, count)) {
            0 => pass_on!(real(mode, requests, count, event)),
            error => error,
        }
    }

    fn lio_listio64(mode: c_int, requests: *const *mut aiocb, count: c_int, event: *mut sigevent) -> c_int {
        match pass_on!(each_asynchronous(requests, count)) {
            0 => pass_on!(real(mode, requests, count, event)),
            error => error,
        }
    }
}
