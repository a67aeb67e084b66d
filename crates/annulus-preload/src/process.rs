//! # Safety
//!
//! The beginning and the end of the process, and its children: what is queued is sent before the process ends or
//! becomes another program; a child of a fork uses nothing of its parent's (Typed: functions of the C library).
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use crate::caller;
use crate::config;
use crate::counts::{self, Why};
use crate::leave;
use crate::log;
use crate::send;
use crate::set;
use crate::sets;
use crate::sys;
use crate::table::{self, Kind};

/// What a process that ends waits for, at most, until its last bytes have found room, ms.
pub(crate) const LAST_BYTES_MS: u64 = 1000;

/// Descriptors of rings, and of what was closed with a rest to send: a child closes them, or they would live as long
/// as it (trap 54).
static OURS: [AtomicI32; 1024] = [const { AtomicI32::new(-1) }; 1024];
/// Nothing is served before the library is ready.
static READY: AtomicBool = AtomicBool::new(false);

/// The counts have been said.
static ENDED: AtomicBool = AtomicBool::new(false);
/// It did not load the library itself.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = load;

extern "C" fn load() {
    let config = config::get();
    if let Some(wrong) = &config.wrong {
        log::say_somewhere(wrong);
    }
    log::open();
    if config.disabled {
        counts::passed(Why::Disabled);
        // SAFETY: Typed: a function that may be called at any time.
        unsafe { libc::atexit(at_exit) };
        return;
    }
    std::panic::set_hook(Box::new(|panic| log::say(&format!("a defect: {panic}"))));
    table::make();
    log::keep();
    // SAFETY: Typed: functions that may be called at any time.
    unsafe {
        libc::pthread_atfork(Some(before_fork), None, Some(in_child));
        libc::atexit(at_exit);
    }
    READY.store(true, Ordering::Release);
}

extern "C" fn before_fork() {
    has_child();
}

/// The process is about to have a child. What was written before is sent before whatever the child writes.
pub(crate) fn has_child() {
    table::children_have_all();
    sets::for_each_of_mine(|held| {
        held.submit_sends();
        leave::finish_closes(held);
    });
}

extern "C" fn in_child() {
    caller::is_child();
    counts::reset();
    crate::watchdog::reset();
    crate::orphans::in_child();
    crate::room::reset();
    crate::descriptor::reset();
    ENDED.store(false, Ordering::Relaxed);
    IS_CHILD.store(true, Ordering::Relaxed);
    for place in &OURS {
        let fd = place.swap(-1, Ordering::Relaxed);
        if fd >= 0 {
            let _ = sys::close(fd);
        }
    }
    // Likewise what the parent has closed and not sent all of: its peer is to be told the end when the parent is.
    for fd in sets::all().flat_map(set::Set::inherited_closed) {
        if let Some(entry) = table::entry(fd).filter(|entry| entry.inherited() == Kind::Closing) {
            entry.forget();
            let _ = sys::close(fd);
        }
    }
    log::keep();
}

extern "C" fn at_exit() {
    ends();
}

/// The process ends now. A ring holds sockets, and a worker of the kernel's ends it some milliseconds after the
/// process: for as long its peers would be told nothing, and its ports be taken (trap 63).
pub(crate) fn ends() {
    is_about_to_end();
    if READY.load(Ordering::Acquire) {
        sets::for_each_of_mine(|held| {
            held.end_all();
        });
    }
}

/// The process ends, unless something still keeps it from that.
pub(crate) fn is_about_to_end() {
    if READY.load(Ordering::Acquire) {
        send::flush_everything(LAST_BYTES_MS);
    }
    let says = counts::any() || !IS_CHILD.load(Ordering::Relaxed);
    if config::get().stats && says && !ENDED.swap(true, Ordering::Relaxed) {
        log::say_somewhere(&counts::line());
    }
}

/// The process becomes another program.
pub(crate) fn becomes_another() {
    if READY.load(Ordering::Acquire) {
        send::flush_everything(LAST_BYTES_MS);
    }
}

/// No ring is made any more: a filter of system calls that the program sets may end it for one.
static FILTERED: AtomicBool = AtomicBool::new(false);
/// No kernel thread polls for a ring any more.
static CHANGED_RIGHTS: AtomicBool = AtomicBool::new(false);

pub(crate) fn is_filtered() {
    FILTERED.store(true, Ordering::Relaxed);
    sets::for_each(|held| leave::pass_whole(held, Why::Filtered));
}

/// How often is asked whether there is a filter now: a program that gives up new privileges often sets one next.
static ASKS: AtomicU32 = AtomicU32::new(0);
const ASKS_MAX: u32 = 64;

pub(crate) fn may_be_filtered_soon() {
    ASKS.store(ASKS_MAX, Ordering::Relaxed);
}

/// Whether there is a filter that was not there before.
#[inline]
pub(crate) fn is_now_filtered() -> bool {
    ASKS.load(Ordering::Relaxed) > 0 && asks()
}

#[cold]
fn asks() -> bool {
    ASKS.fetch_sub(1, Ordering::Relaxed);
    sys::has_filter()
}

/// One set of a program that has one.
pub(crate) fn is_filtered_in(held: &mut set::Held) {
    FILTERED.store(true, Ordering::Relaxed);
    leave::pass_whole(held, Why::Filtered);
}

pub(crate) fn may_make_rings() -> bool {
    if is_now_filtered() {
        FILTERED.store(true, Ordering::Relaxed);
    }
    !FILTERED.load(Ordering::Relaxed)
}

pub(crate) fn changes_rights() {
    if !CHANGED_RIGHTS.swap(true, Ordering::Relaxed) && config::get().sqpoll {
        log::say(
            "SQPOLL is off from now on: the program changes its user or group, and a kernel thread would keep the \
             old ones",
        );
        sets::for_each(|held| {
            if held
                .ring
                .as_ref()
                .is_some_and(|machine| machine.ring.is_polled())
            {
                leave::pass_whole(held, Why::ChangedRights);
            }
        });
    }
}

/// Whether a kernel thread may poll for the next ring.
pub(crate) fn may_poll() -> bool {
    config::get().sqpoll && !CHANGED_RIGHTS.load(Ordering::Relaxed)
}

/// Descriptors of a ring.
pub(crate) fn remember(descriptors: [i32; 2]) {
    for fd in descriptors {
        let free = |place: &&AtomicI32| {
            place
                .compare_exchange(-1, fd, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        };
        let _ = OURS.iter().find(free);
    }
}

/// They are closed.
pub(crate) fn forget(descriptors: [i32; 2]) {
    for fd in descriptors {
        for place in &OURS {
            let _ = place.compare_exchange(fd, -1, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// As `ps` shows it; characters that JSON would need to escape are left out.
pub(crate) fn command() -> String {
    let mut name = [0_u8; 16];
    // SAFETY: Lent: sixteen bytes, which is what the kernel writes.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    let plain = |&&byte: &&u8| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\';
    name.iter()
        .filter(plain)
        .map(|&byte| byte as char)
        .collect()
}
