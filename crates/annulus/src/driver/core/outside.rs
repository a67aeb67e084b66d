//! Sleeps of a core outside of its backend, in another runtime.

use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use super::core_driver::{Backend, Core};
use super::other_runtime::{Awake, Sleep, SleepCalls};
use crate::sys::wake::EventFd;

impl Core {
    /// Polls the reactor of another runtime, until [`is_reactor_ready`](Core::is_reactor_ready). The caller keeps
    /// `reactor` open as long as the core.
    pub(crate) fn poll_reactor(&self, reactor: RawFd) -> std::io::Result<()> {
        match &self.backend {
            Backend::Rings(rings) => {
                rings.poll_reactor(reactor);
                Ok(())
            }
            Backend::Readiness(readiness) => readiness.poll_reactor(reactor),
        }
    }

    /// Returns whether the reactor that is polled has had an event.
    pub(crate) fn is_reactor_ready(&self) -> bool {
        match &self.backend {
            Backend::Rings(rings) => rings.is_reactor_ready(),
            Backend::Readiness(readiness) => readiness.is_reactor_ready(),
        }
    }

    /// Returns two descriptors whose edges end a sleep that began with [`begin_sleep`](Core::begin_sleep): one for the
    /// backend, which is the registered eventfd or the epoll instance, and that of the notifier.
    pub(crate) fn sleep_sources(&self) -> std::io::Result<(OwnedFd, Arc<EventFd>)> {
        let backend = match &self.backend {
            Backend::Rings(_) => EventFd::new()?.into(),
            Backend::Readiness(readiness) => readiness.poller_fd()?,
        };
        Ok((backend, Arc::clone(self.notifier.eventfd())))
    }

    /// Lets `reactor` watch the backend's descriptor of [`sleep_sources`](Core::sleep_sources), and polls it no longer.
    pub(crate) fn register_wake_eventfd(
        &self,
        eventfd: BorrowedFd<'_>,
        reactor: Option<BorrowedFd<'_>>,
    ) -> std::io::Result<()> {
        match &self.backend {
            Backend::Rings(rings) => return rings.register_wake_eventfd(eventfd),
            // Two epoll instances can't watch each other.
            Backend::Readiness(readiness) => readiness.forget_reactor(reactor),
        }
        Ok(())
    }

    /// Begins a sleep in another runtime. Returns the time of the next timer. Fails if there is work to do first.
    pub(crate) fn begin_sleep(
        &self,
        busy: impl Fn() -> bool,
        calls: SleepCalls,
    ) -> Result<Option<u64>, Awake> {
        if !self.may_sleep(busy) {
            return Err(Awake);
        }
        let has_more = match &self.backend {
            Backend::Rings(rings) => rings.begin_sleep(calls.on_push),
            Backend::Readiness(readiness) => readiness.may_have_more(),
        };
        if has_more {
            self.wake_from_other();
            return Err(Awake);
        }
        let files_ns = match &self.backend {
            Backend::Rings(rings) => rings.files_ns(),
            Backend::Readiness(_) => None,
        };
        let next_ns = self.next_ns().into_iter().chain(files_ns).min();
        let until_ns = next_ns.unwrap_or(u64::MAX);
        self.sleep.set(Some(Sleep { until_ns, calls }));
        Ok(next_ns)
    }

    /// Ends a sleep, if one was begun.
    pub(crate) fn end_sleep(&self) {
        if self.sleep.take().is_some() {
            self.wake_from_other();
        }
    }

    fn wake_from_other(&self) {
        if let Backend::Rings(rings) = &self.backend {
            rings.end_sleep();
        }
        self.stay_awake();
    }

    /// Submits operations while the core sleeps. Returns whether the core has to wake up for other work.
    pub(crate) fn submit_asleep(&self) -> bool {
        match (&self.backend, self.sleep.get()) {
            (Backend::Rings(rings), Some(sleep)) if !self.is_elsewhere() => {
                self.with_own_budget(|| rings.submit_asleep(self, sleep.calls.on_push))
            }
            _ => false,
        }
    }
}
