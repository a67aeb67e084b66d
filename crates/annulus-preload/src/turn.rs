//! # Safety
//!
//! One turn of a set's ring: what has gathered is pushed, the kernel is entered, its answers are taken in. What an
//! entry points to lies in the arena, which is reset when the kernel has had all of it (Lent); the descriptors of
//! entries are open, because a close of one that is served goes through the ring, behind them (Open).
#![allow(unsafe_code)]

use std::ptr;

use annulus::preload::{Answer, ServerRing, Sqe, ask};

use crate::caller::me;
use crate::connection::{self as flag, Connection, ERR, HUP, IN, OUT};
use crate::counts::{self, COUNTS, Why};
use crate::leave;
use crate::memory::{Arena, PLACES, Pool};
use crate::send;
use crate::set::{Held, Inner, Lingering, Machine, Set};
use crate::sys;
use crate::table::{self, Kind};

/// Entries of the submission queue.
const ENTRIES: u32 = 256;
/// What may be in hand of one connection before its receive is stopped, bytes.
pub(crate) const IN_HAND_MAX: usize = 64 << 10;

/// What an answer is about: kind, generation, descriptor.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum About {
    Receive = 1,
    Send,
    Poll,
    Members,
    Wake,
    LastSend,
    Linger,
    Nothing,
}

fn token(about: About, generation: u32, number: i32) -> u64 {
    u64::from(about as u8) << 56
        | u64::from(generation & flag::GENERATION_MAX) << 32
        | u64::from(number as u32)
}

/// The token of a connection's receive.
pub(crate) fn receive_token(fd: i32, connection: &Connection) -> u64 {
    token(About::Receive, connection.generation, fd)
}

/// Makes a set's ring, for the calling thread.
pub(crate) fn make() -> Result<Box<Machine>, String> {
    let config = crate::config::get();
    let polled = config.sqpoll.then(annulus::SqPoll::new);
    let mut ring =
        ServerRing::new(ENTRIES, PLACES, polled.as_ref()).map_err(|error| error.to_string())?;
    let starved = |error: std::io::Error| format!("no memory for a ring's buffers: {error}");
    let pool = Pool::new(&mut ring).map_err(starved)?;
    let arena = Arena::new().map_err(starved)?;
    ring.arm_wake(token(About::Wake, 0, 0));
    Ok(Box::new(Machine {
        ring,
        pool,
        arena,
        answers: Vec::with_capacity(512),
    }))
}

/// Queues an entry, and makes room for it first if there is none.
fn push(ring: &mut ServerRing, sqe: Sqe) {
    // SAFETY: Lent, Open: as the header says.
    while !unsafe { ring.push(sqe) } {
        counts::add(&COUNTS.enters, 1);
        if ring.submit().is_err() {
            std::thread::yield_now();
        }
    }
    counts::add(&COUNTS.entries, 1);
}

impl Inner {
    /// Pushes all that has gathered.
    pub(crate) fn push_all(&mut self) {
        let Some(mut machine) = self.ring.take() else {
            return;
        };
        let ring = &mut machine.ring;
        for target in self.cancels.drain(..) {
            push(ring, cancel(target));
        }
        self.push_sends(ring, &machine.arena);
        self.push_closes(ring, &machine.arena);
        let mut to_arm = std::mem::take(&mut self.to_arm);
        for fd in to_arm.drain(..) {
            if let Some(connection) = self.connection(fd) {
                push_receive(ring, fd, connection);
            }
        }
        self.to_arm = to_arm;
        let mut to_poll = std::mem::take(&mut self.to_poll);
        for fd in to_poll.drain(..) {
            if let Some(connection) = self.connection(fd) {
                push_poll(ring, fd, connection);
            }
        }
        self.to_poll = to_poll;
        if self.kernel_has && !self.kernel_polled && !self.kernel_ready {
            self.kernel_polled = true;
            push(
                ring,
                poll(
                    self.fd,
                    libc::POLLIN as u32,
                    token(About::Members, 0, self.fd),
                ),
            );
        }
        self.ring = Some(machine);
        self.pushed = true;
        self.closes_pushed = self.closing.len();
    }

