//! An echo server directly on the kernel's ABI: the upper limit of a ring's performance for small messages.
//!
//! It has one thread and one ring with deferred task work. There is one multishot accept, and one multishot receive per
//! connection. All receives take their buffers from one shared buffer ring. Each reply is sent from the buffer that the
//! kernel received into, and the buffer is returned when the send completes. One enter per iteration submits the
//! replies of the previous iteration and waits for completions.
//!
//! A connection has one send in flight, as two sends on one socket could overtake each other. Bytes received meanwhile
//! wait in the connection's queue. The number of buffers is the only limit of that queue: a client that never reads can
//! occupy all of them and stall every connection. A production server would need a limit; a baseline does not.
//!
//! # Safety
//!
//! The kernel writes into free buffers and reads from buffers that are being sent. The buffers are never unmapped, so
//! they outlive the ring even if `serve` returns an error. This code never reads their bytes.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::mem::{self, ManuallyDrop};
use std::net::TcpListener;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use io_uring::types::Fd;
use io_uring::{Builder, IoUring, SubmissionQueue, Submitter, cqueue, opcode, squeue};

use super::listening::{about, accept_failed, without_delay};
use super::provided::{GROUP, Provided};
use crate::forbidden::rings_allowed;

/// The number of entries of the two queues.
const SUBMISSIONS: u32 = 128;
const COMPLETIONS: u32 = 512;
/// A small number of small buffers, so that they stay in the cache; a power of two.
const BUFFERS: u16 = 128;
const BUFFER_BYTES: usize = 4096;
/// The end of a queue of buffers.
const NONE: u16 = u16::MAX;

/// Serves connections of `listener` on this thread. Returns only with an error.
pub fn serve(listener: TcpListener) -> io::Result<Infallible> {
    without_delay(&listener)?;
    let mut ring = ring().map_err(|error| about("setting up a ring", &error))?;
    let buffers = Buffers::new(&ring)?;
    let (mut submitter, sq, mut cq) = ring.split();
    // Saves a descriptor lookup in each enter (from Linux 5.18). The server works without it.
    let _ = submitter.register_ring_fd();
    let mut server = Server {
        submitter,
        sq,
        buffers,
        listener,
        connections: Vec::new(),
        parked: VecDeque::new(),
    };
    server.accept()?;
    let mut want = 1;
    loop {
        // Publish the head of the completion queue first. Otherwise the enter counts completions that are already
        // reaped, and does not wait.
        cq.sync();
        server.enter(want)?;
        cq.sync();
        for cqe in &mut cq {
            server.take(&cqe)?;
        }
        server.resume()?;
        want = usize::from(!server.may_resume());
    }
}

/// Sets up a ring, trying the newest flags first.
fn ring() -> io::Result<IoUring> {
    let deferred = |builder: &mut Builder| {
        builder.setup_single_issuer().setup_defer_taskrun();
    };
    let setups: [&dyn Fn(&mut Builder); 4] = [
        &|builder| {
            deferred(builder);
            builder.setup_no_sqarray();
        },
        &deferred,
        &|builder| {
            builder.setup_coop_taskrun();
        },
        &|_| {},
    ];
    rings_allowed().map_err(io::Error::other)?;
    let mut refused = io::Error::from_raw_os_error(libc::EINVAL);
    for flags in setups {
        let mut builder = IoUring::builder();
        builder.setup_submit_all().setup_cqsize(COMPLETIONS);
        flags(&mut builder);
        match builder.build(SUBMISSIONS) {
            Ok(ring) => return Ok(ring),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => refused = error,
            Err(error) => return Err(error),
        }
    }
    Err(refused)
}

/// The kinds of completions. The `user_data` of an entry holds the kind, the buffer and the connection.
const ACCEPT: u8 = 0;
const RECEIVE: u8 = 1;
const SEND: u8 = 2;
const CANCEL: u8 = 3;

fn token(kind: u8, buffer: u16, connection: RawFd) -> u64 {
    u64::from(kind) | u64::from(buffer) << 16 | (connection as u64) << 32
}

struct Server<'ring> {
    submitter: Submitter<'ring>,
    sq: SubmissionQueue<'ring>,
    buffers: Buffers,
    listener: TcpListener,
    /// Indexed by descriptor.
    connections: Vec<Connection>,
    /// The connections whose receive ended because there was no free buffer.
    parked: VecDeque<RawFd>,
}

