//! # Safety
//!
//! The start and the end of the process, and its children. Queued bytes are sent before the process ends or executes
//! another program. A child of a fork uses nothing of its parent's (Typed: functions of the C library).
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use annulus::preload::ServerRing;

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

/// The longest time that a process waits for deferred output at its end, ms.
pub(crate) const LAST_BYTES_MS: u64 = 1000;

/// The library is initialised; before that, every call passes through.
static READY: AtomicBool = AtomicBool::new(false);

/// The counters have been written.
static STATS_WRITTEN: AtomicBool = AtomicBool::new(false);
/// The process is a child: it did not load the library itself.
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
            Some(_) => {
                "switched off, everything passes through: ANNULUS_PASS_PORTS cannot be parsed"
            }
            None => "switched off by ANNULUS_DISABLE: everything passes through",
        });
        counters::passed(Why::Disabled);
        // SAFETY: Typed: a function that may be called at any time.
        unsafe { libc::atexit(at_exit) };
        return;
    }
    std::panic::set_hook(Box::new(|panic| {
        log::write_line(&format!(
            "internal error, the call passes through: {panic}; please report it"
        ))
    }));
    // Before any child exists.
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
    /// The function behind `at_quick_exit`, which the shared C library does not export.
    fn __cxa_at_quick_exit(run: extern "C" fn(*mut c_void), library: *mut c_void) -> c_int;
}

/// Runs after the last of the program's own handlers.
extern "C" fn at_quick_exit(_: *mut c_void) {
    before_exit();
}

extern "C" fn before_fork() {
    before_fork_child();
}

/// Runs before a fork. Bytes that were written before the fork are sent ahead of anything that the child writes.
pub(crate) fn before_fork_child() {
    fd_table::mark_all_shared();
    epoll_set_list::for_each_owned(|guard| guard.submit_sends());
}

/// Runs in a child that runs fork handlers. Other children are detected when they first determine their generation.
pub(crate) extern "C" fn on_fork_child() {
    identity::on_fork_child();
}

/// Resets the library in a child, before anything else. The thread that forked may have been in the middle of any call,
/// and the C library may not know about the fork, so nothing here allocates or frees memory.
pub(crate) fn reset_in_child() {
    PID.store(0, Ordering::Relaxed);
    crate::switch::inherit();
    counters::reset();
    log::reset_in_child();
    flush_thread::reset();
    crate::draining::reset_in_child();
    crate::writability::reset();
    crate::descriptor::reset();
    crate::fd_limit::reset();
    crate::stops::reset();
    STATS_WRITTEN.store(false, Ordering::Relaxed);
    IS_CHILD.store(true, Ordering::Relaxed);
    reserved_fds::close_in_child();
    log::reserve_fd();
}

/// Runs before `clone` creates a child or another thread.
pub(crate) fn before_clone(flags: c_int) {
    if flags & libc::CLONE_VM == 0 {
        return before_fork_child();
    }
    if flags & (libc::CLONE_THREAD | libc::CLONE_FILES) != 0 {
        return;
    }
    // The child has its own descriptors but shares this memory: its `close` would mark this process's number as closed.
    epoll_set_list::for_each(|guard| hand_back::pass_through_set(guard, Why::Forked));
    if flags & libc::CLONE_VFORK == 0 {
        FILTER_CHECKS.store(NO_RINGS, Ordering::Relaxed);
    }
}

extern "C" fn at_exit() {
    if counters::any() || !IS_CHILD.load(Ordering::Relaxed) {
        log::log_result();
    }
    before_exit();
}

/// Runs when the process ends. A ring holds sockets, and a kernel worker closes it some milliseconds after the process.
/// Until then peers would see no end of stream, and ports would stay taken (trap 63).
pub(crate) fn before_exit() {
    before_possible_exit();
    if READY.load(Ordering::Acquire) {
        epoll_set_list::for_each_owned(|guard| {
            guard.cancel_all_requests();
        });
    }
}

/// Runs when the process is likely to end. Later writes, of its last exit handlers, are sent immediately.
pub(crate) fn before_possible_exit() {
    // This may be a child that has not determined its generation yet.
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

/// Runs before the process executes another program.
pub(crate) fn before_exec() {
    if READY.load(Ordering::Acquire) {
        send::flush_everything(LAST_BYTES_MS);
    }
}

/// The program has changed its credentials: no kernel thread polls for a ring any more.
static CREDENTIALS_CHANGED: AtomicBool = AtomicBool::new(false);

/// Remaining checks for a new filter: a program that sets `no_new_privs` often sets a filter next.
static FILTER_CHECKS: AtomicU32 = AtomicU32::new(0);
const FILTER_CHECKS_MAX: u32 = 64;
/// In place of a count: no ring is created or entered any more, as a system call filter may end the program for it.
const NO_RINGS: u32 = u32::MAX;

/// Runs before the program sets a filter, and does everything that needs a ring.
pub(crate) fn before_filter() {
    FILTER_CHECKS.store(NO_RINGS, Ordering::Relaxed);
    epoll_set_list::for_each(|guard| hand_back::pass_through_set(guard, Why::Filtered));
    flush_thread::stop_if_idle();
    ring_teardown::cache_handlers();
    // Cached for the exit line.
    command();
    pid();
}

/// Runs when the program sets `no_new_privs`. A program with a ring is probably about to set a filter. The filter may
/// be set by a system call that no hook sees, and handing back afterwards would use calls that it forbids. A program
/// that does this at its start may not set a filter at all, so filters are checked for during a number of calls.
pub(crate) fn before_possible_filter() {
    let mut has_ring = false;
    epoll_set_list::for_each(|guard| has_ring |= guard.ring.is_some());
    if has_ring {
        before_filter();
    } else if FILTER_CHECKS.load(Ordering::Relaxed) != NO_RINGS {
        FILTER_CHECKS.store(FILTER_CHECKS_MAX, Ordering::Relaxed);
    }
}

/// Returns whether the program may have set a filter, which may forbid calls that only this library makes.
pub(crate) fn may_be_filtered() -> bool {
    FILTER_CHECKS.load(Ordering::Relaxed) == NO_RINGS
}

/// Returns whether a filter may have been set since the last check.
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

/// Handles a filter that was set while this set had a ring: the ring is not entered again, not even to cancel requests.
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

/// Fails with the reason if a filter that the process inherited would end it for a ring. Filters are never removed, all
/// threads inherit those from before the start, and no ring is made after another one is set. So one probe is enough for
/// the process and its children.
pub(crate) fn check_inherited_filter() -> Result<(), String> {
    static PROBED: OnceLock<Result<(), String>> = OnceLock::new();
    if !sys::has_filter() {
        return Ok(());
    }
    if let Some(probed) = PROBED.get() {
        return probed.clone();
    }
    // Not within `get_or_init`: another thread may fork meanwhile.
    let probed = ServerRing::check_filter().map_err(|error| error.to_string());
    let _ = PROBED.set(probed.clone());
    probed
}

pub(crate) fn before_credential_change() {
    if !CREDENTIALS_CHANGED.swap(true, Ordering::Relaxed) && config::get().sqpoll {
        log::write_line(
            "SQPOLL is off from now on: the program changes its user or group, and its kernel thread would keep the \
             old one",
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

/// Returns whether a kernel thread may poll for the next ring.
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
