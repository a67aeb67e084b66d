//! # Safety
//!
//! The beginning and the end of the process, and its children: what is queued is sent before the process ends or
//! becomes another program; a child of a fork uses nothing of its parent's (Typed: functions of the C library).
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::config;
use crate::counters::{self, Why};
use crate::epoll_set;
use crate::epoll_set_list;
use crate::fd_table;
use crate::flush_thread;
use crate::hand_back;
use crate::identity;
use crate::log;
use crate::reserved_fds;
use crate::ring_teardown;
use crate::send;
use crate::sys;

/// The longest time that a process waits at its end for deferred output, ms.
pub(crate) const LAST_BYTES_MS: u64 = 1000;

/// Nothing is served before the library is ready.
static READY: AtomicBool = AtomicBool::new(false);

/// The counters have been written.
static STATS_WRITTEN: AtomicBool = AtomicBool::new(false);
/// It did not load the library itself.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = load;

extern "C" fn load() {
    let config = config::get();
    if let Some(wrong) = &config.wrong {
        log::write_line_or_stderr(wrong);
    }
    log::open();
    log::log_build();
    if config.disabled {
        log::write_line(match config.wrong {
            Some(_) => "switched off: ANNULUS_PASS_PORTS can't be read",
            None => "switched off by ANNULUS_DISABLE: everything passes through",
        });
        counters::passed(Why::Disabled);
        // SAFETY: Typed: a function that may be called at any time.
        unsafe { libc::atexit(at_exit) };
        return;
    }
    std::panic::set_hook(Box::new(|panic| {
        log::write_line(&format!("a defect: {panic}"))
    }));
    // Before there can be a child.
    identity::fork_generation();
    fd_table::make();
    identity::init();
    log::reserve_fd();
    // SAFETY: Typed: functions that may be called at any time.
    unsafe {
        libc::pthread_atfork(Some(before_fork), None, Some(on_fork_child));
        libc::atexit(at_exit);
        __cxa_at_quick_exit(at_quick_exit, std::ptr::null_mut());
    }
    READY.store(true, Ordering::Release);
    crate::hooks::watch_syscalls();
}

unsafe extern "C" {
    /// As `at_quick_exit`, which is not in the shared C library.
    fn __cxa_at_quick_exit(run: extern "C" fn(*mut c_void), library: *mut c_void) -> c_int;
}

/// The last of the program's own handlers has run.
extern "C" fn at_quick_exit(_: *mut c_void) {
    before_exit();
}

extern "C" fn before_fork() {
    before_fork_child();
}

/// The process is about to have a child. What was written before is sent before whatever the child writes.
pub(crate) fn before_fork_child() {
    fd_table::mark_all_shared();
    epoll_set_list::for_each_owned(|guard| guard.submit_sends());
}

/// In a child that runs fork handlers; other children are noticed when they first determine their generation.
pub(crate) extern "C" fn on_fork_child() {
    identity::on_fork_child();
}

/// In a child, before anything else. It may have been made by a thread that was in the middle of anything, without the
/// C library's knowledge: nothing here allocates or frees memory.
pub(crate) fn reset_in_child() {
    PID.store(0, Ordering::Relaxed);
    crate::switch::inherit();
    counters::reset();
    log::reset_in_child();
    flush_thread::reset();
    crate::draining::reset_in_child();
    crate::writability::reset();
    crate::descriptor::reset();
    STATS_WRITTEN.store(false, Ordering::Relaxed);
    IS_CHILD.store(true, Ordering::Relaxed);
    reserved_fds::close_in_child();
    log::reserve_fd();
}

/// The process is about to have a child by `clone`, or another thread.
pub(crate) fn before_clone(flags: c_int) {
    if flags & libc::CLONE_VM == 0 {
        return before_fork_child();
    }
    if flags & (libc::CLONE_THREAD | libc::CLONE_FILES) != 0 {
        return;
    }
    // It has descriptors of its own, and this process's memory: what it closes, this process would take for closed.
    epoll_set_list::for_each(|guard| hand_back::pass_through_set(guard, Why::Forked));
    if flags & libc::CLONE_VFORK == 0 {
        FILTER_CHECKS.store(NO_RINGS, Ordering::Relaxed);
    }
}

extern "C" fn at_exit() {
    if counters::any() || !IS_CHILD.load(Ordering::Relaxed) {
        log::log_no_ring();
    }
    before_exit();
}

/// The process ends now. A ring holds sockets, and a kernel worker closes it some milliseconds after the process: until
/// then its peers would see no end, and its ports would stay taken (trap 63).
pub(crate) fn before_exit() {
    before_possible_exit();
    if READY.load(Ordering::Acquire) {
        epoll_set_list::for_each_owned(|guard| {
            guard.cancel_all_requests();
        });
    }
}