/// One connection. It is small, so that a thousand of them stay in the cache.
struct Connection {
    socket: Option<OwnedFd>,
    /// The queue of buffers to send. The first one is being sent.
    first: u16,
    last: u16,
    /// The number of bytes of the first buffer that are sent.
    sent: u32,
    /// A receive is armed, so the kernel holds the socket.
    receiving: bool,
    /// The connection is in `parked`, to be armed again.
    parked: bool,
    /// A send has failed. Nothing more is received or sent.
    broken: bool,
}

impl Connection {
    const NONE: Connection = Connection {
        socket: None,
        first: NONE,
        last: NONE,
        sent: 0,
        receiving: false,
        parked: false,
        broken: false,
    };
}

impl Server<'_> {
    /// Submits the pushed entries and waits for `want` completions.
    fn enter(&mut self, want: usize) -> io::Result<()> {
        self.sq.sync();
        let entered = self.submitter.submit_and_wait(want);
        self.sq.sync();
        match entered {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                // The call was interrupted, or lacks memory or space for completions. Entries that the kernel did not
                // take are still queued.
                Some(libc::EINTR | libc::EAGAIN | libc::EBUSY) => Ok(()),
                _ => Err(about("entering the ring", &error)),
            },
        }
    }

    fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        // SAFETY: an entry points to no memory, or to a buffer, which is never unmapped.
        while unsafe { self.sq.push(entry) }.is_err() {
            self.enter(0)?;
        }
        Ok(())
    }

    fn take(&mut self, cqe: &cqueue::Entry) -> io::Result<()> {
        let data = cqe.user_data();
        let fd = (data >> 32) as RawFd;
        match data as u8 {
            RECEIVE => self.received(fd, cqe),
            SEND => self.sent(fd, (data >> 16) as u16, cqe.result()),
            ACCEPT => self.accepted(cqe),
            // A cancelled receive has its own completion.
            _ => Ok(()),
        }
    }

    fn accept(&mut self) -> io::Result<()> {
        let entry = opcode::AcceptMulti::new(Fd(self.listener.as_raw_fd()))
            .flags(libc::SOCK_CLOEXEC)
            .build()
            .user_data(token(ACCEPT, 0, 0));
        self.push(&entry)
    }

    fn accepted(&mut self, cqe: &cqueue::Entry) -> io::Result<()> {
        let fd = cqe.result();
        if fd < 0 {
            accept_failed(&io::Error::from_raw_os_error(-fd))?;
        } else {
            let index = fd as usize;
            if self.connections.len() <= index {
                self.connections.resize_with(index + 1, || Connection::NONE);
            }
            self.connections[index] = Connection {
                // SAFETY: the kernel has just created this descriptor, and no other code knows it.
                socket: Some(unsafe { OwnedFd::from_raw_fd(fd) }),
                ..Connection::NONE
            };
            self.receive(fd)?;
        }
        if cqueue::more(cqe.flags()) {
            return Ok(());
        }
        self.accept()
    }

    fn receive(&mut self, fd: RawFd) -> io::Result<()> {
        self.connections[fd as usize].receiving = true;
        let entry = opcode::RecvMulti::new(Fd(fd), GROUP)
            .build()
            .user_data(token(RECEIVE, 0, fd));
        self.push(&entry)
    }

    fn received(&mut self, fd: RawFd, cqe: &cqueue::Entry) -> io::Result<()> {
        let result = cqe.result();
        let connection = &mut self.connections[fd as usize];
        if let Some(buffer) = cqueue::buffer_select(cqe.flags()) {
            self.buffers.free -= 1;
            if result > 0 && !connection.broken {
                self.buffers.fill(buffer, result as u32);
                if connection.first == NONE {
                    connection.first = buffer;
                    connection.last = buffer;
                    self.send(fd)?;
                } else {
                    self.buffers.link(connection.last, buffer);
                    connection.last = buffer;
                }
            } else {
                self.buffers.give_back(buffer);
            }
        }
        if cqueue::more(cqe.flags()) {
            return Ok(());
        }
        let connection = &mut self.connections[fd as usize];
        connection.receiving = false;
        match result {
            // The kernel may end a multishot receive at any time.
            1.. if !connection.broken => return self.receive(fd),
            // Armed again when a buffer is free. Without one, the receive would only fail again.
            _ if result == -libc::ENOBUFS && !connection.broken => {
                connection.parked = true;
                self.parked.push_back(fd);
            }
            // The peer has ended the stream, or the connection has failed.
            _ => self.close_if_done(fd),
        }
        Ok(())
    }

    /// Sends the rest of the first buffer in the queue.
    fn send(&mut self, fd: RawFd) -> io::Result<()> {
        let connection = &self.connections[fd as usize];
        let (from, bytes) = self.buffers.rest(connection.first, connection.sent);
        let entry = opcode::Send::new(Fd(fd), from, bytes)
            .flags(libc::MSG_WAITALL)
            .build()
            .user_data(token(SEND, connection.first, fd));
        self.push(&entry)
    }

    fn sent(&mut self, fd: RawFd, buffer: u16, result: i32) -> io::Result<()> {
        let connection = &mut self.connections[fd as usize];
        if result < 0 && result != -libc::EINTR {
            return self.give_up(fd);
        }
        connection.sent += result.max(0) as u32;
        if self.buffers.rest(buffer, connection.sent).1 > 0 {
            return self.send(fd);
        }
        connection.first = self.buffers.next(buffer);
        connection.sent = 0;
        self.buffers.give_back(buffer);
        if connection.first != NONE {
            return self.send(fd);
        }
        self.close_if_done(fd);
        Ok(())
    }

    /// Gives up on a peer that accepts no more bytes. Closing would leave the receive armed and the socket open, so the
    /// receive is cancelled first. Its final completion closes the socket.
    fn give_up(&mut self, fd: RawFd) -> io::Result<()> {
        let connection = &mut self.connections[fd as usize];
        connection.broken = true;
        let mut buffer = mem::replace(&mut connection.first, NONE);
        while buffer != NONE {
            let next = self.buffers.next(buffer);
            self.buffers.give_back(buffer);
            buffer = next;
        }
        if connection.receiving {
            let entry = opcode::AsyncCancel::new(token(RECEIVE, 0, fd))
                .build()
                .user_data(token(CANCEL, 0, fd));
            return self.push(&entry);
        }
        self.close_if_done(fd);
        Ok(())
    }

    /// Closes the socket if it is unused. Called when a receive or the last send has ended.
    fn close_if_done(&mut self, fd: RawFd) {
        let connection = &mut self.connections[fd as usize];
        if !connection.receiving && !connection.parked && connection.first == NONE {
            connection.socket = None;
        }
    }

    /// Arms parked receives again, at most one per free buffer.
    fn resume(&mut self) -> io::Result<()> {
        for _ in 0..self.buffers.free {
            let Some(fd) = self.parked.pop_front() else {
                break;
            };
            let connection = &mut self.connections[fd as usize];
            connection.parked = false;
            if connection.broken {
                self.close_if_done(fd);
            } else {
                self.receive(fd)?;
            }
        }
        Ok(())
    }

    /// Returns whether a parked receive could be armed. The receives just armed may have no data while a parked one
    /// does, so the loop must not sleep.
    fn may_resume(&self) -> bool {
        !self.parked.is_empty() && self.buffers.free > 0
    }
}

