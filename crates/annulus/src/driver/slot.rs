//! # Safety
//!
//! The memory of one operation, from submission to final CQE and result. Slots are in the driver's table at fixed
//! addresses (Still) and are reused, so that an operation needs no heap allocation. The op itself is stored inside, its
//! type erased by a table of functions.
//!
//! Access rules:
//!
//! 1. A free slot belongs to the table; `SlotTable::take` gives it to one caller, which fills it.
//! 2. From submission on, everything except `lifecycle` belongs to the driver (`DriverSide`, the payload). A thread
//!    that runs an operation accesses its payload, its functions and `refusals`, and nothing else.
//! 3. `lifecycle` determines when the result and the payload go to the future, and which side frees the slot.
//!
//! Invariants: Lent (the payload owns what the kernel may touch), Still, Open, Once.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr::NonNull;

use super::contain::contained;
use super::group::Group;
use super::lifecycle::Lifecycle;
use super::payload::{self, OpFunctions, PANICKED};
use super::stack::Linked;
use crate::metrics::OperationNumber;
use crate::op::{FileOp, Nop, OpInfo, Refusals, Resume};
use crate::sync::{AtomicPtr, AtomicU32, ExclusiveCell, Ordering::Relaxed};
use crate::sys::sqe::Sqe;

/// The number of bytes of an op that are stored in the slot itself. A larger op is boxed; none of the library's own is,
/// with the buffer types that it implements.
const INLINE_BYTES: usize = 128;

/// The top bit of a token is free for the driver: it marks the CQE of a cancel.
const GENERATION_MASK: u32 = u32::MAX >> 1;

type Payload = ExclusiveCell<MaybeUninit<[u64; INLINE_BYTES / 8]>>;

/// The memory of one operation.
#[repr(C, align(64))]
pub(crate) struct Slot {
    pub(crate) lifecycle: Lifecycle,
    /// Counts the operations that lived here; part of the token (Once).
    generation: AtomicU32,
    /// The index in the table.
    index: u32,
    /// The link of the table's free list.
    pub(super) free_next: AtomicU32,
    /// The thread that runs the op counts.
    refusals: ExclusiveCell<Refusals>,
    /// The link of the submission list, later of the group's list of completed slots.
    next: AtomicPtr<Slot>,
    /// The link of the list of cancel requests; a separate type, because it is a second link.
    cancel: CancelLink,
    driver: ExclusiveCell<DriverSide>,
    /// The functions of the op in the payload. Separate from the rest, so that they can be called while a `DriverSide`
    /// is borrowed.
    vtable: ExclusiveCell<&'static Vtable>,
    payload: Payload,
}

#[cfg(not(annulus_loom))]
const _: () = assert!(size_of::<Slot>() == 256);

/// The link of the list of cancel requests, from which its slot can be computed.
#[repr(transparent)]
pub(crate) struct CancelLink(AtomicPtr<CancelLink>);

/// The part that only the holder of the slot accesses: the filler, then the driver, then the thread that takes it.
pub(crate) struct DriverSide {
    /// The next operation of the same submission.
    pub(crate) chain: Option<NonNull<Slot>>,
    /// The group that receives the result, if it does not go to the slot's own waker. The group counts its slots and so
    /// stays alive.
    pub(crate) group: Option<NonNull<Group>>,
    /// The group's key for this operation.
    pub(crate) group_key: u32,
    pub(crate) stage: Stage,
    /// The result: a count or minus an errno.
    pub(crate) res: i32,
    /// The bytes that count against the in-flight limit.
    pub(crate) bytes: u32,
    /// The deadline, ns of the monotonic clock; 0 is none.
    pub(crate) deadline_ns: u64,
    /// The times of submission and of the start in the kernel or a blocking thread, ns; 0 if the operation is not
    /// timed.
    pub(crate) submitted_ns: u64,
    pub(crate) begun_ns: u64,
    /// True if a cancel was requested because of the deadline.
    pub(crate) timed_out: bool,
    /// True if it was undone because the submitting thread ended, and was submitted again.
    pub(crate) resubmitted_after_exit: bool,
}

/// The stage of an operation in its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Submitted to the driver, but not to the kernel.
    Waiting,
    /// The kernel (or a blocking thread) may access its memory.
    InFlight,
    /// Waiting for its deadline only.
    Sleeping,
    /// Completed.
    Finished,
    /// Timed out: the future has returned because of the timeout; the kernel may still access its memory.
    Expired,
}

// SAFETY: Held: the access rules above determine which thread may access which part; ops are `Send`.
unsafe impl Send for Slot {}
// SAFETY: Held: the access rules above determine which thread may access which part; ops are `Send`.
unsafe impl Sync for Slot {}

