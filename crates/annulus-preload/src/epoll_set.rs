//! # Safety
//!
//! An epoll set of the program: the kernel's own set with its number, and, once it pays off, a ring. The thread that
//! waits on the set sleeps in its ring. `Inner` is used only by the holder of the lock (Held), and only while the ring
//! is idle, that is, while its owner is not in the kernel with it.
//!
//! Sets are never freed, so that a pointer to one is always valid (Owned); closed sets are reused.
//!
//! This is one file, although it is long: the set, its lock and its data refer to each other, and would be a larger
//! cycle of imports.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut, Index, IndexMut};
use std::ptr;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};

use annulus::preload::ServerRing;

use crate::accept_burst::AcceptBurst;
use crate::batching::Batching;
use crate::buffers::{Arena, Pool};
use crate::connection::{Conn, Connection};
use crate::counters::{self, Call, RingCounters};
use crate::epoll_set_list;
use crate::fd_table::{self, Entry};
use crate::identity::{self, thread_id};
use crate::lock::Lock;
use crate::member_list::MemberList;
use crate::reserved_fds;
use crate::set_members::{Interest, Listener, SharedMember};
use crate::signals;
use crate::switch_position::Released;
use crate::sys;
use crate::token::TokenKind;
use crate::young_set::YoungSet;

/// Initial capacity of each list of a set.
const LIST_CAPACITY: usize = 256;

/// The way in which a set is served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The kernel's set alone; a ring is created once there is a connection to serve.
    #[default]
    Fresh,
    /// The set's ring.
    Serving,
    /// The kernel's set, permanently.
    Passing,
}

/// `inner` comes first, so that its address needs no addition.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Set {
    inner: UnsafeCell<Inner>,
    lock: Lock,
    /// The thread that waits on the set.
    owner: AtomicUsize,
    /// The owner is in the kernel, or about to enter it.
    in_enter: AtomicBool,
    /// The number of threads that wait for the owner to leave the kernel.
    waiting_threads: AtomicU32,
    /// The program has cancelled the owner's thread, which must leave its sleep.
    cancelled: AtomicBool,
    /// The eventfd that wakes the owner.
    wake: AtomicI32,
    /// The time at which the first queued byte was written, ns; 0: no bytes are queued.
    queued_since_ns: AtomicU64,
    /// Output was deferred, and the flush thread has not processed it yet.
    has_deferred: AtomicBool,
    /// There may be members in `already_reported`.
    has_reported: AtomicBool,
    process: AtomicU32,
    pub(crate) young: YoungSet,
    /// The descriptors whose entries name the set: its members, and handed-back members of a set that used this slot
    /// before.
    members: MemberList,
    /// Closed; the slot can be reused.
    retired: AtomicBool,
    /// The set that was created before this one ([`epoll_set_list`](crate::epoll_set_list)).
    pub(crate) older: AtomicPtr<Set>,
}

// SAFETY: Held: `inner` is touched under the lock.
unsafe impl Sync for Set {}
// SAFETY: Held: `inner`, the only field that is not atomic, is used under the lock.
unsafe impl Send for Set {}

