//! # Safety
//!
//! `syscall`, libc's function for any system call: libuv closes descriptors with it, and libseccomp sets filters. Calls
//! that a hook serves go to that hook; all others go to the next `syscall`, with registers and stack unchanged.
//! Arguments follow the kernel's convention, not libc's: the differences (sizes of signal sets, timeouts that are
//! written back) are handled here (Typed, Lent: the header of `hooks` gives the contract).
#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc, reason = "the header names the contract")]

use std::cell::Cell;
use std::ffi::{c_int, c_long, c_uint, c_ulong, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

use super::{
    attempt, blocking, catch_panic, descriptor, epoll, io, is_closed, may_be_mapped, poll, process,
    socket, uncommon,
};
use crate::arch;
use crate::epoll_set_list;
use crate::errno;
use crate::process as of;
use crate::program_rings::{self, RingParams};
use crate::raw_libc as libc;
use crate::real;
use crate::sys;

/// The number of system call numbers that are checked; the highest of Linux is 470.
const NUMBERS: usize = 512;

/// 1 for each number that is dispatched to a hook. Before the library is ready, all calls pass through: an allocator
/// that is still starting may call `syscall`, and a hook that looked up the next function would wait for that
/// allocator.
static IS_WATCHED: [AtomicU8; NUMBERS] = [const { AtomicU8::new(0) }; NUMBERS];

/// The next `syscall`; before the library is ready, the system call itself.
static NEXT: AtomicPtr<c_void> = AtomicPtr::new(arch::system_call as *mut c_void);

/// Starts to watch the calls, once the library is ready.
pub(crate) fn watch() {
    let next = real::next(c"syscall");
    if !next.is_null() {
        NEXT.store(next, Ordering::Relaxed);
    }
    for &number in HOOKED.iter().chain(OTHERS) {
        if let Some(slot) = IS_WATCHED.get(number as usize) {
            slot.store(1, Ordering::Relaxed);
        }
    }
}

/// Replaces libc's `syscall`. A number that is not watched costs two compares and a jump. The arguments of a watched
/// call are stored for [`dispatch`], which serves the call or passes it through. A call that passes through has its
/// registers and stack unchanged: a child with its own stack returns from it straight to the program.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn syscall() {
    arch::dispatching!(NUMBERS, IS_WATCHED, NEXT, dispatch)
}

/// The result of [`dispatch`], in two registers.
#[repr(C)]
struct Dispatched {
    value: c_long,
    /// 0: the call goes on to the next `syscall`.
    is_served: c_long,
}

unsafe extern "C-unwind" fn dispatch(args: &[c_long; 7]) -> Dispatched {
    let frame = args.as_ptr().addr();
    let outer = OUTER.get();
    let ret = if outer > frame && outer - frame < NESTED_MAX {
        None
    } else {
        OUTER.set(frame);
        let ret = pass_on!(serve(args));
        OUTER.set(0);
        ret
    };
    Dispatched {
        value: ret.unwrap_or(0),
        is_served: c_long::from(ret.is_some()),
    }
}

thread_local! {
    /// The stack position of the calling thread's [`dispatch`]; 0 if it is not in one.
    static OUTER: Cell<usize> = const { Cell::new(0) };
}

/// The stack distance, bytes, within which a call is nested in another. A nested call comes from another library, whose
/// `read` is behind this library's and calls `syscall`, so it must reach the kernel. At a greater distance, a signal
/// handler has jumped out of the outer call.
const NESTED_MAX: usize = 64 << 10;

/// A type that a word of a system call stands for.
trait Word {
    fn of(word: c_long) -> Self;
}

macro_rules! integers {
    ($($integer:ty)*) => {
        $(impl Word for $integer {
            fn of(word: c_long) -> $integer {
                word as $integer
            }
        })*
    };
}

integers! { c_int c_uint c_ulong c_long usize }

impl<T> Word for *const T {
    fn of(word: c_long) -> *const T {
        ptr::with_exposed_provenance(word as usize)
    }
}

impl<T> Word for *mut T {
    fn of(word: c_long) -> *mut T {
        ptr::with_exposed_provenance_mut(word as usize)
    }
}

