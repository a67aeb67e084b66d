//! The deadlines of connections: one table per core, which is checked at regular ticks.
//!
//! A deadline is a number in the connection's entry, so setting one costs a store and no timer. Time is counted in
//! ticks, so a request reads no clock. A deadline fires up to two ticks late and never early. Without connections there
//! are no ticks, and the core sleeps.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use slab::Slab;

/// The shortest and the longest time between two ticks. The date in responses may be as old as the longest.
const TICK_MIN: Duration = Duration::from_millis(10);
const TICK_MAX: Duration = Duration::from_millis(500);
/// The number of ticks within the shortest timeout.
const TICKS_OF_SHORTEST: u32 = 8;

/// The activity of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Accepted, and waiting for its first request. It is not closed to make room before the next tick, because its
    /// request may have arrived and not been read yet.
    Fresh,
    /// Waiting for a request. It may be closed at any time.
    Idle,
    /// Receiving the head of a request.
    Head,
    /// Anything else.
    Busy,
}

/// The table of a core's connections.
pub(crate) struct Watches {
    tick: Duration,
    /// The number of ticks, starting at 1.
    now: Cell<u64>,
    slots: RefCell<Slab<Rc<Watch>>>,
    stopping: Cell<bool>,
    /// Counts changes of phase, to find the connection that has waited longest.
    changes: Cell<u64>,
    /// The waker of the task that ticks, while it waits for the first connection.
    ticker: Cell<Option<Waker>>,
    /// The waker of the task that waits for a free slot.
    acceptor: Cell<Option<Waker>>,
    /// The acceptor waits for a free slot and no connection could be closed. The next one that becomes idle is closed.
    starved: Cell<bool>,
}

/// The entry of a connection.
pub(crate) struct Watch {
    /// The tick at which the time of the connection is up; 0 for no limit.
    deadline: Cell<u64>,
    phase: Cell<Phase>,
    /// The time of the connection is up, or it must make room.
    expired: Cell<bool>,
    /// The tick at which the phase began, and the number of that change.
    since: Cell<u64>,
    change: Cell<u64>,
    waker: RefCell<Option<Waker>>,
}

/// The connection's handle to its entry. Dropping it removes the entry.
pub(crate) struct Registration {
    watches: Rc<Watches>,
    watch: Rc<Watch>,
    key: usize,
}

impl Watches {
    pub(crate) fn new(shortest: Duration) -> Rc<Watches> {
        let tick = (shortest / TICKS_OF_SHORTEST).clamp(TICK_MIN, TICK_MAX);
        Rc::new(Watches {
            tick,
            now: Cell::new(1),
            slots: RefCell::default(),
            stopping: Cell::new(false),
            changes: Cell::new(0),
            ticker: Cell::new(None),
            acceptor: Cell::new(None),
            starved: Cell::new(false),
        })
    }

    /// Returns the time between two ticks.
    pub(crate) fn tick(&self) -> Duration {
        self.tick
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.get()
    }

    pub(crate) fn connections(&self) -> usize {
        self.slots.borrow().len()
    }

    /// Returns a number of ticks that takes at least `time`. Sums of a few such numbers do not overflow.
    pub(crate) fn ticks(&self, time: Duration) -> u64 {
        let ticks = time.as_nanos().div_ceil(self.tick.as_nanos().max(1));
        u64::try_from(ticks).unwrap_or(u64::MAX).min(u64::MAX / 16) + 1
    }

    pub(crate) fn enter(self: &Rc<Self>) -> Registration {
        let watch = Rc::new(Watch {
            deadline: Cell::new(0),
            phase: Cell::new(Phase::Fresh),
            expired: Cell::new(false),
            since: Cell::new(self.now.get()),
            change: Cell::new(self.next_change()),
            waker: RefCell::new(None),
        });
        let key = self.slots.borrow_mut().insert(Rc::clone(&watch));
        wake(&self.ticker);
        Registration {
            watches: Rc::clone(self),
            watch,
            key,
        }
    }

    /// Returns ready when there is a connection or the core stops. Before that no ticks are needed.
    pub(crate) fn poll_any(&self, context: &Context<'_>) -> Poll<()> {
        if self.connections() > 0 || self.is_stopping() {
            return Poll::Ready(());
        }
        self.ticker.set(Some(context.waker().clone()));
        Poll::Pending
    }

    /// Returns ready when there are fewer than `max` connections. Until then closes the connection that has waited
    /// longest for a request, and another one at each tick until there is room.
    pub(crate) fn poll_capacity(&self, context: &Context<'_>, max: usize) -> Poll<()> {
        if self.connections() < max {
            self.starved.set(false);
            return Poll::Ready(());
        }
        self.acceptor.set(Some(context.waker().clone()));
        self.starved.set(!self.close_longest_idle());
        Poll::Pending
    }

    /// Closes the connection that has waited longest for a request. Returns `false` if none waits.
    pub(crate) fn close_longest_idle(&self) -> bool {
        let now = self.now.get();
        let slots = self.slots.borrow();
        let idle = slots.iter().map(|(_, watch)| watch);
        let idle = idle.filter(|watch| watch.can_be_evicted(now));
        let oldest = idle.min_by_key(|watch| watch.change.get()).map(Rc::clone);
        drop(slots);
        oldest.is_some_and(|watch| {
            watch.expire();
            true
        })
    }

    fn next_change(&self) -> u64 {
        let change = self.changes.get() + 1;
        self.changes.set(change);
        change
    }