/// The process ends, unless something still prevents it. Writes of its last handlers are sent immediately.
pub(crate) fn before_possible_exit() {
    // A child may not have determined its generation before.
    identity::fork_generation();
    if READY.load(Ordering::Acquire) {
        send::flush_everything(LAST_BYTES_MS);
        epoll_set_list::for_each_owned(|guard| send::suspend_batching(guard));
    }
    let has_report = counters::any() || !IS_CHILD.load(Ordering::Relaxed);
    if config::get().stats && has_report && !STATS_WRITTEN.swap(true, Ordering::Relaxed) {
        log::write_line_or_stderr(&counters::line());
    }
}

/// The process becomes another program.
pub(crate) fn before_exec() {
    if READY.load(Ordering::Acquire) {
        send::flush_everything(LAST_BYTES_MS);
    }
}

/// No kernel thread polls for a ring any more.
static CREDENTIALS_CHANGED: AtomicBool = AtomicBool::new(false);

/// Remaining checks for a new filter: a program that gives up new privileges often sets one next.
static FILTER_CHECKS: AtomicU32 = AtomicU32::new(0);
const FILTER_CHECKS_MAX: u32 = 64;
/// Instead of a number: no ring is made or entered any more; a filter of system calls may end the program for one.
const NO_RINGS: u32 = u32::MAX;

/// The program is about to set a filter: whatever needs a ring is done before.
pub(crate) fn before_filter() {
    FILTER_CHECKS.store(NO_RINGS, Ordering::Relaxed);
    epoll_set_list::for_each(|guard| hand_back::pass_through_set(guard, Why::Filtered));
    flush_thread::stop_if_idle();
    ring_teardown::cache_handlers();
    // For the line at the end.
    command();
    pid();
}

/// The program gives up new privileges. If it has been served before, it is about to set a filter: the filter may come
/// by a system call that no hook sees, and handing back afterwards would use the calls that it forbids. A program that
/// does this at its start may not want a filter, so it is checked for a while.
pub(crate) fn before_possible_filter() {
    let mut has_ring = false;
    epoll_set_list::for_each(|guard| has_ring |= guard.ring.is_some());
    if has_ring {
        before_filter();
    } else if FILTER_CHECKS.load(Ordering::Relaxed) != NO_RINGS {
        FILTER_CHECKS.store(FILTER_CHECKS_MAX, Ordering::Relaxed);
    }
}

/// Whether the program may have set a filter: it forbids whatever the program has no need of itself.
pub(crate) fn may_be_filtered() -> bool {
    FILTER_CHECKS.load(Ordering::Relaxed) == NO_RINGS
}

/// Whether there may be a filter that was not there before.
#[inline]
pub(crate) fn has_new_filter() -> bool {
    FILTER_CHECKS.load(Ordering::Relaxed) > 0 && check_filter()
}

#[cold]
fn check_filter() -> bool {
    let left = |checks: u32| (checks != NO_RINGS && checks > 0).then(|| checks - 1);
    let updated = FILTER_CHECKS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left);
    updated.is_err() && FILTER_CHECKS.load(Ordering::Relaxed) == NO_RINGS
        || updated.is_ok() && sys::has_filter()
}

/// A filter was set while this set had a ring: the ring is not entered again, not even to cancel requests.
pub(crate) fn on_filter(guard: &mut epoll_set::SetGuard) {
    FILTER_CHECKS.store(NO_RINGS, Ordering::Relaxed);
    if let Some(context) = &mut guard.ring {
        context.ring.give_up();
    }
    hand_back::pass_through_set(guard, Why::Filtered);
}

pub(crate) fn may_make_rings() -> bool {
    let filtered = has_new_filter();
    if filtered {
        FILTER_CHECKS.store(NO_RINGS, Ordering::Relaxed);
    }
    !filtered
}

pub(crate) fn before_credential_change() {
    if !CREDENTIALS_CHANGED.swap(true, Ordering::Relaxed) && config::get().sqpoll {
        log::write_line(
            "SQPOLL is off from now on: the program changes its user or group, and a kernel thread would keep the \
             old ones",
        );
        epoll_set_list::for_each(|guard| {
            if guard
                .ring
                .as_ref()
                .is_some_and(|context| context.ring.is_polled())
            {
                hand_back::pass_through_set(guard, Why::ChangedRights);
            }
        });
    }
}

/// Whether a kernel thread may poll for the next ring.
pub(crate) fn may_use_sqpoll() -> bool {
    config::get().sqpoll && !CREDENTIALS_CHANGED.load(Ordering::Relaxed)
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

/// As `ps` shows it; characters that JSON would need to escape are left out.
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