/// Defines the calls that go to a hook, with the words of the call that are its arguments.
macro_rules! hooked {
    ($($number:ident => $module:ident::$hook:ident($($nth:literal)*);)*) => {
        const HOOKED: &[c_long] = &[$(libc::$number),*];

        unsafe fn hooked(args: &[c_long; 7]) -> Option<c_long> {
            match args[0] {
                // SAFETY: Typed, Lent: the program's own arguments, in the types of the hooks' manual pages.
                $(libc::$number => Some(unsafe { $module::$hook($(Word::of(args[$nth])),*) } as c_long),)*
                _ => None,
            }
        }
    };
}

hooked! {
    SYS_read => io::read(1 2 3);
    SYS_readv => io::readv(1 2 3);
    SYS_preadv2 => uncommon::preadv2(1 2 3 4 6);
    SYS_recvfrom => io::recvfrom(1 2 3 4 5 6);
    SYS_recvmsg => io::recvmsg(1 2 3);
    SYS_recvmmsg => io::recvmmsg(1 2 3 4 5);
    SYS_write => io::write(1 2 3);
    SYS_writev => io::writev(1 2 3);
    SYS_pwritev2 => uncommon::pwritev2(1 2 3 4 6);
    SYS_sendto => io::sendto(1 2 3 4 5 6);
    SYS_sendmsg => io::sendmsg(1 2 3);
    SYS_sendmmsg => io::sendmmsg(1 2 3 4);
    SYS_sendfile => io::sendfile64(1 2 3 4);
    SYS_splice => io::splice(1 2 3 4 5 6);
    SYS_accept => socket::accept(1 2 3);
    SYS_accept4 => socket::accept4(1 2 3 4);
    SYS_socket => socket::socket(1 2 3);
    SYS_connect => socket::connect(1 2 3);
    SYS_shutdown => socket::shutdown(1 2);
    SYS_setsockopt => socket::setsockopt(1 2 3 4 5);
    SYS_getsockopt => socket::getsockopt(1 2 3 4 5);
    SYS_close => descriptor::close(1);
    SYS_close_range => descriptor::close_range(1 2 3);
    SYS_dup => descriptor::dup(1);
    SYS_dup2 => descriptor::dup2(1 2);
    SYS_dup3 => descriptor::dup3(1 2 3);
    SYS_ioctl => descriptor::ioctl(1 2 3);
    SYS_poll => poll::poll(1 2 3);
    SYS_select => poll::select(1 2 3 4 5);
    SYS_epoll_create => epoll::epoll_create(1);
    SYS_epoll_create1 => epoll::epoll_create1(1);
    SYS_epoll_ctl => epoll::epoll_ctl(1 2 3 4);
    SYS_epoll_wait => epoll::epoll_wait(1 2 3 4);
    SYS_execve => process::execve(1 2 3);
    SYS_prctl => process::prctl(1 2 3 4 5);
}

/// Defines the calls that need more than their hook.
macro_rules! others {
    ($($number:ident)*) => {
        const OTHERS: &[c_long] = &[$(libc::$number),*];
    };
}

others! {
    SYS_ppoll SYS_pselect6 SYS_epoll_pwait SYS_epoll_pwait2 SYS_unshare SYS_fcntl SYS_io_uring_setup
    SYS_fork SYS_vfork SYS_clone SYS_clone3 SYS_execveat SYS_exit SYS_exit_group SYS_seccomp
    SYS_setuid SYS_setgid SYS_setreuid SYS_setregid SYS_setresuid SYS_setresgid
}

unsafe fn serve(args: &[c_long; 7]) -> Option<c_long> {
    // The functions behind the hooks are cancellation points; libc's `syscall` is not.
    // SAFETY: Lent: the program's own arguments.
    let ret = errno::without_cancel(|| unsafe { hooked(args).or_else(|| by_convention(args)) });
    // SAFETY: Lent: the program's own arguments.
    ret.or_else(|| unsafe { of_process(args) })
}

/// The size of the kernel's signal set, bytes; the kernel rejects any other size.
const KERNEL_SET: c_long = 8;

