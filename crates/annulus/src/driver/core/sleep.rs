//! When a core sleeps.

use super::core_driver::{Backend, Core};

impl Core {
    /// The rule for each sleep of a core, in its backend or in another runtime. A core may sleep only if
    ///
    /// - nothing is queued: no task and no message (`busy`), and in a ring's lists no entry to push, no completion that
    ///   was reaped for another part of the core, no file operation or cancel, and no change of registered memory;
    /// - what is queued from now on, by any thread, ends the sleep: the notifier is armed before the lists are checked;
    /// - the sleep ends when something is due: at the earliest timer, close timeout or deadline of a file operation.
    ///   What was due before has been handled: its time has passed, so the sleep ends at once.
    ///
    /// A sleep in the ring follows the handling of all lists of this thread, so only those of other threads are checked
    /// once more. It submits and reports the rest itself. One outside of the ring also checks `Rings::begin_sleep`.
    #[inline]
    pub(super) fn may_sleep(&self, busy: impl Fn() -> bool) -> bool {
        self.notifier.about_to_sleep();
        let is_called = match &self.backend {
            Backend::Rings(rings) => rings.is_called(),
            Backend::Readiness(_) => false,
        };
        if is_called || busy() {
            self.stay_awake();
            return false;
        }
        true
    }

    /// Takes back what `may_sleep` and a sleep have armed.
    #[inline]
    pub(super) fn stay_awake(&self) {
        if let Backend::Rings(rings) = &self.backend {
            rings.stay_awake();
        }
        self.notifier.awake();
    }

    /// Ends a sleep in another runtime if it would go on after `at_ns`.
    #[inline]
    pub(super) fn note_time(&self, at_ns: Option<u64>) {
        #[cfg(feature = "tokio")]
        if let (Some(sleep), Some(at_ns)) = (self.sleep.get(), at_ns)
            && at_ns < sleep.until_ns
        {
            (sleep.calls.on_earlier_timer)();
        }
        #[cfg(not(feature = "tokio"))]
        let _ = at_ns;
    }
}