/// The part of a set that only the holder of the lock uses.
#[derive(Default)]
pub(crate) struct Inner {
    /// The set that contains this value.
    pub(crate) set: Option<&'static Set>,
    /// A number of the kernel's set.
    pub(crate) fd: i32,
    /// The number of descriptors of the kernel's set.
    pub(crate) fd_count: u32,
    pub(crate) mode: Mode,
    pub(crate) ring: Option<Box<RingContext>>,
    /// The descriptors of the first and the last ready connection, plus one; 0: none.
    pub(crate) ready: (u32, u32),
    pub(crate) to_arm: Vec<i32>,
    pub(crate) queued: Vec<i32>,
    pub(crate) to_poll: Vec<i32>,
    pub(crate) removed: Vec<i32>,
    pub(crate) starved: Vec<i32>,
    pub(crate) cancels: Vec<u64>,
    /// Gathered entries have been pushed, and their completions not reaped yet.
    pub(crate) pushed: bool,
    /// Connections whose output was deferred since the flush thread's last check.
    pub(crate) deferred: Vec<i32>,
    /// Output was deferred since the last fork that found none. It may be that of a set that used this slot before.
    pub(crate) may_have_backlog: bool,
    /// Connections that are served.
    pub(crate) served: u32,
    /// Connections that were handed back and still have buffered bytes. They may be those of a set that used this slot
    /// before.
    pub(crate) handed_back_count: u32,
    /// The number of waits before the set had a ring, up to [`WAITS_BEFORE_RING`](crate::young_set::WAITS_BEFORE_RING).
    pub(crate) waits: u32,
    /// The program has added a member.
    pub(crate) has_members: bool,
    /// The kernel's set: whether the ring polls it, whether something is ready in it. It may have members that no hook
    /// has noticed.
    pub(crate) kernel_polled: bool,
    pub(crate) kernel_ready: bool,
    pub(crate) round: u32,
    /// The number of descriptors that other threads have used.
    pub(crate) foreign_fds: u32,
    /// The time at which the first queued byte was written, ns; 0: no bytes are queued, or the time was not needed.
    pub(crate) queued_at_ns: u64,
    /// The kernel has more data than a receive took: the ring is entered once more before anything is reported.
    pub(crate) recheck: bool,
    /// The number of writes that were queued in this round.
    pub(crate) writes: u32,
    /// Members that were added before the set had a ring. The kernel's set has them.
    pub(crate) early_members: Vec<Interest>,
    /// Members with buffered bytes that were in another set of this thread first.
    pub(crate) shared_members: Vec<SharedMember>,
    /// Edge-triggered members that were added to the kernel's set again, with the events that were reported before.
    pub(crate) already_reported: Vec<Interest>,
    pub(crate) batching: Batching,
    /// The time of the first write of this round, ns.
    pub(crate) written_at_ns: u64,
    /// Listeners that the ring polls.
    pub(crate) listeners: Vec<Listener>,
    pub(crate) accept_burst: AcceptBurst,
    /// The set passes through because the operator released the process.
    pub(crate) released: Released,
}

impl Index<Conn> for Inner {
    type Output = Connection;

    #[inline]
    fn index(&self, connection: Conn) -> &Connection {
        // SAFETY: Held: a connection of this set, whose lock the caller holds.
        unsafe { &*connection.as_ptr() }
    }
}

impl IndexMut<Conn> for Inner {
    #[inline]
    fn index_mut(&mut self, connection: Conn) -> &mut Connection {
        // SAFETY: Held: a connection of this set, whose lock the caller holds, and which lends one at a time.
        unsafe { &mut *connection.as_ptr() }
    }
}

/// The ring and its memory.
pub(crate) struct RingContext {
    pub(crate) ring: ServerRing,
    pub(crate) pool: Pool,
    pub(crate) arena: Arena,
    pub(crate) counters: RingCounters,
}

/// The exclusive right to use a set, whose ring is idle.
pub(crate) struct SetGuard {
    set: &'static Set,
}

impl SetGuard {
    /// Returns whether this is a signal handler that has interrupted its thread on the way into or out of the kernel.
    pub(crate) fn in_signal_handler(&self) -> bool {
        self.set.in_enter.load(Ordering::Relaxed)
    }

    /// Clears the mark of a poll cycle that was abandoned, as the thread is about to wait.
    pub(crate) fn clear_in_enter(&self) {
        self.set.in_enter.store(false, Ordering::Relaxed);
    }

    /// Returns whether the calling thread owns the set and is not entering the kernel.
    pub(crate) fn is_owner(&self) -> bool {
        self.set.is_owner() && !self.in_signal_handler()
    }

