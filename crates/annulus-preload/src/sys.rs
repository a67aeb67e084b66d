//! # Safety
//!
//! Direct system calls: this module calls no function that this library exports (Sealed). Pointers are valid for the
//! call (Lent), as each function documents.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_long, c_void};
use std::ptr;
use std::sync::atomic::AtomicU32;

use crate::arch::Event;
use crate::errno::{self, CallResult};
use crate::raw_libc as libc;
pub(crate) use crate::vectors::may_be_mapped;

mod socket;

pub(crate) use socket::{
    do_not_linger, end_as_if_closed, is_at_mark, is_connected, is_established, limit_ends_ns,
    linger_s, message, option, own_port, readable, receive_vectors, reset_when_closed, send,
    send_vectors, send_with, set_option, shutdown,
};

#[inline]
fn result(ret: c_long) -> CallResult {
    usize::try_from(ret).map_err(|_| errno::get())
}

/// Types for which zero bytes are a value: plain integers, and pointers that may be null.
///
/// # Safety
///
/// Typed: the type is one of these.
pub(crate) unsafe trait Plain: Sized {}

macro_rules! plain {
    ($($type:ty)*) => {
        $(
            // SAFETY: Typed: a type of the C library's headers without references.
            unsafe impl Plain for $type {}
        )*
    };
}

plain! {
    c_int Event libc::linger libc::msghdr libc::rusage libc::sigaction libc::sigset_t libc::sockaddr
    libc::sockaddr_in6 libc::stat libc::timeval libc::fd_set
}

pub(crate) fn zeroed<T: Plain>() -> T {
    // SAFETY: Typed: zero bytes are a value.
    unsafe { std::mem::zeroed() }
}

/// The system calls that take numbers of 32 bits and no address, by their numbers.
#[derive(Clone, Copy)]
#[repr(i64)]
enum Numeric {
    Close = libc::SYS_close,
    Dup3 = libc::SYS_dup3,
    EpollCreate1 = libc::SYS_epoll_create1,
    Eventfd2 = libc::SYS_eventfd2,
    ExitGroup = libc::SYS_exit_group,
    Fcntl = libc::SYS_fcntl,
    Gettid = libc::SYS_gettid,
    Prctl = libc::SYS_prctl,
    Shutdown = libc::SYS_shutdown,
    Tgkill = libc::SYS_tgkill,
}

fn numeric(call: Numeric, a: c_int, b: c_int, c: c_int) -> CallResult {
    // SAFETY: Typed: numbers only. Open: a descriptor that is closed or replaced is the library's own, or one that the
    // program has closed.
    result(unsafe { libc::syscall(call as c_long, a, b, c) })
}

fn fcntl(fd: i32, command: c_int, value: c_int) -> CallResult {
    numeric(Numeric::Fcntl, fd, command, value)
}

/// Makes the eventfd readable.
pub(crate) fn wake(fd: i32) {
    let one = 1_u64;
    // SAFETY: Lent: eight bytes of this stack.
    unsafe { libc::syscall(libc::SYS_write, fd, &raw const one, 8) };
}

/// Returns a time in the kernel's form.
pub(crate) fn time(ns: u64) -> libc::timespec {
    libc::timespec {
        tv_sec: (ns / 1_000_000_000).cast_signed(),
        tv_nsec: (ns % 1_000_000_000).cast_signed(),
    }
}

unsafe extern "C-unwind" {
    /// Ends the calling thread by unwinding it, if the program has cancelled it.
    pub(crate) safe fn pthread_testcancel();
}

pub(crate) fn pause_us(us: u64) {
    let time = time(us * 1000);
    // SAFETY: Lent: of this stack.
    unsafe { libc::syscall(libc::SYS_nanosleep, &raw const time, ptr::null::<c_void>()) };
}

