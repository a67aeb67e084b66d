//! A file's bytes to a stream, within the kernel: `sendfile`, made on the core. io_uring has nothing like it; its
//! splice goes through a pipe and a kernel worker, which costs more than the copy that is saved.

use std::future::poll_fn;
use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::task::Poll;

use super::descriptor::ready;
use super::stream::Stream;
use crate::driver::core::Core;
use crate::fd::{SendTurn, Socket};
use crate::narrow::to_usize;
use crate::op::Interest;
use crate::sys::errno::ECANCELED;
use crate::sys::net;

/// Bytes by which others have their turn: what is in memory is sent at some 10 GB/s, so that is 100 µs.
const TURN_BYTES_MAX: u64 = 1 << 20;

/// A send that is under way. Dropped before its end it may have said half of something: nothing can follow, and the
/// end of the stream is a reset.
struct Unfinished {
    turn: Option<SendTurn>,
    /// Something has been sent.
    begun: bool,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(turn) = &self.turn
            && self.begun
        {
            turn.fail(ECANCELED);
        }
    }
}

impl Stream {
    pub(super) async fn send_file(
        &self,
        head: &[u8],
        file: BorrowedFd<'_>,
        offset: u64,
        bytes: u64,
        mut progress: impl FnMut(),
    ) -> io::Result<u64> {
        let mut unfinished = Unfinished {
            turn: Some(self.turn().await?),
            begun: false,
        };
        let head_bytes = head.len();
        let mut head = head;
        let mut at = offset;
        let end = offset.saturating_add(bytes);
        while !head.is_empty() || at < end {
            let sent = self.send_some(&mut head, file, &mut at, end);
            unfinished.begun = head.len() < head_bytes || at > offset;
            progress();
            match sent {
                Ok(true) => turn_of_others(&self.core).await,
                // The file ends before, or all is sent.
                Ok(false) => break,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready(&self.core, &self.socket, Interest::Write).await?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        // It is over, and whoever comes next may send.
        if let Some(turn) = unfinished.turn.take() {
            drop(turn);
        }
        Ok(at - offset)
    }

    /// What there is room for, and no more than a turn's part. False: nothing is left to send.
    fn send_some(
        &self,
        head: &mut &[u8],
        file: BorrowedFd<'_>,
        at: &mut u64,
        end: u64,
    ) -> io::Result<bool> {
        let raw = self.socket.raw();
        while !head.is_empty() {
            let sent = net::send_more(raw, head)?;
            *head = &head[sent.min(head.len())..];
        }
        never_wait(&self.core, &self.socket)?;
        let turn_end = end.min(at.saturating_add(TURN_BYTES_MAX));
        while *at < turn_end {
            let bytes = to_usize(turn_end - *at);
            if net::send_file(raw, file, at, bytes)? == 0 {
                return Ok(false);
            }
        }
        Ok(*at < end)
    }
}

/// A ring's socket waits, unless it is told otherwise. One that files are sent from is told once, as most have more of
/// them to send: of what a ring does with a stream only a splice looks at the mode, and it sets it back.
fn never_wait(core: &Core, socket: &Socket) -> io::Result<()> {
    if core.wants_nonblocking() || socket.never_waits() {
        return Ok(());
    }
    net::set_nonblocking(socket.raw(), true)?;
    socket.set_never_waits(true);
    Ok(())
}

/// For a worker of the kernel's that is to wait for a stream (trap 64).
pub(super) fn wait_again(socket: &Socket) -> io::Result<()> {
    if !socket.never_waits() {
        return Ok(());
    }
    net::set_nonblocking(socket.raw(), false)?;
    socket.set_never_waits(false);
    Ok(())
}

/// Others run, and the ring turns, before it goes on.
async fn turn_of_others(core: &Rc<Core>) {
    let mut first = true;
    poll_fn(|context| {
        if !std::mem::replace(&mut first, false) || core.is_ending() {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
