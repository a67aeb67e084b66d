//! The tasks that wait for one event on a core. Usually there is one, and usually the same again.
//!
//! A waker is foreign code, and so is its drop. Both run with nothing borrowed. Therefore wakers are first taken out
//! and then woken.

use std::cell::RefCell;
use std::sync::{Arc, PoisonError};
use std::task::{Wake, Waker};

use crate::driver::contain::contain;
use crate::sync::Mutex;

/// The initial limit of wakers besides the last. A task whose wakers change leaves an old one behind each time. Beyond
/// the limit all of them are woken. Those that have not registered again by the next time are dropped.
const OTHERS_MAX: u32 = 16;
/// The maximum of the limit, which doubles each time. A limit below the number of waiting tasks would make them wake
/// each other endlessly.
const OTHERS_MAX_MOST: u32 = 1024;

/// The wakers of one event.
#[derive(Debug)]
pub(super) struct Waiters {
    /// True if a task waits.
    waits: bool,
    /// The number of tasks that may wait besides the last.
    others_max: u32,
    /// The waker of the last task that waited. It is kept, because the next is usually the same.
    waker: Option<Waker>,
    /// The other waiting tasks, in the order of their arrival.
    others: Vec<Other>,
}

#[derive(Debug)]
struct Other {
    waker: Waker,
    /// True if it was woken to check that it still waits, and has not registered again yet.
    checked: bool,
}

/// Wakers that were taken out to be woken.
pub(super) struct Woken {
    waker: Waker,
    others: Vec<Other>,
}

/// Wakers that were taken out when another arrived.
#[derive(Default)]
pub(super) struct Displaced {
    /// Wakers to check: they are woken, and have to register again.
    checked: Vec<Other>,
    /// Wakers to drop.
    gone: Vec<Other>,
    before: Option<Waker>,
}

/// Wakers that were woken for the check and have to be put back.
#[derive(Default)]
#[must_use = "they wait, and are to be readmitted"]
pub(super) struct CheckedWaiters(Vec<Other>);

impl Waiters {
    pub(super) const NEW: Waiters = Waiters {
        waits: false,
        others_max: OTHERS_MAX,
        waker: None,
        others: Vec::new(),
    };

    /// Returns whether `waker` is already registered, and marks it as waiting.
    #[inline]
    pub(super) fn wait_again(&mut self, waker: &Waker) -> bool {
        let known = (self.waker.as_ref()).is_some_and(|known| known.will_wake(waker));
        self.waits |= known;
        known || !self.others.is_empty() && self.waits_besides(waker)
    }

    #[cold]
    fn waits_besides(&mut self, waker: &Waker) -> bool {
        let mut others = self.others.iter_mut();
        let known = others.find(|other| other.waker.will_wake(waker));
        known.is_some_and(|other| {
            other.checked = false;
            true
        })
    }

    /// Registers a waker that is not registered yet. Earlier ones continue to wait.
    #[cold]
    pub(super) fn wait_besides(&mut self, waker: Waker) -> Displaced {
        let waited = std::mem::replace(&mut self.waits, true);
        let before = self.waker.replace(waker);
        let mut displaced = Displaced::default();
        match before {
            Some(before) if waited => {
                if self.others.len() >= self.others_max as usize {
                    let (gone, checked) = (self.others.drain(..)).partition(|other| other.checked);
                    (displaced.gone, displaced.checked) = (gone, checked);
                    self.others_max = OTHERS_MAX_MOST.min(2 * self.others_max);
                }
                self.others.push(Other {
                    waker: before,
                    checked: false,
                });
            }
            before => displaced.before = before,
        }
        displaced
    }

    /// Puts the checked wakers back, before those that arrived since. Returns those to drop.
    pub(super) fn readmit(
        &mut self,
        CheckedWaiters(mut checked): CheckedWaiters,
    ) -> CheckedWaiters {
        if checked.is_empty() || !self.waits {
            return CheckedWaiters(checked);
        }
        for other in &mut checked {
            other.checked = true;
        }
        checked.append(&mut self.others);
        self.others = checked;
        CheckedWaiters::default()
    }

    /// Takes all waiting wakers out to be woken.
    #[inline]
    pub(super) fn take(&mut self) -> Option<Woken> {
        if !std::mem::take(&mut self.waits) {
            return None;
        }
        let waker = self.waker.take()?;
        let others = std::mem::take(&mut self.others);
        Some(Woken { waker, others })
    }

    /// Keeps a waker that was taken and woken. If another one is registered by now, returns it.
    #[inline]
    pub(super) fn keep(&mut self, waker: Waker) -> Option<Waker> {
        if self.waker.is_some() {
            return Some(waker);
        }
        self.waker = Some(waker);
        None
    }
}

impl Woken {
    /// Wakes them in the order of their arrival. Returns the last one, to be kept.
    #[inline]
    pub(super) fn wake(self) -> Waker {
        for other in self.others {
            contain(|| other.waker.wake());
        }
        contain(|| self.waker.wake_by_ref());
        self.waker
    }
}

impl Displaced {
    /// Wakes the wakers to check, and drops the others. Called with nothing borrowed; the caller readmits the result.
    pub(super) fn judge(self) -> CheckedWaiters {
        drop((self.before, self.gone));
        for other in &self.checked {
            contain(|| other.waker.wake_by_ref());
        }
        CheckedWaiters(self.checked)
    }
}

