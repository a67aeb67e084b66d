//! The threads of a pool that wait for work, and which of them is woken.

use std::sync::{Arc, Condvar, MutexGuard, PoisonError};
use std::time::Duration;

/// The threads of a pool that wait for work, as a part of the pool's state. The last one is woken first: its stack and
/// its processor's caches are the warmest, and the others may end.
#[derive(Debug, Default)]
pub(crate) struct IdleThreads {
    idle: Vec<Arc<Condvar>>,
    /// Threads that have been started or woken but have not looked for work yet.
    coming: usize,
}

impl IdleThreads {
    /// Returns whether no thread waits. The pool of other platforms does not ask.
    #[cfg(all(target_os = "linux", not(annulus_portable)))]
    pub(crate) fn is_empty(&self) -> bool {
        self.idle.is_empty()
    }

    /// Returns the number of threads that have been started or woken but have not looked for work yet.
    pub(crate) fn coming(&self) -> usize {
        self.coming
    }

    /// Notes that a thread is being started.
    pub(crate) fn expect_one(&mut self) {
        self.coming += 1;
    }

    /// Notes that a started thread looks for work, or could not be started.
    pub(crate) fn came(&mut self) {
        self.coming -= 1;
    }

    /// Wakes an idle thread, if there is one.
    pub(crate) fn wake_one(&mut self) -> bool {
        let thread = self.idle.pop();
        self.coming += usize::from(thread.is_some());
        thread.inspect(|thread| thread.notify_one()).is_some()
    }

    /// Wakes all idle threads, which find out by themselves why.
    pub(crate) fn notify_all(&self) {
        self.idle.iter().for_each(|thread| thread.notify_one());
    }

    /// Waits for work with the thread's own `wake_up`, at most for `time`. Returns whether the thread may have been
    /// woken.
    pub(crate) fn wait<'a, S>(
        mut state: MutexGuard<'a, S>,
        of: fn(&mut S) -> &mut IdleThreads,
        wake_up: &Arc<Condvar>,
        time: Duration,
    ) -> (MutexGuard<'a, S>, bool) {
        of(&mut state).idle.push(Arc::clone(wake_up));
        let waited = wake_up.wait_timeout(state, time);
        let (mut state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        let this = of(&mut state);
        let own = this.idle.iter().position(|one| Arc::ptr_eq(one, wake_up));
        match own {
            Some(own) => drop(this.idle.remove(own)),
            None => this.coming -= 1,
        }
        (state, own.is_none() || !waited.timed_out())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_that_became_idle_last_is_woken_first_and_counts_as_coming() {
        let threads = [Arc::new(Condvar::new()), Arc::new(Condvar::new())];
        let mut pool = IdleThreads {
            idle: threads.to_vec(),
            coming: 0,
        };
        assert!(pool.wake_one());
        assert!(pool.idle.len() == 1 && Arc::ptr_eq(&pool.idle[0], &threads[0]));
        assert!(pool.wake_one() && !pool.wake_one());
        assert_eq!((pool.idle.len(), pool.coming), (0, 2));
    }
}
