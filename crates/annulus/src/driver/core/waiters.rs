//! Who waits for one thing on a core: most often one task, and most often the same again.
//!
//! A waker is foreign code, and so is its drop: both run with nothing borrowed, so that taking the wakers out
//! and waking them are two steps.

use std::cell::RefCell;
use std::task::Waker;

use crate::driver::finish::contain;

/// So many may wait besides the last before all of them are woken to say whether they still do: a task whose
/// wakers change leaves one behind with each.
const OTHERS_MAX: usize = 16;

/// Wakers, for whoever keeps them where they can be reached.
#[derive(Debug)]
pub(super) struct Waiters {
    /// Somebody waits.
    waits: bool,
    /// The waker of whoever waits, or waited last: kept, for it is most often the same again.
    waker: Option<Waker>,
    /// Who waits besides.
    others: Vec<Waker>,
}

/// Wakers that have been taken out to be woken.
pub(super) struct Woken {
    waker: Waker,
    others: Vec<Waker>,
}

/// Wakers that have been taken out when another came: a crowd to be woken, and one to be dropped.
#[derive(Default)]
pub(super) struct Displaced {
    crowd: Vec<Waker>,
    before: Option<Waker>,
}

impl Waiters {
    pub(super) const NEW: Waiters = Waiters {
        waits: false,
        waker: None,
        others: Vec::new(),
    };

    /// Whether `waker` is the one that is kept; then it waits.
    #[inline]
    pub(super) fn wait_again(&mut self, waker: &Waker) -> bool {
        let known = (self.waker.as_ref()).is_some_and(|known| known.will_wake(waker));
        self.waits |= known;
        known
    }

    /// Whoever has `waker` waits from now on, and so does who waited before.
    #[cold]
    pub(super) fn wait_besides(&mut self, waker: Waker) -> Displaced {
        let waited = std::mem::replace(&mut self.waits, true);
        let before = self.waker.replace(waker);
        let mut displaced = Displaced::default();
        match before {
            Some(before) if waited && !self.others.iter().any(|one| one.will_wake(&before)) => {
                if self.others.len() >= OTHERS_MAX {
                    displaced.crowd = std::mem::take(&mut self.others);
                }
                self.others.push(before);
            }
            before => displaced.before = before,
        }
        displaced
    }

    /// Nobody waits any more: who did is to be woken.
    #[inline]
    pub(super) fn take(&mut self) -> Option<Woken> {
        if !std::mem::take(&mut self.waits) {
            return None;
        }
        let waker = self.waker.take()?;
        let others = std::mem::take(&mut self.others);
        Some(Woken { waker, others })
    }

    /// Keeps a waker that was taken and woken, unless there is another by now, which it returns.
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
    /// Wakes them; the first is to be kept.
    #[inline]
    pub(super) fn wake(self) -> Waker {
        contain(|| self.waker.wake_by_ref());
        for other in self.others {
            contain(|| other.wake());
        }
        self.waker
    }
}

impl Displaced {
    pub(super) fn let_go(self) {
        drop(self.before);
        self.crowd.into_iter().for_each(Waker::wake);
    }
}

/// Wakers in a place of their own.
#[derive(Debug)]
pub(crate) struct WaitersCell(RefCell<Waiters>);

impl Default for WaitersCell {
    fn default() -> WaitersCell {
        WaitersCell(RefCell::new(Waiters::NEW))
    }
}

impl WaitersCell {
    /// Whoever has `waker` waits.
    #[inline]
    pub(crate) fn wait(&self, waker: &Waker) {
        if !self.0.borrow_mut().wait_again(waker) {
            let waker = waker.clone();
            let displaced = self.0.borrow_mut().wait_besides(waker);
            displaced.let_go();
        }
    }

    /// Wakes all who wait.
    #[inline]
    pub(crate) fn wake(&self) {
        let Some(woken) = self.0.borrow_mut().take() else {
            return;
        };
        let waker = woken.wake();
        let another = self.0.borrow_mut().keep(waker);
        drop(another);
    }

    /// Nobody waits, and no waker is kept.
    pub(crate) fn clear(&self) {
        let all = self.0.replace(Waiters::NEW);
        drop(all);
    }
}
