//! # Safety
//!
//! The operations of a core that are in flight. An entry owns its operation, and with it all memory that the kernel
//! uses, from before the push until the final CQE (Lent, Open). The future has a token, which names one operation and
//! never a later one (Once). Operations are moved when the table grows, but the memory that they point to is not
//! (Still). The table belongs to one thread (Held).
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::rc::Rc;
use std::task::Waker;

use slab::Slab;

use super::core_driver::Core;
use super::token::{GENERATION_MASK, Token};
use crate::driver::contain::contain;
use crate::driver::payload::{OpFunctions, at, load, store};
use crate::metrics::OperationNumber;
use crate::narrow::{low_half, to_u32};
use crate::op::{Refusals, Resume, SocketOp};
use crate::sys::call::now_ns;
use crate::sys::errno::ECANCELED;
use crate::sys::sqe::{Cqe, Sqe};

/// The receiver of a multishot operation's completions.
pub(crate) trait CompletionHandler {
    /// Handles a completion. Called with nothing of the core borrowed.
    fn on_completion(self: Rc<Self>, core: &Core, cqe: Cqe);
}

/// The number of bytes of an operation that are stored in its entry; a larger one is boxed.
const INLINE_BYTES: usize = 64;

type Payload = MaybeUninit<[u64; INLINE_BYTES / 8]>;

struct SocketEntry {
    generation: u32,
    /// The number of resubmissions in a row without progress.
    refusals: Refusals,
    /// True if a cancel was requested: nothing is submitted again.
    stopped: bool,
    /// The times of submission and of the enter, ns; 0 if it is not timed, or not entered yet.
    times: (u64, u64),
    /// The result of a zero-copy send whose memory the kernel still uses.
    first_result: Option<i32>,
    stage: Stage,
}

enum Stage {
    Oneshot {
        payload: Payload,
        vtable: &'static Vtable,
        /// The waiting task; `None` if the operation is detached, and its result is disposed of.
        waker: Option<Waker>,
        /// The final result.
        result: Option<i32>,
    },
    Multishot(OperationNumber, Rc<dyn CompletionHandler>),
}

impl SocketEntry {
    /// Returns whether the operation is in the kernel.
    fn flies(&self) -> bool {
        !matches!(
            self.stage,
            Stage::Oneshot {
                result: Some(_),
                ..
            }
        )
    }
}

/// The functions of an operation with its type erased. Panics are contained as in `OpFunctions`.
struct Vtable {
    op: OpFunctions,
    on_zero_copy_notice: unsafe fn(*mut u8, i32),
    /// True if the operation continues when its future is dropped.
    continues_after_drop: bool,
    on_core_end: unsafe fn(*mut u8, i32),
    on_leak: unsafe fn(*mut u8),
    abandon: unsafe fn(*mut u8, i32),
}

impl Vtable {
    const fn of<T: SocketOp>() -> Vtable {
        Vtable {
            op: OpFunctions::of::<T, INLINE_BYTES>(),
            on_zero_copy_notice: |data, res| {
                // SAFETY: Typed: the entry calls these with the payload it stored a `T` in.
                unsafe { at::<T, INLINE_BYTES>(data) }.on_zero_copy_notice(res)
            },
            continues_after_drop: T::CONTINUES_AFTER_DROP,
            on_core_end: |data, res| {
                // SAFETY: Typed: the entry calls these with the payload it stored a `T` in.
                contain(|| unsafe { at::<T, INLINE_BYTES>(data) }.on_core_end(res));
            },
            // SAFETY: Typed: the entry calls these with the payload it stored a `T` in.
            on_leak: |data| unsafe { at::<T, INLINE_BYTES>(data) }.on_leak(),
            // SAFETY: Typed: the entry calls these with the payload it stored a `T` in.
            abandon: |data, res| unsafe { load::<T, INLINE_BYTES>(data) }.on_drop(res),
        }
    }
}

/// A completed operation without a future. It is disposed of with nothing borrowed, because its buffer is foreign code.
pub(super) struct Abandoned {
    payload: Payload,
    vtable: &'static Vtable,
    res: i32,
}

