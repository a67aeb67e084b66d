//! # Safety
//!
//! The attempts of the probes of behaviour that differs between kernels with the same features (`probe_table.rs`). A
//! version number cannot tell, because fixes are backported. No operation here points to memory (NOPs, and polls of a
//! socket), so nothing is lent to the kernel (Lent). Each ring is drained, or closed with nothing but a poll in flight
//! (Drained).
#![allow(unsafe_code)]

use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, types};
use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, epoll, poll};
use rustix::io::Errno;

use super::call::{borrow_fd, timespec};
#[cfg(all(feature = "net", feature = "tokio"))]
use super::filter_probe;
use super::probe::read_text;
use super::sqe::POLL_READ;
use super::wake::EventFd;

/// The time that a poller gets to notice an event, ms. A poller that notices at all takes microseconds.
const NOTICE_MS: u64 = 15;
/// The pause before the second check that the poller sleeps.
const SLEEP_PAUSE: Duration = Duration::from_millis(2);
/// The time that the poller gets to fall asleep, ms.
const ASLEEP_MS: u64 = 50;

/// `true` if the kernel behaves as Annulus prefers; `None` if that could not be observed in time.
pub(super) type QuirkResult = io::Result<Option<bool>>;

fn deferred() -> io::Result<IoUring> {
    IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .build(4)
}

/// Submits a poll of `socket`, which completes when its peer writes. A socket and not an eventfd: the kernel defers
/// notifications from one eventfd to another.
fn watch(ring: &mut IoUring, socket: &UnixStream) -> io::Result<()> {
    let socket = types::Fd(socket.as_raw_fd());
    let entry = opcode::PollAdd::new(socket, POLL_READ).build();
    // SAFETY: Lent: a poll points to no memory. Open: the socket outlives the call; then the kernel holds it.
    unsafe { ring.submission().push(&entry) }.map_err(io::Error::other)?;
    ring.submit().map(drop)
}

/// Returns whether `fd` becomes readable within the time.
fn becomes_readable(fd: BorrowedFd<'_>, milliseconds: u64) -> io::Result<bool> {
    let timeout = timespec(milliseconds.saturating_mul(1_000_000));
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    Ok(poll(&mut fds, Some(&timeout))? > 0)
}