/// Wakers in a `RefCell`.
#[derive(Debug)]
pub(crate) struct WaitersCell(RefCell<Waiters>);

impl Default for WaitersCell {
    fn default() -> WaitersCell {
        WaitersCell(RefCell::new(Waiters::NEW))
    }
}

impl WaitersCell {
    /// Registers `waker` as waiting.
    #[inline]
    pub(crate) fn wait(&self, waker: &Waker) {
        if !self.0.borrow_mut().wait_again(waker) {
            let waker = waker.clone();
            let displaced = self.0.borrow_mut().wait_besides(waker);
            let checked = displaced.judge();
            let gone = self.0.borrow_mut().readmit(checked);
            drop(gone);
        }
    }

    /// Wakes all waiting tasks.
    #[inline]
    pub(crate) fn wake(&self) {
        let Some(woken) = self.0.borrow_mut().take() else {
            return;
        };
        let waker = woken.wake();
        let another = self.0.borrow_mut().keep(waker);
        drop(another);
    }

    /// Removes all wakers.
    pub(crate) fn clear(&self) {
        let all = self.0.replace(Waiters::NEW);
        drop(all);
    }
}

/// Several tasks behind one waker, for places that hold a single one. Created only when a second task arrives.
#[derive(Debug)]
pub(crate) struct Crowd(Mutex<Waiters>);

impl Crowd {
    pub(crate) fn new() -> Arc<Crowd> {
        Arc::new(Crowd(Mutex::new(Waiters::NEW)))
    }

    fn with<T>(&self, act: impl FnOnce(&mut Waiters) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Registers `waker` to be woken with the others.
    pub(crate) fn join(&self, waker: &Waker) {
        if !self.with(|waiters| waiters.wait_again(waker)) {
            let waker = waker.clone();
            let displaced = self.with(|waiters| waiters.wait_besides(waker));
            let checked = displaced.judge();
            let gone = self.with(|waiters| waiters.readmit(checked));
            drop(gone);
        }
    }
}

impl Wake for Crowd {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(woken) = self.with(Waiters::take) {
            drop(woken.wake());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    /// A task that counts its wake-ups.
    #[derive(Default)]
    struct Sleeper(AtomicUsize);

    impl Wake for Sleeper {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    fn sleepers(count: usize) -> Vec<(Arc<Sleeper>, Waker)> {
        let sleepers = (0..count).map(|_| Arc::new(Sleeper::default()));
        sleepers
            .map(|one| (Arc::clone(&one), Waker::from(one)))
            .collect()
    }

    /// Polls each woken task, as an executor does; it then waits again. Returns the number of rounds.
    fn rounds(waiters: &WaitersCell, all: &[(Arc<Sleeper>, Waker)]) -> usize {
        for round in 0.. {
            let woken: Vec<_> = (all.iter())
                .filter(|(one, _)| one.0.swap(0, Relaxed) > 0)
                .collect();
            if woken.is_empty() || round == 100 {
                return round;
            }
            woken.iter().for_each(|(_, waker)| waiters.wait(waker));
        }
        unreachable!("it ends")
    }

    #[test]
    fn many_tasks_that_wait_for_one_event_do_not_wake_each_other_endlessly() {
        let waiters = WaitersCell::default();
        let all = sleepers(1000);
        all.iter().for_each(|(_, waker)| waiters.wait(waker));
        assert!(rounds(&waiters, &all) < 100, "they would spin");
        waiters.wake();
        assert!(all.iter().all(|(one, _)| one.0.load(Relaxed) == 1));
    }

    #[test]
    fn wakers_that_are_left_behind_are_dropped() {
        let waiters = WaitersCell::default();
        let (stays, rest) = (sleepers(3), sleepers(10_000));
        stays.iter().for_each(|(_, waker)| waiters.wait(waker));
        for gone in &rest {
            waiters.wait(&gone.1);
            rounds(&waiters, &stays);
        }
        // The test holds two references to each.
        let kept = rest.iter().filter(|(one, _)| Arc::strong_count(one) > 2);
        let kept = kept.count();
        assert!(kept <= OTHERS_MAX_MOST as usize + 1, "{kept} are kept");
        waiters.wake();
        assert!(stays.iter().all(|(one, _)| one.0.load(Relaxed) == 1));
    }

    #[test]
    fn tasks_are_woken_in_the_order_of_their_arrival() {
        struct Named(usize, Arc<std::sync::Mutex<Vec<usize>>>);
        impl Wake for Named {
            fn wake(self: Arc<Self>) {
                self.1.lock().unwrap().push(self.0);
            }
        }
        let order = Arc::default();
        let waiters = WaitersCell::default();
        for name in 0..10 {
            waiters.wait(&Waker::from(Arc::new(Named(name, Arc::clone(&order)))));
        }
        waiters.wake();
        assert_eq!(*order.lock().unwrap(), (0..10).collect::<Vec<_>>());
    }

    #[test]
    fn a_crowd_wakes_all_that_have_joined_it() {
        let (crowd, all) = (Crowd::new(), sleepers(40));
        all.iter().for_each(|(_, waker)| crowd.join(waker));
        let woken_early: usize = (all.iter()).map(|(one, _)| one.0.swap(0, Relaxed)).sum();
        assert!(woken_early > 0, "more tasks wait than are kept unchecked");
        all.iter().for_each(|(_, waker)| crowd.join(waker));
        Waker::from(crowd).wake();
        assert!(all.iter().all(|(one, _)| one.0.load(Relaxed) > 0));
    }
}
