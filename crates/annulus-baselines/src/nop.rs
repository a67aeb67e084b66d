//! NOPs on a hand-written ring, for `annulus doctor`.
//!
//! # Safety
//!
//! A NOP refers to no memory, so the kernel accesses none.

#![allow(unsafe_code)]

use std::io;

use io_uring::{IoUring, opcode};

use crate::Failure;
use crate::forbidden::rings_allowed;

/// A ring that runs batches of NOPs.
pub struct NopRing {
    ring: IoUring,
    batch: usize,
}

impl NopRing {
    /// Sets up a ring for `batch` NOPs, without flags or with `SINGLE_ISSUER | DEFER_TASKRUN`. Only the thread that
    /// creates the ring may use it.
    pub fn new(batch: usize, deferred: bool) -> Result<NopRing, Failure> {
        let entries = u32::try_from(batch.next_power_of_two())
            .map_err(|_| Failure::Failed(format!("a batch of {batch}")))?;
        rings_allowed()?;
        let mut builder = IoUring::builder();
        if deferred {
            builder.setup_single_issuer().setup_defer_taskrun();
        }
        let ring = builder.build(entries).map_err(|error| {
            Failure::of_setup(&format!("io_uring_setup({entries} entries)"), &error)
        })?;
        Ok(NopRing { ring, batch })
    }

    /// Sets up `count` rings of 64 entries without flags, and returns the number that existed together, with the error
    /// of the next one.
    pub fn together(count: usize) -> Result<(usize, Option<io::Error>), Failure> {
        const ENTRIES: u32 = 64;
        rings_allowed()?;
        let mut rings = Vec::new();
        while rings.len() < count {
            match IoUring::new(ENTRIES) {
                Ok(ring) => rings.push(ring),
                Err(error) => return Ok((rings.len(), Some(error))),
            }
        }
        Ok((count, None))
    }

    /// Enters with nothing to submit and nothing to wait for, to measure the cost of the system call.
    pub fn enter(&self) -> Result<(), Failure> {
        let entered = self.ring.submit();
        entered
            .map(drop)
            .map_err(|error| Failure::failed("io_uring_enter", &error))
    }

    /// Submits a batch and waits for its completions. Returns the number of enters.
    pub fn round(&mut self) -> Result<u64, Failure> {
        let (submitter, mut sq, mut cq) = self.ring.split();
        for index in 0..self.batch {
            let entry = opcode::Nop::new().build().user_data(index as u64);
            // SAFETY: a NOP refers to no memory.
            unsafe { sq.push(&entry) }
                .map_err(|_| Failure::Failed("no room for a batch the ring was made for".into()))?;
        }
        sq.sync();
        let (mut calls, mut completed) = (0, 0);
        while completed < self.batch {
            calls += 1;
            // Publish the head of the queue first. Otherwise the enter counts completions that are already reaped, and
            // does not wait.
            cq.sync();
            if let Err(error) = submitter.submit_and_wait(self.batch - completed)
                && error.raw_os_error() != Some(libc::EINTR)
            {
                return Err(Failure::failed("io_uring_enter", &error));
            }
            cq.sync();
            for cqe in &mut cq {
                if cqe.result() != 0 {
                    return Err(Failure::Failed(format!(
                        "a NOP completed with {}",
                        cqe.result()
                    )));
                }
                completed += 1;
            }
        }
        Ok(calls)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_of_nops_takes_one_enter() {
        for deferred in [false, true] {
            match NopRing::new(8, deferred) {
                Ok(mut ring) => {
                    for _ in 0..100 {
                        assert_eq!(ring.round().unwrap(), 1);
                    }
                }
                Err(Failure::Unavailable(why)) => println!("skip: {why}"),
                Err(error) => panic!("{error}"),
            }
        }
    }
}
