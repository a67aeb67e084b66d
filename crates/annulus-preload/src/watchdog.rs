//! # Safety
//!
//! What is written leaves when its thread waits on its set again. Should the thread do something else first, and for
//! long, a thread of ours sends it: whatever the program waits for may be waiting for that answer. It looks while
//! something is queued, and sleeps for good where nothing is (Typed: numbers for the kernel). On a server's own
//! processor each look costs a timer and two switches, so it looks ever less often as long as it finds nothing
//! late, and often again once it has.
//!
//! It handles no signal, and ends with each thread that waits on a set, so that a process ends with its last thread.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use crate::leave;
use crate::orphans;
use crate::process;
use crate::rests;
use crate::room;
use crate::send;
use crate::set::Held;
use crate::sets;
use crate::sys;

/// How long it sleeps between two looks, us: at first and after it has found something late, and at most.
const LOOK_US: i64 = 2000;
const LOOK_MAX_US: i64 = 16_000;
/// What has waited for so long is sent, ns.
const LATE_NS: u64 = 2_000_000;
/// After so many looks at nothing it sleeps until it is woken.
const LOOKS_MAX: u32 = 8;
const STACK_BYTES: usize = 64 << 10;

const NONE: u32 = 0;
const LOOKING: u32 = 1;
const ASLEEP: u32 = 2;
const TO_END: u32 = 3;

static STATE: AtomicU32 = AtomicU32::new(NONE);

/// Something is queued.
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
        room::wake(&STATE);
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

fn watch() {
    let (mut idle, mut pause_us) = (0, LOOK_US);
    loop {
        room::sleep_us(pause_us, rests::has_room);
        if STATE.load(Ordering::Acquire) == TO_END {
            // The process may be about to end with its last thread.
            rests::wait_until(sys::now_ns() + process::LAST_BYTES_MS * 1_000_000);
            STATE.store(NONE, Ordering::Release);
            // The thread that ended may not have been the only one that waits on a set.
            let goes_on = (rests::go_on() || !sets::none_is_queued())
                && sys::has_other_threads()
                && (STATE.compare_exchange(NONE, LOOKING, Ordering::AcqRel, Ordering::Relaxed))
                    .is_ok();
            if !goes_on {
                return;
            }
            continue;
        }
        let mut found = look();
        if rests::look() && found == Found::Nothing {
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
        if sleeps.is_ok() && sets::none_is_queued() && !rests::is_any_new() {
            while STATE.load(Ordering::Acquire) == ASLEEP {
                room::sleep_while(&STATE, ASLEEP, rests::has_room);
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
    sets::for_each_queued(|set, since_ns| {
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
        leave::finish_closes_late(&mut held);
        orphans::take_all(&mut held);
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
    sets::for_each_of_mine(|held| {
        // It may have been ended where it slept.
        held.is_back();
        for fd in held.queued.clone() {
            if let Some(connection) = held.connection(fd) {
                send::flush(held, fd, connection);
            }
        }
        leave::finish_closes_late(held);
        orphans::take_all(held);
        is_sent(held);
        held.is_nobodys();
    });
    let swap = |from| STATE.compare_exchange(from, TO_END, Ordering::AcqRel, Ordering::Relaxed);
    if swap(ASLEEP).is_ok() || swap(LOOKING).is_ok() {
        room::wake(&STATE);
    }
}

/// In a child of a fork: the thread is not here.
pub(crate) fn reset() {
    STATE.store(NONE, Ordering::Relaxed);
}
