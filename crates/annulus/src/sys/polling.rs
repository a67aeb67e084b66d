//! Rings with polled queues: a kernel thread polls the submission queue (SQPOLL), or the thread that enters polls the
//! device's completion queue (IOPOLL). This module has their configuration, the explanation of a refusal, and a
//! `Kernel` for the second kind.

use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use super::errno::{EACCES, EINVAL, EOPNOTSUPP, EPERM};
use super::kernel::{Entered, Kernel};
use super::probe;
use super::ring::{REAP_MAX, Ring};
use super::sqe::{Cqe, Sqe, opcode};
use super::wake::EventFd;
use crate::error::SetupError;
use crate::narrow::to_u32;
use crate::sync::{Mutation, Ordering, broken, fence};

/// The queue of a new ring that is polled.
#[derive(Clone, Debug, Default)]
pub(crate) enum RingPoll {
    #[default]
    Nothing,
    /// The submission queue, polled by a kernel thread that all rings with the same `Poller` share.
    Submissions(Arc<Poller>),
    /// The device, polled by the thread that enters.
    Completions,
}

/// The configuration of a kernel thread that polls submission queues.
#[derive(Debug)]
pub(crate) struct Poller {
    /// The time without work after which the thread sleeps. Never 0, which the kernel takes for a second.
    pub(crate) idle_ms: u32,
    pub(crate) cpu: Option<u32>,
    /// The first ring, whose poller later rings attach to. Only a number: if that ring has been closed, the kernel
    /// refuses, and the next ring gets a new poller.
    first: Mutex<Option<RawFd>>,
}

impl Poller {
    pub(crate) fn new(idle_ms: u32, cpu: Option<u32>) -> Poller {
        Poller {
            idle_ms: idle_ms.max(1),
            cpu,
            first: Mutex::new(None),
        }
    }

    /// Creates a ring that shares the poller of the first one. The lock makes sure that there is a first one.
    pub(super) fn share(
        &self,
        make: impl Fn(Option<RawFd>) -> Result<Ring, SetupError>,
    ) -> Result<Ring, SetupError> {
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        if first.is_some()
            && let Ok(ring) = make(*first)
        {
            return Ok(ring);
        }
        let ring = make(None)?;
        *first = Some(ring.raw());
        Ok(ring)
    }

    /// Explains why the kernel refuses this thread although it accepts a ring without one.
    pub(super) fn explain(&self, error: &io::Error) -> SetupError {
        let version = probe::kernel_version();
        let (reason, hint) = match (error.raw_os_error(), self.cpu) {
            (Some(EPERM | EACCES), _) if version < (5, 11) => (
                "before Linux 5.11 it needs root".to_owned(),
                "run as root, or boot Linux 5.13 or later",
            ),
            (Some(EPERM | EACCES), _) if version < (5, 13) => (
                "before Linux 5.13 it needs CAP_SYS_NICE".to_owned(),
                "give the program that capability (setcap cap_sys_nice+ep), or boot Linux 5.13 or later",
            ),
            (Some(EPERM | EACCES), _) => (
                "a security module forbids it".to_owned(),
                "allow io_uring's sqpoll for this program in SELinux or AppArmor",
            ),
            (Some(EINVAL), Some(cpu)) => (
                format!(
                    "processor {cpu} does not exist, is offline, or is not allowed for this process, which may use {}",
                    ranges(&probe::processors())
                ),
                "choose one of these, or leave the choice to the kernel",
            ),
            _ => (error.to_string(), "build without it"),
        };
        SetupError::Polling {
            what: "a kernel thread that polls the submission queue (SQPOLL)",
            reason,
            hint: hint.to_owned(),
        }
    }
}

/// Formats ascending numbers as ranges: `0-3, 6`.
fn ranges(numbers: &[usize]) -> String {
    let mut text = String::new();
    let mut rest = numbers;
    while let [first, ..] = *rest {
        let run = rest
            .iter()
            .enumerate()
            .take_while(|&(at, &number)| number == first + at)
            .count();
        if !text.is_empty() {
            text.push_str(", ");
        }
        text.push_str(&first.to_string());
        if run > 1 {
            text.push_str(&format!("-{}", first + run - 1));
        }
        rest = rest.get(run..).unwrap_or_default();
    }
    text
}