    /// Returns whether the owner's sleep ended because the program has cancelled its thread, once.
    pub(crate) fn take_cancelled(&self) -> bool {
        let is_cancelled = &self.set.cancelled;
        is_cancelled.load(Ordering::Relaxed) && is_cancelled.swap(false, Ordering::Acquire)
    }

    /// Clears the owner, whose thread ends; a new thread may get the same ID.
    pub(crate) fn clear_owner(&self) {
        self.set.owner.store(usize::MAX, Ordering::Relaxed);
    }
}

impl Deref for SetGuard {
    type Target = Inner;

    #[inline]
    fn deref(&self) -> &Inner {
        // SAFETY: Held: this value is the lock.
        unsafe { &*self.set.inner.get() }
    }
}

impl DerefMut for SetGuard {
    #[inline]
    fn deref_mut(&mut self) -> &mut Inner {
        // SAFETY: Held: this value is the lock, borrowed mutably.
        unsafe { &mut *self.set.inner.get() }
    }
}

impl Drop for SetGuard {
    #[inline]
    fn drop(&mut self) {
        self.set.lock.release();
    }
}

impl Set {
    /// Creates the set for a descriptor that `epoll_create` has just returned.
    pub(crate) fn adopt(fd: i32) -> Option<&'static Set> {
        let entry = fd_table::entry(fd).filter(|_| !signals::tracks_nothing())?;
        let set = match epoll_set_list::all().find(|set| set.retired.swap(false, Ordering::AcqRel))
        {
            Some(set) => set,
            None => epoll_set_list::add(Set {
                wake: AtomicI32::new(-1),
                members: MemberList::new(fd_table::count())?,
                ..Set::default()
            }),
        };
        if set.process.load(Ordering::Relaxed) != identity::fork_generation() {
            // In a child of a fork, the holder in the parent does not exist.
            set.lock.release();
            set.in_enter.store(false, Ordering::Relaxed);
            set.waiting_threads.store(0, Ordering::Relaxed);
        }
        set.process
            .store(identity::fork_generation(), Ordering::Relaxed);
        set.owner.store(0, Ordering::Relaxed);
        set.cancelled.store(false, Ordering::Relaxed);
        let mut guard = set.take()?;
        *guard = Inner {
            set: Some(set),
            fd,
            fd_count: 1,
            // Deferred output of the set that used this slot before is still to be sent, and buffered bytes to be read.
            deferred: std::mem::take(&mut guard.deferred),
            may_have_backlog: guard.may_have_backlog,
            handed_back_count: guard.handed_back_count,
            ..Inner::default()
        };
        drop(guard);
        set.young.begin();
        epoll_set_list::name(entry, fd, set);
        Some(set)
    }

    /// Returns whether a wait on a young set passes through, and counts that wait.
    pub(crate) fn passes_young_wait(&self) -> bool {
        if self.owner() == 0 {
            self.own();
        }
        self.is_owner() && self.young.count_wait()
    }

    /// Marks a closed set as reusable.
    pub(crate) fn retire(&'static self) {
        self.retired.store(true, Ordering::Release);
    }

    /// Returns the set of an entry that is an epoll set or belongs to one.
    #[inline]
    pub(crate) fn of(entry: &Entry) -> Option<&'static Set> {
        // SAFETY: Owned: null, or a set, which is never freed.
        unsafe { entry.set().as_ref() }
    }

    /// Makes the entry of a member name the set.
    pub(crate) fn name(&self, entry: &Entry, fd: i32) {
        entry.set_epoll_set(ptr::from_ref(self).cast_mut());
        self.members.add(fd);
    }

    /// Returns the descriptors whose entries name the set, without its lock. A thread with private descriptors sees no
    /// entry, and removes nothing from the list.
    pub(crate) fn members(&'static self) -> impl Iterator<Item = i32> {
        self.members
            .walk(|fd| fd_table::entry(fd).is_none_or(|entry| ptr::eq(entry.set(), self)))
    }

    /// Returns whether this process has created the set, and not a parent.
    #[inline]
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.process.load(Ordering::Relaxed) == identity::fork_generation()
    }

    /// Takes the lock while the ring is idle. `None`: this is a signal handler in the middle of a call of the same
    /// thread, or a child of a fork.
    #[inline(always)]
    pub(crate) fn take(&'static self) -> Option<SetGuard> {
        if !self.is_of_this_process() || !self.lock.take() {
            return None;
        }
        let guard = SetGuard { set: self };
        match self.in_enter.load(Ordering::Relaxed) {
            true => Some(self.take_in_enter(guard)),
            false => Some(guard),
        }
    }

    /// Takes the lock for the owner's call outside of a poll cycle. `None`: it is another call, or would have to wait.
    #[inline(always)]
    pub(crate) fn take_as_owner(&'static self) -> Option<SetGuard> {
        let thread_id = thread_id();
        if self.owner.load(Ordering::Relaxed) != thread_id || !self.lock.take_free(thread_id) {
            return None;
        }
        let guard = SetGuard { set: self };
        (!guard.in_signal_handler()).then_some(guard)
    }

    #[cold]
    fn take_in_enter(&'static self, mut guard: SetGuard) -> SetGuard {
        if self.is_owner() {
            // A handler that interrupts its owner, which is not in the kernel then.
            guard.recover();
            // The handler's call may lead to more events, so the wait that it has interrupted, or precedes, is
            // restarted.
            reserved_fds::wake(self.wake.load(Ordering::Relaxed));
            return guard;
        }
        drop(guard);
        self.wait_for_owner()
    }

    /// Makes the owner return from the kernel, and takes the lock.
    #[cold]
    fn wait_for_owner(&'static self) -> SetGuard {
        self.waiting_threads.fetch_add(1, Ordering::AcqRel);
        loop {
            if self.lock.take() {
                let guard = SetGuard { set: self };
                if !self.in_enter.load(Ordering::Relaxed) {
                    self.waiting_threads.fetch_sub(1, Ordering::AcqRel);
                    return guard;
                }
                // Under the lock: its number is not another ring's.
                reserved_fds::wake(self.wake.load(Ordering::Relaxed));
            }
            sys::pause_us(20);
        }
    }

    /// Finishes the close of a number by a signal handler, which normally happens at the start of the set's next poll
    /// cycle. Another thread that finds the number still taken, while the owner sleeps in the kernel, makes the owner
    /// return.
    #[cold]
    pub(crate) fn finish_deferred_close(entry: &Entry) {
        let others = Set::of(entry).filter(|set| !set.is_owner());
        drop(others.and_then(Set::take));
    }

    /// Makes the owner leave its sleep, as the program has cancelled its thread.
    pub(crate) fn cancel_sleep(&'static self) {
        self.cancelled.store(true, Ordering::Release);
        if let Some(_guard) = self.take_during_enter() {
            reserved_fds::wake(self.wake.load(Ordering::Relaxed));
        }
    }

    #[inline]
    pub(crate) fn is_owner(&self) -> bool {
        self.owner.load(Ordering::Relaxed) == thread_id()
    }

    /// Returns whether the calling thread waits on the set and is not entering the kernel.
    pub(crate) fn is_idle_owner(&self) -> bool {
        self.is_owner() && !self.in_enter.load(Ordering::Relaxed)
    }

    /// Returns the listeners that the parent's ring polls, without the lock: a child of a fork has an unchanging copy.
    pub(crate) fn inherited_listeners(&self) -> &[Listener] {
        // SAFETY: Held: the parent's threads do not exist in the child.
        let inner = unsafe { &*self.inner.get() };
        match inner.mode {
            Mode::Serving => &inner.listeners,
            _ => &[],
        }
    }

    pub(crate) fn owner(&self) -> usize {
        self.owner.load(Ordering::Relaxed)
    }

    pub(crate) fn own(&self) {
        self.owner.store(thread_id(), Ordering::Relaxed);
    }

    pub(crate) fn queued_since_ns(&self) -> u64 {
        self.queued_since_ns.load(Ordering::Relaxed)
    }

    pub(crate) fn has_deferred(&self) -> bool {
        self.has_deferred.load(Ordering::Acquire)
    }

    pub(crate) fn set_has_deferred(&self, has_any: bool) {
        self.has_deferred.store(has_any, Ordering::Release);
    }

    /// Takes the lock even while the owner is in the kernel, for work that does not involve the ring.
    pub(crate) fn take_during_enter(&'static self) -> Option<SetGuard> {
        (self.is_of_this_process() && self.lock.take()).then_some(SetGuard { set: self })
    }

    /// Takes the lock, unless the owner is in the kernel with the ring and will handle the set itself.
    pub(crate) fn take_idle(&'static self) -> Option<SetGuard> {
        self.take_during_enter()
            .filter(|guard| !guard.in_signal_handler())
    }

    /// Runs before the kernel handles a write: if it fills the send buffer, the next report of writability is a new
    /// edge.
    pub(crate) fn before_kernel_write(fd: i32) {
        let set = fd_table::entry(fd).and_then(Set::of);
        let reported = set.filter(|set| set.has_reported.load(Ordering::Relaxed));
        if let Some(mut guard) = reported.and_then(Set::take) {
            guard.forget_reported_fd(fd);
            guard
                .set
                .has_reported
                .store(!guard.already_reported.is_empty(), Ordering::Relaxed);
        }
    }

    pub(crate) fn set_wake(&self, fd: i32) {
        self.wake.store(fd, Ordering::Relaxed);
    }

    /// Releases the lock while `during` is in the kernel with the ring. Other threads wait until the poll cycle is over
    /// ([`end_enter`](Set::end_enter)).
    pub(crate) fn enter_unlocked(
        mut guard: SetGuard,
        during: impl FnOnce(&mut ServerRing),
    ) -> SetGuard {
        let set = guard.set;
        let Some(context) = guard.ring.as_mut() else {
            return guard;
        };
        let ring = &raw mut context.ring;
        set.in_enter.store(true, Ordering::Relaxed);
        drop(guard);
        // SAFETY: Held: while `in_enter` is set, no other thread uses the ring, and it is not dropped.
        during(unsafe { &mut *ring });
        while !set.lock.take() {}
        SetGuard { set }
    }

    /// Ends the poll cycle after its completions were reaped, and lets waiting threads take the set.
    #[inline]
    pub(crate) fn end_enter(guard: SetGuard) -> SetGuard {
        guard.set.in_enter.store(false, Ordering::Relaxed);
        match guard.set.waiting_threads.load(Ordering::Acquire) {
            0 => guard,
            _ => Self::let_waiting_threads_take(guard),
        }
    }

    #[cold]
    fn let_waiting_threads_take(mut guard: SetGuard) -> SetGuard {
        let set = guard.set;
        while set.waiting_threads.load(Ordering::Acquire) > 0 {
            drop(guard);
            sys::pause_us(5);
            while !set.lock.take() {}
            guard = SetGuard { set };
            set.in_enter.store(false, Ordering::Relaxed);
        }
        guard
    }
}