pub(crate) fn now_ns() -> u64 {
    let mut now = time(0);
    // SAFETY: Lent: of this stack. Usually a read of memory that the kernel maps.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Reads a file at an offset.
pub(crate) fn pread(fd: i32, into: &mut [u8], at: i64) -> CallResult {
    // SAFETY: Lent: borrowed for the call.
    result(unsafe { libc::syscall(libc::SYS_pread64, fd, into.as_mut_ptr(), into.len(), at) })
}

pub(crate) fn close(fd: i32) -> CallResult {
    numeric(Numeric::Close, fd, 0, 0)
}

pub(crate) fn flags_of(fd: i32) -> CallResult {
    fcntl(fd, libc::F_GETFL, 0)
}

pub(crate) fn is_blocking(fd: i32) -> bool {
    flags_of(fd).is_ok_and(|flags| flags as c_int & libc::O_NONBLOCK == 0)
}

/// Changes the kernel's set.
pub(crate) fn control(set: i32, operation: c_int, fd: i32, events: u32, data: u64) -> CallResult {
    let mut event = libc::epoll_event { events, u64: data };
    // SAFETY: Lent: of this stack.
    result(unsafe { libc::syscall(libc::SYS_epoll_ctl, set, operation, fd, &raw mut event) })
}

/// Takes the ready events of the kernel's set, as many as fit, without blocking. Returns their number.
pub(crate) fn take_ready(set: i32, events: &mut [Event]) -> usize {
    // This is usually the call that the program itself makes; a filter that it has set may allow no other.
    // SAFETY: Lent: borrowed for the call.
    let ret = unsafe {
        let (base, max) = (events.as_mut_ptr(), events.len());
        match libc::SYS_epoll_wait {
            0.. => libc::syscall(libc::SYS_epoll_wait, set, base, max, 0),
            // This architecture does not have the call.
            _ => libc::syscall(
                libc::SYS_epoll_pwait,
                set,
                base,
                max,
                0,
                ptr::null::<u64>(),
                8,
            ),
        }
    };
    result(ret).unwrap_or(0).min(events.len())
}

/// Waits for events of a kernel set, for at most `time` if there is one.
pub(crate) fn wait(
    set: i32,
    events: &mut [libc::epoll_event],
    time: Option<&libc::timespec>,
) -> CallResult {
    let time = time.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: Lent: both are borrowed for the call. All signals are blocked in callers.
    let ret = unsafe {
        libc::syscall(
            libc::SYS_epoll_pwait2,
            set,
            events.as_mut_ptr(),
            events.len(),
            time,
            ptr::null::<c_void>(),
            8,
        )
    };
    match result(ret) {
        Err(libc::EINTR) => Ok(0),
        result => result,
    }
}

/// Creates an eventfd, which [`wake`] makes readable and [`clear`] resets.
pub(crate) fn eventfd() -> Result<i32, i32> {
    let flags = libc::EFD_CLOEXEC | libc::EFD_NONBLOCK;
    numeric(Numeric::Eventfd2, 0, flags, 0).map(|fd| fd as i32)
}

pub(crate) fn clear(fd: i32) {
    let mut count = 0_u64;
    // SAFETY: Lent: eight bytes of this stack.
    unsafe { libc::syscall(libc::SYS_read, fd, &raw mut count, 8) };
}

/// Raises SIGPIPE, as the program's own write would have done.
pub(crate) fn raise_pipe() {
    // SAFETY: Typed: numbers only.
    unsafe { crate::real::raise(libc::SIGPIPE) };
}

/// Returns whether a signal ends or stops the process: it has its default action, and is not one of those that are
/// ignored by default.
pub(crate) fn is_fatal(signal: c_int) -> bool {
    const HARMLESS: [c_int; 4] = [libc::SIGCHLD, libc::SIGCONT, libc::SIGURG, libc::SIGWINCH];
    if HARMLESS.contains(&signal) {
        return false;
    }
    handler_of(signal) == Some(libc::SIG_DFL)
}

/// Returns the handler of a signal. `None`: there is no such signal.
pub(crate) fn handler_of(signal: c_int) -> Option<libc::sighandler_t> {
    let mut action: libc::sigaction = zeroed();
    // SAFETY: Typed: a query, which changes nothing.
    let ret = unsafe { libc::sigaction(signal, ptr::null(), &raw mut action) };
    (ret == 0).then_some(action.sa_sigaction)
}

/// Returns whether the descriptor is an end of a pipe.
pub(crate) fn is_pipe(fd: i32) -> bool {
    fcntl(fd, libc::F_GETPIPE_SZ, 0).is_ok()
}

/// Writes page by page while the pipe is writable, and so has room for one. May block if another thread fills the pipe
/// at the same moment.
pub(crate) fn write_pages(fd: i32, bytes: &[u8]) -> CallResult {
    let mut written = 0;
    for page in bytes.chunks(libc::PIPE_BUF) {
        // A call without bytes fails if this is the reading end.
        let room = match poll_now(fd, libc::POLLOUT as u32) {
            0 => 0,
            _ => page.len(),
        };
        // SAFETY: Lent: borrowed for the call.
        let ret = unsafe { libc::syscall(libc::SYS_write, fd, page.as_ptr(), room) };
        match result(ret) {
            Ok(1..) => written += ret as usize,
            Err(errno) if written == 0 => return Err(errno),
            _ => break,
        }
    }
    if written == 0 {
        return Err(libc::EAGAIN);
    }
    Ok(written)
}

pub(crate) fn epoll_create() -> Result<i32, i32> {
    numeric(Numeric::EpollCreate1, libc::EPOLL_CLOEXEC, 0, 0).map(|fd| fd as i32)
}

/// Returns `O_CLOEXEC` if exec closes the descriptor, else 0, as `dup3` expects it.
pub(crate) fn descriptor_flags(fd: i32) -> c_int {
    match fcntl(fd, libc::F_GETFD, 0) {
        Ok(flags) if flags as c_int & libc::FD_CLOEXEC != 0 => libc::O_CLOEXEC,
        _ => 0,
    }
}

pub(crate) fn dup_to(fd: i32, to: i32, flags: c_int) -> CallResult {
    numeric(Numeric::Dup3, fd, to, flags)
}

/// Duplicates a descriptor to the lowest free number from `from` on, with close-on-exec.
pub(crate) fn dup_above(fd: i32, from: i32) -> Result<i32, i32> {
    fcntl(fd, libc::F_DUPFD_CLOEXEC, from).map(|fd| fd as i32)
}

fn stat(fd: i32) -> Option<libc::stat> {
    let mut stat: libc::stat = zeroed();
    // SAFETY: Lent: of this stack.
    let ret = unsafe { libc::syscall(libc::SYS_fstat, fd, &raw mut stat) };
    (ret == 0).then_some(stat)
}

/// Returns the device and the inode number of a descriptor's file.
pub(crate) fn file_id(fd: i32) -> Option<(u64, u64)> {
    stat(fd).map(|stat| (stat.st_dev, stat.st_ino))
}

pub(crate) fn is_socket(fd: i32) -> bool {
    stat(fd).is_some_and(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFSOCK)
}

/// Returns whether a write to the end of a file neither blocks nor causes a signal: SIGPIPE without a reader, SIGXFSZ
/// at the limit on the size of files.
pub(crate) fn takes_bytes(fd: i32) -> bool {
    const OUT: u32 = libc::POLLOUT as u32;
    const ENDED: u32 = (libc::POLLERR | libc::POLLHUP) as u32;
    let most = limits(libc::RLIMIT_FSIZE).0;
    let is_regular = |stat: &libc::stat| stat.st_mode & libc::S_IFMT == libc::S_IFREG;
    // A filter may refuse the poll.
    !poll(fd, OUT, Some(0)).is_ok_and(|events| events & (OUT | ENDED) != OUT)
        && !stat(fd).is_some_and(|stat| is_regular(&stat) && stat.st_size.cast_unsigned() >= most)
}

/// Marks an open file as the library's: the signal number for I/O notifications, which are never enabled.
const MARK: c_int = 57;
const F_SETSIG: c_int = 10;
const F_GETSIG: c_int = 11;

/// Marks an open file, for all numbers that it has.
pub(crate) fn mark(fd: i32) -> bool {
    fcntl(fd, F_SETSIG, MARK).is_ok()
}

pub(crate) fn is_marked(fd: i32) -> bool {
    fcntl(fd, F_GETSIG, 0) == Ok(MARK as usize)
}

/// Returns the limit on descriptor numbers.
pub(crate) fn fd_limit() -> u64 {
    fd_limits().0
}

/// Returns that limit, and the highest that the process may set.
pub(crate) fn fd_limits() -> (u64, u64) {
    limits(libc::RLIMIT_NOFILE)
}

/// Returns a limit, and the highest that the process may set.
fn limits(resource: libc::__rlimit_resource_t) -> (u64, u64) {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: Lent: of this stack.
    unsafe { libc::getrlimit(resource, &raw mut limit) };
    (limit.rlim_cur, limit.rlim_max)
}

pub(crate) fn pipe() -> Result<[i32; 2], i32> {
    let mut ends = [-1_i32; 2];
    // SAFETY: Lent: of this stack.
    result(unsafe { libc::syscall(libc::SYS_pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC) })
        .map(|_| ends)
}

/// Returns whether the process has other threads.
pub(crate) fn has_other_threads() -> bool {
    // After this pause, a thread that was about to end no longer exists.
    pause_us(1000);
    let count = || std::fs::read_dir("/proc/self/task").map(Iterator::count);
    errno::without_cancel(count).is_ok_and(|threads| threads > 1)
}

/// Sleeps while `word` is `value`, until another thread wakes it, for at most `us`.
pub(crate) fn wait_while(word: &AtomicU32, value: u32, us: u64) {
    let time = time(us * 1000);
    futex(word, libc::FUTEX_WAIT, value, Some(&time));
}

pub(crate) fn wake_one(word: &AtomicU32) {
    futex(word, libc::FUTEX_WAKE, 1, None);
}

fn futex(word: &AtomicU32, call: c_int, value: u32, time: Option<&libc::timespec>) {
    let call = call | libc::FUTEX_PRIVATE_FLAG;
    let time = time.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: Lent: the word and the time are borrowed for the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), call, value, time) };
}

