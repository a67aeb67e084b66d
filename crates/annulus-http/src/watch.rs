//! Who has waited for too long: one table per core, which is looked through at a rhythm.
//!
//! A deadline is a number in a connection's cell: to set one costs a store, and no timer is armed for it. Time is
//! counted in looks, so that no clock is read for a request either; a deadline passes up to two looks late, and
//! never early. While there is no connection nobody looks, and the core sleeps.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use slab::Slab;

/// The shortest time between two looks, and the longest: the second is also how old the date may be.
const TICK_MIN: Duration = Duration::from_millis(10);
const TICK_MAX: Duration = Duration::from_millis(500);
/// A look is an eighth of the shortest time that is waited for.
const TICKS_OF_SHORTEST: u32 = 8;

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Accepted, and waiting for its first request. Until the next look it is not closed to make room: the request
    /// may have arrived without having been read.
    Fresh,
    /// Waiting for a request: it can be closed at any time.
    Idle,
    /// A request's head has begun to come.
    Head,
    /// Anything else.
    Busy,
}

/// All connections of a core.
pub(crate) struct Watches {
    tick: Duration,
    /// Looks so far, from 1 on.
    now: Cell<u64>,
    slots: RefCell<Slab<Rc<Watch>>>,
    stopping: Cell<bool>,
    /// Counts changes of phase: which connection has waited longest.
    changes: Cell<u64>,
    /// Of the task that waits for the first connection.
    looker: Cell<Option<Waker>>,
    /// Of the task that waits for room.
    acceptor: Cell<Option<Waker>>,
    /// The acceptor waits for room, and no connection could be closed: the next one that becomes idle can.
    starved: Cell<bool>,
}

/// One connection's, as the table sees it.
pub(crate) struct Watch {
    /// The look at which it has waited for too long; 0 is never.
    deadline: Cell<u64>,
    phase: Cell<Phase>,
    /// Its time is up, or it is to go since room is needed.
    expired: Cell<bool>,
    /// The look at which its phase began, and which change of phase that was.
    since: Cell<u64>,
    change: Cell<u64>,
    waker: RefCell<Option<Waker>>,
}

/// A connection's entry in the table. Dropping it removes the entry.
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
            looker: Cell::new(None),
            acceptor: Cell::new(None),
            starved: Cell::new(false),
        })
    }

    /// Time between two looks.
    pub(crate) fn tick(&self) -> Duration {
        self.tick
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.get()
    }

    pub(crate) fn connections(&self) -> usize {
        self.slots.borrow().len()
    }

    /// N looks are at least so long.
    pub(crate) fn ticks(&self, time: Duration) -> u64 {
        let ticks = time.as_nanos().div_ceil(self.tick.as_nanos().max(1));
        u64::try_from(ticks).unwrap_or(u64::MAX).saturating_add(1)
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
        wake(&self.looker);
        Registration {
            watches: Rc::clone(self),
            watch,
            key,
        }
    }

    /// Ready when there is a connection, or the core stops: before that there is nothing to look at.
    pub(crate) fn poll_any(&self, context: &Context<'_>) -> Poll<()> {
        if self.connections() > 0 || self.is_stopping() {
            return Poll::Ready(());
        }
        self.looker.set(Some(context.waker().clone()));
        Poll::Pending
    }

    /// Ready when there are fewer connections than `max`. Until then the connection that has waited longest for a
    /// request is closed, and another one whenever that has not made room by the next look.
    pub(crate) fn poll_capacity(&self, context: &Context<'_>, max: usize) -> Poll<()> {
        if self.connections() < max {
            self.starved.set(false);
            return Poll::Ready(());
        }
        self.acceptor.set(Some(context.waker().clone()));
        self.starved.set(!self.close_longest_idle());
        Poll::Pending
    }

    /// Has the connection that has waited longest for a request closed. False: none waits for one.
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

    /// Wakes all whose time is up.
    pub(crate) fn look(&self) {
        let now = self.now.get() + 1;
        self.now.set(now);
        let late = |watch: &Watch| {
            let deadline = watch.deadline.get();
            deadline != 0 && deadline <= now && !watch.expired.get()
        };
        self.those(late).iter().for_each(|watch| watch.expire());
        wake(&self.acceptor);
    }

    /// From now on no request is waited for.
    pub(crate) fn stop(&self) {
        self.stopping.set(true);
        self.those(|_| true).iter().for_each(|watch| watch.wake());
        wake(&self.looker);
    }

    /// Collected first, because a woken task may drop a waker, and with it a connection, which leaves the table.
    fn those(&self, which: impl Fn(&Watch) -> bool) -> Vec<Rc<Watch>> {
        let slots = self.slots.borrow();
        let watches = slots.iter().map(|(_, watch)| watch);
        watches
            .filter(|watch| which(watch))
            .map(Rc::clone)
            .collect()
    }
}

impl Watch {
    /// Whether it may be closed for another connection's sake.
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
    /// From now on it waits for `phase`, for N looks; 0 is without limit.
    pub(crate) fn set(&self, phase: Phase, ticks: u64) {
        let now = self.watches.now.get();
        self.watch.phase.set(phase);
        self.watch.since.set(now);
        self.watch.change.set(self.watches.next_change());
        let was_expired = self.watch.expired.replace(false);
        if phase == Phase::Idle && (was_expired || self.watches.starved.get()) {
            // Either it was to make room and got a request just before, or nobody else could.
            self.watches.starved.set(false);
            wake(&self.watches.acceptor);
        }
        self.watch.deadline.set(match ticks {
            0 => 0,
            _ => now.saturating_add(ticks),
        });
    }

    /// The number of looks so far.
    pub(crate) fn now(&self) -> u64 {
        self.watches.now.get()
    }

    /// Whether its time is up. One that has to make room for another may still have some.
    pub(crate) fn is_late(&self) -> bool {
        let deadline = self.watch.deadline.get();
        deadline != 0 && deadline <= self.now()
    }

    pub(crate) fn phase(&self) -> Phase {
        self.watch.phase.get()
    }

    /// Its time is up. Said once.
    pub(crate) fn take_expired(&self) -> bool {
        self.watch.expired.replace(false)
    }

    /// It is to end: no request has begun, and the core stops.
    pub(crate) fn should_close(&self) -> bool {
        let waits = matches!(self.watch.phase.get(), Phase::Fresh | Phase::Idle);
        waits && self.watches.is_stopping()
    }

    /// Whom to wake when its time is up, or the core stops.
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
            wake(&self.watches.looker);
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
    fn a_deadline_passes_late_by_two_looks_at_most_and_never_early() {
        let watches = Watches::new(Duration::from_secs(10));
        assert_eq!(watches.tick(), TICK_MAX);
        let registration = watches.enter();
        registration.set(Phase::Busy, watches.ticks(Duration::from_secs(1)));
        for _ in 0..2 {
            watches.look();
            assert!(
                !registration.take_expired(),
                "1 s has not passed if a look came at once"
            );
        }
        watches.look();
        assert!(registration.take_expired());
        assert!(!registration.take_expired(), "it is reported once");
        registration.set(Phase::Busy, 0);
        watches.look();
        assert!(!registration.take_expired());
    }

    #[test]
    fn where_the_table_is_full_the_longest_idle_connection_goes() {
        let watches = Watches::new(Duration::from_secs(1));
        let registrations: Vec<_> = (0..3).map(|_| watches.enter()).collect();
        registrations[0].set(Phase::Busy, 0);
        watches.look();
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
