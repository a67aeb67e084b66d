//! Sends of a stream that are rarer than `send_all`: of several buffers, and without a copy.

use std::io;
use std::rc::Rc;

use super::stream::Stream;
use crate::buf::IoBuf;
use crate::driver::core::SocketOperation;
use crate::error::{BufError, WholeResult};
use crate::fd::{SendTurn, Socket};
use crate::op::{SendVectored, SendZeroCopy};
use crate::sys::engine_error::error_of;

/// The turn to send, after all who came before.
pub(super) async fn turn(socket: &Rc<Socket>) -> io::Result<SendTurn> {
    let turn = SendTurn::wait(socket).await;
    match socket.send_failed() {
        0 => Ok(turn),
        errno => Err(error_of(errno)),
    }
}

impl Stream {
    pub(super) async fn turn(&self) -> io::Result<SendTurn> {
        turn(&self.socket).await
    }

    /// Waits for all sends that have begun.
    pub(super) async fn sent(&self) -> io::Result<()> {
        self.turn().await.map(drop)
    }

    pub(super) async fn send_vectored_all<B: IoBuf>(&self, bufs: Vec<B>) -> WholeResult<Vec<B>> {
        if bufs.iter().all(|buf| buf.init_bytes() == 0) {
            return Ok(bufs);
        }
        let turn = match self.turn().await {
            Ok(turn) => turn,
            Err(error) => return Err(BufError::new(error, Some(bufs))),
        };
        let op = SendVectored::new(bufs, turn);
        SocketOperation::new(Rc::clone(&self.core), op).await
    }

    pub(super) async fn send_zero_copy<B: IoBuf>(&self, buf: B) -> WholeResult<B> {
        if buf.init_bytes() == 0 {
            return Ok(buf);
        }
        let turn = match self.turn().await {
            Ok(turn) => turn,
            Err(error) => return Err(BufError::new(error, Some(buf))),
        };
        let op = SendZeroCopy::new(buf, turn);
        SocketOperation::new(Rc::clone(&self.core), op).await
    }
}
