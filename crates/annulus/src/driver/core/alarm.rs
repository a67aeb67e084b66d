//! How other threads wake a core.

use std::io;
use std::sync::Arc;

use crate::driver::Wake;
use crate::driver::sleeper::Sleeper;
use crate::metrics::{Meter, SourceKind};
use crate::sys::wake::EventFd;

/// One per core. Whoever has left something for the core rings it; that costs a system call only while the
/// core sleeps.
pub(crate) struct Alarm {
    sleeper: Sleeper,
    eventfd: Arc<EventFd>,
    /// What the core counts: here, for this is all that others have of it.
    pub(crate) counters: Meter,
}

impl Alarm {
    pub(crate) fn new() -> io::Result<Arc<Alarm>> {
        Ok(Arc::new(Alarm {
            sleeper: Sleeper::new(),
            eventfd: Arc::new(EventFd::new()?),
            counters: Meter::new(SourceKind::Core),
        }))
    }

    /// Wakes the core if it sleeps. After what it is to see has been stored.
    pub(crate) fn ring(&self) {
        if self.sleeper.must_wake() {
            Wake::wake(self);
        }
    }

    /// The core is about to sleep: whoever rings from now on wakes it.
    pub(super) fn set(&self) {
        self.sleeper.about_to_sleep();
    }

    pub(super) fn unset(&self) {
        self.sleeper.awake();
    }

    pub(super) fn eventfd(&self) -> &Arc<EventFd> {
        &self.eventfd
    }
}

/// For the lane of the core's files: its own sleeper has decided that the core is to be woken.
impl Wake for Alarm {
    fn wake(&self) {
        self.counters.wakeups().add_shared(1);
        self.eventfd.wake();
    }
}

impl Wake for Arc<Alarm> {
    fn wake(&self) {
        Alarm::wake(self);
    }
}
