//! A timer with a descriptor, for a core that sleeps in another runtime's reactor.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::{fs, io};

use rustix::io::fcntl_dupfd_cloexec;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use super::call::{borrow_fd, timespec};

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

    /// Returns a copy of the epoll instance that watches this timer. `None` without `/proc`.
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
        fcntl_dupfd_cloexec(borrow_fd(epoll), 0).ok()
    }
}

impl AsRawFd for TimerFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