    fn push_sends(&mut self, ring: &mut ServerRing, arena: &Arena) {
        for &fd in &self.queued {
            let Some(connection) = self.connection(fd) else {
                continue;
            };
            if connection.out_bytes == 0 {
                continue;
            }
            let sqe = send_entry(fd, arena, connection.out_from, connection.out_bytes);
            let user_data = token(About::Send, connection.generation, fd);
            push(ring, Sqe { user_data, ..sqe });
        }
    }

    fn push_closes(&mut self, ring: &mut ServerRing, arena: &Arena) {
        for (nth, closing) in self.closing.iter().enumerate() {
            if let Some(receive) = closing.receive {
                push(ring, cancel(receive));
            }
            if !closing.backlog.is_empty() {
                continue;
            }
            if closing.out_bytes > 0 {
                let mut sqe = send_entry(closing.fd, arena, closing.out_from, closing.out_bytes);
                sqe.user_data = token(About::LastSend, 0, nth as i32);
                sqe.flags |= ask::LINK;
                // A link must not be cut by the end of the queue.
                if ring.unsubmitted() + 2 > ring.entries() {
                    let _ = ring.submit();
                }
                push(ring, sqe);
            }
            push(
                ring,
                Sqe {
                    flags: ask::SKIP_SUCCESS,
                    user_data: token(About::Nothing, 0, 0),
                    ..Sqe::new(ask::CLOSE, closing.fd)
                },
            );
        }
    }

    /// Submits what is queued to be sent, without looking for anything else: not to be late.
    pub(crate) fn submit_sends(&mut self) {
        let Some(mut machine) = self.ring.take() else {
            return;
        };
        self.push_sends(&mut machine.ring, &machine.arena);
        while machine.ring.unsubmitted() > 0 {
            counts::add(&COUNTS.enters, 1);
            if machine.ring.submit().is_err() {
                std::thread::yield_now();
            }
        }
        self.ring = Some(machine);
        self.take_in();
        self.forget_sent(false);
    }

    /// Takes in what the kernel has answered; how many answers.
    pub(crate) fn take_in(&mut self) -> usize {
        let mut count = 0;
        loop {
            let Some(mut machine) = self.ring.take() else {
                return count;
            };
            let mut answers = std::mem::take(&mut machine.answers);
            answers.clear();
            machine.ring.reap(&mut answers);
            for answer in &answers {
                self.take_answer(&mut machine, answer);
            }
            count += answers.len();
            let done = answers.is_empty();
            machine.answers = answers;
            self.ring = Some(machine);
            if done {
                break;
            }
        }
        counts::add(&COUNTS.answers, count as u64);
        count
    }

    /// What was pushed has been sent, or its rest has been put aside; `closed`: closes were pushed, too.
    fn forget_sent(&mut self, closed: bool) {
        let mut queued = std::mem::take(&mut self.queued);
        for fd in queued.drain(..) {
            if let Some(connection) = self.connection(fd) {
                (
                    connection.out_from,
                    connection.out_bytes,
                    connection.out_room,
                ) = (0, 0, 0);
                connection.clear(flag::QUEUED);
            }
        }
        self.queued = queued;
        if closed {
            let pushed = std::mem::take(&mut self.closes_pushed);
            let later = self.closing.split_off(pushed.min(self.closing.len()));
            for mut closing in std::mem::replace(&mut self.closing, later) {
                self.finish_closing(&mut closing);
            }
            self.pushed = false;
        }
        if self.closing.is_empty()
            && let Some(machine) = &mut self.ring
        {
            machine.arena.reset();
            self.queued_at_ns = 0;
        }
    }