/// Returns whether epoll reports `fd` within the time. Not `poll`, which checks once more when the time is up.
fn epoll_reports(fd: BorrowedFd<'_>, milliseconds: u64) -> io::Result<bool> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(
        &epoll,
        fd,
        epoll::EventData::new_u64(0),
        epoll::EventFlags::IN,
    )?;
    let timeout = timespec(milliseconds.saturating_mul(1_000_000));
    let mut events: Vec<epoll::Event> = Vec::with_capacity(1);
    match epoll::wait(&epoll, spare_capacity(&mut events), Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// A thread sleeps in `epoll_wait` on the ring while work for its owner is queued, and the owner does not enter. On
/// kernels from about 6.13 on the sleeping thread is not woken.
pub(super) fn deferred_poller() -> QuirkResult {
    let (mut sender, socket) = UnixStream::pair()?;
    let mut ring = deferred()?;
    watch(&mut ring, &socket)?;
    let copy = rustix::io::fcntl_dupfd_cloexec(borrowed(&ring), 0)?;
    let (tid_sender, tid_receiver) = channel();
    let poller = thread::Builder::new().spawn(move || {
        let _ = tid_sender.send(rustix::thread::gettid());
        epoll_reports(copy.as_fd(), ASLEEP_MS + NOTICE_MS)
    })?;
    let asleep = tid_receiver.recv().is_ok_and(|tid| {
        let stat = format!("/proc/self/task/{}/stat", tid.as_raw_nonzero());
        // The first poll of such a ring makes its owner, this thread, wake the poller once. It must be asleep again.
        falls_asleep(&stat) && {
            thread::sleep(SLEEP_PAUSE);
            falls_asleep(&stat)
        }
    });
    sender.write_all(&[1])?;
    let woken = poller
        .join()
        .map_err(|_| io::Error::other("the poller panicked"))??;
    // A poller that was awake may have found the work by checking, which proves nothing.
    Ok((asleep || !woken).then_some(woken))
}

fn falls_asleep(stat: &str) -> bool {
    let until = Instant::now() + Duration::from_millis(ASLEEP_MS / 2);
    while Instant::now() < until {
        // `123 (name) S …`
        let text = read_text(stat).unwrap_or_default();
        if text
            .rsplit(") ")
            .next()
            .is_some_and(|rest| rest.starts_with('S'))
        {
            return true;
        }
        thread::sleep(Duration::from_micros(200));
    }
    false
}

/// Kernels from late 2026 on write the eventfd after an RCU grace period, which may be longer than the time.
pub(super) fn deferred_eventfd() -> QuirkResult {
    eventfd_is_written(NOTICE_MS).map(Some)
}

/// Returns whether the registered eventfd of a ring is written within the time after the ring has deferred work. A time
/// of 0 is enough for kernels that write it where they queue the work.
fn eventfd_is_written(milliseconds: u64) -> io::Result<bool> {
    let (mut sender, socket) = UnixStream::pair()?;
    let eventfd = EventFd::new()?;
    let mut ring = deferred()?;
    ring.submitter().register_eventfd(eventfd.raw())?;
    watch(&mut ring, &socket)?;
    sender.write_all(&[1])?;
    becomes_readable(borrow_fd(eventfd.raw()), milliseconds)
}

/// Returns whether the kernel writes the registered eventfd of a ring with deferred task work later, or perhaps never
/// (trap 68). Also `true` if that can't be found out.
#[cfg(all(feature = "net", feature = "tokio"))]
pub(crate) fn eventfd_is_late() -> bool {
    static IS_LATE: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *IS_LATE
        .get_or_init(|| filter_probe::check().is_err() || !eventfd_is_written(0).unwrap_or(false))
}

/// Produces twice as many completions as the queue holds, and counts those that are delivered.
pub(super) fn overflow() -> QuirkResult {
    const ENTRIES: u32 = 2;
    let mut ring: IoUring = IoUring::builder().setup_cqsize(ENTRIES).build(ENTRIES)?;
    for _ in 0..2 {
        for _ in 0..ENTRIES {
            let entry = opcode::Nop::new().build();
            // SAFETY: Lent: a NOP points to nothing.
            unsafe { ring.submission().push(&entry) }.map_err(io::Error::other)?;
        }
        ring.submit()?;
    }
    let mut completed = ring.completion().count();
    for _ in 0..2 {
        // Fetches the completions that the kernel kept, without waiting for any that it may have lost.
        ring.submit()?;
        completed += ring.completion().count();
    }
    Ok(Some(completed == 2 * ENTRIES as usize))
}

fn borrowed(ring: &IoUring) -> BorrowedFd<'_> {
    borrow_fd(ring.as_raw_fd())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_kernel_loses_completions_beyond_the_queue() {
        if let Err(error) = io_uring::IoUring::new(1) {
            return println!("skip: needs io_uring: {error}");
        }
        // NODROP is required of every ring.
        assert_eq!(overflow().unwrap(), Some(true));
    }

    #[test]
    fn a_poller_of_a_ring_without_deferred_work_is_woken() {
        let Ok(mut ring) = io_uring::IoUring::new(4) else {
            return println!("skip: needs io_uring");
        };
        let (mut sender, socket) = UnixStream::pair().unwrap();
        watch(&mut ring, &socket).unwrap();
        assert!(!becomes_readable(borrowed(&ring), 1).unwrap());
        sender.write_all(&[1]).unwrap();
        assert!(becomes_readable(borrowed(&ring), 1000).unwrap());
    }
}
