//! # Safety
//!
//! The start and the end of the process, and its children. Queued bytes are sent before the process ends or executes
//! another program. A child of a fork uses nothing of its parent's (Typed: functions of the C library).
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::config;
use crate::counters::{self, Why};
use crate::deferred_output;
use crate::descriptor;
use crate::draining;
use crate::epoll_set::Set;
use crate::epoll_set_list;
use crate::errno;
use crate::fd_budget;
use crate::fd_table;
use crate::flush_thread;
use crate::hand_back;
use crate::identity;
use crate::log;
use crate::output;
use crate::publish;
use crate::reserved_fds;
use crate::ring_policy;
use crate::ring_teardown;
use crate::send;
use crate::set_end;
use crate::signals;
use crate::stops;
use crate::switch_position;
use crate::sys;
use crate::writability;

/// The library is initialised; before that, every call passes through.
static READY: AtomicBool = AtomicBool::new(false);

/// The counters have been written.
static STATS_WRITTEN: AtomicBool = AtomicBool::new(false);
/// The process is a child: it did not load the library itself.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// Runs when the library is loaded. Returns whether calls are served from now on.
pub(crate) fn load() -> bool {
    identity::on_new_process(reset_in_child);
    let config = config::get();
    log::on_stderr();
    if let Some(wrong) = &config.wrong {
        log::write_line_or_stderr(wrong);
    }
    log::open();
    log::log_build();
    if config.disabled {
        log::write_line(&match &config.wrong {
            Some(wrong) => {
                let name = wrong.split(' ').next().unwrap_or_default();
                format!("switched off, everything passes through: {name} cannot be parsed")
            }
            None => "switched off by ANNULUS_DISABLE: everything passes through".to_owned(),
        });
        counters::passed(Why::Disabled);
        // SAFETY: Typed: a function that may be called at any time.
        unsafe { libc::atexit(at_exit) };
        return false;
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
    flush_thread::init();
    log::reserve_fd();
    // SAFETY: Typed: functions that may be called at any time.
    unsafe {
        libc::pthread_atfork(Some(before_fork_child), None, Some(on_fork_child));
        libc::atexit(at_exit);
        __cxa_at_quick_exit(at_quick_exit, std::ptr::null_mut());
    }
    READY.store(true, Ordering::Release);
    true
}

unsafe extern "C" {
    /// The function behind `at_quick_exit`, which the shared C library does not export.
    fn __cxa_at_quick_exit(run: extern "C" fn(*mut c_void), library: *mut c_void) -> c_int;
}

/// Runs after the last of the program's own handlers.
extern "C" fn at_quick_exit(_: *mut c_void) {
    before_exit();
}

/// Runs before a fork. Bytes that were written before the fork are sent ahead of anything that the child writes, and
/// the ring takes none that arrive later, unless this process waits for them.
pub(crate) extern "C" fn before_fork_child() {
    fd_table::mark_all_shared();
    epoll_set_list::for_each_owned(|guard| {
        guard.submit_sends();
        deferred_output::send_before_fork(guard);
        hand_back::suspend_receives(guard);
    });
}

/// Runs in a child that runs fork handlers. Other children are detected when they first determine their generation.
pub(crate) extern "C" fn on_fork_child() {
    identity::fork_generation();
}

/// Resets the library in a child, before anything else. The thread that forked may have been in the middle of any call,
/// and the C library may not know about the fork, so nothing here allocates or frees memory.
fn reset_in_child() {
    switch_position::inherit();
    publish::reset();
    log::reset_in_child();
    flush_thread::reset();
    draining::reset_in_child();
    writability::reset();
    descriptor::reset();
    fd_budget::reset();
    stops::reset();
    STATS_WRITTEN.store(false, Ordering::Relaxed);
    IS_CHILD.store(true, Ordering::Relaxed);
    reserved_fds::close_copies(true);
    log::reserve_fd();
}

/// Runs before `clone` creates a child or another thread.
pub(crate) fn before_clone(flags: c_int) {
    if flags & libc::CLONE_VM == 0 {
        return before_fork_child();
    }
    if flags & libc::CLONE_FILES != 0 {
        return;
    }
    // The child has its own descriptors but shares this memory: its `close` would mark this process's number as closed.
    epoll_set_list::for_each(|guard| set_end::pass_through_set(guard, Why::Forked));
    if flags & libc::CLONE_VFORK == 0 {
        ring_policy::forbid_rings(Why::Forked);
    }
}

/// Makes a call after which the calling thread has private descriptors. If the process has other threads, the kernel
/// serves all of them from now on, as one number may be several files.
pub(crate) fn with_private_descriptors(call: impl FnOnce() -> c_int) -> c_int {
    if identity::is_single_threaded() || fd_table::is_private() {
        return call();
    }
    // The library's own thread does not count.
    errno::attempt(flush_thread::stop_and_wait);
    if !sys::has_other_threads() {
        return call();
    }
    errno::attempt(|| {
        fd_table::mark_all_shared();
        before_clone(libc::CLONE_VM);
    });
    let ret = call();
    if ret == 0 {
        errno::attempt(|| {
            reserved_fds::close_copies(false);
            fd_table::make_private();
        });
    }
    ret
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
        send::flush_everything(send::LAST_BYTES_MS);
        epoll_set_list::for_each_owned(|guard| output::suspend_batching(guard));
    }
    let has_report = counters::any() || !IS_CHILD.load(Ordering::Relaxed);
    if config::get().stats && has_report && !STATS_WRITTEN.swap(true, Ordering::Relaxed) {
        log::write_line_or_stderr(&counters::line());
    }
}