    fn finish_closing(&mut self, closing: &mut crate::set::Closing) {
        if !closing.backlog.is_empty() {
            let backlog = std::mem::replace(&mut closing.backlog, crate::bytes::Moved::none());
            return self.linger(closing.fd, backlog);
        }
        if closing.is_over {
            let _ = sys::close(closing.fd);
        }
        if let Some(entry) = table::entry(closing.fd)
            && entry.kind() == Kind::Closing
        {
            entry.forget();
        }
    }

    fn linger(&mut self, fd: i32, backlog: crate::bytes::Moved) {
        let free = self.lingering.iter().position(Option::is_none);
        let nth = free.unwrap_or_else(|| {
            self.lingering.push(None);
            self.lingering.len() - 1
        });
        self.lingering[nth] = Some(Lingering { fd, backlog });
        if let Some(machine) = &mut self.ring {
            push_linger(&mut machine.ring, nth, fd);
        }
    }

    fn take_answer(&mut self, machine: &mut Machine, answer: &Answer) {
        let number = answer.user_data as u32 as i32;
        let generation = (answer.user_data >> 32) as u32 & flag::GENERATION_MAX;
        let about = (answer.user_data >> 56) as u8;
        let connection = || {
            let found = self.connection(number)?;
            (found.generation == generation).then_some(found)
        };
        match about {
            about if about == About::Receive as u8 => {
                let found = connection();
                self.received(machine, number, found, answer);
            }
            about if about == About::Send as u8 => {
                if let Some(connection) = connection() {
                    self.sent_in_part(machine, number, connection, answer.res);
                }
            }
            about if about == About::Poll as u8 => {
                if let Some(connection) = connection() {
                    connection.clear(flag::POLLED);
                    self.polled(number, connection, answer.res);
                }
            }
            about if about == About::Members as u8 => {
                self.kernel_polled = false;
                self.kernel_ready = answer.res > 0;
            }
            about if about == About::Wake as u8 => {
                let wake = token(About::Wake, 0, 0);
                while !machine.ring.arm_wake(wake) {
                    let _ = machine.ring.submit();
                }
            }
            about if about == About::LastSend as u8 => self.last_send(machine, number, answer.res),
            about if about == About::Linger as u8 => self.lingered(machine, number as usize),
            _ => {}
        }
    }

    fn received(
        &mut self,
        machine: &mut Machine,
        fd: i32,
        connection: Option<&'static mut Connection>,
        answer: &Answer,
    ) {
        let bytes = u32::try_from(answer.res).unwrap_or(0);
        let place = match answer.buffer {
            // Of a receive that brought nothing, whatever the kernel says, the buffer is as it was.
            Some(id) if bytes > 0 || !machine.ring.is_incremental() => machine
                .pool
                .received(id, bytes, answer.keeps_buffer)
                .map(|at| (at, id)),
            _ => None,
        };
        let Some(connection) = connection else {
            // It was closed; so is what it received.
            if let Some((_, id)) = place {
                self.release(machine, id);
            }
            return;
        };
        if !answer.more {
            connection.clear(flag::ARMED | flag::CANCELLED);
        }
        match (place, answer.res) {
            (Some((at, id)), 1..) => self.deliver(machine, fd, connection, (at, bytes, id)),
            (Some((_, id)), _) => self.release(machine, id),
            (None, 1..) => self.fail(fd, connection, libc::EIO),
            _ => {}
        }
        match answer.res {
            1.. => {}
            0 => {
                connection.mark(flag::ENDED);
                self.to_poll.push(fd);
                self.notify(fd, connection, 0);
            }
            errno => match -errno {
                libc::ENOBUFS => {
                    counts::add(&COUNTS.no_buffers, 1);
                    if machine.pool.run_short(&mut machine.ring) {
                        self.arm(fd, connection);
                    } else {
                        self.starved.push(fd);
                    }
                    return;
                }
                libc::ECANCELED | libc::EAGAIN | libc::EINTR | libc::ENOMEM => {}
                errno => self.fail(fd, connection, errno),
            },
        }
        if !answer.more {
            self.arm(fd, connection);
        }
        leave::settle(self, fd, connection);
    }