impl Inner {
    /// Returns the set that contains this value, or null before it has one.
    #[inline]
    pub(crate) fn set_ptr(&self) -> *const Set {
        self.set.map_or(ptr::null(), ptr::from_ref)
    }

    /// Returns the descriptors whose entries name the set.
    pub(crate) fn members(&self) -> impl Iterator<Item = i32> + use<> {
        self.set.into_iter().flat_map(Set::members)
    }

    /// Returns the connections of the set, also those that were handed back.
    pub(crate) fn connections(&self) -> impl Iterator<Item = Conn> + use<> {
        let set = self.set_ptr();
        self.members().filter_map(move |fd| connection_of(set, fd))
    }

    /// Makes the entry of a member name the set.
    pub(crate) fn name(&self, entry: &Entry, fd: i32) {
        if let Some(set) = self.set {
            set.name(entry, fd);
        }
    }

    /// Records the time from which bytes are queued; 0: no bytes are queued any more.
    pub(crate) fn set_queued_since(&mut self, now_ns: u64) {
        self.queued_at_ns = now_ns;
        if let Some(set) = self.set {
            set.queued_since_ns.store(now_ns, Ordering::Relaxed);
        }
    }

    /// Records which events of an edge-triggered member were reported before it was added to the kernel's set.
    pub(crate) fn on_reported(&mut self, member: Interest) {
        self.already_reported.push(member);
        if let Some(set) = self.set {
            set.has_reported.store(true, Ordering::Relaxed);
        }
    }

