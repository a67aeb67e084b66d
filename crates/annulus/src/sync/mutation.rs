//! Deliberate errors that the model checker must find.
//!
//! A passing model proves little unless a broken protocol makes it fail. Each [`Mutation`] omits, weakens or reorders
//! one step of a cross-thread protocol, at the place in the code that calls [`broken`]. `ci/loom` runs every mutation
//! against its model, and fails if the model passes. Outside the model checker, `broken` is `false` at compile time.
//!
//! The environment variable `ANNULUS_BROKEN=NAME` selects a mutation, so a single build runs all of them.

macro_rules! mutations {
    ($($(#[doc = $doc:literal])+ $name:ident => $model:literal,)+) => {
        /// A step of a protocol that can be broken.
        #[cfg_attr(not(feature = "net"), allow(dead_code, reason = "some protocols are those of `net`"))]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Mutation {
            $($(#[doc = $doc])+ $name,)+
        }

        /// Each mutation, and the name of the model that must find it.
        #[cfg(all(test, annulus_loom))]
        pub(crate) const MUTATIONS: &[(Mutation, &str)] = &[$((Mutation::$name, $model),)+];

        #[cfg(annulus_loom)]
        impl Mutation {
            fn named(name: &str) -> Option<Mutation> {
                match name {
                    $(stringify!($name) => Some(Mutation::$name),)+
                    _ => None,
                }
            }
        }
    };
}

mutations! {
    /// A driver sets its sleep flag without the fence after it.
    SleepUnfenced => "a_caller_alone_is_not_forgotten",
    /// A driver sleeps without checking its submission list again.
    SleepUnchecked => "a_caller_alone_is_not_forgotten",
    /// A driver parks although it has been notified since it checked its lists.
    ParkedRegardless => "a_caller_does_not_miss_a_driver_that_parks",
    /// An abandoned operation is disposed of while it is on the list of cancel requests.
    QueuedAbandonedDisposed => "a_future_dropped_at_any_point_leaves_nothing",
    /// A slot that leaves the list of cancel requests is never recognised as done.
    UnqueuedNeverDone => "a_future_dropped_at_any_point_leaves_nothing",
    /// A driver sleeps without checking the cancel requests again.
    CancelsUnchecked => "a_cancel_is_heard",
    /// A future replaces its waker without claiming it back first.
    WakerUnclaimed => "the_last_waker_registered_is_woken",
    /// A future registers its waker without checking again.
    LookedOnce => "the_last_waker_registered_is_woken",
    /// The driver ignores that a timeout came first, and passes the slot on.
    ExpiryForgotten => "a_timeout_and_a_completion_do_not_both_get_the_payload",
    /// A driver that ends leaves the submission list open.
    InboxLeftOpen => "an_engine_that_stops_refuses_or_completes_each_operation",
    /// A driver that ends leaves the list of cancel requests open.
    CancelsLeftOpen => "an_engine_that_stops_refuses_or_completes_each_operation",
    /// A batch registers its waker without checking again.
    BatchLookedOnce => "a_batch_gets_every_completion",
    /// A dropped batch closes its group without claiming its slots first.
    BatchUnclaimed => "a_batch_dropped_half_way_leaves_nothing",
    /// A dropped batch counts its remaining slots after it has requested the cancels.
    BatchCountedLate => "a_batch_dropped_half_way_leaves_nothing",
    /// A push does not release the writes before it.
    PushUnreleased => "a_stack_passes_each_element_on_once",
    /// A closed stack is read without an acquire.
    ClosedUnacquired => "a_stack_passes_each_element_on_once",
    /// A caller checks the sleep flag without the fence before it.
    WakeUnfenced => "two_callers_are_not_forgotten",
    /// A core clears its mailbox flag after it has taken the messages.
    FlagLoweredLate => "a_message_for_a_core_is_not_forgotten",
    /// The head of the free list carries no tag.
    FreeListUntagged => "a_free_slot_is_given_to_one_thread",
    /// A thread that finds a driver's turn taken leaves no mark.
    CallUnmarked => "a_thread_that_finds_the_turn_taken_is_noticed",
    /// The thread that ends its turn overlooks a mark.
    MarkOverlooked => "a_thread_that_finds_the_turn_taken_is_noticed",
    /// A thread sleeps in its ring although there is a mark.
    MarkSleptOver => "a_mark_prevents_the_sleep_or_finds_it",
    /// The end of a turn does not wake the threads that wait for it.
    WaitForgotten => "operations_during_a_drain_are_completed_or_refused_and_the_driver_ends_once",
    /// A batch goes on after its end.
    BatchUnended => "operations_queued_until_a_flush_are_submitted",
    /// A batch marks the driver as awake after it has begun, when another thread may have ended it.
    BatchAwakeLate => "a_batch_that_begins_while_another_ends_leaves_nothing_queued",
    /// The end of a whole read does not submit the reads that waited for it.
    WholeReadEndsUnnoticed => "a_whole_read_that_waits_for_one_that_ends_is_submitted",
    /// A flush leaves whole reads queued that wait for others.
    FlushAwaitsWholeReads => "whole_reads_queued_while_others_end_are_submitted_by_a_flush",
    /// A thread that looks for missed work overlooks a mark.
    LookOverlooks => "a_thread_that_looks_for_missed_work_notices_one_that_found_the_turn_taken",
    /// A thread that drops an arena overlooks a mark.
    FollowerOverlooks => "a_thread_that_drops_an_arena_notices_one_that_found_the_turn_taken",
    /// The inbox is not checked again once nothing is in flight.
    InboxForgotten => "an_operation_left_to_a_completion_that_has_already_come_is_submitted",
    /// A thread that sleeps in its ring does not check again whether it was awaited.
    AwaitedUnchecked => "a_driver_that_sleeps_in_its_ring_is_woken_by_wakers_and_submissions",
    /// The thread that drains a threadless driver leaves it in place.
    DrainedInPlace => "operations_during_a_drain_are_completed_or_refused_and_the_driver_ends_once",
    /// A handle is stopped without checking first that its driver is still the one to drain.
    StoppedUnlocked => "a_handle_with_a_new_driver_is_left_alone_by_the_old_one",
    /// A submission checks whether the poller sleeps without the fence before it.
    PollerUnfenced =>
        "loom_an_entry_is_seen_by_a_poller_that_goes_to_sleep_or_the_poller_is_woken",
}

/// Returns whether to execute this step incorrectly.
#[cfg(not(annulus_loom))]
#[inline(always)]
pub(crate) const fn broken(_: Mutation) -> bool {
    false
}

/// Returns whether to execute this step incorrectly.
#[cfg(annulus_loom)]
pub(crate) fn broken(mutation: Mutation) -> bool {
    use std::sync::OnceLock;

    static CHOSEN: OnceLock<Option<Mutation>> = OnceLock::new();
    let chosen = CHOSEN.get_or_init(|| {
        let name = std::env::var("ANNULUS_BROKEN").ok()?;
        let chosen = Mutation::named(&name);
        assert!(chosen.is_some(), "ANNULUS_BROKEN={name}: no such mutation");
        chosen
    });
    *chosen == Some(mutation)
}