/// Runs before the process executes another program.
pub(crate) fn before_exec() {
    if READY.load(Ordering::Acquire) {
        send::flush_everything(send::LAST_BYTES_MS);
        epoll_set_list::for_each_owned(hand_back::suspend_receives);
    }
}

/// Runs before handlers of the program may jump out of the calls that they interrupt. A jump would leave a lock taken
/// permanently, and a list in the middle of a change. So the kernel serves the process from now on. Once the library
/// holds no bytes, calls take no lock.
pub(crate) fn before_jumps() {
    signals::allow_jumps();
    ring_policy::forbid_rings(Why::InHandler);
    epoll_set_list::for_each(|guard| set_end::pass_through_set(guard, Why::InHandler));
    let holds = |set: &'static Set| set.take().is_none_or(|guard| guard.handed_back_count > 0);
    if (epoll_set_list::all().filter(|set| set.is_of_this_process())).any(holds) {
        return;
    }
    signals::end_tracking();
    for (fd, set) in epoll_set_list::numbers() {
        set_end::forget_streams(set);
        descriptor::forget(fd);
    }
}

/// Runs before the program sets a filter, and does everything that needs a ring.
pub(crate) fn before_filter() {
    ring_policy::forbid_rings(Why::Filtered);
    epoll_set_list::for_each(|guard| set_end::pass_through_set(guard, Why::Filtered));
    flush_thread::stop_if_idle();
    ring_teardown::cache_handlers();
    // Cached for the exit line.
    identity::command();
    identity::pid();
}

/// Runs when a thread sets `no_new_privs`. A thread with a ring is probably about to set a filter. The filter may be
/// set by a system call that no hook sees, and handing back afterwards would use calls that it forbids. A thread
/// without a ring is starting and may not set a filter at all (each thread of HAProxy does this), so filters are
/// checked for during a number of calls.
pub(crate) fn before_possible_filter() {
    ring_policy::count_filters();
    let mut has_ring = false;
    epoll_set_list::for_each_owned(|guard| has_ring |= guard.ring.is_some());
    if has_ring {
        before_filter();
    } else {
        ring_policy::expect_filter();
    }
}

pub(crate) fn before_credential_change() {
    if ring_policy::forbid_sqpoll() {
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
                set_end::pass_through_set(guard, Why::ChangedRights);
            }
        });
    }
}
