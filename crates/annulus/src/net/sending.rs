//! The less frequent sends of a stream: of several buffers, and zero-copy.

use std::io;
use std::rc::Rc;

use super::stream::Stream;
use crate::buf::IoBuf;
use crate::driver::core::SocketOperation;
use crate::error::{BufError, WholeResult};
use crate::fd::{SendPermit, Socket};
use crate::op::{SendVectored, SendZeroCopy};
use crate::sys::engine_error::error_of;

/// Waits for the permit to send, behind all earlier sends.
pub(super) async fn send_permit(socket: &Rc<Socket>) -> io::Result<SendPermit> {
    let permit = SendPermit::wait(socket).await;
    match socket.send_failed() {
        0 => Ok(permit),
        errno => Err(error_of(errno)),
    }
}

impl Stream {
    pub(super) async fn send_permit(&self) -> io::Result<SendPermit> {
        send_permit(&self.socket).await
    }

    /// Waits for all sends that have begun.
    pub(super) async fn sent(&self) -> io::Result<()> {
        self.send_permit().await.map(drop)
    }

    pub(super) async fn send_vectored_all<B: IoBuf>(&self, bufs: Vec<B>) -> WholeResult<Vec<B>> {
        if bufs.iter().all(|buf| buf.init_bytes() == 0) {
            return Ok(bufs);
        }
        let permit = match self.send_permit().await {
            Ok(permit) => permit,
            Err(error) => return Err(BufError::new(error, Some(bufs))),
        };
        let op = SendVectored::new(bufs, permit);
        SocketOperation::new(Rc::clone(&self.core), op).await
    }

    pub(super) async fn send_zero_copy<B: IoBuf>(&self, buf: B) -> WholeResult<B> {
        if buf.init_bytes() == 0 {
            return Ok(buf);
        }
        let permit = match self.send_permit().await {
            Ok(permit) => permit,
            Err(error) => return Err(BufError::new(error, Some(buf))),
        };
        let op = SendZeroCopy::new(buf, permit);
        SocketOperation::new(Rc::clone(&self.core), op).await
    }
}
