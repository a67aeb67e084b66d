//! # Safety
//!
//! Queued bytes are sent when their thread next waits on its set. Before the thread blocks in another call,
//! `flush_before_blocking` sends them. Three measures cover a long computation, or a blocking call that no hook sees
//! (Typed: numbers for the kernel):
//!
//! - A set does not hold writes back until its rounds have proved short, nor for a while after a long round
//!   ([`Batching`](crate::batching::Batching)).
//! - The library's flush thread sends late bytes. It runs once any bytes have been late, or if the process has several
//!   threads, one of which may wait for bytes that another has written. Each check costs a timer and two context
//!   switches on the server's processor, so checks become rarer while none finds late bytes.
//! - The flush thread ends when no bytes have been queued for a while, so that it does not keep a process alive. It
//!   also ends before a call that only a single-threaded process may make.
//!
//! The flush thread blocks all signals. It ends with each thread that waits on a set, so that a process ends with its
//! last thread.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::thread;

use crate::counters::Why;
use crate::deferred_output::{self, on_writable};
use crate::epoll_set::{Set, SetGuard};
use crate::epoll_set_list;
use crate::errno;
use crate::flush_request::{
    self, ASLEEP, NONE, RUNNING, STATE, STOP_REQUESTED, THREAD_EXITED, ensure_running,
};
use crate::output::{self, FLUSH_AFTER_NS};
use crate::send;
use crate::set_end;
use crate::sys;
use crate::writability;

/// The sleep between two checks, µs: at first and after late bytes, and the maximum.
const CHECK_US: u64 = 2000;
const CHECK_MAX_US: u64 = 16_000;
/// The age at which queued bytes are sent, ns.
const LATE_NS: u64 = 2_000_000;
/// After this many checks without queued bytes, the thread sleeps until it is woken, and ends after that time, µs.
const IDLE_CHECKS_MAX: u32 = 8;
const ASLEEP_MAX_US: u64 = 500_000;
/// The interval, µs, and the number of checks while another thread waits for the flush thread to end.
const STOP_POLL_US: u64 = 50;
const STOP_POLLS_MAX: u32 = 40_000;
const STACK_BYTES: usize = 64 << 10;

/// The kernel's ID of the last flush thread.
static THREAD: AtomicU32 = AtomicU32::new(0);
/// Runs when the library is loaded.
pub(crate) fn init() {
    let _ = flush_request::START.set(start);
}

/// Starts the thread with all signals blocked, which it inherits.
fn start() -> std::io::Result<()> {
    let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = (sys::zeroed(), sys::zeroed());
    // SAFETY: Typed: both are of this stack.
    unsafe {
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
    }
    let name = "annulus-flush".to_owned();
    let spawned = thread::Builder::new()
        .name(name)
        .stack_size(STACK_BYTES)
        .spawn(run);
    // SAFETY: Typed: `before` is of this stack, and was filled above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut()) };
    spawned.map(drop)
}

/// Sends the bytes that the calling thread has queued, except those of the set that it is about to wait on.
#[inline]
pub(crate) fn flush_before_blocking(on: Option<&'static Set>) {
    flush_own(|set, _| !on.is_some_and(|on| ptr::eq(on, set)));
}

/// Sends the bytes that the calling thread has queued for a while, in a call that it may repeat in place of a wait.
pub(crate) fn flush_before_repeat() {
    flush_own(|_, since_ns| sys::now_ns().saturating_sub(since_ns) > FLUSH_AFTER_NS);
}

/// Sends the bytes that the calling thread has queued, if `is_due` says so for their set and the time since when.
#[inline]
fn flush_own(is_due: impl Fn(&Set, u64) -> bool) {
    for set in epoll_set_list::all() {
        let since_ns = set.queued_since_ns();
        if since_ns != 0 && set.is_owner() && is_due(set, since_ns) {
            send_all(set);
        }
    }
}

#[cold]
fn send_all(set: &'static Set) {
    errno::catch_panic(|| {
        set.take()?.submit_sends();
        Some(())
    });
}

/// Returns whether the calling thread has queued bytes that the flush thread does not send.
#[inline]
pub(crate) fn has_queued() -> bool {
    STATE.load(Ordering::Relaxed) != RUNNING
        && epoll_set_list::all().any(|set| set.queued_since_ns() != 0 && set.is_owner())
}

/// Ends the thread, for a call that only a single-threaded process may make. It is restarted when it is needed.
pub(crate) fn stop_and_wait() {
    let swap =
        |from| STATE.compare_exchange(from, STOP_REQUESTED, Ordering::AcqRel, Ordering::Relaxed);
    for _ in 0..STOP_POLLS_MAX {
        if swap(ASLEEP).is_ok() || swap(RUNNING).is_ok() {
            writability::wake(&STATE);
        }
        if is_stopped() {
            return;
        }
        sys::pause_us(STOP_POLL_US);
    }
}

/// Restarts the thread after such a call, if bytes are queued or deferred.
pub(crate) fn restart_if_needed() {
    if deferred_output::flush_all() || !epoll_set_list::none_is_queued() {
        ensure_running();
    }
}

