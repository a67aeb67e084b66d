//! How other threads wake a core.

use std::io;
use std::sync::Arc;

use crate::driver::Wake;
use crate::driver::sleeper::Sleeper;
use crate::metrics::{Counters, SourceKind};
use crate::sys::forked;
use crate::sys::wake::EventFd;

/// One per core. A thread that has left something for the core notifies it; that costs a system call only while the
/// core sleeps.
pub(crate) struct Notifier {
    sleeper: Sleeper,
    eventfd: Arc<EventFd>,
    /// The process that the core runs in.
    process: u64,
    /// What the core counts: here, for this is all that others have of it.
    pub(crate) counters: Counters,
}

impl Notifier {
    pub(crate) fn new() -> io::Result<Arc<Notifier>> {
        Ok(Arc::new(Notifier {
            sleeper: Sleeper::new(),
            eventfd: Arc::new(EventFd::new()?),
            process: forked::process(),
            counters: Counters::new(SourceKind::Core),
        }))
    }

    /// Wakes the core if it sleeps. After what it is to see has been stored.
    pub(crate) fn notify(&self) {
        if self.sleeper.must_wake() {
            Wake::wake(self);
        }
    }

    /// Whether this is a child of the process that the core runs in. What a child does must not reach the
    /// ring or the epoll instance, which it shares with its parent (trap 54).
    #[inline]
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.process != forked::process()
    }

    /// The core is about to sleep: each notification from now on wakes it.
    pub(super) fn about_to_sleep(&self) {
        self.sleeper.about_to_sleep();
    }

    pub(super) fn awake(&self) {
        self.sleeper.awake();
    }

    pub(super) fn eventfd(&self) -> &Arc<EventFd> {
        &self.eventfd
    }
}

/// For the driver of the core's file operations: its own sleeper has decided that the core is to be woken.
impl Wake for Notifier {
    fn wake(&self) {
        if self.is_elsewhere() {
            return;
        }
        self.counters.wakeups().add_shared(1);
        self.eventfd.wake();
    }
}

impl Wake for Arc<Notifier> {
    fn wake(&self) {
        Notifier::wake(self);
    }
}
