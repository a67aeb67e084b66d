//! Sends a file on a stream within the kernel, with `sendfile` on the core's thread. io_uring has no such operation;
//! its splice goes through a pipe and a kernel worker, which costs more than the copy that it saves.

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

/// Bytes after which other tasks run. Cached data is sent at about 10 GB/s, so this takes 100 µs.
const YIELD_BYTES_MAX: u64 = 1 << 20;

/// A send that is under way. If it is dropped before its end, a part of the data may have been sent: the stream can
/// send nothing more, and closing it resets the connection.
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
                // All is sent, or the file has ended.
                Ok(false) => break,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready(&self.core, &self.socket, Interest::Write).await?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        // Return the permit, so that the next task may send.
        if let Some(permit) = unfinished.permit.take() {
            drop(permit);
        }
        Ok(at - offset)
    }

    /// Sends as much as fits, at most one part. Returns `false` if nothing is left to send.
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

/// Makes the socket nonblocking, which sockets of a ring are not by default. This is done once per stream, because
/// most streams that send one file send more. Of a ring's operations on a stream, only splice depends on the mode,
/// and it sets it back.
fn never_wait(core: &Core, socket: &Socket) -> io::Result<()> {
    if core.wants_nonblocking() || socket.never_waits() {
        return Ok(());
    }
    net::set_nonblocking(socket.raw(), true)?;
    socket.set_never_waits(true);
    Ok(())
}

/// Makes the socket blocking again, for a kernel worker that has to wait for it (trap 64).
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
