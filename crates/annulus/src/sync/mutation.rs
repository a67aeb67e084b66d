//! Mistakes that the model checker must find.
//!
//! A model that passes proves little until it has been seen to fail. Each [`Mutation`] leaves out, weakens or reorders
//! one step of a cross-thread protocol, in the code itself, where [`broken`] says so. `ci/loom` runs every mutation
//! against the model that is to find it, and fails if the model passes. Outside the model checker `broken` is `false`
//! at compile time.
//!
//! The environment variable `ANNULUS_BROKEN=NAME` chooses a mutation. A `--cfg` per mutation would need a build for
//! each; this way one build runs them all.

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
    /// A driver raises its sleep flag without the fence behind it.
    SleepUnfenced => "a_caller_alone_is_not_forgotten",
    /// A driver goes to sleep without a second look at what it was handed.
    SleepUnchecked => "a_caller_alone_is_not_forgotten",
    /// An abandoned operation is disposed of while it is on the list of cancel requests.
    QueuedAbandonedDisposed => "a_future_dropped_at_any_point_leaves_nothing",
    /// A slot taken off the list of cancel requests is never found done.
    UnqueuedNeverDone => "a_future_dropped_at_any_point_leaves_nothing",
    /// A driver goes to sleep without a second look at the cancel requests.
    CancelsUnchecked => "a_cancel_is_heard",
    /// A future replaces its waker without having claimed it back.
    WakerUnclaimed => "the_last_waker_registered_is_woken",
    /// A future registers its waker and does not look again.
    LookedOnce => "the_last_waker_registered_is_woken",
    /// The driver forgets that a timeout came first, and passes the slot on as if it had not.
    ExpiryForgotten => "a_timeout_and_an_answer_do_not_both_get_the_payload",
    /// A driver that ends leaves the submission list open.
    InboxLeftOpen => "an_engine_that_stops_refuses_or_answers",
    /// A driver that ends leaves the list of cancel requests open.
    CancelsLeftOpen => "an_engine_that_stops_refuses_or_answers",
    /// A batch registers its waker and does not look again.
    BatchLookedOnce => "a_batch_gets_every_answer",
    /// A dropped batch does not claim its slots before it closes its group.
    BatchUnclaimed => "a_batch_dropped_half_way_leaves_nothing",
    /// A dropped batch counts what is left after it has asked for the cancels.
    BatchCountedLate => "a_batch_dropped_half_way_leaves_nothing",
    /// A push does not release what was written before it.
    PushUnreleased => "a_stack_passes_each_element_on_once",
    /// A closed stack is met without an acquire.
    ClosedUnacquired => "a_stack_passes_each_element_on_once",
    /// A caller looks at the sleep flag without the fence before it.
    WakeUnfenced => "two_callers_are_not_forgotten",
    /// A core lowers its mailbox's flag after it has taken the messages.
    FlagLoweredLate => "a_message_for_a_core_is_not_forgotten",
    /// The free list's head carries no tag.
    FreeListUntagged => "a_free_slot_is_given_to_one",
    /// The holder of a threadless driver's lock does not look for marks after it has let go.
    MarkOverlooked => "a_thread_that_finds_the_lock_taken_is_seen_by_its_holder",
    /// The same, without the fence between letting go and looking.
    UnlockUnfenced => "a_thread_that_finds_the_lock_taken_is_seen_by_its_holder",
    /// A thread that parks still counts as awake.
    ParkedAwake => "operations_queued_around_a_park_are_submitted",
    /// A thread that parks does not look for marks after it has held the lock to busy-poll.
    SpinUnfenced => "operations_queued_around_a_park_are_submitted",
    /// A thread that drops an arena does not look for marks after it has held the lock.
    FollowerOverlooks => "who_drops_an_arena_sees_who_found_the_lock_taken",
    /// The same, without the fence between letting go and looking.
    FollowUnfenced => "who_drops_an_arena_sees_who_found_the_lock_taken",
    /// With nothing in flight any more, the inbox is not looked at again.
    InboxForgotten => "what_is_left_to_a_completion_is_not_left_when_it_has_come",
    /// A thread that sleeps in its ring does not look again at whether it was awaited.
    AwaitedUnchecked => "a_driver_that_sleeps_in_its_ring_is_woken_by_wakers_and_submissions",
    /// A threadless driver is left in place by the thread that drained it.
    DrainedInPlace => "what_a_drain_meets_is_answered_or_given_back_and_the_driver_goes_once",
    /// A handle is stopped before it is known that its driver is still the one to be drained.
    StoppedUnlocked => "a_handle_with_a_new_driver_is_left_alone_by_the_old_one",
    /// A submission looks whether the poller sleeps without the fence before it.
    PollerUnfenced =>
        "loom_an_entry_is_seen_by_a_poller_that_goes_to_sleep_or_the_poller_is_woken",
}

/// Whether this step is to be done wrong.
#[cfg(not(annulus_loom))]
#[inline(always)]
pub(crate) const fn broken(_: Mutation) -> bool {
    false
}

/// Whether this step is to be done wrong.
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
