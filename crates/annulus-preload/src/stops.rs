//! Reports epoll sets and listeners that are left to the kernel permanently: a line in the log for each, and their
//! counts in the last line of the process.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::counters::{self, Why};
use crate::fd_table::{self, Entry, Kind, never_served_now};
use crate::log;

/// The lines for each reason. A program may create a set per request; the last line has the counts.
const LINES_MAX: u32 = 8;

type Counts = [AtomicU32; Why::ALL.len()];

static SETS: Counts = [const { AtomicU32::new(0) }; _];
static LISTENERS: Counts = [const { AtomicU32::new(0) }; _];

/// Reports a set. `connections`: the number that it served until now.
pub(crate) fn on_set(why: Why, connections: u32) {
    if SETS[why as usize].fetch_add(1, Ordering::Relaxed) >= LINES_MAX {
        return;
    }
    log::write(|| {
        let connections = match connections {
            0 => String::new(),
            1 => " with 1 connection".to_owned(),
            count => format!(" with {count} connections"),
        };
        let why = why.name();
        format!("an epoll set{connections} passes through from now on: {why}")
    });
}

/// Reports a listener, whose connections are not served.
pub(crate) fn on_listener(why: Why) {
    counters::left_listener(why);
    if LISTENERS[why as usize].fetch_add(1, Ordering::Relaxed) >= LINES_MAX {
        return;
    }
    log::write(|| {
        let why = why.name();
        format!("connections of a listener pass through from now on: {why}")
    });
}

/// Stops serving new connections of a listener.
pub(crate) fn stop_listener(listener: &Entry, why: Why) {
    let before = listener.why_never_served();
    if before.is_none() {
        on_listener(why);
    }
    // Its connections inherit an option, which therefore counts more than that the listener is shared.
    if !before.is_some_and(|before| fd_table::is_inherited(&before)) {
        listener.set_kind(Kind::Listener, never_served_now(listener.flags(), why));
    }
}

/// Returns the counts by reason; `None` if there are none.
pub(crate) fn summary() -> Option<String> {
    let of = |title: &str, counts: &Counts| {
        let each = Why::ALL.iter().zip(counts);
        let each = each.map(|(why, count)| (why.name(), count.load(Ordering::Relaxed)));
        let each: Vec<String> = each
            .filter(|&(_, count)| count > 0)
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        (!each.is_empty()).then(|| format!("{title}: {}", each.join(", ")))
    };
    let parts = [of("epoll sets", &SETS), of("listeners", &LISTENERS)];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// Resets the counts in a child of a fork.
pub(crate) fn reset() {
    let all = SETS.iter().chain(&LISTENERS);
    all.for_each(|count| count.store(0, Ordering::Relaxed));
}
