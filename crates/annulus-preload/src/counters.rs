//! # Safety
//!
//! Counters: served calls, calls that passed through, by reason, and descriptors that were handed back, by reason.
//!
//! A thread that has created a ring counts in its own storage, by a load and a store. All other threads share one
//! storage, and use locked instructions. From the first ring on, `annulus top` can read the storage
//! (`annulus::metrics`); a process without a ring publishes none. Earlier counts are moved to the shared storage.
//!
//! Counter storage is never freed, so that a pointer to it is always valid (Owned). The storage of a thread that has
//! ended is reused. A child of a fork starts with empty counters.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

pub(crate) use annulus::metrics::layout::preload::{Call, Event, Gauge, Served, Totals, Why};
use annulus::metrics::layout::switch::{self, SwitchCounter};

use crate::errno::CallResult;
use crate::identity;

const CALLS: usize = Call::ALL.len();
const WHYS: usize = Why::ALL.len();

/// The kinds of counts from before the first ring, one for each call or reason.
#[derive(Clone, Copy)]
enum Early {
    Served,
    Passed,
    HandedBack,
    ListenersLeft,
}

const EARLY_MAX: usize = if CALLS > WHYS { CALLS } else { WHYS };
static EARLY: [[AtomicU64; EARLY_MAX]; 4] = [const { [const { AtomicU64::new(0) }; EARLY_MAX] }; 4];

impl Early {
    fn counter(self, nth: usize) -> &'static AtomicU64 {
        &EARLY[self as usize][nth]
    }

    #[cold]
    fn add(self, nth: usize) {
        self.counter(nth).fetch_add(1, Ordering::Relaxed);
    }

    fn get(self, nth: usize) -> u64 {
        self.counter(nth).load(Ordering::Relaxed)
    }

    fn take(self, nth: usize) -> u64 {
        self.counter(nth).swap(0, Ordering::Relaxed)
    }
}

/// The storage of threads that have created no ring.
static OTHERS: AtomicPtr<Served> = AtomicPtr::new(ptr::null_mut());
/// Storage that is free for reuse.
static IDLE: Mutex<Vec<&'static Served>> = Mutex::new(Vec::new());
/// The number of storages that were created for rings.
static MADE: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// The storage of this thread, if it has created a ring.
    static MINE: Cell<Option<&'static Served>> = const { Cell::new(None) };
    /// Returns the storage when the thread ends.
    static COUNTER_OWNER: RefCell<Option<CounterOwner>> = const { RefCell::new(None) };
}

struct CounterOwner(&'static Served);

impl Drop for CounterOwner {
    fn drop(&mut self) {
        MINE.set(None);
        if let Ok(mut idle) = IDLE.try_lock() {
            idle.push(self.0);
        }
    }
}

#[inline]
fn shared_counters() -> Option<&'static Served> {
    // SAFETY: Owned: null, or a box that is never freed.
    unsafe { OTHERS.load(Ordering::Acquire).as_ref() }
}

/// Returns whether there is a shared storage: the counters have been published.
pub(crate) fn are_shared() -> bool {
    shared_counters().is_some()
}

/// Counts a call that was served from received bytes, or queued.
#[inline]
pub(crate) fn served(call: Call) {
    match MINE.get() {
        Some(mine) => mine.serve(call, 1),
        None => served_by_others(call),
    }
}

#[cold]
fn served_by_others(call: Call) {
    match shared_counters() {
        Some(shared_counters) => shared_counters.serve_shared(call, 1),
        None => Early::Served.add(call as usize),
    }
}

/// Counts a served call that failed with an error other than EAGAIN.
#[cold]
pub(crate) fn failed(call: Call, errno: i32) {
    if let Some(counters) = MINE.get().or_else(shared_counters) {
        counters.fail(call, errno);
    }
}

/// Counts the result of a call. `None`: it passes through.
pub(crate) fn count_result(call: Call, result: Option<CallResult>) {
    let Some(result) = result else { return };
    served(call);
    match result {
        Ok(_) | Err(libc::EAGAIN) => {}
        Err(errno) => failed(call, errno),
    }
}