/// The buffers that all connections receive into.
struct Buffers {
    /// Never unmapped: the kernel may use them for a moment after the ring is closed.
    provided: ManuallyDrop<Provided>,
    /// The number of buffers in the ring, according to the completions so far.
    free: usize,
    filled: Vec<Filled>,
}

/// The content of a buffer between its receive and the end of its send.
#[derive(Clone, Copy)]
struct Filled {
    bytes: u32,
    /// The next buffer of the same connection.
    next: u16,
}

impl Buffers {
    fn new(ring: &IoUring) -> io::Result<Buffers> {
        let provided = Provided::new(&ring.submitter(), BUFFERS, BUFFER_BYTES)
            .map_err(|error| about("registering buffers (from Linux 5.19)", &error))?;
        let unused = Filled {
            bytes: 0,
            next: NONE,
        };
        Ok(Buffers {
            provided: ManuallyDrop::new(provided),
            free: usize::from(BUFFERS),
            filled: vec![unused; usize::from(BUFFERS)],
        })
    }

    fn fill(&mut self, buffer: u16, bytes: u32) {
        self.filled[usize::from(buffer)] = Filled { bytes, next: NONE };
    }

    fn link(&mut self, last: u16, buffer: u16) {
        self.filled[usize::from(last)].next = buffer;
    }

    fn next(&self, buffer: u16) -> u16 {
        self.filled[usize::from(buffer)].next
    }

    /// Returns the rest of a buffer after `sent` bytes.
    fn rest(&self, buffer: u16, sent: u32) -> (*const u8, u32) {
        let bytes = self.filled[usize::from(buffer)].bytes;
        let start = self.provided.start(buffer);
        (start.wrapping_add(sent as usize), bytes - sent)
    }

    /// Gives a buffer back to the kernel.
    fn give_back(&mut self, buffer: u16) {
        self.provided.give_back(buffer);
        self.free += 1;
    }
}
