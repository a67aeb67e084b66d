//! # Safety
//!
//! What is written leaves when its thread waits on its set again. Before it sleeps in another call, what is queued is
//! sent by itself (`before_a_wait`). What else keeps a thread for long, a computation or a call that no hook sees, is
//! met in three ways (Typed: numbers for the kernel):
//!
//! - A set holds nothing back before its rounds have been seen to be short, nor for a while after one that was not
//!   ([`Pace`](crate::batching::Pace)).
//! - Once something has been late, or where the process has several threads, one of which may wait for what another
//!   has written, a thread of ours sends what is late. On a server's own processor each look costs a timer and two
//!   switches, so it looks ever less often as long as it finds nothing late.
//! - It ends when nothing has been queued for a while, so that a process is not kept alive, and before a call that only
//!   a process with one thread may make.
//!
//! It handles no signal, and ends with each thread that waits on a set, so that a process ends with its last thread.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use crate::config;
use crate::deferred_output;
use crate::epoll_set::{Held, Set};
use crate::epoll_set_list;
use crate::identity;
use crate::process;
use crate::send;
use crate::sys;
use crate::writability;

/// How long it sleeps between two looks, us: at first and after it has found something late, and at most.
const LOOK_US: i64 = 2000;
const LOOK_MAX_US: i64 = 16_000;
/// What has waited for so long is sent, ns.
const LATE_NS: u64 = 2_000_000;
/// After so many looks at nothing it sleeps until it is woken, and ends if that takes so long, us.
const LOOKS_MAX: u32 = 8;
const ASLEEP_MAX_US: i64 = 500_000;
/// Whoever waits for its end looks so often, us, and at most so many times.
const END_LOOK_US: i64 = 50;
const END_LOOKS_MAX: u32 = 40_000;
const STACK_BYTES: usize = 64 << 10;

const NONE: u32 = 0;
const LOOKING: u32 = 1;
const ASLEEP: u32 = 2;
const TO_END: u32 = 3;
const TO_LEAVE: u32 = 4;

static STATE: AtomicU32 = AtomicU32::new(NONE);
/// The kernel's number of the last such thread.
static THREAD: AtomicU32 = AtomicU32::new(0);
/// Something has been late in this process.
static LATE: AtomicBool = AtomicBool::new(false);

/// Something is queued that may be late.
#[inline]
pub(crate) fn is_queued() {
    if STATE.load(Ordering::Relaxed) != LOOKING {
        look_out_if_needed();
    }
}

#[cold]
fn look_out_if_needed() {
    if LATE.load(Ordering::Relaxed) || config::get().holds || !identity::is_alone() {
        rouse();
    }
}

/// Something has been queued for too long.
pub(crate) fn was_late() {
    LATE.store(true, Ordering::Relaxed);
}

/// Something is to be sent that nothing else looks after.
#[inline]
pub(crate) fn look_out() {
    if STATE.load(Ordering::Relaxed) != LOOKING {
        rouse();
    }
}

#[cold]
fn rouse() {
    let swap = |from, to| STATE.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
    if swap(ASLEEP, LOOKING).is_ok() {
        writability::wake(&STATE);
    } else if swap(NONE, LOOKING).is_ok() && start().is_err() {
        // What is late stays so until its thread comes back.
        STATE.store(NONE, Ordering::Release);
    }
}

/// With all signals blocked, which the new thread inherits.
fn start() -> std::io::Result<()> {
    // SAFETY: Typed: plain integers; filled by the call.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: Typed: as above.
    let mut before: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: Typed: both are of this stack.
    unsafe {
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
    }
    let name = "annulus-late".to_owned();
    let made = thread::Builder::new()
        .name(name)
        .stack_size(STACK_BYTES)
        .spawn(watch);
    // SAFETY: Typed: as above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut()) };
    made.map(drop)
}

/// The calling thread may sleep: what it has queued is sent, but for that of the set it is about to wait on.
#[inline]
pub(crate) fn before_a_wait(on: Option<&'static Set>) {
    for set in epoll_set_list::all() {
        let other = !on.is_some_and(|on| ptr::eq(on, set));
        if set.queued_since_ns() != 0 && other && set.is_mine() {
            send_all(set);
        }
    }
}

#[cold]
fn send_all(set: &'static Set) {
    if let Some(mut held) = set.take() {
        held.submit_sends();
    }
}

/// Whether the calling thread has something queued that nothing else sends.
#[inline]
pub(crate) fn has_queued() -> bool {
    STATE.load(Ordering::Relaxed) != LOOKING
        && epoll_set_list::all().any(|set| set.queued_since_ns() != 0 && set.is_mine())
}

/// Ends the thread, for a call that only a process with one thread may make. It is begun anew when it is needed.
pub(crate) fn leave() {
    let swap = |from| STATE.compare_exchange(from, TO_LEAVE, Ordering::AcqRel, Ordering::Relaxed);
    for _ in 0..END_LOOKS_MAX {
        if swap(ASLEEP).is_ok() || swap(LOOKING).is_ok() {
            writability::wake(&STATE);
        }
        if STATE.load(Ordering::Acquire) == NONE && !sys::has_thread(THREAD.load(Ordering::Acquire))
        {
            return;
        }
        sys::pause_us(END_LOOK_US);
    }
}

/// The call has been made.
pub(crate) fn may_come_back() {
    if deferred_output::go_on() || !epoll_set_list::none_is_queued() {
        look_out();
    }
}

