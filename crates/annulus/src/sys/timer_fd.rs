//! A timer with a descriptor, for a core that sleeps in another runtime's reactor.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::{fs, io};

use rustix::event::{PollFd, PollFlags};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use super::call::{borrow_fd, timespec};

/// Longer than a timer of the past takes to expire, ms.
const EXPIRY_MS: u64 = 1_000;

/// A timer on the clock of [`now_ns`](super::call::now_ns). It makes its descriptor readable at its time, and is never
/// read: each expiry is an edge.
#[derive(Debug)]
pub(crate) struct TimerFd(OwnedFd);

impl TimerFd {
    pub(crate) fn new() -> io::Result<TimerFd> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(TimerFd(timerfd_create(TimerfdClockId::Monotonic, flags)?))
    }

    /// Sets the time, ns. A time in the past is now.
    pub(crate) fn set(&self, at_ns: u64) {
        let at = Itimerspec {
            it_interval: timespec(0),
            // 0 would clear the timer.
            it_value: timespec(at_ns.max(1)),
        };
        // An error can only concern the arguments, which are always valid.
        let _ = timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &at);
    }

    /// Returns a copy of the epoll instance that watches this timer, which is not set. `None` without `/proc`, or if
    /// the instance that it shows does not report the timer.
    pub(crate) fn watcher(&self) -> Option<OwnedFd> {
        // See proc_pid_fdinfo(5).
        let watched = format!("{}", self.0.as_raw_fd());
        let watches = |info: String| {
            let mut lines = info.lines().filter_map(|line| line.strip_prefix("tfd:"));
            lines.any(|rest| rest.split_whitespace().next() == Some(&watched))
        };
        let mut infos = fs::read_dir("/proc/self/fdinfo")
            .ok()?
            .filter_map(Result::ok);
        let info = infos.find(|info| fs::read_to_string(info.path()).is_ok_and(watches))?;
        let epoll = info.file_name().to_str()?.parse().ok()?;
        let epoll = fcntl_dupfd_cloexec(borrow_fd(epoll), 0).ok()?;
        self.is_reported_by(&epoll).then_some(epoll)
    }

    /// Returns whether `epoll` is readable exactly while this timer has expired. The timer is not set afterwards.
    fn is_reported_by(&self, epoll: &OwnedFd) -> bool {
        let is_readable = |wait_ms: u64| {
            let mut fds = [PollFd::new(epoll, PollFlags::IN)];
            let wait = timespec(wait_ms * 1_000_000);
            rustix::event::poll(&mut fds, Some(&wait)).is_ok_and(|ready| ready > 0)
        };
        let before = is_readable(0);
        self.set(1);
        let expired = is_readable(EXPIRY_MS);
        let never = Itimerspec {
            it_interval: timespec(0),
            it_value: timespec(0),
        };
        let cleared = timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &never).is_ok();
        !before && expired && cleared && !is_readable(0)
    }
}

impl AsRawFd for TimerFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::epoll;

    fn watched(timer: &TimerFd) -> OwnedFd {
        let instance = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&instance, &timer.0, epoll::EventData::new_u64(7), flags).unwrap();
        instance
    }

    #[test]
    fn the_instance_that_watches_a_timer_is_found_and_the_timer_stays_unset() {
        let timer = TimerFd::new().unwrap();
        assert!(timer.watcher().is_none());
        let _instance = watched(&timer);
        let found = timer.watcher().unwrap();
        let mut events = Vec::with_capacity(1);
        epoll::wait(
            &found,
            rustix::buffer::spare_capacity(&mut events),
            Some(&timespec(0)),
        )
        .unwrap();
        assert!(events.is_empty());
    }

    #[test]
    fn an_instance_that_does_not_report_the_timer_or_is_ready_without_it_is_refused() {
        let (timer, other) = (TimerFd::new().unwrap(), TimerFd::new().unwrap());
        assert!(!timer.is_reported_by(&watched(&other)));
        let ready = watched(&timer);
        let flags = epoll::EventFlags::IN;
        other.set(1);
        epoll::add(&ready, &other.0, epoll::EventData::new_u64(8), flags).unwrap();
        rustix::event::poll(&mut [PollFd::new(&other.0, PollFlags::IN)], None).unwrap();
        assert!(!timer.is_reported_by(&ready));
    }
}
