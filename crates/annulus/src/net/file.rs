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
use crate::fd::{SendPermit, Socket};
use crate::narrow::to_usize;
use crate::op::Interest;
use crate::sys::errno::ECANCELED;
use crate::sys::net;

/// Bytes after which other tasks run: what is in memory is sent at some 10 GB/s, so that is 100 µs.
const YIELD_BYTES_MAX: u64 = 1 << 20;

/// A send that is under way. Dropped before its end it may have said half of something: nothing can follow, and the
/// end of the stream is a reset.
struct Unfinished {
    permit: Option<SendPermit>,
    /// Something has been sent.
    begun: bool,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(permit) = &self.permit
            && self.begun
        {
            permit.fail(ECANCELED);
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
            permit: Some(self.send_permit().await?),
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
                Ok(true) => yield_to_others(&self.core).await,
                // The file ends before, or all is sent.
                Ok(false) => break,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready(&self.core, &self.socket, Interest::Write).await?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        // It is over, and the next task may send.
        if let Some(permit) = unfinished.permit.take() {
            drop(permit);
        }
        Ok(at - offset)
    }

    /// Sends as much as fits, and at most one part. False: nothing is left to send.
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
        let part_end = end.min(at.saturating_add(YIELD_BYTES_MAX));
        while *at < part_end {
            let bytes = to_usize(part_end - *at);
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

/// Lets other tasks run, and the ring be polled, before the transfer continues.
async fn yield_to_others(core: &Rc<Core>) {
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