    /// The connection is over by an error, which the next call says.
    fn fail(&mut self, fd: i32, connection: &mut Connection, errno: i32) {
        connection.error = errno;
        if matches!(
            errno,
            libc::ECONNRESET | libc::ETIMEDOUT | libc::EPIPE | libc::ECONNABORTED
        ) {
            connection.mark(flag::DEAD | flag::BROKEN);
        }
        self.notify(fd, connection, 0);
    }

    fn deliver(
        &mut self,
        machine: &mut Machine,
        fd: i32,
        connection: &mut Connection,
        (at, bytes, id): (*mut u8, u32, u16),
    ) {
        connection.mark(flag::LASTING);
        connection.round = self.round;
        let keep = connection.is(flag::MEMBER) && connection.events & IN != 0;
        if connection.in_hand() == 0 && keep {
            (connection.at, connection.bytes, connection.buffer) = (at, bytes, id);
        } else if connection.spilled.is_empty()
            && connection.buffer == id
            && connection.bytes > 0
            && connection.at.wrapping_add(connection.bytes as usize) == at
        {
            connection.bytes += bytes;
            self.release(machine, id);
        } else {
            // SAFETY: Owned: the kernel has just put them there, and the buffer has a reader for them.
            connection
                .spilled
                .append(unsafe { std::slice::from_raw_parts(at, bytes as usize) });
            self.release(machine, id);
        }
        if connection.in_hand() >= IN_HAND_MAX
            && connection.is(flag::ARMED)
            && !connection.is(flag::CANCELLED)
        {
            connection.mark(flag::CANCELLED);
            self.cancels.push(receive_token(fd, connection));
        }
        self.notify(fd, connection, IN);
    }

    /// A reader of a buffer has gone.
    pub(crate) fn release(&mut self, machine: &mut Machine, id: u16) {
        if machine.pool.release(id, &mut machine.ring) && !self.starved.is_empty() {
            for fd in std::mem::take(&mut self.starved) {
                if let Some(connection) = self.connection(fd) {
                    self.arm(fd, connection);
                }
            }
        }
    }

    /// A receive is to be armed, unless there is no use.
    pub(crate) fn arm(&mut self, fd: i32, connection: &mut Connection) {
        let no_use = flag::ARMED | flag::TO_ARM | flag::ENDED | flag::DEAD;
        if !connection.is(no_use) && connection.in_hand() < IN_HAND_MAX {
            connection.mark(flag::TO_ARM);
            self.to_arm.push(fd);
        }
    }

    fn sent_in_part(&mut self, machine: &Machine, fd: i32, connection: &mut Connection, res: i32) {
        let sent = usize::try_from(res)
            .unwrap_or(0)
            .min(connection.out_bytes as usize);
        // SAFETY: Owned: the arena's, where the connection's bytes lie until `forget_sent`.
        let rest = unsafe {
            std::slice::from_raw_parts(
                machine.arena.at(connection.out_from).add(sent),
                connection.out_bytes as usize - sent,
            )
        };
        match -res {
            libc::EAGAIN | libc::EINTR | libc::ENOMEM | libc::ENOBUFS => {}
            errno if errno > 0 => return send::broke(self, fd, connection, errno),
            _ => {}
        }
        // What a signal handler has written meanwhile comes after it.
        let later = connection.backlog.move_out();
        connection.backlog.append(rest);
        connection.backlog.append(later.as_slice());
        send::is_full(self, fd, connection);
    }

    /// The kernel has room again, or the connection is over.
    fn polled(&mut self, fd: i32, connection: &mut Connection, res: i32) {
        let found = u32::try_from(res).unwrap_or(0);
        if found & (ERR | HUP) != 0 {
            if found & ERR != 0
                && let Ok(errno @ 1..) = sys::option(fd, libc::SOL_SOCKET, libc::SO_ERROR)
            {
                connection.error = errno;
            }
            if found & HUP != 0 {
                connection.mark(flag::DEAD);
            }
            connection.clear(flag::FULL);
            connection.backlog.clear();
            self.notify(fd, connection, 0);
        } else if connection.is(flag::FULL) {
            send::go_on(self, fd, connection);
        }
        leave::settle(self, fd, connection);
    }

