//! # Safety
//!
//! An epoll set, as the program knows it: the kernel's own set with its number, and, once it pays off, a ring in which
//! the thread that waits on the set sleeps. `Inner` is used only by the holder of the lock (Held), and only while the
//! ring is idle, that is, while its owner is not in the kernel with it.
//!
//! Sets are never freed, so that a pointer to one is always valid (Owned); closed sets are reused.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};

use annulus::preload::{Completion, ServerRing};

use crate::accept_burst::AcceptBurst;
use crate::batching::Batching;
use crate::buffers::{Arena, Pool};
use crate::connection::{self as flag, Conn};
use crate::counters::RingCounters;
use crate::epoll_set_list;
use crate::fd_table::{self, Entry, Kind};
use crate::identity::{self, thread_id};
use crate::lock::Lock;
use crate::reserved_fds;
use crate::sys;

/// Initial capacity of each list of a set.
const LIST_ROOM: usize = 256;

/// How the set is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// By the kernel's set alone; a ring is made when there is something to serve.
    Fresh,
    /// By its ring.
    Serving,
    /// By the kernel's set, permanently.
    Passing,
}

pub(crate) struct Set {
    lock: Lock,
    /// The thread that waits on it.
    owner: AtomicUsize,
    /// That thread is in the kernel, or on its way.
    in_enter: AtomicBool,
    /// Threads that want the ring to stand still.
    waiting_threads: AtomicU32,
    /// What wakes the owner.
    wake: AtomicI32,
    /// Since when something has been queued, ns; 0: nothing is.
    queued_since_ns: AtomicU64,
    /// Output was deferred, and the flush thread has not processed it yet.
    has_deferred: AtomicBool,
    process: AtomicU32,
    /// Nothing refers to it any more but what looks at its mode.
    retired: AtomicBool,
    /// The one that was made before it ([`epoll_set_list`](crate::epoll_set_list)).
    pub(crate) older: AtomicPtr<Set>,
    inner: UnsafeCell<Inner>,
}

// SAFETY: Held: `inner` is touched under the lock.
unsafe impl Sync for Set {}
// SAFETY: Held: `inner`, the only field that is not atomic, is used under the lock.
unsafe impl Send for Set {}

/// What only the holder of the lock touches.
pub(crate) struct Inner {
    /// The set that this is of.
    pub(crate) set_ptr: *const Set,
    /// A number of the kernel's set.
    pub(crate) fd: i32,
    /// How many numbers it has.
    pub(crate) fd_count: u32,
    pub(crate) mode: Mode,
    /// There is something to serve as soon as there is a ring.
    pub(crate) needs_ring: bool,
    pub(crate) ring: Option<Box<RingContext>>,
    /// First and last of the ready ones, and one more; 0: none.
    pub(crate) ready: (u32, u32),
    pub(crate) to_arm: Vec<i32>,
    pub(crate) queued: Vec<i32>,
    pub(crate) to_poll: Vec<i32>,
    pub(crate) removed: Vec<i32>,
    pub(crate) starved: Vec<i32>,
    pub(crate) cancels: Vec<u64>,
    /// Gathered entries have been pushed, and their completions not reaped yet.
    pub(crate) pushed: bool,
    /// Connections whose output was deferred since the flush thread last looked.
    pub(crate) deferred: Vec<i32>,
    /// Connections that are served.
    pub(crate) served: u32,
    /// Connections that were handed back and still have buffered bytes.
    pub(crate) handed_back_count: u32,
    /// The kernel's set: whether it has members, whether the ring polls it, whether something is ready in it.
    pub(crate) kernel_has: bool,
    pub(crate) kernel_polled: bool,
    pub(crate) kernel_ready: bool,
    pub(crate) round: u32,
    /// Descriptors that other threads have touched.
    pub(crate) foreign_fds: u32,
    /// When the first of the queued bytes was written, ns; 0: nothing is queued, or the time was not needed.
    pub(crate) queued_at_ns: u64,
    /// The kernel has more data than a receive took: the ring is entered once more before anything is reported.
    pub(crate) recheck: bool,
    /// Writes that were queued in this round.
    pub(crate) writes: u32,
    /// Members that were put into it before it had a ring: descriptor, events, data.
    pub(crate) early_members: Vec<(i32, u32, u64)>,
    /// Members that another set of this thread had first, with buffered bytes.
    pub(crate) shared_members: Vec<SharedMember>,
    /// Events that the kernel's set is about to report a second time.
    pub(crate) already_reported: Vec<AlreadyReported>,
    pub(crate) batching: Batching,
    /// When the first write of this round was, ns.
    pub(crate) written_at_ns: u64,
    /// Listeners that the ring polls.
    pub(crate) listeners: Vec<Listener>,
    pub(crate) accept_burst: AcceptBurst,
    /// Passed through because the operator released the process.
    pub(crate) released: bool,
}