/// Returns whether a poller fell asleep before it could see the entry that was just published (trap 9).
///
/// This is Dekker's pattern: this thread stores the tail, then loads the flag; the poller stores the flag, then loads
/// the tail. A release store and a load may be reordered, so a full fence separates them. With one fence on either
/// side, at least one of the two threads sees the other's store. Checked by loom (`ci/loom`).
#[inline]
pub(crate) fn must_wake_poller(asleep: impl FnOnce() -> bool) -> bool {
    if !broken(Mutation::PollerUnfenced) {
        fence(Ordering::SeqCst);
    }
    asleep()
}

/// A ring of reads and writes on polled devices (IOPOLL). The kernel gets no interrupts for completions; it checks for
/// them when it is entered. Such a ring takes no other operations (trap 47), neither the eventfd read that wakes other
/// drivers, nor cancels. This type emulates both.
pub(crate) struct PolledRing {
    ring: Ring,
    wake: Arc<EventFd>,
    /// Operations that are pushed and not reaped yet.
    in_flight: u32,
    /// The token of the wake-up, if the driver has armed it.
    armed: Option<u64>,
    /// Emulated CQEs.
    emulated: Vec<Cqe>,
}

impl PolledRing {
    /// Takes over a ring created with `RingPoll::Completions`.
    ///
    /// Fails on kernels where a direct write that extends a file hangs: its worker thread (io-wq) sleeps until a thread
    /// polls, and a ring only polls for requests that were issued. Seen on 5.10.223, whose io_uring is that of 5.15;
    /// the block layer was rebuilt in 5.16. The first feature bit after that is from 5.17.
    pub(crate) fn new(ring: Ring) -> Result<PolledRing, SetupError> {
        if !ring.polls_reliably() {
            return Err(SetupError::Polling {
                what: "a ring that polls devices (IOPOLL)",
                reason: format!(
                    "on Linux {} a polled write may hang indefinitely",
                    probe::kernel_release()
                ),
                hint: "boot Linux 5.17 or later".to_owned(),
            });
        }
        Ok(PolledRing {
            wake: ring.waker(),
            ring,
            in_flight: 0,
            armed: None,
            emulated: Vec::new(),
        })
    }

    pub(crate) fn waker(&self) -> Arc<EventFd> {
        Arc::clone(&self.wake)
    }

    pub(crate) fn cq_entries(&self) -> u32 {
        self.ring.cq_entries()
    }

    fn emulate(&mut self, user_data: u64, res: i32) {
        self.emulated.push(Cqe {
            user_data,
            res,
            flags: 0,
        });
    }
}

impl Kernel for PolledRing {
    fn push(&mut self, sqe: Sqe) -> bool {
        if sqe.opcode == opcode::ASYNC_CANCEL {
            self.emulate(sqe.user_data, -EOPNOTSUPP);
            return true;
        }
        let pushed = self.ring.push(sqe);
        self.in_flight += u32::from(pushed);
        pushed
    }

    fn unsubmitted(&self) -> u32 {
        self.ring.unsubmitted()
    }

    fn submit(&mut self) -> io::Result<()> {
        self.ring.look_for_completions()
    }

    /// Checks once while anything is in flight, and sleeps only when nothing is: no interrupt would report a
    /// completion.
    fn wait(&mut self, timeout_ns: Option<u64>) -> io::Result<()> {
        if !self.emulated.is_empty() {
            return Ok(());
        }
        if self.in_flight > 0 {
            self.ring.look_for_completions()?;
            if !self.ring.ready() {
                // With few processors, the thread that uses the completion may need this one.
                thread::yield_now();
            }
            return Ok(());
        }
        if self.wake.sleep(timeout_ns)
            && let Some(token) = self.armed.take()
        {
            // The result of the eventfd read: 8 bytes.
            self.emulate(token, 8);
        }
        Ok(())
    }

    fn ready(&mut self) -> bool {
        !self.emulated.is_empty() || self.ring.ready()
    }

    fn reap(&mut self, into: &mut Vec<Cqe>) {
        let space = REAP_MAX.saturating_sub(into.len()).min(self.emulated.len());
        into.extend(self.emulated.drain(..space));
        let before = into.len();
        self.ring.reap(into);
        self.in_flight -= to_u32(into.len() - before);
    }

    fn arm_wake(&mut self, token: u64) -> bool {
        self.armed = Some(token);
        true
    }

    fn supports(&self, opcode: u8) -> bool {
        use opcode::{NOP, READ, READV, WRITE, WRITEV};
        matches!(opcode, NOP | READ | READV | WRITE | WRITEV) && self.ring.supports(opcode)
    }

    fn entered(&self) -> Entered {
        self.ring.entered()
    }