    fn last_send(&mut self, machine: &Machine, nth: i32, res: i32) {
        let Some(closing) = self.closing.get_mut(nth as usize) else {
            return;
        };
        // The close that was linked to it was cancelled.
        let sent = usize::try_from(res)
            .unwrap_or(0)
            .min(closing.out_bytes as usize);
        let broken = !matches!(
            -res,
            libc::EAGAIN | libc::EINTR | libc::ENOMEM | libc::ENOBUFS
        ) && res < 0;
        if broken || sent == closing.out_bytes as usize {
            closing.is_over = true;
            return;
        }
        // SAFETY: Owned: the arena's, as in `sent_in_part`.
        closing.backlog.append(unsafe {
            std::slice::from_raw_parts(
                machine.arena.at(closing.out_from).add(sent),
                closing.out_bytes as usize - sent,
            )
        });
    }

    fn lingered(&mut self, machine: &mut Machine, nth: usize) {
        let Some(Some(lingering)) = self.lingering.get_mut(nth) else {
            return;
        };
        let fd = lingering.fd;
        let over = match sys::send(fd, lingering.backlog.as_slice()) {
            Ok(sent) => {
                lingering.backlog.take(sent);
                lingering.backlog.is_empty()
            }
            Err(errno) => !matches!(errno, libc::EAGAIN | libc::EINTR | libc::ENOBUFS),
        };
        if !over {
            return push_linger(&mut machine.ring, nth, fd);
        }
        self.lingering[nth] = None;
        let _ = sys::close(fd);
        if let Some(entry) = table::entry(fd)
            && entry.kind() == Kind::Closing
        {
            entry.forget();
        }
    }
}

fn push_linger(ring: &mut ServerRing, nth: usize, fd: i32) {
    let user_data = token(About::Linger, 0, nth as i32);
    push(ring, poll(fd, libc::POLLOUT as u32, user_data));
}

fn cancel(target: u64) -> Sqe {
    Sqe {
        addr: target,
        user_data: token(About::Nothing, 0, 0),
        ..Sqe::new(ask::ASYNC_CANCEL, -1)
    }
}

fn poll(fd: i32, events: u32, user_data: u64) -> Sqe {
    Sqe {
        op_flags: events,
        user_data,
        ..Sqe::new(ask::POLL_ADD, fd)
    }
}

/// It never waits: what the kernel has no room for comes back, in the order in which it was written (trap 34).
fn send_entry(fd: i32, arena: &Arena, from: u32, bytes: u32) -> Sqe {
    Sqe {
        flags: ask::SKIP_SUCCESS,
        addr: arena.at(from).expose_provenance() as u64,
        len: bytes,
        // All of it, or an answer that says how much.
        op_flags: (libc::MSG_DONTWAIT | libc::MSG_WAITALL | libc::MSG_NOSIGNAL) as u32,
        ..Sqe::new(ask::SEND, fd)
    }
}

fn push_receive(ring: &mut ServerRing, fd: i32, connection: &mut Connection) {
    connection.clear(flag::TO_ARM);
    if connection.is(flag::ARMED | flag::ENDED | flag::DEAD) || !connection.is(flag::MEMBER) {
        return;
    }
    connection.mark(flag::ARMED);
    // A connection may be over after one request: then there is nothing to cancel.
    let ioprio = if connection.is(flag::LASTING) {
        ask::RECV_MULTISHOT | ask::POLL_FIRST
    } else {
        0
    };
    push(
        ring,
        Sqe {
            flags: ask::BUFFER_SELECT,
            ioprio,
            user_data: receive_token(fd, connection),
            ..Sqe::new(ask::RECV, fd)
        },
    );
}

