//! How other threads wake a core.

use std::io;
use std::sync::Arc;

use crate::driver::handle::{Wake, Why};
use crate::driver::mailbox::Mailbox;
use crate::driver::sleeper::Sleeper;
use crate::driver::timers::Timer;
use crate::metrics::{Counters, SourceKind};
use crate::sys::forked;
use crate::sys::wake::EventFd;

/// The notifier of a core. A thread that has stored something for the core notifies it. That costs a system call only
/// while the core sleeps.
pub(crate) struct Notifier {
    sleeper: Sleeper,
    eventfd: Arc<EventFd>,
    /// Timers of dropped sleeps, to be cleared by the core.
    cleared_timers: Mailbox<Timer>,
    /// The process that the core runs in.
    process: u64,
    /// The core's counters. They are kept here because other threads only have the notifier.
    pub(crate) counters: Counters,
}

impl Notifier {
    pub(crate) fn new() -> io::Result<Arc<Notifier>> {
        Ok(Arc::new(Notifier {
            sleeper: Sleeper::new(),
            eventfd: Arc::new(EventFd::new()?),
            cleared_timers: Mailbox::new(),
            process: forked::process(),
            counters: Counters::new(SourceKind::Core),
        }))
    }

    /// Wakes the core if it sleeps. Called after the data for it has been stored.
    pub(crate) fn notify(&self) {
        if self.sleeper.must_wake() {
            self.wake();
        }
    }

    /// Clears a timer of the core when it next wakes. The timer's waker is kept until then.
    pub(crate) fn clear_timer(&self, timer: Timer) {
        if !self.is_elsewhere() {
            // A core that has ended has dropped its timers.
            let _ = self.cleared_timers.put(timer);
        }
    }

    pub(super) fn end_timers(&self) {
        drop(self.cleared_timers.close());
    }

    pub(super) fn cleared_timers(&self) -> Vec<Timer> {
        self.cleared_timers.take()
    }

    /// Returns whether this is a child of the process that the core runs in. A child must not touch the ring or the
    /// epoll instance, which it shares with its parent (trap 54).
    #[inline]
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.process != forked::process()
    }

    /// Marks the core as about to sleep: each later notification wakes it.
    #[inline]
    pub(super) fn about_to_sleep(&self) {
        self.sleeper.about_to_sleep();
    }

    #[inline]
    pub(super) fn awake(&self) {
        self.sleeper.awake();
    }

    pub(super) fn eventfd(&self) -> &Arc<EventFd> {
        &self.eventfd
    }

    pub(crate) fn wake(&self) {
        if self.is_elsewhere() {
            return;
        }
        self.counters.wakeups().add_shared(1);
        EventFd::wake(&self.eventfd);
    }
}

/// For the driver of the core's file operations, whose sleeper has already decided that the core must be woken.
impl Wake for Arc<Notifier> {
    fn wake(&self, why: Why) {
        if why != Why::Deadline {
            Notifier::wake(self);
        }
    }
}