impl Drop for Abandoned {
    fn drop(&mut self) {
        // SAFETY: Once, Typed: made where the entry was given up, and run once.
        unsafe { (self.vtable.abandon)(self.payload.as_mut_ptr().cast(), self.res) }
    }
}

/// The action for a CQE, carried out when nothing of the table is borrowed.
pub(super) enum Reaction {
    Nothing,
    Wake(Waker),
    /// Submit the rest of the transfer.
    Again,
    /// Dispose of the detached operation with this result.
    Dispose(i32),
    Handle(Rc<dyn CompletionHandler>),
}

/// The table.
#[derive(Default)]
pub(super) struct SocketTable {
    entries: Slab<SocketEntry>,
    /// The number of operations so far. An operation's generation is the count at its start.
    submitted: u64,
    /// The number of operations in the kernel.
    flying: u64,
    /// The timed operations that have not been entered yet.
    to_go: Vec<Token>,
}

/// A completion, for the counters.
#[derive(Clone, Copy, Debug)]
pub(super) struct CompletionInfo {
    pub(super) operation: OperationNumber,
    pub(super) res: i32,
    /// True if its cancel was requested.
    pub(super) stopped: bool,
    /// True if the operation is multishot.
    pub(super) is_multishot: bool,
    /// The times of submission and of the enter.
    pub(super) times: Option<(u64, u64)>,
}

impl SocketTable {
    /// Returns the number of operations in the kernel.
    pub(super) fn in_flight(&self) -> u32 {
        let flying = self.entries.iter().filter(|(_, entry)| entry.flies());
        to_u32(flying.count())
    }

    /// Returns whether a send is in flight that continues without its future.
    pub(super) fn is_sending(&self) -> bool {
        self.entries.iter().any(|(_, entry)| match &entry.stage {
            Stage::Oneshot { vtable, .. } => vtable.continues_after_drop && entry.flies(),
            Stage::Multishot(..) => false,
        })
    }

    /// Speeds up the end of the core: sends that are complete, but whose memory the kernel keeps until the peer has
    /// acknowledged the data, are aborted if necessary.
    #[cold]
    pub(super) fn abort_unconfirmed(&mut self) {
        for (_, entry) in &mut self.entries {
            if let Some(res) = entry.first_result
                && let Stage::Oneshot {
                    payload, vtable, ..
                } = &mut entry.stage
            {
                // SAFETY: Typed: the op is in its entry, and the vtable is its own.
                unsafe { (vtable.on_core_end)(payload.as_mut_ptr().cast(), res) }
            }
        }
    }

    /// Handles a failed ring, which posts no more completions: operations in the kernel stay there.
    #[cold]
    pub(super) fn leave_behind(&mut self) {
        for (_, entry) in &mut self.entries {
            if let Stage::Oneshot {
                payload,
                vtable,
                result: None,
                ..
            } = &mut entry.stage
                && entry.first_result.is_none()
            {
                // SAFETY: Typed: the op is in its entry, and the vtable is its own. Lent: memory that the kernel uses
                // is not touched.
                unsafe { (vtable.on_leak)(payload.as_mut_ptr().cast()) }
            }
        }
    }

    #[inline]
    fn insert(&mut self, stage: Stage, submitted_ns: u64) -> Token {
        self.submitted += 1;
        self.flying += 1;
        let generation = low_half(self.submitted) & GENERATION_MASK;
        let index = self.entries.insert(SocketEntry {
            generation,
            refusals: Refusals::default(),
            stopped: false,
            times: (submitted_ns, 0),
            first_result: None,
            stage,
        });
        Token::new(index, generation)
    }