    fn polls_devices(&self) -> bool {
        true
    }

    fn now_ns(&self) -> u64 {
        self.ring.now_ns()
    }

    fn pause(&mut self, ns: u64) {
        self.ring.pause(ns);
    }
}

#[cfg(all(test, annulus_loom))]
mod loom_models {
    use super::*;
    use crate::sync::{AtomicBool, AtomicU32};
    use loom::thread;
    use std::sync::Arc;

    /// The kernel's side, as `io_sq_thread` goes to sleep: set the flag, a full barrier, check once more. Returns
    /// whether the entry is visible; otherwise the thread sleeps until it is woken.
    fn last_look(tail: &AtomicU32, asleep: &AtomicBool) -> bool {
        asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        tail.load(Ordering::Acquire) == 1
    }

    #[test]
    fn loom_an_entry_is_seen_by_a_poller_that_goes_to_sleep_or_the_poller_is_woken() {
        loom::model(|| {
            let tail = Arc::new(AtomicU32::new(0));
            let asleep = Arc::new(AtomicBool::new(false));
            let poller = {
                let (tail, asleep) = (Arc::clone(&tail), Arc::clone(&asleep));
                thread::spawn(move || last_look(&tail, &asleep))
            };
            tail.store(1, Ordering::Release);
            let woken = must_wake_poller(|| asleep.load(Ordering::Relaxed));
            assert!(
                poller.join().unwrap() || woken,
                "an entry that no poller takes"
            );
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::ring::{RingConfig, SetupMode};

    #[test]
    fn numbers_in_a_row_are_written_as_a_range() {
        for (numbers, text) in [
            (&[][..], ""),
            (&[3][..], "3"),
            (&[0, 1][..], "0-1"),
            (&[0, 1, 2, 6, 8, 9][..], "0-2, 6, 8-9"),
        ] {
            assert_eq!(ranges(numbers), text);
        }
    }

    fn config(poll: RingPoll) -> RingConfig {
        RingConfig {
            sq_entries: 8,
            cq_entries: 32,
            setup_mode: SetupMode::Deferred,
            workers: [0, 0],
            poll,
        }
    }

    fn polled(poller: &Arc<Poller>) -> Option<Ring> {
        match Ring::new(config(RingPoll::Submissions(Arc::clone(poller)))) {
            Ok(ring) => Some(ring),
            Err(error) => {
                println!("skip: {error}");
                None
            }
        }
    }

    fn nop(ring: &mut Ring, token: u64) {
        let nop = Sqe {
            user_data: token,
            ..Sqe::new(opcode::NOP, -1)
        };
        while !ring.push(nop) {
            ring.submit().unwrap();
        }
    }

    /// Waits until the poller has taken all entries; returns the number left after a minute. The poller completes up to
    /// eight entries before it publishes that it took them.
    fn left(ring: &Ring) -> u32 {
        let until = ring.now_ns() + 60_000_000_000;
        while ring.unsubmitted() > 0 && ring.now_ns() < until {
            thread::yield_now();
        }
        ring.unsubmitted()
    }

    #[test]
    fn a_poller_takes_entries_without_a_call_and_is_called_when_it_sleeps() {
        let poller = Arc::new(Poller::new(300, None));
        let Some(mut ring) = polled(&poller) else {
            return;
        };
        let mut cqes = Vec::with_capacity(REAP_MAX);
        // The poller is awake: the first round trip has just woken it.
        let (entered, woken) = (ring.entered().enters, ring.entered().sq_wakeups);
        nop(&mut ring, 7);
        ring.submit().unwrap();
        let until = ring.now_ns() + 250_000_000;
        while !ring.ready() && ring.now_ns() < until {
            thread::yield_now();
        }
        ring.reap(&mut cqes);
        let tokens: Vec<_> = cqes.drain(..).map(|cqe| cqe.user_data).collect();
        // On a machine so busy that the poller did not run, this proves nothing.
        if tokens == [7] && ring.entered().sq_wakeups == woken {
            assert_eq!(ring.entered().enters, entered, "it was awake");
            assert_eq!(left(&ring), 0);
        } else {
            println!("the poller did not run for 250 ms, or was asleep after 300");
        }
        let wakeups = ring.entered().sq_wakeups;
        let until = ring.now_ns() + 120_000_000_000;
        for token in 8.. {
            // Longer than the poller's idle time. On a busy machine it may not have had the time to fall asleep.
            thread::sleep(std::time::Duration::from_millis(900));
            nop(&mut ring, token);
            ring.submit().unwrap();
            while !cqes.iter().any(|cqe: &Cqe| cqe.user_data == token) {
                ring.wait(Some(1_000_000_000)).unwrap();
                ring.reap(&mut cqes);
            }
            if ring.entered().sq_wakeups > wakeups {
                break;
            }
            assert!(ring.now_ns() < until, "it never sleeps");
        }
    }

    #[test]
    fn a_full_queue_waits_for_the_poller_and_loses_nothing() {
        let poller = Arc::new(Poller::new(1, None));
        let Some(mut ring) = polled(&poller) else {
            return;
        };
        let mut reaped = 0;
        let mut cqes = Vec::with_capacity(REAP_MAX);
        for token in 0..10_000 {
            nop(&mut ring, token);
            ring.reap(&mut cqes);
            reaped += cqes.drain(..).count();
        }
        ring.submit().unwrap();
        while reaped < 10_000 {
            ring.wait(Some(1_000_000_000)).unwrap();
            ring.reap(&mut cqes);
            reaped += cqes.drain(..).count();
        }
        assert_eq!((reaped, left(&ring)), (10_000, 0));
    }

    /// Returns the ids of the threads of this process that poll submission queues.
    fn pollers() -> Vec<String> {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let ids = tasks.map(|task| task.unwrap().file_name().into_string().unwrap());
        ids.filter(|id| {
            let comm = std::fs::read_to_string(format!("/proc/self/task/{id}/comm"));
            comm.is_ok_and(|comm| comm.starts_with("iou-sqp"))
        })
        .collect()
    }

    #[test]
    fn rings_share_a_poller_and_the_next_gets_its_own_when_the_first_ring_has_ended() {
        let poller = Arc::new(Poller::new(50, None));
        let Some(first) = polled(&poller) else { return };
        // Other tests of this process have pollers too; the name tells which belong to this thread.
        const COMM_BYTES: usize = 15;
        let name = format!("iou-sqp-{}", rustix::thread::gettid().as_raw_nonzero());
        let count = || {
            let of_this_thread = |id: &String| {
                let comm = std::fs::read_to_string(format!("/proc/self/task/{id}/comm"));
                comm.is_ok_and(|comm| comm.trim_end() == &name[..name.len().min(COMM_BYTES)])
            };
            pollers().into_iter().filter(of_this_thread).count()
        };
        let with_one = count();
        let second = polled(&poller).unwrap();
        // Before Linux 5.12 the poller is not a thread of this process, and cannot be counted.
        if probe::kernel_version() >= (5, 12) {
            assert_eq!((with_one, count()), (1, 1), "shared");
        }
        drop((first, second));
        let mut third = polled(&poller).unwrap();
        nop(&mut third, 1);
        third.wait(Some(1_000_000_000)).unwrap();
    }

    #[test]
    fn a_missing_processor_is_reported_with_those_that_may_be_used() {
        let poller = Arc::new(Poller::new(1, Some(4095)));
        match Ring::new(config(RingPoll::Submissions(poller))) {
            Err(error @ SetupError::Polling { .. }) => {
                let text = error.to_string();
                assert!(text.contains("processor 4095 does not exist"), "{text}");
                assert!(text.contains("may use 0"), "{text}");
            }
            Err(error) => println!("skip: {error}"),
            Ok(_) => panic!("there is no such processor"),
        }
    }

    #[test]
    fn a_polled_ring_sleeps_until_it_is_woken_and_completes_cancels_itself() {
        let ring = match Ring::new(config(RingPoll::Completions)) {
            Ok(ring) => ring,
            Err(error) => return println!("skip: {error}"),
        };
        let mut ring = match PolledRing::new(ring) {
            Ok(ring) => ring,
            Err(error) => return println!("skip: {error}"),
        };
        let mut cqes = Vec::with_capacity(REAP_MAX);
        assert!(ring.push(Sqe::cancel(3, 4)));
        assert!(ring.ready());
        ring.reap(&mut cqes);
        assert_eq!((cqes[0].user_data, cqes[0].res), (4, -EOPNOTSUPP));
        cqes.clear();
        assert!(ring.arm_wake(9));
        ring.wait(Some(1_000_000)).unwrap();
        assert!(!ring.ready(), "no thread woke it");
        ring.waker().wake();
        ring.wait(None).unwrap();
        ring.reap(&mut cqes);
        assert_eq!((cqes[0].user_data, cqes[0].res), (9, 8));
        assert_eq!(ring.in_flight, 0);
    }
}