/// Serves calls whose convention differs from that of libc's function. Of waits, the kernel writes the remaining time
/// back to the caller's timeout, so it is called directly where a hook would call libc's function.
unsafe fn by_convention(args: &[c_long; 7]) -> Option<c_long> {
    let &[number, a, b, c, d, e, f] = args;
    let fd = a as c_int;
    // SAFETY: Typed, Lent: the program's own arguments, in the types of the hooks' manual pages.
    let ret = unsafe {
        match number {
            libc::SYS_ppoll => poll::poll_with(Word::of(a), Word::of(b), |any| {
                let timeout = if any {
                    &raw const poll::NOW
                } else {
                    Word::of(c)
                };
                libc::syscall(number, a, b, timeout, d, e) as c_int
            }),
            libc::SYS_pselect6 => {
                poll::select_with(fd, Word::of(b), Word::of(c), Word::of(d), |any| {
                    let timeout = if any {
                        &raw const poll::NOW
                    } else {
                        Word::of(e)
                    };
                    libc::syscall(number, a, b, c, d, timeout, f) as c_int
                })
            }
            libc::SYS_epoll_pwait if e == 0 || f == KERNEL_SET => {
                epoll::epoll_pwait(fd, Word::of(b), Word::of(c), Word::of(d), Word::of(e))
            }
            libc::SYS_epoll_pwait2 if e == 0 || f == KERNEL_SET => {
                epoll::epoll_pwait2(fd, Word::of(b), Word::of(c), Word::of(d), Word::of(e))
            }
            libc::SYS_unshare if fd & libc::CLONE_FILES != 0 => blocking::unshare(fd),
            // For other commands, libc's function differs from the system call (F_GETOWN).
            libc::SYS_fcntl
                if matches!(
                    b as c_int,
                    libc::F_DUPFD | libc::F_DUPFD_CLOEXEC | libc::F_SETFL
                ) =>
            {
                descriptor::fcntl(fd, Word::of(b), Word::of(c))
            }
            libc::SYS_fcntl if is_closed(fd) => -1,
            libc::SYS_io_uring_setup if refuses_ring(Word::of(a), Word::of(b)) => {
                // As where an administrator has disabled io_uring.
                errno::set(libc::EPERM);
                -1
            }
            _ => return None,
        }
    };
    Some(c_long::from(ret))
}

/// Returns whether to refuse a ring that the program is about to make.
unsafe fn refuses_ring(entries: c_uint, params: *const RingParams) -> bool {
    let refuse = || {
        // SAFETY: Lent: the program passes parameters to read; see `may_be_mapped`.
        let params = unsafe { params.read_unaligned() };
        program_rings::refuses(entries, params).then_some(())
    };
    may_be_mapped(params) && catch_panic(refuse).is_some()
}

/// Dispatches calls on processes, credentials and exit. Most of them pass through after the library's own preparation.
unsafe fn of_process(args: &[c_long; 7]) -> Option<c_long> {
    let &[number, a, b, c, ..] = args;
    // SAFETY: Typed, Lent: the program's own arguments, in the types of the hooks' manual pages.
    unsafe {
        match number {
            libc::SYS_fork | libc::SYS_vfork => {
                attempt(|| of::before_fork_child());
                return Some(libc::syscall(libc::SYS_fork));
            }
            libc::SYS_clone => attempt(|| of::before_clone(a as c_int)),
            libc::SYS_clone3 => {
                let flags: *const u64 = Word::of(a);
                if may_be_mapped(flags) {
                    attempt(|| of::before_clone(flags.read_unaligned() as c_int));
                }
            }
            libc::SYS_execveat => attempt(of::before_exec),
            libc::SYS_exit => attempt(thread_ends),
            libc::SYS_exit_group => process::_exit(a as c_int),
            // Other operations only query, as do these two with invalid arguments.
            libc::SYS_seccomp
                if a as c_uint == libc::SECCOMP_SET_MODE_STRICT && b == 0
                    || a as c_uint == libc::SECCOMP_SET_MODE_FILTER && c != 0 =>
            {
                attempt(of::before_filter);
            }
            libc::SYS_setuid
            | libc::SYS_setgid
            | libc::SYS_setreuid
            | libc::SYS_setregid
            | libc::SYS_setresuid
            | libc::SYS_setresgid => attempt(of::before_credential_change),
            _ => {}
        }
    }
    None
}

/// Runs when the calling thread ends, and the process with it if it is the last thread.
fn thread_ends() {
    if sys::has_other_threads() {
        epoll_set_list::for_each_owned(|guard| guard.submit_sends());
    } else {
        of::before_exit();
    }
}
