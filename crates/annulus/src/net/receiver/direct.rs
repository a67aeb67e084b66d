//! Receives by system call into memory that the caller lends for the call. Bulk data is then copied once, and one call
//! returns all of it. The ring only waits for readiness.

use std::io;
use std::mem::MaybeUninit;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::{BULK_BYTES_MIN, End, ReceivePolicy, Receiver, UnderWay};
use crate::driver::core::SharedOperation;
use crate::metrics::OperationNumber;
use crate::op::{self, Interest, TRANSFER_MAX};
use crate::sys::engine_error::error_of;
use crate::sys::errno::{EAGAIN, EINTR, count};
use crate::sys::net;

impl Receiver {
    /// Receives into `memory` by a system call. Returns the number of bytes at its front that are initialised now; 0 is
    /// the end.
    ///
    /// `None` asks the caller to use [`poll_next`](Receiver::poll_next), for one of these reasons:
    ///
    /// - Data is queued, or another receive is under way.
    /// - Messages are short. A multishot receive returns them without a system call.
    /// - `memory` is too small for bulk data.
    pub(in super::super) fn poll_direct(
        self: &Rc<Self>,
        context: &mut Context<'_>,
        memory: &mut [MaybeUninit<u8>],
    ) -> Option<Poll<io::Result<usize>>> {
        let has_ring = self.core.has_ring();
        let policy = self.policy.get();
        if has_ring && (!policy.has_large() || self.core.is_ending())
            // A chunk of bulk data then fills this memory several times.
            || has_ring && policy.is_bulk() && memory.len() < BULK_BYTES_MIN
            || !self.is_idle()
            || memory.is_empty()
            || self.core.is_elsewhere()
        {
            return None;
        }
        if !self.core.spend(context) {
            return Some(Poll::Pending);
        }
        let bytes = memory.len().min(TRANSFER_MAX);
        loop {
            if has_ring && self.emptied.get() {
                match self.wait_for_data(context) {
                    Poll::Ready(Ok(())) => self.emptied.set(false),
                    Poll::Ready(Err(_)) => {
                        // The kernel refuses to poll, or the core is ending.
                        self.change_policy(ReceivePolicy::end_large);
                        return None;
                    }
                    Poll::Pending => return Some(self.wait(context)),
                }
            }
            if self.core.may_be_ready(&self.socket, Interest::Read) {
                let res = net::recv_into(self.socket.raw(), &mut memory[..bytes]);
                if !matches!(-res, EAGAIN | EINTR) {
                    self.core.count_call(OperationNumber::RECV, res);
                }
                match res {
                    0 => {
                        self.end.set(End::Closed);
                        return Some(Poll::Ready(Ok(0)));
                    }
                    res if res > 0 => {
                        self.judge_direct(count(res), bytes);
                        self.core.charge(count(res));
                        return Some(Poll::Ready(Ok(count(res))));
                    }
                    res if res == -EINTR => continue,
                    res if res == -EAGAIN => {
                        if has_ring && !self.policy.get().is_bulk() {
                            // A few full buffers were the whole message.
                            self.change_policy(ReceivePolicy::end_large);
                            return None;
                        }
                        self.emptied.set(true);
                        self.core.not_ready(&self.socket, Interest::Read);
                    }
                    res => {
                        self.end.set(End::Closed);
                        return Some(Poll::Ready(Err(error_of(-res))));
                    }
                }
            }
            if has_ring {
                continue;
            }
            let watched = (self.core).watch(&self.socket, Interest::Read, context.waker());
            if let Err(error) = watched {
                return Some(Poll::Ready(Err(error)));
            }
            if !self.core.may_be_ready(&self.socket, Interest::Read) {
                return Some(self.wait(context));
            }
        }
    }

    /// Waits until the socket is readable, has ended or has failed. The next receive returns which.
    fn wait_for_data(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let wait = match self.under_way.replace(UnderWay::Nothing) {
            UnderWay::Wait(wait) => Some(wait),
            _ => None,
        };
        let mut wait = wait.unwrap_or_else(|| {
            let poll = op::Poll::new(Rc::clone(&self.socket), Interest::Read);
            Box::new(SharedOperation::new(Rc::clone(&self.core), poll))
        });
        let polled = wait.poll(context);
        if polled.is_pending() {
            self.set_under_way(UnderWay::Wait(wait));
        }
        polled
    }

    /// Decides whether direct receives go on, after one of `bytes` bytes into memory of `space` bytes.
    fn judge_direct(&self, bytes: usize, space: usize) {
        let is_full = bytes == space;
        self.emptied.set(!is_full);
        if !is_full {
            self.core.emptied(&self.socket);
        }
        self.change_policy(|policy| policy.note_direct(bytes, space));
    }
}