    /// Advances the time by a tick and wakes all connections whose time is up.
    pub(crate) fn advance(&self) {
        let now = self.now.get() + 1;
        self.now.set(now);
        let late = |watch: &Watch| {
            let deadline = watch.deadline.get();
            deadline != 0 && deadline <= now && !watch.expired.get()
        };
        self.select(late).iter().for_each(|watch| watch.expire());
        wake(&self.acceptor);
    }

    /// Stops waiting for requests.
    pub(crate) fn stop(&self) {
        self.stopping.set(true);
        self.select(|_| true).iter().for_each(|watch| watch.wake());
        wake(&self.ticker);
    }

    /// Returns the matching entries. They are collected first, because waking a task may remove another entry.
    fn select(&self, which: impl Fn(&Watch) -> bool) -> Vec<Rc<Watch>> {
        let slots = self.slots.borrow();
        let watches = slots.iter().map(|(_, watch)| watch);
        watches
            .filter(|watch| which(watch))
            .map(Rc::clone)
            .collect()
    }
}

impl Watch {
    /// Returns whether the connection may be closed to make room for another one.
    fn can_be_evicted(&self, now: u64) -> bool {
        let waits = match self.phase.get() {
            Phase::Fresh => self.since.get() < now,
            Phase::Idle => true,
            Phase::Head | Phase::Busy => false,
        };
        waits && !self.expired.get()
    }

    fn expire(&self) {
        self.expired.set(true);
        self.wake();
    }

    fn wake(&self) {
        let waker = self.waker.borrow_mut().take();
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Registration {
    /// Enters `phase` for at most `ticks` ticks; 0 for no limit.
    pub(crate) fn set(&self, phase: Phase, ticks: u64) {
        let now = self.watches.now.get();
        self.watch.phase.set(phase);
        self.watch.since.set(now);
        self.watch.change.set(self.watches.next_change());
        let was_expired = self.watch.expired.replace(false);
        if phase == Phase::Idle && (was_expired || self.watches.starved.get()) {
            // Either this connection received a request just before it was closed, or there was none to close.
            self.watches.starved.set(false);
            wake(&self.watches.acceptor);
        }
        self.watch.deadline.set(match ticks {
            0 => 0,
            _ => now.saturating_add(ticks),
        });
    }

    /// Returns the number of ticks so far.
    pub(crate) fn now(&self) -> u64 {
        self.watches.now.get()
    }

    /// Returns whether the time is up. A connection that must make room for another one may have time left.
    pub(crate) fn is_late(&self) -> bool {
        let deadline = self.watch.deadline.get();
        deadline != 0 && deadline <= self.now()
    }

    pub(crate) fn phase(&self) -> Phase {
        self.watch.phase.get()
    }

    /// Returns whether the time is up or the connection must make room, and resets this.
    pub(crate) fn take_expired(&self) -> bool {
        self.watch.expired.replace(false)
    }

    /// Returns whether the connection must end: no request has begun, and the core stops.
    pub(crate) fn should_close(&self) -> bool {
        let waits = matches!(self.watch.phase.get(), Phase::Fresh | Phase::Idle);
        waits && self.watches.is_stopping()
    }

    /// Registers the waker for the end of the time and of the core.
    pub(crate) fn wait(&self, context: &Context<'_>) {
        let mut waker = self.watch.waker.borrow_mut();
        if waker
            .as_ref()
            .is_none_or(|waker| !waker.will_wake(context.waker()))
        {
            let before = waker.replace(context.waker().clone());
            drop(waker);
            drop(before);
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let left = self.watches.slots.borrow_mut().try_remove(self.key);
        drop(left);
        wake(&self.watches.acceptor);
        if self.watches.is_stopping() {
            wake(&self.watches.ticker);
        }
    }
}

fn wake(waker: &Cell<Option<Waker>>) {
    waker.take().into_iter().for_each(Waker::wake);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_fires_at_most_two_ticks_late_and_never_early() {
        let watches = Watches::new(Duration::from_secs(10));
        assert_eq!(watches.tick(), TICK_MAX);
        let registration = watches.enter();
        registration.set(Phase::Busy, watches.ticks(Duration::from_secs(1)));
        for _ in 0..2 {
            watches.advance();
            assert!(
                !registration.take_expired(),
                "less than 1 s may have passed"
            );
        }
        watches.advance();
        assert!(registration.take_expired());
        assert!(!registration.take_expired(), "it is returned once");
        registration.set(Phase::Busy, 0);
        watches.advance();
        assert!(!registration.take_expired());
    }

    #[test]
    fn a_full_table_closes_the_connection_that_waited_longest() {
        let watches = Watches::new(Duration::from_secs(1));
        let registrations: Vec<_> = (0..3).map(|_| watches.enter()).collect();
        registrations[0].set(Phase::Busy, 0);
        watches.advance();
        registrations[1].set(Phase::Idle, 0);
        let context = Context::from_waker(Waker::noop());
        assert!(watches.poll_capacity(&context, 4).is_ready());
        assert!(watches.poll_capacity(&context, 3).is_pending());
        let expired: Vec<_> = registrations
            .iter()
            .map(Registration::take_expired)
            .collect();
        assert_eq!(expired, [false, false, true]);
        drop(registrations);
        assert!(watches.poll_capacity(&context, 3).is_ready());
        assert_eq!(watches.connections(), 0);
    }
}