fn push_poll(ring: &mut ServerRing, fd: i32, connection: &mut Connection) {
    let events = if connection.is(flag::FULL) {
        OUT
    } else if connection.is(flag::ENDED)
        && !connection.is(flag::DEAD)
        && connection.is(flag::MEMBER)
    {
        // Errors and the end of both directions, which are always told.
        0
    } else {
        return;
    };
    if connection.is(flag::POLLED) {
        return;
    }
    connection.mark(flag::POLLED);
    let user_data = token(About::Poll, connection.generation, fd);
    push(ring, poll(fd, events, user_data));
}

/// How an enter ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Answered,
    /// Without an answer, in time: a signal was handled.
    Interrupted,
    TimedOut,
    /// The ring can't be entered any more.
    Lost,
}

/// Pushes what has gathered, enters the kernel, sleeps there if `wait`, and takes in the answers.
///
/// # Safety
///
/// Lent: `mask` is null, or the 8 bytes of a signal set.
pub(crate) unsafe fn enter(
    mut held: Held,
    wait: bool,
    timeout_ns: Option<u64>,
    mask: *const u64,
) -> (Held, Ended) {
    let mut said = Ok(());
    counts::add(&COUNTS.enters, 1);
    counts::add(&COUNTS.waits, u64::from(wait));
    held.push_all();
    let mut held = Set::outside(held, |ring| {
        // SAFETY: Lent, passed on.
        said = unsafe { ring.enter(wait, timeout_ns, mask) };
        // What was not taken still points into the arena.
        while ring.unsubmitted() > 0 && !is_lost(&said) {
            if let Err(error) = ring.submit()
                && is_lost(&Err(error))
            {
                break;
            }
        }
    });
    let count = held.take_in();
    held.forget_sent(true);
    let ended = match &said {
        _ if count > 0 => Ended::Answered,
        Err(error) if error.raw_os_error() == Some(libc::EINTR) => Ended::Interrupted,
        Err(error) if error.raw_os_error() == Some(libc::ETIME) => Ended::TimedOut,
        Err(_) if is_lost(&said) => Ended::Lost,
        // The kernel keeps back why it has ended a wait if it has also taken entries (trap 5).
        Ok(()) if wait => Ended::Interrupted,
        _ => Ended::Answered,
    };
    (held, ended)
}

/// Takes in what has come since, without submitting anything.
pub(crate) fn look(mut held: Held) -> Held {
    held.pushed = true;
    counts::add(&COUNTS.enters, 1);
    let mut held = Set::outside(held, |ring| {
        // SAFETY: Lent: no mask. An error shows in the next turn.
        let _ = unsafe { ring.enter(false, None, ptr::null()) };
    });
    held.pushed = false;
    held.take_in();
    held
}

/// Whether the ring is gone for this thread: closed by number, or it is another thread.
fn is_lost(said: &std::io::Result<()>) -> bool {
    said.as_ref().is_err_and(|error| {
        matches!(
            error.raw_os_error(),
            Some(
                libc::EBADF
                    | libc::EBADFD
                    | libc::EEXIST
                    | libc::EOPNOTSUPP
                    | libc::EINVAL
                    | libc::EPERM
                    | libc::ENOSYS
                    | libc::EACCES
            )
        )
    })
}

/// Cancels what is with the kernel, and waits until it has let go: the caller owns the ring.
pub(crate) fn drain(mut held: Held) -> Held {
    for _ in 0..1000 {
        // SAFETY: Lent: no mask.
        let (now, _) = unsafe { enter(held, false, None, ptr::null()) };
        held = now;
        let flying = (0..table::count().min(leave::served_max()) as i32).any(|fd| {
            let Some(entry) = table::entry(fd) else {
                return false;
            };
            matches!(entry.kind(), Kind::Served | Kind::Replay)
                && Set::of(entry).is_some_and(|set| set.owner() == me())
                && held
                    .connection(fd)
                    .is_some_and(|connection| connection.is(flag::ARMED))
        });
        if !flying && held.cancels.is_empty() && held.closing.is_empty() {
            break;
        }
    }
    held
}

/// Why the kernel could not be asked.
pub(crate) const LOST: Why = Why::Kernel;
