//! # Safety
//!
//! `send_zero_copy`: SEND_ZC, or an ordinary `send`. Owns the socket (Open) and the buffer (Lent, Still).
//!
//! The kernel still reads the buffer after it has reported how much was sent. The buffer and the permit of the stream
//! are released with the notification that follows (trap 37). A connection thus has one such send at a time, which
//! bounds the memory that it holds.
#![allow(unsafe_code)]

use std::rc::Rc;

use super::send::ended;
use super::{
    Interest, Op, OpInfo, Resume, SocketOp, TRANSFER_MAX, retry_interrupted, table, transfer_len,
};
use crate::buf::IoBuf;
use crate::error::WholeResult;
use crate::fd::{SendPermit, Socket, ZeroCopy};
use crate::sys::errno::{ECANCELED, EINVAL, ENOMEM, EOPNOTSUPP, EPIPE, count};
use crate::sys::net::{self, MSG_WAITALL};
use crate::sys::sqe::{SEND_ZC_REPORT_USAGE, Sqe, ZC_COPIED, opcode};

/// The smallest zero-copy send, bytes. For less, a copy costs less than the notification.
const FROM_BYTES: usize = 16 << 10;

/// Sends all of a buffer, without a copy if the kernel can.
pub(crate) struct SendZeroCopy<B> {
    buf: B,
    done: usize,
    permit: SendPermit,
    /// The kind of the last request to the kernel.
    way: ZeroCopy,
}

impl<B: IoBuf> SendZeroCopy<B> {
    pub(crate) fn new(buf: B, permit: SendPermit) -> SendZeroCopy<B> {
        SendZeroCopy {
            buf,
            done: 0,
            permit,
            way: ZeroCopy::Reported,
        }
    }

    /// Returns the errno of an incomplete send after the final result; 0 if all is sent.
    fn missing(&self, res: i32) -> i32 {
        match res {
            ..0 => -res,
            _ if self.done >= self.buf.init_bytes() => 0,
            _ => EPIPE,
        }
    }

    fn rest(&self) -> (*const u8, usize) {
        let bytes = self.buf.init_bytes().saturating_sub(self.done);
        // SAFETY: Lent: `done` never exceeds the buffer (`resume` bounds it).
        let base = unsafe { self.buf.stable_ptr().add(self.done) };
        (base, bytes.min(TRANSFER_MAX))
    }

    /// Selects the next kind of send, for all sends of the socket, if the kernel has refused the current one. Returns
    /// whether there is another.
    fn step_down(&mut self, res: i32) -> bool {
        let next = match (-res, self.way) {
            // Kernels before 6.2 can't report whether they copied anyway.
            (EINVAL, ZeroCopy::Reported) => ZeroCopy::Unreported,
            (EINVAL | EOPNOTSUPP | ENOMEM, ZeroCopy::Reported | ZeroCopy::Unreported) => {
                ZeroCopy::Never
            }
            _ => return false,
        };
        self.permit.socket().set_zero_copy(next);
        true
    }
}

// SAFETY: Lent, Still, Open: the buffer owns its memory at a fixed address, and `permit` owns the descriptor.
unsafe impl<B: IoBuf> Op for SendZeroCopy<B> {
    const INFO: OpInfo = table::SEND_ZERO_COPY;
    type Output = WholeResult<B>;

    fn sqe(&mut self) -> Sqe {
        let (base, bytes) = self.rest();
        self.way = if self.buf.init_bytes() < FROM_BYTES {
            ZeroCopy::Never
        } else {
            self.permit.socket().zero_copy()
        };
        let (opcode, ioprio) = match self.way {
            ZeroCopy::Reported => (opcode::SEND_ZC, SEND_ZC_REPORT_USAGE),
            ZeroCopy::Unreported => (opcode::SEND_ZC, 0),
            ZeroCopy::Never => (opcode::SEND, 0),
        };
        Sqe {
            ioprio,
            addr: base as u64,
            len: transfer_len(bytes),
            op_flags: MSG_WAITALL,
            ..Sqe::new(opcode, self.permit.socket().raw())
        }
    }

    fn resume(&mut self, res: i32) -> Resume {
        if res < 0 {
            if self.step_down(res) {
                return Resume::Again;
            }
            return retry_interrupted(res);
        }
        self.done += count(res);
        // A short send is a success (trap 35). A send of 0 bytes would be retried without end.
        if res > 0 && self.done < self.buf.init_bytes() {
            return Resume::Again;
        }
        Resume::Done(res)
    }

    fn complete(self, res: i32) -> WholeResult<B> {
        let errno = self.missing(res);
        ended(&self.permit, errno, self.done > 0, self.buf)
    }
}

impl<B: IoBuf> SocketOp for SendZeroCopy<B> {
    const INTEREST: Interest = Interest::Write;
    const GOES_ON: bool = true;

    fn socket(&self) -> &Rc<Socket> {
        self.permit.socket()
    }

    fn attempt(&mut self) -> i32 {
        self.way = ZeroCopy::Never;
        let (base, bytes) = self.rest();
        // SAFETY: Lent and Open: the op owns both, and is not touched during the call.
        unsafe { net::send(self.permit.socket().raw(), base, bytes) }
    }

    fn noticed(&mut self, usage: i32) {
        // The device (or loopback) needs a copy, so later sends use the cheaper kind.
        if self.way == ZeroCopy::Reported && usage.cast_unsigned() & ZC_COPIED != 0 {
            self.permit.socket().set_zero_copy(ZeroCopy::Never);
        }
    }

    /// A peer that accepts nothing sends no acknowledgements, so an incomplete send is aborted instead of awaited.
    fn kept_at_end(&self, res: i32) {
        if self.done + count(res) < self.buf.init_bytes() {
            self.permit.socket().abort();
        }
    }

    fn left_behind(&self) {
        self.permit.cut(ECANCELED);
    }

    fn abandoned(self, res: i32) {
        let errno = self.missing(res);
        if errno != 0 {
            self.permit.fail(errno);
        }
    }
}