// SAFETY: Held: one fixed field; the two lists that use it follow one another (submission, then done).
unsafe impl Linked for Slot {
    fn link(&self) -> &AtomicPtr<Slot> {
        &self.next
    }
}

// SAFETY: Held: one fixed field; a slot is queued for a cancel once (`QUEUED`).
unsafe impl Linked for CancelLink {
    fn link(&self) -> &AtomicPtr<CancelLink> {
        &self.0
    }
}

impl Slot {
    pub(super) fn new(index: u32) -> Slot {
        Slot {
            lifecycle: Lifecycle::new(),
            generation: AtomicU32::new(0),
            index,
            free_next: AtomicU32::new(0),
            refusals: ExclusiveCell::new(Refusals::default()),
            next: AtomicPtr::new(std::ptr::null_mut()),
            cancel: CancelLink(AtomicPtr::new(std::ptr::null_mut())),
            vtable: ExclusiveCell::new(&EMPTY),
            driver: ExclusiveCell::new(DriverSide {
                chain: None,
                group: None,
                group_key: 0,
                stage: Stage::Finished,
                res: 0,
                bytes: 0,
                deadline_ns: 0,
                submitted_ns: 0,
                begun_ns: 0,
                timed_out: false,
                resubmitted_after_exit: false,
            }),
            payload: ExclusiveCell::new(MaybeUninit::uninit()),
        }
    }

    /// Returns the index in the table.
    pub(super) fn index(&self) -> u32 {
        self.index
    }

    /// Returns the token of this operation, which names no later operation of the slot.
    pub(crate) fn token(&self) -> u64 {
        u64::from(self.generation.load(Relaxed) & GENERATION_MASK) << 32 | u64::from(self.index)
    }

    /// Invalidates the token. Only the thread that frees the slot calls this.
    pub(super) fn next_generation(&self) {
        self.generation
            .store(self.generation.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// Returns the slot's link in the list of cancel requests.
    pub(crate) fn cancel_link(slot: NonNull<Slot>) -> NonNull<CancelLink> {
        // SAFETY: Still: the field is inside the slot; the pointer keeps its provenance over the whole slot.
        unsafe { slot.byte_add(std::mem::offset_of!(Slot, cancel)).cast() }
    }

    /// Returns the slot of a cancel link.
    pub(crate) fn of_cancel(link: NonNull<CancelLink>) -> NonNull<Slot> {
        // SAFETY: Still: every `CancelLink` comes from `cancel_link`.
        unsafe { link.byte_sub(std::mem::offset_of!(Slot, cancel)).cast() }
    }

    /// Stores an op. `bytes` are those of the op. Its buffer is foreign code, which may panic, so the caller asks it
    /// before it takes the slot. `submitted_ns` is the time of submission, or 0 if the operation is not timed.
    ///
    /// # Safety
    ///
    /// Once. The caller owns the free slot.
    pub(crate) unsafe fn fill<T: FileOp>(
        &self,
        op: T,
        bytes: u32,
        deadline_ns: u64,
        submitted_ns: u64,
    ) {
        // SAFETY: Held: the caller upholds the contract in `# Safety`: no other code accesses a free slot.
        self.refusals
            .with_mut(|refusals| unsafe { *refusals = Refusals::default() });
        // SAFETY: Held: the caller upholds the contract in `# Safety`: no other code accesses a free slot.
        self.vtable
            .with_mut(|vtable| unsafe { *vtable = const { &Vtable::of::<T>() } });
        // SAFETY: Held: the caller upholds the contract in `# Safety`: no other code accesses a free slot.
        let side = unsafe { self.driver() };
        side.chain = None;
        side.group = None;
        side.stage = Stage::Waiting;
        side.bytes = bytes;
        side.deadline_ns = deadline_ns;
        side.submitted_ns = submitted_ns;
        side.begun_ns = submitted_ns;
        side.timed_out = false;
        side.resubmitted_after_exit = false;
        // SAFETY: Typed: `store` keeps to the payload's size and alignment.
        unsafe { payload::store::<T, INLINE_BYTES>(self.data(), op) };
    }

    /// Returns the driver's side.
    ///
    /// # Safety
    ///
    /// Rule 2 or 3 of this module: the caller holds the slot, and no longer uses what an earlier call
    /// returned.
    #[allow(clippy::mut_from_ref)]
    #[inline]
    pub(crate) unsafe fn driver(&self) -> &mut DriverSide {
        // SAFETY: Held: the caller upholds the contract in `# Safety`.
        self.driver.with_mut(|side| unsafe { &mut *side })
    }

    #[inline]
    fn data(&self) -> *mut u8 {
        self.payload.with_mut(|payload| payload.cast())
    }

    #[inline]
    fn vtable(&self) -> &'static Vtable {
        // SAFETY: Held: written by `fill` only, before the slot is submitted.
        self.vtable.with(|vtable| unsafe { *vtable })
    }

    /// Returns the op's static description.
    ///
    /// # Safety
    ///
    /// The caller holds the slot.
    pub(crate) unsafe fn info(&self) -> &'static OpInfo {
        self.vtable().info
    }