/// Counts a call that passed through to the kernel.
pub(crate) fn passed(why: Why) {
    match MINE.get().or_else(shared_counters) {
        Some(counters) => counters.pass(why, 1),
        None => Early::Passed.add(why as usize),
    }
}

/// Counts a descriptor that was handed back.
pub(crate) fn handed_back(why: Why) {
    match MINE.get().or_else(shared_counters) {
        Some(counters) => counters.hand_back(why, 1),
        None => Early::HandedBack.add(why as usize),
    }
}

/// Counts a listener whose connections are left to the kernel.
pub(crate) fn left_listener(why: Why) {
    match MINE.get().or_else(shared_counters) {
        Some(counters) => counters.leave_listener(why, 1),
        None => Early::ListenersLeft.add(why as usize),
    }
}

/// Counts an event of this thread's ring.
#[inline]
pub(crate) fn count(event: Event, times: u64) {
    match MINE.get() {
        Some(mine) => mine.count(event, times),
        None => count_by_others(event, times),
    }
}

#[cold]
fn count_by_others(event: Event, times: u64) {
    if let Some(shared_counters) = shared_counters() {
        shared_counters.count_shared(event, times);
    }
}

/// The gauges of a ring, which are reset when it is closed.
pub(crate) struct RingCounters {
    counters: &'static Served,
    last: [u64; 4],
}

/// The order of the gauges in `update`.
const GAUGES: [Gauge; 4] = [
    Gauge::InFlight,
    Gauge::Connections,
    Gauge::Buffers,
    Gauge::BuffersFree,
];

impl RingCounters {
    /// Registers a ring that the calling thread has created. The process has published its counters.
    pub(crate) fn begin(backend: &str) -> RingCounters {
        let counters = MINE.get().unwrap_or_else(begin_thread);
        counters.set_backend(backend, None);
        counters.count(Event::Rings, 1);
        counters.change(Gauge::Rings, 1);
        switch::add(SwitchCounter::Serving, 1);
        RingCounters {
            counters,
            last: [0; 4],
        }
    }

    /// Counts an event of the ring, on its thread.
    #[inline]
    pub(crate) fn count(&self, event: Event, times: u64) {
        self.counters.count(event, times);
    }

    /// Counts a call that the ring served, on its thread.
    #[inline]
    pub(crate) fn served(&self, call: Call) {
        self.counters.serve(call, 1);
    }

    /// Sets the gauges: operations in flight, connections, buffers and free buffers. Returns whether the ring had no
    /// connections and now has.
    #[inline]
    pub(crate) fn update(&mut self, now: [u64; 4]) -> bool {
        if now == self.last {
            return false;
        }
        let has_first = self.last[1] == 0 && now[1] > 0;
        for ((gauge, now), last) in GAUGES.into_iter().zip(now).zip(&mut self.last) {
            if now != *last {
                self.counters
                    .change(gauge, now.wrapping_sub(*last).cast_signed());
                *last = now;
            }
        }
        has_first
    }

    /// Resets the gauges of a ring that was closed.
    pub(crate) fn end(mut self) {
        self.update([0; 4]);
        self.counters.change(Gauge::Rings, -1);
        switch::add(SwitchCounter::Serving, -1);
    }
}

/// Assigns storage to the calling thread, at its first ring.
#[cold]
fn begin_thread() -> &'static Served {
    let idle = IDLE.try_lock().ok().and_then(|mut idle| idle.pop());
    let counters = idle.unwrap_or_else(|| {
        let nth = MADE.fetch_add(1, Ordering::Relaxed);
        Box::leak(Box::new(Served::ring(nth)))
    });
    MINE.set(Some(counters));
    // A thread that is about to end no longer has this thread-local value.
    let _ = COUNTER_OWNER.try_with(|owner| owner.replace(Some(CounterOwner(counters))));
    counters
}

