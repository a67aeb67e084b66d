//! A probe of whether the kernel fills receive buffers correctly in the requested mode. It runs once per process and
//! mode, on a small ring and two pairs of sockets, before a core relies on the mode. Some released kernels mixed up the
//! rest of a buffer (trap 29).

use std::io::Write;
use std::mem;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::OnceLock;

use crate::buf::{Chunk, Group, GroupLayout, ReceiveMode};
use crate::error::SetupError;
use crate::fd::{Plain, Socket};
use crate::narrow::to_usize;
use crate::op::{ReceiveKind, recv_into_group};
use crate::sys::call;
use crate::sys::errno::ENOBUFS;
use crate::sys::kernel::Kernel;
use crate::sys::polling::RingPoll;
use crate::sys::ring::{Ring, RingConfig, SetupMode};
use crate::sys::sqe::{Cqe, Sqe};

/// The number of buffers; small, so that each round uses all of them.
const BUFFERS: u16 = 4;
const BUFFER_BYTES: u32 = 256;
const ROUNDS: u32 = 24;
/// The time limit for a completion, ns.
const PATIENCE_NS: u64 = 1_000_000_000;

/// Checks that `mode` works on this kernel. Fails with the reason if it does not.
pub(crate) fn verdict(mode: ReceiveMode) -> Result<(), String> {
    static INCREMENTAL: OnceLock<Result<(), String>> = OnceLock::new();
    let known = match mode {
        ReceiveMode::Whole => return Ok(()),
        ReceiveMode::Incremental => &INCREMENTAL,
    };
    known.get_or_init(|| try_mode(mode)).clone()
}

fn try_mode(mode: ReceiveMode) -> Result<(), String> {
    let mut probe = GroupProbe::new(mode).map_err(|error| error.to_string())?;
    let result = probe.run();
    if result.is_ok() {
        probe.group.end(Some(&mut probe.ring));
    } else {
        // The kernel may still have a receive and its buffers, so they are leaked.
        probe.group.leak();
        mem::forget((probe.ring, probe.ends));
    }
    result
}

struct GroupProbe {
    ring: Ring,
    group: Group,
    ends: [End; 2],
    /// Chunks that are kept for some time, so that buffers are given back in another order.
    chunks: Vec<Chunk>,
    cqes: Vec<Cqe>,
}

/// One pair of sockets. The sender is `None` once it has been closed.
struct End {
    sender: Option<UnixStream>,
    socket: Rc<Socket>,
    is_armed: bool,
    has_ended: bool,
    sent: Vec<u8>,
    received: Vec<u8>,
}

impl End {
    fn new() -> Result<End, SetupError> {
        let os = |error| SetupError::Os {
            what: "a pair of sockets to test receive buffers with",
            error,
        };
        let (sender, receiver) = UnixStream::pair().map_err(os)?;
        sender.set_nonblocking(true).map_err(os)?;
        Ok(End {
            sender: Some(sender),
            socket: Socket::new(OwnedFd::from(receiver), Rc::new(Plain)),
            is_armed: false,
            has_ended: false,
            sent: Vec::new(),
            received: Vec::new(),
        })
    }

    fn is_behind(&self) -> bool {
        self.received.len() < self.sent.len() || (self.sender.is_none() && !self.has_ended)
    }
}

impl GroupProbe {
    fn new(mode: ReceiveMode) -> Result<GroupProbe, SetupError> {
        let ends = [End::new()?, End::new()?];
        let mut ring = Ring::new(RingConfig {
            sq_entries: 8,
            cq_entries: 64,
            setup_mode: SetupMode::Deferred,
            workers: [0, 0],
            poll: RingPoll::Nothing,
        })?;
        let layout = GroupLayout {
            count: BUFFERS,
            bytes: BUFFER_BYTES,
            mode,
        };
        let group = Group::new(Some(&mut ring), layout)?;
        Ok(GroupProbe {
            ring,
            group,
            ends,
            chunks: Vec::new(),
            cqes: Vec::new(),
        })
    }

