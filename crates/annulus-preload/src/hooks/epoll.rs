//! # Safety
//!
//! Epoll sets (Typed, Lent: the header of `hooks` gives the contract).
#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc, reason = "the header names the contract")]

use std::ffi::c_int;

use libc::{epoll_event, sigset_t, timespec};

use super::blocking::before_repeat;
use super::{attempt, catch_panic, create, may_be_mapped};
use crate::counters::Why;
use crate::ctl_request::CtlRequest;
use crate::epoll_ctl;
use crate::epoll_set::Set;
use crate::epoll_wait;
use crate::errno::into_return_int;
use crate::events::{IN, PRI};
use crate::fd_table::{self, Entry, Kind};
use crate::flush_thread;
use crate::inherited_set;
use crate::program_rings;
use crate::reports::EventBuffer;
use crate::ring_teardown;
use crate::signals;
use crate::sys;

hooks! {
    fn epoll_create(size: c_int) -> c_int { adopt(create(|| pass_on!(real(size)))) }

    fn epoll_create1(flags: c_int) -> c_int { adopt(create(|| pass_on!(real(flags)))) }
}

fn adopt(fd: c_int) -> c_int {
    if fd >= 0 {
        attempt(|| {
            // A handler that jumps out of an allocation would leave the lock of `malloc` taken.
            signals::without(|| Set::adopt(fd));
            program_rings::on_new_set(fd);
        });
    }
    fd
}

hooks! {
    fn epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        if let Some(number) = number_of(set)
            && (may_be_mapped(event) || operation == libc::EPOLL_CTL_DEL)
            && set != fd
        {
            // The kernel does not read the event of a removal; CPython leaves it uninitialised.
            let (events, data) = if operation == libc::EPOLL_CTL_DEL {
                (0, 0)
            } else {
                // SAFETY: Lent: the program passes an event to read; see `may_be_mapped`.
                let event = unsafe { event.read_unaligned() };
                (event.events, event.u64)
            };
            let request = CtlRequest {
                operation,
                events,
                data,
            };
            // Without an interest in other data, the program asks for urgent data. Boost.Asio adds the flag to each
            // member, and reads no urgent data.
            if events & (PRI | IN) == PRI {
                super::unserve::never_serve_siblings(fd, Why::UnknownFlags);
            }
            if let Some(result) = catch_panic(|| epoll_ctl::control((number, set), fd, request)) {
                return into_return_int(result);
            }
        }
        pass_on!(real(set, operation, fd, event))
    }

    fn epoll_wait(set: c_int, events: *mut epoll_event, max: c_int, timeout_ms: c_int) -> c_int {
        pass_on!(wait_ms(set, (events, max), timeout_ms, std::ptr::null(), |left_ms| {
            real(set, events, max, left_ms)
        }))
    }

    fn epoll_pwait(set: c_int, events: *mut epoll_event, max: c_int, timeout_ms: c_int,
        mask: *const sigset_t) -> c_int {
        pass_on!(wait_ms(set, (events, max), timeout_ms, mask, |left_ms| {
            real(set, events, max, left_ms, mask)
        }))
    }

    fn epoll_pwait2(set: c_int, events: *mut epoll_event, max: c_int, timeout: *const timespec,
        mask: *const sigset_t) -> c_int {
        // SAFETY: Lent: the program passes a time to read; see `may_be_mapped`.
        let time = may_be_mapped(timeout).then(|| unsafe { timeout.read_unaligned() });
        let is_valid = |time: timespec| time.tv_sec >= 0 && (0..1_000_000_000).contains(&time.tv_nsec);
        if !time.map_or(timeout.is_null(), is_valid) {
            // The kernel returns the error.
            return pass_on!(real(set, events, max, timeout, mask));
        }
        let mut timeout_ns = time.map(|time| {
            let seconds_ns = (time.tv_sec as u64).saturating_mul(1_000_000_000);
            seconds_ns.saturating_add(time.tv_nsec as u64)
        });
        if let Some(ret) = pass_on!(wait_on(set, events, max, &mut timeout_ns, mask)) {
            return ret;
        }
        ring_teardown::retry_interrupted(timeout_ns, |left_ns| {
            let left = left_ns.map(sys::time);
            let timeout = left.as_ref().map_or(timeout, |left| left);
            pass_on!(real(set, events, max, timeout, mask))
        })
    }
}

/// Waits with a timeout in milliseconds; the kernel's wait is `real`.
unsafe fn wait_ms(
    set: c_int,
    (events, max): (*mut epoll_event, c_int),
    timeout_ms: c_int,
    mask: *const sigset_t,
    real: impl Fn(c_int) -> c_int,
) -> c_int {
    let mut timeout_ns = epoll_wait::timeout_ns(timeout_ms);
    if let Some(ret) = pass_on!(wait_on(set, events, max, &mut timeout_ns, mask)) {
        return ret;
    }
    ring_teardown::retry_interrupted(timeout_ns, |left_ns| {
        let left_ms = left_ns.map(|ns| c_int::try_from(ns.div_ceil(1_000_000)));
        real(left_ms.and_then(Result::ok).unwrap_or(timeout_ms))
    })
}

/// Returns the entry of an epoll set. One that a parent of this process has made is replaced first.
fn number_of(set: c_int) -> Option<&'static Entry> {
    let number = fd_table::entry(set)?;
    if number.inherited() == Kind::Set {
        attempt(|| signals::without(|| inherited_set::replace_inherited(number, set)));
    }
    (number.kind() == Kind::Set).then_some(number)
}

/// The kernel's limit on the events of a call.
const EVENTS_MAX: c_int = c_int::MAX / size_of::<epoll_event>() as c_int;

unsafe fn wait_on(
    set: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout_ns: &mut Option<u64>,
    mask: *const sigset_t,
) -> Option<c_int> {
    let number = number_of(set);
    match *timeout_ns {
        Some(0) => before_repeat(),
        _ => flush_thread::flush_before_blocking(number.and_then(Set::of)),
    }
    let number = number?;
    if !may_be_mapped(events) || max > EVENTS_MAX {
        return None;
    }
    let mut buffer = pass_on!(EventBuffer::new((events, max), *timeout_ns, mask.cast()));
    // Here, no lock is held.
    sys::pthread_testcancel();
    // `wait` catches panics except in its sleep, where a handler may end the thread by unwinding.
    let ret = epoll_wait::wait(number, &mut buffer);
    *timeout_ns = buffer.timeout_ns;
    if ret == Some(Err(libc::EINTR)) {
        sys::pthread_testcancel();
    }
    ret.map(into_return_int)
}