    /// Forgets the reported events of a member that the program has changed or closed: the next report for its number
    /// or its data is new.
    pub(crate) fn forget_reported(&mut self, fd: i32, data: u64) {
        self.already_reported
            .retain(|already_reported| already_reported.fd != fd && already_reported.data != data);
    }

    /// Forgets the reported events of a member after an operation that makes the kernel wake waiters.
    pub(crate) fn forget_reported_fd(&mut self, fd: i32) {
        self.already_reported
            .retain(|already_reported| already_reported.fd != fd);
    }

    /// Returns whether the ring has to poll the kernel's set.
    #[inline]
    pub(crate) fn must_poll_kernel(&self) -> bool {
        !self.kernel_polled && !self.kernel_ready
    }

    /// Reserves the lists, so that they rarely grow: a signal handler that writes or closes may interrupt `malloc`.
    pub(crate) fn reserve_lists(&mut self) {
        for list in [&mut self.queued, &mut self.to_arm, &mut self.to_poll] {
            list.reserve(LIST_CAPACITY);
        }
        self.cancels.reserve(LIST_CAPACITY);
    }

    /// Has a request for a connection cancelled in the next cycle.
    pub(crate) fn cancel(&mut self, kind: TokenKind, connection: Conn) {
        let token = self[connection].token(kind, connection.fd);
        self.cancels.push(token);
    }