    /// Stores an operation and returns its token and the SQE to push. Without a waker the operation is detached. The
    /// memory that the SQE points to does not move with the operation. `submitted_ns` is the time of submission, or 0
    /// if the operation is not timed.
    #[inline]
    pub(super) fn start<T: SocketOp>(
        &mut self,
        op: T,
        mut sqe: Sqe,
        waker: Option<Waker>,
        submitted_ns: u64,
    ) -> (Token, Sqe) {
        let mut payload = Payload::uninit();
        // SAFETY: Typed: `store` keeps to the payload's size and alignment.
        unsafe { store::<T, INLINE_BYTES>(payload.as_mut_ptr().cast(), op) };
        let stage = Stage::Oneshot {
            payload,
            vtable: const { &Vtable::of::<T>() },
            waker,
            result: None,
        };
        let token = self.insert(stage, submitted_ns);
        if submitted_ns > 0 {
            self.to_go.push(token);
        }
        sqe.user_data = token.user_data();
        (token, sqe)
    }

    /// Adds a multishot operation whose completions go to `handler`.
    pub(super) fn arm(
        &mut self,
        operation: OperationNumber,
        handler: Rc<dyn CompletionHandler>,
    ) -> Token {
        self.insert(Stage::Multishot(operation, handler), 0)
    }

    /// Notes the time at which the pushed operations enter the kernel.
    #[inline]
    pub(super) fn note_begun(&mut self) {
        if !self.to_go.is_empty() {
            self.note_begun_at(now_ns());
        }
    }

    #[cold]
    fn note_begun_at(&mut self, now_ns: u64) {
        for token in std::mem::take(&mut self.to_go) {
            if let Some(entry) = self.entry(token) {
                entry.times.1 = now_ns;
            }
        }
    }

    /// Returns the number of operations so far, and of those in the kernel.
    #[inline]
    pub(super) fn tally(&self) -> (u64, u64) {
        (self.submitted, self.flying)
    }

    #[inline]
    fn entry(&mut self, token: Token) -> Option<&mut SocketEntry> {
        let entry = self.entries.get_mut(token.index())?;
        (entry.generation == token.generation()).then_some(entry)
    }

    /// Returns the SQE for the rest of a transfer; `None` if the buffer panicked.
    pub(super) fn sqe(&mut self, token: Token) -> Option<Sqe> {
        let Stage::Oneshot {
            payload, vtable, ..
        } = &mut self.entry(token)?.stage
        else {
            return None;
        };
        // SAFETY: Held, Typed: the op is in its entry, and the vtable is its own.
        unsafe { (vtable.op).sqe(payload.as_mut_ptr().cast(), token.user_data()) }
    }

    /// Marks an operation as cancelled. Returns `false` if there is nothing to cancel.
    pub(super) fn stop(&mut self, token: Token) -> bool {
        self.entry(token).is_some_and(|entry| {
            entry.stopped = true;
            entry.flies()
        })
    }

    /// Returns the operation and its result if it has completed; otherwise registers `waker`. The caller drops the
    /// previous waker.
    #[inline]
    pub(super) fn poll<T: SocketOp>(
        &mut self,
        token: Token,
        context: &std::task::Context<'_>,
    ) -> Result<(T, i32), Option<Waker>> {
        let Some(SocketEntry {
            stage: Stage::Oneshot { waker, result, .. },
            ..
        }) = self.entry(token)
        else {
            unreachable!("an operation that is watched is in the table")
        };
        let Some(res) = *result else {
            let same = (waker.as_ref()).is_some_and(|waker| waker.will_wake(context.waker()));
            return Err(if same {
                None
            } else {
                waker.replace(context.waker().clone())
            });
        };
        let Stage::Oneshot { mut payload, .. } = self.entries.remove(token.index()).stage else {
            unreachable!("it was oneshot just now")
        };
        // SAFETY: Once, Typed: taken out of the table for good; only the future that started it, which
        // knows the type, has the token.
        Ok((
            unsafe { load::<T, INLINE_BYTES>(payload.as_mut_ptr().cast()) },
            res,
        ))
    }

    /// Detaches an operation. If it has completed, the returned `Abandoned` disposes of it; the caller drops the waker.
    pub(super) fn abandon(&mut self, token: Token) -> (Option<Abandoned>, Option<Waker>) {
        let Some(SocketEntry {
            stage: Stage::Oneshot { waker, result, .. },
            ..
        }) = self.entry(token)
        else {
            return (None, None);
        };
        let waker = waker.take();
        let Some(res) = *result else {
            return (None, waker);
        };
        (self.give_up(token, res), waker)
    }