    /// Returns the number that the op is counted under.
    ///
    /// # Safety
    ///
    /// The caller holds the slot.
    #[inline]
    pub(crate) unsafe fn operation(&self) -> OperationNumber {
        self.vtable().op.operation
    }

    /// Returns the op's SQE, with its token; `None` if the buffer panicked when it was asked for its address.
    ///
    /// # Safety
    ///
    /// The caller is the driver that holds the slot.
    #[inline]
    pub(crate) unsafe fn sqe(&self) -> Option<Sqe> {
        // SAFETY: Held: the caller upholds the contract in `# Safety`; Typed: the vtable is the one
        // of the op stored here.
        unsafe { self.vtable().op.sqe(self.data(), self.token()) }
    }

    /// Runs the op as its system call on this thread.
    ///
    /// # Safety
    ///
    /// The caller is the driver, or the blocking thread the driver gave the slot to.
    pub(crate) unsafe fn syscall(&self) -> i32 {
        // SAFETY: Held: the caller upholds the contract in `# Safety`; Typed: the vtable is the one
        // of the op stored here.
        unsafe { (self.vtable().syscall)(self.data()) }
    }

    /// Passes the kernel's result to the op.
    ///
    /// # Safety
    ///
    /// The caller is the driver that holds the slot, or the blocking thread that it gave the slot to.
    #[inline]
    pub(crate) unsafe fn resume(&self, res: i32) -> Resume {
        // SAFETY: Held: the caller upholds the contract in `# Safety`; Typed: the vtable is the one
        // of the op stored here.
        self.refusals.with_mut(|refusals| unsafe {
            (self.vtable().op).judge(self.data(), res, &mut *refusals)
        })
    }

    /// Makes the op's file stop polling.
    ///
    /// # Safety
    ///
    /// The caller is the driver that holds the slot.
    pub(super) unsafe fn stop_polling(&self) {
        // SAFETY: Held: the caller upholds the contract in `# Safety`; Typed: the vtable is the one
        // of the op stored here.
        unsafe { (self.vtable().stop_polling)(self.data()) }
    }

    /// Drops the op and the resources in its result (a descriptor, for example).
    ///
    /// # Safety
    ///
    /// Once. The caller holds the slot, the op is in it, and it is not touched again.
    pub(crate) unsafe fn dispose(&self) {
        // SAFETY: Held: the caller upholds the contract in `# Safety`; Typed: the vtable is the one
        // of the op stored here.
        unsafe { (self.vtable().dispose)(self.data(), self.driver().res) }
    }

    /// Takes the op and its result out.
    ///
    /// # Safety
    ///
    /// Once. The caller holds the slot, and `T` is the type it was filled with.
    pub(crate) unsafe fn take<T: FileOp>(&self) -> (T, i32) {
        // SAFETY: Once: the caller upholds the contract in `# Safety`.
        unsafe {
            (
                payload::load::<T, INLINE_BYTES>(self.data()),
                self.driver().res,
            )
        }
    }
}

/// The functions of an op with its type erased. Panics are contained as in `OpFunctions`.
struct Vtable {
    op: OpFunctions,
    info: &'static OpInfo,
    syscall: unsafe fn(*mut u8) -> i32,
    stop_polling: unsafe fn(*mut u8),
    dispose: unsafe fn(*mut u8, i32),
}

/// The functions of a slot that was never filled.
static EMPTY: Vtable = Vtable::of::<Nop>();

impl Vtable {
    const fn of<T: FileOp>() -> Vtable {
        Vtable {
            op: OpFunctions::of::<T, INLINE_BYTES>(),
            info: &T::INFO,
            syscall: |data| {
                // SAFETY: Typed: the slot calls these with the payload it stored a `T` in.
                contained(|| unsafe { payload::at::<T, INLINE_BYTES>(data) }.syscall())
                    .unwrap_or(PANICKED)
            },
            // SAFETY: Typed: the slot calls these with the payload it stored a `T` in.
            stop_polling: |data| unsafe { payload::at::<T, INLINE_BYTES>(data) }.stop_polling(),
            dispose: |data, res| {
                // SAFETY: Typed: the slot calls these with the payload it stored a `T` in.
                drop(unsafe { payload::load::<T, INLINE_BYTES>(data) }.complete(res))
            },
        }
    }
}