    /// Has the requests for a connection cancelled in the next cycle.
    pub(crate) fn cancel_requests(&mut self, connection: Conn) {
        if self[connection].polled != 0 {
            self.cancel(TokenKind::Poll, connection);
        }
        if self[connection].inbound.stop() {
            self.cancel(TokenKind::Receive, connection);
        }
    }

    /// Returns whether a kernel thread polls the submission queue.
    pub(crate) fn is_polled(&self) -> bool {
        (self.ring.as_ref()).is_some_and(|context| context.ring.is_polled())
    }

    /// Counts a served call of the set's owner.
    #[inline]
    pub(crate) fn count_served(&self, call: Call) {
        match &self.ring {
            Some(context) => context.counters.served(call),
            None => counters::served(call),
        }
    }

    /// Returns the connection of an entry that names this set.
    #[inline]
    pub(crate) fn own_connection(&self, entry: &'static Entry, fd: i32) -> Conn {
        debug_assert!(std::ptr::eq(entry.set(), self.set_ptr()));
        entry_connection(entry, fd)
    }

    /// Returns the connection of a descriptor, if this set has it or had it.
    #[inline]
    pub(crate) fn connection(&self, fd: i32) -> Option<Conn> {
        connection_of(self.set_ptr(), fd)
    }
}

#[inline]
fn connection_of(set: *const Set, fd: i32) -> Option<Conn> {
    let entry = fd_table::entry(fd)?;
    let is_member_of_set = entry.is_connection() && ptr::eq(entry.set(), set);
    is_member_of_set.then(|| entry_connection(entry, fd))
}

#[inline]
fn entry_connection(entry: &'static Entry, fd: i32) -> Conn {
    // SAFETY: Held: a connection of the caller's set.
    unsafe { Conn::new(entry.connection(), fd) }
}