/// A member of two sets, or one whose number was closed while a duplicate is open. The kernel's set knows it, but not
/// its buffered bytes.
#[derive(Clone, Copy)]
pub(crate) struct SharedMember {
    pub(crate) fd: i32,
    /// The generation of the connection that has the buffered bytes.
    pub(crate) generation: u32,
    pub(crate) events: u32,
    pub(crate) data: u64,
    /// It was reported, and is not to be again.
    pub(crate) reported: bool,
}

/// An edge-triggered member that was put into the kernel's set anew, and what has been reported of it before.
#[derive(Clone, Copy)]
pub(crate) struct AlreadyReported {
    pub(crate) fd: i32,
    pub(crate) data: u64,
    pub(crate) events: u32,
}

/// A listener that is a member of the set, level-triggered.
#[derive(Clone, Copy)]
pub(crate) struct Listener {
    pub(crate) fd: i32,
    pub(crate) events: u32,
    pub(crate) data: u64,
    /// A poll is with the kernel; of this generation.
    pub(crate) polled: bool,
    pub(crate) generation: u32,
    /// Events that the kernel has returned and that have not been reported yet.
    pub(crate) ready_events: u32,
}

/// The ring and its memory.
pub(crate) struct RingContext {
    pub(crate) ring: ServerRing,
    pub(crate) pool: Pool,
    pub(crate) arena: Arena,
    pub(crate) completions: Vec<Completion>,
    pub(crate) counters: RingCounters,
}

/// The right to touch a set; its ring stands still.
pub(crate) struct SetGuard {
    set: &'static Set,
}

impl SetGuard {
    /// Whether a signal handler has interrupted its thread on the way into the kernel, or out of it.
    pub(crate) fn in_signal_handler(&self) -> bool {
        self.set.in_enter.load(Ordering::Relaxed)
    }

    /// The thread is about to wait: whatever it was in before is over.
    pub(crate) fn clear_in_enter(&self) {
        self.set.in_enter.store(false, Ordering::Relaxed);
    }

    /// Whether the calling thread is the one that waits on the set, and is not just about to.
    pub(crate) fn is_owner(&self) -> bool {
        self.set.is_owner() && !self.in_signal_handler()
    }

