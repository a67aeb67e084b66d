//! Deliberate errors that the model checker must find: each [`Mutation`] omits or weakens one step of the protocol in
//! `entry.rs` and `barrier.rs`. Without the model checker, `broken` is `false` at compile time.

/// A step of the protocol that can be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(annulus_loom),
    allow(dead_code, reason = "some are steps of the model of the barriers")
)]
pub(crate) enum Mutation {
    /// A reader reads the entry again without the barrier.
    LightForgotten,
    /// The slots are read without the barrier.
    HeavyForgotten,
    /// A reader does not read the entry again.
    EntryReadOnce,
    /// A reader's reads are not ordered before the end of the protection.
    SlotUnreleased,
    /// A page is published without the writes to its frame.
    PublishedUnreleased,
    /// The slots are read before the pins.
    SlotsBeforePins,
    /// A guard that is dropped does not look for those who wait for frames.
    WaitersForgotten,
    /// One who waits for a frame looks at the slots without the barrier.
    WaitUnfenced,
    /// One who could not go on with a load does not say so.
    MissForgotten,
    /// One who could not go on with a load does not try again after it has said so.
    MissWithoutSecondTry,
    /// A thread that has gone on with a load does not look for those that could not.
    MissUnseen,
}

/// Returns whether this step is broken.
#[cfg(not(annulus_loom))]
#[inline(always)]
pub(crate) const fn broken(_: Mutation) -> bool {
    false
}

#[cfg(annulus_loom)]
pub(crate) use selected::broken;

#[cfg(annulus_loom)]
pub(crate) mod selected {
    use super::Mutation;
    use std::cell::Cell;

    thread_local! {
        /// The models' threads share one thread of the system.
        pub(crate) static BROKEN: Cell<Option<Mutation>> = const { Cell::new(None) };
    }

    /// Returns whether this step is broken.
    pub(crate) fn broken(mutation: Mutation) -> bool {
        BROKEN.get() == Some(mutation)
    }
}
