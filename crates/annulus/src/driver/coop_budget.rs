//! Budgets of a task that is always ready. It would starve the other tasks of its executor if it did not yield.
//!
//! Sockets have a budget per poll of a task, `PollBudget`, which the executor of the core resets.
//!
//! Cached files have a budget of synchronous completions in a row per thread, because any executor may poll them. It
//! adapts to the tasks on the thread. A task that yields measures the time until it is polled again. If that
//! is too long, because many other tasks use up their budgets, the budget shrinks; a task alone gets the largest one.

use std::cell::Cell;
use std::mem;
use std::task::{Context, Poll};

/// The largest budget, in completions of 4 KiB: 60 to 90 µs for every length. Tokio wakes another worker when a task
/// yields, which often takes the task away, so a task alone should yield rarely.
const BUDGET_MAX: u32 = 64;
/// A larger completion counts as several, because the time is spent on copying.
const UNIT_BYTES: u32 = 16 << 10;
/// The longest time that a task should wait for the other tasks of its thread, ns.
const WAIT_MAX_NS: u64 = 100_000;

/// The number of operations on sockets that may be ready within one poll of a task, as in Tokio.
#[cfg(feature = "net")]
const OPERATIONS_MAX: u32 = 128;
/// Every 8 KiB count as one more operation, so that 1 MiB uses up the whole budget.
#[cfg(feature = "net")]
const OPERATION_BYTES: usize = 8 << 10;

/// The rest of the budget of a task's poll. For `annulus-hyper`. Not covered by version numbers.
#[cfg(feature = "net")]
#[derive(Debug)]
pub struct PollBudget(Cell<u32>);

#[cfg(feature = "net")]
impl PollBudget {
    /// Returns a whole budget.
    pub const fn new() -> PollBudget {
        PollBudget(Cell::new(OPERATIONS_MAX))
    }

    /// Takes one operation. Returns `false` if the budget is used up.
    #[inline]
    pub fn take(&self) -> bool {
        // Two instructions on x86-64: the flags of the subtraction decide.
        let (left, used_up) = self.0.get().overflowing_sub(1);
        self.0.set(left);
        if used_up {
            self.use_up();
        }
        !used_up
    }

    /// Takes the share of `bytes` bytes that an operation has moved.
    #[inline]
    pub fn charge(&self, bytes: usize) {
        if bytes >= OPERATION_BYTES {
            self.charge_several(bytes);
        }
    }

    #[cold]
    fn charge_several(&self, bytes: usize) {
        let operations = u32::try_from(bytes / OPERATION_BYTES).unwrap_or(u32::MAX);
        self.0.set(self.0.get().saturating_sub(operations));
    }

    /// Makes the budget whole again, because the task waits or is polled again.
    #[inline]
    pub fn reset(&self) {
        self.0.set(OPERATIONS_MAX);
    }

    pub(crate) fn is_used_up(&self) -> bool {
        self.0.get() == 0
    }

    /// Leaves nothing of the budget.
    #[cold]
    pub(crate) fn use_up(&self) {
        self.0.set(0);
    }
}

#[cfg(feature = "net")]
impl Default for PollBudget {
    fn default() -> PollBudget {
        PollBudget::new()
    }
}

thread_local! {
    /// The completions since the last yield.
    static RUN: Cell<u32> = const { Cell::new(0) };
    static BUDGET: Cell<u32> = const { Cell::new(BUDGET_MAX) };
    /// The time of the last change of the budget, ns.
    static ADJUSTED_NS: Cell<u64> = const { Cell::new(0) };
}

/// Returns whether this thread may complete one more operation synchronously. If not, its task must yield once after
/// `reset`, and then go on: other tasks may have used the budget up again, each time.
#[inline]
pub(crate) fn may_go_on() -> bool {
    RUN.get() < BUDGET.get()
}

/// Counts `operations` operations of `bytes` each that completed synchronously.
#[inline]
pub(crate) fn count(operations: u32, bytes: u32) {
    let units = operations.saturating_mul(1 + bytes / UNIT_BYTES);
    RUN.set(RUN.get().saturating_add(units));
}