fn watch() {
    THREAD.store(sys::thread(), Ordering::Release);
    let (mut idle, mut pause_us) = (0, LOOK_US);
    loop {
        writability::sleep_while(&STATE, LOOKING, Some(pause_us), deferred_output::has_room);
        let state = STATE.load(Ordering::Acquire);
        if state == TO_LEAVE {
            return STATE.store(NONE, Ordering::Release);
        }
        if state == TO_END {
            // The process may be about to end with its last thread.
            deferred_output::wait_until(sys::now_ns() + process::LAST_BYTES_MS * 1_000_000);
            STATE.store(NONE, Ordering::Release);
            // The thread that ended may not have been the only one that waits on a set.
            let goes_on = (deferred_output::go_on() || !epoll_set_list::none_is_queued())
                && sys::has_other_threads()
                && (STATE.compare_exchange(NONE, LOOKING, Ordering::AcqRel, Ordering::Relaxed))
                    .is_ok();
            if !goes_on {
                return;
            }
            continue;
        }
        let mut found = look();
        if deferred_output::look() && found == Found::Nothing {
            found = Found::Queued;
        }
        pause_us = match found {
            Found::Late => LOOK_US,
            Found::Queued | Found::Nothing => (2 * pause_us).min(LOOK_MAX_US),
        };
        idle = if found == Found::Nothing { idle + 1 } else { 0 };
        if idle < LOOKS_MAX {
            continue;
        }
        (idle, pause_us) = (0, LOOK_US);
        let sleeps = STATE.compare_exchange(LOOKING, ASLEEP, Ordering::AcqRel, Ordering::Relaxed);
        // Something may have been queued since: whoever did has not woken it.
        if sleeps.is_ok() && epoll_set_list::none_is_queued() && !deferred_output::is_any_new() {
            let mut limit_us = Some(ASLEEP_MAX_US);
            while STATE.load(Ordering::Acquire) == ASLEEP {
                let is_woken =
                    writability::sleep_while(&STATE, ASLEEP, limit_us, deferred_output::has_room);
                if !is_woken && !deferred_output::go_on() {
                    break;
                }
                // Where something has no room, nobody else waits for that.
                limit_us = is_woken.then_some(ASLEEP_MAX_US);
            }
            let ends = STATE.compare_exchange(ASLEEP, NONE, Ordering::AcqRel, Ordering::Relaxed);
            if ends.is_ok() {
                // It may be the last of a process whose first thread has ended by a call of the kernel's.
                return sys::end_as_the_first_thread();
            }
        } else {
            let _ = STATE.compare_exchange(ASLEEP, LOOKING, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

/// All that was queued has been sent, or waits for room: what is written next is queued anew.
fn is_sent(held: &mut Held) {
    if !held.pushed {
        held.forget_sent(false);
        held.is_queued_since(0);
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Found {
    Nothing,
    Queued,
    Late,
}

/// Sends what is late.
fn look() -> Found {
    let mut found = Found::Nothing;
    epoll_set_list::for_each_queued(|set, since_ns| {
        if sys::now_ns().saturating_sub(since_ns) < LATE_NS {
            if found == Found::Nothing {
                found = Found::Queued;
            }
            return;
        }
        found = Found::Late;
        let Some(mut held) = set.take_idle() else {
            return;
        };
        if held.pushed {
            return;
        }
        for fd in held.queued.clone() {
            if let Some(connection) = held.connection(fd) {
                send::flush(&mut held, fd, connection);
            }
        }
        is_sent(&mut held);
    });
    found
}

/// What is called when a thread that has set it ends; also for the first thread, for which the destructors of
/// thread-local values are not.
static KEY: OnceLock<libc::pthread_key_t> = OnceLock::new();

/// The calling thread waits on a set: when it ends, so does the thread that looks after it.
pub(crate) fn begin_thread() {
    let key = KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: Typed: of this stack; a function that may be called at the end of any thread.
        unsafe { libc::pthread_key_create(&raw mut key, Some(at_end)) };
        key
    });
    // SAFETY: Typed: any value but null; it is not followed.
    unsafe { libc::pthread_setspecific(*key, ptr::from_ref(&STATE).cast()) };
}

unsafe extern "C" fn at_end(_: *mut c_void) {
    epoll_set_list::for_each_of_mine(|held| {
        // It may have been ended where it slept.
        held.is_back();
        for fd in held.queued.clone() {
            if let Some(connection) = held.connection(fd) {
                send::flush(held, fd, connection);
            }
        }
        is_sent(held);
        held.is_nobodys();
    });
    let swap = |from| STATE.compare_exchange(from, TO_END, Ordering::AcqRel, Ordering::Relaxed);
    if swap(ASLEEP).is_ok() || swap(LOOKING).is_ok() {
        writability::wake(&STATE);
    }
}

/// Ends the thread, if it has nothing left to send: a filter of system calls that the program sets may not allow what
/// it does. The next bytes that are late start it again.
pub(crate) fn stop() {
    if !deferred_output::go_on() && epoll_set_list::none_is_queued() {
        leave();
    }
}

/// In a child of a fork: the thread is not here.
pub(crate) fn reset() {
    STATE.store(NONE, Ordering::Relaxed);
    THREAD.store(0, Ordering::Relaxed);
    LATE.store(false, Ordering::Relaxed);
}
