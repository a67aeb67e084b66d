//! The values that a core and another runtime, in which it sleeps, pass to each other.

/// A sleep in another runtime.
#[derive(Clone, Copy)]
pub(super) struct Sleep {
    /// The time of the next timer, ns.
    pub(super) until_ns: u64,
    /// The callbacks for tasks of the other runtime that use the core.
    pub(super) calls: SleepCalls,
}

/// The callbacks of a sleep in another runtime.
#[derive(Clone, Copy)]
pub(crate) struct SleepCalls {
    /// Called when an operation waits for a submission.
    pub(crate) on_push: fn(),
    /// Called when a timer is earlier than the end of the sleep.
    pub(crate) on_earlier_timer: fn(),
}

/// There is work, so a core must not sleep.
pub(crate) struct Awake;