fn run() {
    THREAD.store(sys::thread_id(), Ordering::Release);
    let (mut idle, mut pause_us) = (0, CHECK_US);
    loop {
        writability::sleep_while(&STATE, RUNNING, Some(pause_us), on_writable);
        let state = STATE.load(Ordering::Acquire);
        if state == STOP_REQUESTED {
            return STATE.store(NONE, Ordering::Release);
        }
        if state == THREAD_EXITED {
            // The process may be about to end with its last thread.
            deferred_output::wait_until(sys::now_ns() + send::LAST_BYTES_MS * 1_000_000);
            STATE.store(NONE, Ordering::Release);
            // The thread that ended may not have been the only one that waits on a set.
            if sys::has_other_threads() {
                restart_if_needed();
            }
            return;
        }
        let mut queue = flush_late();
        if deferred_output::watch_new() && queue == QueueState::Empty {
            queue = QueueState::Queued;
        }
        pause_us = match queue {
            QueueState::Late => CHECK_US,
            QueueState::Queued | QueueState::Empty => (2 * pause_us).min(CHECK_MAX_US),
        };
        idle = if queue == QueueState::Empty {
            idle + 1
        } else {
            0
        };
        if idle < IDLE_CHECKS_MAX {
            continue;
        }
        (idle, pause_us) = (0, CHECK_US);
        let sleeps = STATE.compare_exchange(RUNNING, ASLEEP, Ordering::AcqRel, Ordering::Relaxed);
        // Bytes may have been queued since, by a thread that saw the state RUNNING and did not wake this one. Output
        // that was deferred is visible (`ensure_running`). Queued bytes may become visible a moment later, as a write
        // has no fence: they are sent after the sleep.
        fence(Ordering::SeqCst);
        if sleeps.is_ok() && epoll_set_list::none_is_queued() && !deferred_output::has_unwatched() {
            let mut limit_us = Some(ASLEEP_MAX_US);
            while STATE.load(Ordering::Acquire) == ASLEEP {
                let is_woken = writability::sleep_while(&STATE, ASLEEP, limit_us, on_writable);
                if !is_woken && !deferred_output::flush_all() {
                    break;
                }
                // Only this thread waits for sockets with deferred output.
                limit_us = is_woken.then_some(ASLEEP_MAX_US);
            }
            flush_late();
            let stopped = STATE.compare_exchange(ASLEEP, NONE, Ordering::AcqRel, Ordering::Relaxed);
            if stopped.is_ok() {
                // This may be the last thread of a process whose first thread ended by a raw system call.
                return sys::end_as_the_first_thread();
            }
        } else {
            let _ = STATE.compare_exchange(ASLEEP, RUNNING, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

/// Sends or defers all queued bytes: the next write starts a new queue.
fn flush_queued(guard: &mut SetGuard) {
    for fd in guard.queued.clone() {
        if let Some(connection) = guard.connection(fd) {
            output::flush(guard, connection);
        }
    }
    if !guard.pushed {
        guard.forget_sent(false);
        guard.set_queued_since(0);
    }
}

#[derive(Clone, Copy, PartialEq)]
enum QueueState {
    Empty,
    Queued,
    Late,
}

/// Sends bytes that are late.
fn flush_late() -> QueueState {
    let mut queue = QueueState::Empty;
    epoll_set_list::for_each_queued(|set, since_ns| {
        if sys::now_ns().saturating_sub(since_ns) < LATE_NS {
            if queue == QueueState::Empty {
                queue = QueueState::Queued;
            }
            return;
        }
        queue = QueueState::Late;
        let Some(mut guard) = set.take_idle() else {
            return;
        };
        if guard.pushed {
            return;
        }
        flush_queued(&mut guard);
    });
    queue
}

/// A key whose destructor runs when a thread that has set it ends. Destructors of thread-local values do not run for
/// the first thread.
static KEY: OnceLock<libc::pthread_key_t> = OnceLock::new();

/// Registers the calling thread, which waits on a set: the flush thread ends when this thread ends.
pub(crate) fn begin_thread() {
    let key = KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: Typed: of this stack; a function that may be called at the end of any thread.
        unsafe { libc::pthread_key_create(&raw mut key, Some(on_thread_exit)) };
        key
    });
    // SAFETY: Typed: any value but null; it is not followed.
    unsafe { libc::pthread_setspecific(*key, ptr::from_ref(&STATE).cast()) };
}

unsafe extern "C" fn on_thread_exit(_: *mut c_void) {
    epoll_set_list::for_each_owned(|guard| {
        // The thread may have been cancelled while it slept.
        guard.clear_in_enter();
        flush_queued(guard);
        // No other thread can cancel the ring's requests, which hold listeners and connections.
        if guard.ring.is_some() {
            set_end::pass_through_set(guard, Why::SeveralThreads);
        }
        guard.clear_owner();
    });
    let swap =
        |from| STATE.compare_exchange(from, THREAD_EXITED, Ordering::AcqRel, Ordering::Relaxed);
    if swap(ASLEEP).is_ok() || swap(RUNNING).is_ok() {
        writability::wake(&STATE);
    }
}

/// Ends the thread if it has nothing left to send: a system call filter that the program sets may not allow its calls.
/// The next late bytes start it again.
pub(crate) fn stop_if_idle() {
    if !deferred_output::flush_all() && epoll_set_list::none_is_queued() {
        stop_and_wait();
    }
}

pub(crate) fn is_stopped() -> bool {
    flush_request::is_stopped() && !sys::has_thread(THREAD.load(Ordering::Acquire))
}

/// Resets the state in a child of a fork, which does not have the thread.
pub(crate) fn reset() {
    flush_request::reset();
    THREAD.store(0, Ordering::Relaxed);
}