/// Ends the process with the first thread's exit code if the calling thread is the only other one: the last thread of a
/// process determines its exit code.
pub(crate) fn end_as_the_first_thread() {
    let threads = std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
    // The name in it may have any bytes.
    let stat = std::fs::read("/proc/self/stat").unwrap_or_default();
    let stat = String::from_utf8_lossy(&stat);
    let mut fields = stat.rsplit_once(") ").map_or("", |both| both.1).split(' ');
    let has_ended = fields.next() == Some("Z");
    // The 52nd field of all; the third is the state.
    let code = fields
        .nth(48)
        .and_then(|word| word.trim().parse::<c_int>().ok());
    if let Some(code) = code.filter(|&code| has_ended && threads == 2 && code != 0) {
        let _ = numeric(Numeric::ExitGroup, code >> 8, 0, 0);
    }
}

/// Returns the number of involuntary context switches of the calling thread.
pub(crate) fn preempted() -> i64 {
    let mut usage: libc::rusage = zeroed();
    // SAFETY: Lent: of this stack.
    unsafe { libc::syscall(libc::SYS_getrusage, libc::RUSAGE_THREAD, &raw mut usage) };
    usage.ru_nivcsw
}

/// Returns the kernel's ID of the calling thread.
pub(crate) fn thread_id() -> u32 {
    numeric(Numeric::Gettid, 0, 0, 0).map_or(0, |id| id as u32)
}