/// Resets the count, because the task waits or yields.
#[inline]
pub(crate) fn reset() {
    RUN.set(0);
}

/// The yields of a future that completes several operations, or that has no operation yet.
#[derive(Debug, Default)]
pub(crate) struct Yields {
    has_yielded: bool,
}

impl Yields {
    /// Yields if the budget is used up, unless it has just done so.
    #[inline]
    pub(crate) fn poll(&mut self, context: &Context<'_>) -> Poll<()> {
        if may_go_on() || mem::take(&mut self.has_yielded) {
            return Poll::Ready(());
        }
        self.has_yielded = true;
        reset();
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Yields to the other tasks of the thread, once.
pub(crate) async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Adapts the budget when a task that yielded at `yielded_ns` is polled again at `now_ns`.
pub(crate) fn resume(yielded_ns: u64, now_ns: u64) {
    // One change per turn of all tasks.
    if yielded_ns >= ADJUSTED_NS.get() {
        ADJUSTED_NS.set(now_ns);
        let waited_ns = now_ns.saturating_sub(yielded_ns);
        BUDGET.set(adjusted(BUDGET.get(), waited_ns));
    }
}

/// Returns the budget after a task has waited for `waited_ns`.
fn adjusted(budget: u32, waited_ns: u64) -> u32 {
    if waited_ns > WAIT_MAX_NS {
        let scaled = u64::from(budget) * WAIT_MAX_NS / waited_ns;
        u32::try_from(scaled).unwrap_or(BUDGET_MAX).max(1)
    } else if waited_ns < WAIT_MAX_NS / 2 {
        (budget + budget / 4 + 1).min(BUDGET_MAX)
    } else {
        budget
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    /// Returns the longest wait, ns, after the budget has settled for `tasks` tasks whose reads take `read_ns`.
    fn longest_wait_ns(tasks: u64, read_ns: u64) -> u64 {
        let mut budget = BUDGET_MAX;
        let waits = (0..100).map(|_| {
            let waited_ns = (tasks - 1) * u64::from(budget) * read_ns;
            budget = adjusted(budget, waited_ns);
            waited_ns
        });
        waits.skip(50).max().unwrap()
    }

    #[test]
    fn a_task_waits_for_few_reads_of_many_others() {
        for tasks in 1..=64 {
            let waited_ns = longest_wait_ns(tasks, 1_200);
            assert!(
                waited_ns <= WAIT_MAX_NS * 5 / 4,
                "{tasks} tasks: {waited_ns} ns"
            );
        }
        // With more tasks, each completes one read per turn.
        assert_eq!(longest_wait_ns(1_000, 1_200), 999 * 1_200);
    }

    #[test]
    fn a_task_alone_and_a_thread_that_becomes_quiet_have_the_largest_budget() {
        assert_eq!(adjusted(BUDGET_MAX, 200), BUDGET_MAX);
        let grown = (0..20).fold(1, |budget, _| adjusted(budget, 200));
        assert_eq!(grown, BUDGET_MAX);
    }

    #[test]
    fn a_future_yields_once_although_others_use_the_budget_up_each_time() {
        let context = Context::from_waker(Waker::noop());
        let mut yields = Yields::default();
        for polled in [
            Poll::Pending,
            Poll::Ready(()),
            Poll::Pending,
            Poll::Ready(()),
        ] {
            count(BUDGET_MAX, 0);
            assert_eq!(yields.poll(&context), polled);
        }
        reset();
    }

    #[test]
    fn the_budget_changes_once_per_turn() {
        BUDGET.set(BUDGET_MAX);
        // Three tasks yielded before the first of them was polled again.
        for yielded_ns in [1_000, 2_000, 3_000] {
            resume(yielded_ns, 1_001_000);
        }
        assert_eq!(BUDGET.get(), adjusted(BUDGET_MAX, 1_000_000));
        BUDGET.set(BUDGET_MAX);
    }
}