    /// The thread that waited on it ends. The next one that is made may have its number.
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
        let entry = fd_table::entry(fd)?;
        let set = match epoll_set_list::all().find(|set| set.retired.swap(false, Ordering::AcqRel))
        {
            Some(set) => set,
            None => epoll_set_list::add(Set {
                lock: Lock::new(),
                owner: AtomicUsize::new(0),
                in_enter: AtomicBool::new(false),
                waiting_threads: AtomicU32::new(0),
                wake: AtomicI32::new(-1),
                queued_since_ns: AtomicU64::new(0),
                has_deferred: AtomicBool::new(false),
                process: AtomicU32::new(0),
                retired: AtomicBool::new(false),
                older: AtomicPtr::new(ptr::null_mut()),
                inner: UnsafeCell::new(Inner::new()),
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
        let mut guard = set.take()?;
        // Deferred output of the set that used this slot before is still to be sent.
        let deferred = std::mem::take(&mut guard.deferred);
        *guard = Inner::new();
        guard.deferred = deferred;
        guard.set_ptr = set;
        guard.fd = fd;
        guard.fd_count = 1;
        drop(guard);
        entry.set_epoll_set(std::ptr::from_ref(set).cast_mut());
        entry.set_kind(Kind::Set, 0);
        Some(set)
    }

    /// The set is closed, and may be another's.
    pub(crate) fn retire(&'static self) {
        self.retired.store(true, Ordering::Release);
    }

    /// The set of an entry that is one, or belongs to one.
    #[inline]
    pub(crate) fn of(entry: &Entry) -> Option<&'static Set> {
        // SAFETY: Owned: null, or a set, which is never freed.
        unsafe { entry.set().as_ref() }
    }

    /// Takes the lock while the ring stands still. `None`: this is a signal handler in the middle of a call of the
    /// same thread, or a child of a fork.
    #[inline]
    pub(crate) fn take(&'static self) -> Option<SetGuard> {
        if self.process.load(Ordering::Relaxed) != identity::fork_generation() || !self.lock.take()
        {
            return None;
        }
        let mut guard = SetGuard { set: self };
        if !self.in_enter.load(Ordering::Relaxed) {
            return Some(guard);
        }
        if self.is_owner() {
            // A handler that interrupts its owner, which is not in the kernel then; or has left a wait by a jump.
            guard.recover();
            // What it does here may lead to more: the wait that it has interrupted, or is about to, is begun anew.
            reserved_fds::wake(self.wake.load(Ordering::Relaxed));
            return Some(guard);
        }
        drop(guard);
        Some(self.wait_for_owner())
    }

    /// Has the owner come out of the kernel.
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

    #[inline]
    pub(crate) fn is_owner(&self) -> bool {
        self.owner.load(Ordering::Relaxed) == thread_id()
    }

    /// Whether the calling thread waits on it, and is not on its way into the kernel.
    pub(crate) fn is_idle_owner(&self) -> bool {
        self.is_owner() && !self.in_enter.load(Ordering::Relaxed)
    }

    /// The listeners that its ring polls, without the lock: a copy in a child of a fork, which nothing changes.
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

    /// Takes the lock also while its owner is in the kernel with the ring: for what that has no part in.
    pub(crate) fn take_during_enter(&'static self) -> Option<SetGuard> {
        let own = self.process.load(Ordering::Relaxed) == identity::fork_generation();
        (own && self.lock.take()).then_some(SetGuard { set: self })
    }

    /// Takes the lock unless the owner is in the kernel with the ring, and would see to the set itself.
    pub(crate) fn take_idle(&'static self) -> Option<SetGuard> {
        self.take_during_enter()
            .filter(|guard| !guard.in_signal_handler())
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
    pub(crate) fn end_enter(mut guard: SetGuard) -> SetGuard {
        let set = guard.set;
        loop {
            set.in_enter.store(false, Ordering::Relaxed);
            if set.waiting_threads.load(Ordering::Acquire) == 0 {
                return guard;
            }
            drop(guard);
            sys::pause_us(5);
            while !set.lock.take() {}
            guard = SetGuard { set };
        }
    }
}

impl Inner {
    const fn new() -> Inner {
        Inner {
            set_ptr: ptr::null(),
            fd: -1,
            fd_count: 0,
            mode: Mode::Fresh,
            needs_ring: false,
            ring: None,
            ready: (0, 0),
            to_arm: Vec::new(),
            queued: Vec::new(),
            to_poll: Vec::new(),
            removed: Vec::new(),
            starved: Vec::new(),
            cancels: Vec::new(),
            pushed: false,
            deferred: Vec::new(),
            served: 0,
            handed_back_count: 0,
            kernel_has: false,
            kernel_polled: false,
            kernel_ready: false,
            round: 0,
            foreign_fds: 0,
            queued_at_ns: 0,
            recheck: false,
            writes: 0,
            early_members: Vec::new(),
            shared_members: Vec::new(),
            already_reported: Vec::new(),
            batching: Batching::new(false),
            written_at_ns: 0,
            listeners: Vec::new(),
            accept_burst: AcceptBurst::new(),
            released: false,
        }
    }

    /// Something is queued from now on, or nothing any more (0).
    pub(crate) fn set_queued_since(&mut self, now_ns: u64) {
        self.queued_at_ns = now_ns;
        // SAFETY: Owned: null, or this set.
        if let Some(set) = unsafe { self.set_ptr.as_ref() } {
            set.queued_since_ns.store(now_ns, Ordering::Relaxed);
        }
    }

    /// Forgets what has been reported of a member that the program has changed or closed: the next report, for its
    /// number or its data, is a new one.
    pub(crate) fn forget_reported(&mut self, fd: i32, data: u64) {
        self.already_reported
            .retain(|already_reported| already_reported.fd != fd && already_reported.data != data);
    }

    /// Forgets what has been reported of a member to which an operation was applied that makes the kernel wake waiters.
    pub(crate) fn forget_reported_fd(&mut self, fd: i32) {
        self.already_reported
            .retain(|already_reported| already_reported.fd != fd);
    }

    /// Its lists grow no more, as a rule: a handler that writes or closes may have interrupted `malloc`.
    pub(crate) fn reserve_lists(&mut self) {
        for list in [&mut self.queued, &mut self.to_arm, &mut self.to_poll] {
            list.reserve(LIST_ROOM);
        }
        self.cancels.reserve(LIST_ROOM);
    }

    /// Whether a kernel thread takes what is pushed.
    pub(crate) fn is_polled(&self) -> bool {
        (self.ring.as_ref()).is_some_and(|context| context.ring.is_polled())
    }

    /// The connection of a descriptor, if this set has it or had it.
    #[inline]
    pub(crate) fn connection(&self, fd: i32) -> Option<Conn> {
        let entry = fd_table::entry(fd)?;
        let is_member_of_set = matches!(entry.kind(), Kind::Served | Kind::HandedBack)
            && std::ptr::eq(entry.set(), self.set_ptr);
        is_member_of_set.then(|| {
            // SAFETY: Held: a connection of this set, whose lock the caller holds.
            unsafe { Conn::new(entry.connection()) }
        })
    }

    /// Reports events `key` of a connection; 0: any event. Follows the kernel's rule (`ep_poll_callback`): events that
    /// were not requested wake no waiter.
    #[inline]
    pub(crate) fn notify(&mut self, fd: i32, mut connection: Conn, key: u32) {
        if !connection.is(flag::MEMBER) || connection.is(flag::DISABLED) {
            return;
        }
        if key != 0 && key & (connection.events | flag::ERR | flag::HUP) == 0 {
            return;
        }
        connection.mark(flag::EDGE);
        self.make_ready(fd, connection);
    }

    /// Puts it at the end of the ready ones.
    #[inline]
    pub(crate) fn make_ready(&mut self, fd: i32, mut connection: Conn) {
        if connection.is(flag::READY) {
            return;
        }
        connection.mark(flag::READY);
        connection.next = 0;
        let name = fd as u32 + 1;
        match self.ready.1 {
            0 => self.ready.0 = name,
            last => {
                if let Some(entry) = fd_table::entry(last as i32 - 1) {
                    // SAFETY: Held: connections in the list belong to this set; this is not `connection`.
                    unsafe { (*entry.connection()).next = name };
                }
            }
        }
        self.ready.1 = name;
    }

    /// Takes the first of the ready ones.
    #[inline]
    pub(crate) fn next_ready(&mut self) -> Option<(i32, &'static Entry, Conn)> {
        let first = self.ready.0;
        let entry = fd_table::entry(first.checked_sub(1)? as i32)?;
        // SAFETY: Held: connections in the list belong to this set.
        let mut connection = unsafe { Conn::new(entry.connection()) };
        self.ready.0 = connection.next;
        if self.ready.0 == 0 {
            self.ready.1 = 0;
        }
        connection.next = 0;
        connection.clear(flag::READY);
        Some((first as i32 - 1, entry, connection))
    }

    /// Takes one out of the ready ones, wherever it is.
    pub(crate) fn unready(&mut self, fd: i32, mut connection: Conn) {
        if !connection.is(flag::READY) {
            return;
        }
        let name = fd as u32 + 1;
        let (mut at, mut before) = (self.ready.0, 0);
        while at != 0 && at != name {
            let Some(entry) = fd_table::entry(at as i32 - 1) else {
                break;
            };
            before = at;
            // SAFETY: Held: connections in the list belong to this set; this is not `connection`, as its name differs.
            at = unsafe { (*entry.connection()).next };
        }
        if at == name {
            match fd_table::entry(before as i32 - 1) {
                // SAFETY: Held: connections in the list belong to this set.
                Some(entry) if before != 0 => unsafe {
                    (*entry.connection()).next = connection.next
                },
                _ => self.ready.0 = connection.next,
            }
            if self.ready.1 == name {
                self.ready.1 = before;
            }
        }
        connection.next = 0;
        connection.clear(flag::READY);
    }
}