/// Returns whether the process still has that thread.
pub(crate) fn has_thread(thread_id: u32) -> bool {
    let process = std::process::id().cast_signed();
    // Nothing is sent.
    numeric(Numeric::Tgkill, process, thread_id.cast_signed(), 0).is_ok()
}

/// Returns whether a system call filter is set on the calling thread.
pub(crate) fn has_filter() -> bool {
    numeric(Numeric::Prctl, libc::PR_GET_SECCOMP, 0, 0).is_ok_and(|mode| mode > 0)
}

/// Returns those of `events` that the descriptor has now.
pub(crate) fn poll_now(fd: i32, events: u32) -> u32 {
    poll(fd, events, Some(0)).unwrap_or(0)
}

/// Waits for one of `events`, for at most the timeout if there is one. Returns the events, or 0 on a timeout.
pub(crate) fn poll(fd: i32, events: u32, timeout_ns: Option<u64>) -> Result<u32, i32> {
    let mut request = libc::pollfd {
        fd,
        events: events as i16,
        revents: 0,
    };
    let time = timeout_ns.map(time);
    let time = time.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: Lent: both of this stack.
    let ret = unsafe {
        libc::syscall(
            libc::SYS_ppoll,
            &raw mut request,
            1,
            time,
            ptr::null::<c_void>(),
            8,
        )
    };
    result(ret).map(|count| match count {
        0 => 0,
        _ => u32::from(request.revents as u16),
    })
}