/// Makes the shared storage, and moves the earlier counts there.
pub(crate) fn share() {
    let made = Box::into_raw(Box::new(Served::process()));
    let first = OTHERS.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Relaxed);
    if first.is_err() {
        // SAFETY: Owned: made above, and not published.
        drop(unsafe { Box::from_raw(made) });
        return;
    }
    // SAFETY: Owned: never freed from now on.
    let shared_counters = unsafe { &*made };
    for &call in Call::ALL {
        shared_counters.serve_shared(call, Early::Served.take(call as usize));
    }
    for &why in Why::ALL {
        let nth = why as usize;
        shared_counters.pass(why, Early::Passed.take(nth));
        shared_counters.hand_back(why, Early::HandedBack.take(nth));
        shared_counters.leave_listener(why, Early::ListenersLeft.take(nth));
    }
}

/// Resets all counters in a child of a fork, which has one thread.
pub(crate) fn reset() {
    OTHERS.store(ptr::null_mut(), Ordering::Release);
    MADE.store(0, Ordering::Relaxed);
    if let Ok(mut idle) = IDLE.try_lock() {
        idle.clear();
    }
    // A thread without storage has not initialised the other value, and would have to allocate it.
    if MINE.take().is_some() {
        let _ = COUNTER_OWNER.try_with(|owner| {
            owner
                .try_borrow_mut()
                .map(|mut owner| owner.take().map(std::mem::forget))
        });
    }
    let early = EARLY.iter().flatten();
    early.for_each(|counter| counter.store(0, Ordering::Relaxed));
}

/// Returns whether anything has been counted.
pub(crate) fn any() -> bool {
    let mut early = EARLY.iter().flatten();
    shared_counters().is_some() || early.any(|counter| counter.load(Ordering::Relaxed) > 0)
}

/// Returns the totals of the process; `None` before its first ring. A filter may forbid to collect them later.
fn totals() -> Option<Totals> {
    shared_counters().and_then(|_| Totals::now())
}

/// Returns the calls that passed through, by reason, for the exit line of a process without a ring.
pub(crate) fn passed_by_reason() -> String {
    let totals = totals();
    let counted = Why::ALL.iter().map(|&why| {
        let early = Early::Passed.get(why as usize);
        let shared = totals.as_ref().map_or(0, |totals| totals.passed(why));
        (why.name(), early + shared)
    });
    let counted = counted.filter(|&(_, count)| count > 0);
    let counted: Vec<String> = counted
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    counted.join(", ")
}

/// Returns all counters as one line of JSON.
pub(crate) fn line() -> String {
    let early = |early: Option<Early>, nth| early.map_or(0, |early| early.get(nth));
    let totals = totals();
    let by_name = |title: &str, pairs: &mut dyn Iterator<Item = (&'static str, u64)>| {
        let pairs = pairs.filter(|&(_, count)| count > 0);
        let pairs: Vec<String> = pairs
            .map(|(name, count)| format!("\"{name}\":{count}"))
            .collect();
        format!("\"{title}\":{{{}}}", pairs.join(","))
    };
    let calls = |title: &str, before: Option<Early>, of: fn(&Totals, Call) -> u64| {
        let count = |&call: &Call| {
            let shared = totals.as_ref().map_or(0, |totals| of(totals, call));
            (call.name(), early(before, call as usize) + shared)
        };
        by_name(title, &mut Call::ALL.iter().map(count))
    };
    let whys = |title: &str, before: Early, of: fn(&Totals, Why) -> u64| {
        let count = |&why: &Why| {
            let shared = totals.as_ref().map_or(0, |totals| of(totals, why));
            (why.name(), before.get(why as usize) + shared)
        };
        by_name(title, &mut Why::ALL.iter().map(count))
    };
    let event = |name: &str, event: Event| {
        let count = totals.as_ref().map_or(0, |totals| totals.event(event));
        format!("\"{name}\":{count}")
    };
    let parts = [
        format!("\"pid\":{}", identity::pid()),
        format!("\"command\":\"{}\"", identity::command()),
        event("rings", Event::Rings),
        calls("served", Some(Early::Served), Totals::served),
        whys("passed", Early::Passed, Totals::passed),
        calls("failed", None, Totals::failed),
        whys("handed_back", Early::HandedBack, Totals::handed_back),
        event("enters", Event::Enters),
        event("waits", Event::Waits),
        event("entries", Event::Entries),
        event("completions", Event::Completions),
        event("no_buffers", Event::NoBuffers),
    ];
    format!("{{{}}}", parts.join(","))
}
