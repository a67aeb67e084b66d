//! # Safety
//!
//! `send_zero_copy`: SEND_ZC, or an ordinary `send`. Points only to the rest of the buffer (Lent, Still).
//!
//! The kernel still reads the buffer after it has reported how much was sent. The buffer and the permit of the stream
//! are released with the notification that follows (trap 37). A connection thus has one such send at a time, which
//! bounds the memory that it holds.
#![allow(unsafe_code)]

use std::marker::PhantomData;

use super::send::{SendKind, StreamSend};
use super::shape::{Shape, Single};
use super::{OpInfo, table, transfer_len};
use crate::buf::IoBuf;
use crate::fd::{SendPermit, Socket, ZeroCopy};
use crate::sys::errno::{EINVAL, ENOMEM, EOPNOTSUPP};
use crate::sys::net::{self, MSG_WAITALL};
use crate::sys::sqe::{SEND_ZC_REPORT_USAGE, Sqe, ZC_COPIED, opcode};

/// The smallest zero-copy send, bytes. For less, a copy costs less than the notification.
const FROM_BYTES: usize = 16 << 10;

/// Sends all of a buffer, without a copy if the kernel can.
pub(crate) type SendZeroCopy<B> = StreamSend<WithoutCopy<B>>;

/// SEND_ZC, or SEND.
pub(crate) struct WithoutCopy<B> {
    /// The kind of the last request to the kernel.
    mode: ZeroCopy,
    buf: PhantomData<B>,
}

impl<B: IoBuf> SendZeroCopy<B> {
    pub(crate) fn new(buf: B, permit: SendPermit) -> SendZeroCopy<B> {
        StreamSend {
            shape: Single::new(buf),
            permit,
            kind: WithoutCopy {
                mode: ZeroCopy::Reported,
                buf: PhantomData,
            },
        }
    }
}

// SAFETY: Lent, Still: points only to the rest of the shape.
unsafe impl<B: IoBuf> SendKind for WithoutCopy<B> {
    const INFO: OpInfo = table::SEND_ZERO_COPY;
    type Shape = Single<B>;

    fn sqe(&mut self, socket: &Socket, shape: &mut Single<B>) -> Sqe {
        let (base, bytes) = shape.rest();
        self.mode = if shape.want() < FROM_BYTES {
            ZeroCopy::Never
        } else {
            socket.zero_copy()
        };
        let (opcode, ioprio) = match self.mode {
            ZeroCopy::Reported => (opcode::SEND_ZC, SEND_ZC_REPORT_USAGE),
            ZeroCopy::Unreported => (opcode::SEND_ZC, 0),
            ZeroCopy::Never => (opcode::SEND, 0),
        };
        Sqe {
            ioprio,
            addr: base as u64,
            len: transfer_len(bytes),
            op_flags: MSG_WAITALL,
            ..Sqe::new(opcode, socket.raw())
        }
    }

    fn attempt(&mut self, socket: &Socket, shape: &mut Single<B>) -> i32 {
        self.mode = ZeroCopy::Never;
        let (base, bytes) = shape.rest();
        // SAFETY: Lent and Open: the op owns both, and is not touched during the call.
        unsafe { net::send(socket.raw(), base, bytes) }
    }

    /// Selects the next kind of send, for all sends of the socket.
    fn step_down(&mut self, socket: &Socket, res: i32) -> bool {
        let next = match (-res, self.mode) {
            // Kernels before 6.2 can't report whether they copied anyway.
            (EINVAL, ZeroCopy::Reported) => ZeroCopy::Unreported,
            (EINVAL | EOPNOTSUPP | ENOMEM, ZeroCopy::Reported | ZeroCopy::Unreported) => {
                ZeroCopy::Never
            }
            _ => return false,
        };
        socket.set_zero_copy(next);
        true
    }

    fn on_zero_copy_notice(&mut self, socket: &Socket, usage: i32) {
        // The device (or loopback) needs a copy, so later sends use the cheaper kind.
        if self.mode == ZeroCopy::Reported && usage.cast_unsigned() & ZC_COPIED != 0 {
            socket.set_zero_copy(ZeroCopy::Never);
        }
    }
}