    /// Removes an entry for disposal.
    #[inline]
    pub(super) fn give_up(&mut self, token: Token, res: i32) -> Option<Abandoned> {
        match self.entries.try_remove(token.index())?.stage {
            Stage::Oneshot {
                payload, vtable, ..
            } => Some(Abandoned {
                payload,
                vtable,
                res,
            }),
            Stage::Multishot(..) => None,
        }
    }

    /// Handles a CQE. With `ending`, nothing is submitted again. A final result is reported to `note`.
    #[inline]
    pub(super) fn react(
        &mut self,
        token: Token,
        cqe: &Cqe,
        ending: bool,
        note: impl FnOnce(CompletionInfo),
    ) -> Reaction {
        let entry = self.entries.get_mut(token.index());
        let Some(entry) = entry.filter(|entry| entry.generation == token.generation()) else {
            return Reaction::Nothing;
        };
        match &mut entry.stage {
            Stage::Multishot(operation, handler) => {
                note(CompletionInfo {
                    operation: *operation,
                    res: cqe.res,
                    stopped: entry.stopped,
                    is_multishot: true,
                    times: None,
                });
                let handler = Rc::clone(handler);
                if !cqe.more() {
                    self.entries.remove(token.index());
                    self.flying -= 1;
                }
                Reaction::Handle(handler)
            }
            Stage::Oneshot {
                payload,
                vtable,
                waker,
                result,
            } => {
                if cqe.more() {
                    entry.first_result = Some(cqe.res);
                    return Reaction::Nothing;
                }
                let first_result = entry.first_result.take();
                let stopped = ending || entry.stopped;
                let res = match clear(payload, vtable, first_result, cqe, &mut entry.refusals) {
                    Resume::Done(res) => res,
                    // It was cancelled before it came to an end.
                    Resume::Again | Resume::Next if stopped => -ECANCELED,
                    Resume::Again | Resume::Next => return Reaction::Again,
                };
                self.flying -= 1;
                note(CompletionInfo {
                    operation: vtable.op.operation,
                    res,
                    stopped,
                    is_multishot: false,
                    times: Some(entry.times).filter(|times| times.0 > 0),
                });
                complete_entry(result, waker, res)
            }
        }
    }

    /// Completes an operation that the kernel has released with `res`, without submitting it again.
    #[cold]
    pub(super) fn fail(&mut self, token: Token, res: i32) -> Reaction {
        let Some(entry) = self.entries.get_mut(token.index()) else {
            return Reaction::Nothing;
        };
        match &mut entry.stage {
            Stage::Oneshot { waker, result, .. } => {
                self.flying -= 1;
                complete_entry(result, waker, res)
            }
            Stage::Multishot(..) => Reaction::Nothing,
        }
    }

    /// Returns the tokens of all operations.
    pub(super) fn tokens(&self) -> Vec<Token> {
        let all = self.entries.iter();
        all.map(|(index, entry)| Token::new(index, entry.generation))
            .collect()
    }
}

/// Returns the reaction of an operation that the kernel has released.
#[inline]
fn clear(
    payload: &mut Payload,
    vtable: &Vtable,
    first_result: Option<i32>,
    cqe: &Cqe,
    refusals: &mut Refusals,
) -> Resume {
    let data = payload.as_mut_ptr().cast();
    let res = match first_result {
        Some(first_result) if cqe.is_notice() => {
            // SAFETY: Held, Typed: the kernel has let go; the op is in its entry.
            unsafe { (vtable.on_zero_copy_notice)(data, cqe.res) };
            first_result
        }
        _ => cqe.res,
    };
    // SAFETY: Held, Typed: the kernel has let go; the op is in its entry.
    unsafe { (vtable.op).judge(data, res, refusals) }
}

/// Stores the final result.
#[inline]
fn complete_entry(result: &mut Option<i32>, waker: &mut Option<Waker>, res: i32) -> Reaction {
    *result = Some(res);
    match waker.take() {
        Some(waker) => Reaction::Wake(waker),
        None => Reaction::Dispose(res),
    }
}