    fn run(&mut self) -> Result<(), String> {
        let mut chance = 1_u32;
        for round in 0..ROUNDS {
            // Data arrives before the receive is submitted, or while it is in flight.
            if round % 2 == 0 {
                self.send(&mut chance)?;
            }
            self.arm();
            self.poll()?;
            self.send(&mut chance)?;
            self.catch_up()?;
            if round % 4 == 3 {
                self.chunks.clear();
            }
        }
        self.ends.iter_mut().for_each(|end| end.sender = None);
        self.catch_up()?;
        self.chunks.clear();
        if self.group.is_whole() {
            Ok(())
        } else {
            Err("the kernel did not report the use of each receive buffer".to_owned())
        }
    }

    /// Sends data on both sockets, from one byte up to more than a buffer.
    fn send(&mut self, chance: &mut u32) -> Result<(), String> {
        for end in &mut self.ends {
            *chance = chance.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let bytes = match *chance >> 30 {
                0 => 1 + (*chance >> 16 & 15),
                1 => BUFFER_BYTES,
                _ => 1 + (*chance >> 16) % (BUFFER_BYTES * 3 / 2),
            };
            let from = end.sent.len();
            let more = (from..from + bytes as usize).map(|at| (at ^ at >> 8).to_le_bytes()[0]);
            end.sent.extend(more);
            let Some(mut sender) = end.sender.as_ref() else {
                continue;
            };
            let written = sender.write_all(&end.sent[from..]);
            written.map_err(|error| format!("a pair of sockets accepted no data: {error}"))?;
        }
        Ok(())
    }

    fn arm(&mut self) {
        for (index, end) in self.ends.iter_mut().enumerate() {
            if !end.is_armed && !end.has_ended {
                let sqe = recv_into_group(&end.socket, self.group.id(), ReceiveKind::Multishot);
                end.is_armed = self.ring.push(Sqe {
                    user_data: index as u64,
                    ..sqe
                });
            }
        }
    }

    /// Receives until all sent data has arrived.
    fn catch_up(&mut self) -> Result<(), String> {
        let until_ns = call::now_ns() + PATIENCE_NS;
        while self.ends.iter().any(End::is_behind) {
            self.arm();
            self.poll()?;
            if call::now_ns() > until_ns {
                return Err("sent data did not arrive in the receive buffers".to_owned());
            }
        }
        Ok(())
    }

    fn poll(&mut self) -> Result<(), String> {
        // An error is ignored: the clock limits the wait.
        let _ = self.ring.wait(Some(PATIENCE_NS / 1000));
        let mut cqes = mem::take(&mut self.cqes);
        self.ring.reap(&mut cqes);
        let mut result = Ok(());
        for cqe in cqes.drain(..) {
            result = result.and(self.take(cqe));
        }
        self.cqes = cqes;
        result
    }

    fn take(&mut self, cqe: Cqe) -> Result<(), String> {
        let (Some(end), chunks) = (self.ends.get_mut(to_usize(cqe.user_data)), &mut self.chunks)
        else {
            return Ok(());
        };
        let bytes = cqe.bytes();
        let is_sound = cqe.buffer_id().is_none_or(|id| {
            (self.group).received_parts(id, bytes, cqe.keeps_buffer(), |chunk| {
                end.received.extend_from_slice(&chunk);
                chunks.push(chunk);
            })
        });
        end.is_armed = cqe.more();
        end.has_ended |= cqe.res == 0;
        if cqe.res < 0 && cqe.res != -ENOBUFS {
            let error = std::io::Error::from_raw_os_error(-cqe.res);
            return Err(format!("a receive into the buffers failed: {error}"));
        }
        if cqe.res < 0 {
            // The kernel has no buffers left, so all chunks are given back.
            chunks.clear();
        }
        if is_sound && end.sent.starts_with(&end.received) {
            Ok(())
        } else {
            Err("the kernel mixed up the data in the receive buffers".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_supported_mode_passes_its_probe_and_another_fails_with_the_reason() {
        let mode = ReceiveMode::Incremental;
        match verdict(mode) {
            Ok(()) => assert_eq!(try_mode(mode), Ok(()), "{mode:?} a second time"),
            Err(reason) => {
                println!("skip: {mode:?}: {reason}");
                assert!(!reason.is_empty());
            }
        }
    }
}
