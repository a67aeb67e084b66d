//! The idle threads of a pool, and its end, requested by its engine and by its drop.

use super::*;

#[test]
fn a_pool_has_one_drain_deadline_for_all_requests() {
    let config = Config {
        threads: 1,
        limits: Limits {
            in_flight: 1,
            in_flight_bytes: 1,
        },
        drain_timeout: Duration::from_secs(60),
        affinity: None,
    };
    let until = |pool: &Pool| lock(&pool.shared.state).drain_until_ns;
    let pool = Pool::new(config);
    pool.drain(Some(7));
    assert_eq!(until(&pool), Some(7));
    pool.drain(None);
    pool.drain(Some(now_ns()));
    assert_eq!(until(&pool), Some(7), "the first is for all");
    let alone = Pool::new(config);
    alone.drain(None);
    let first = until(&alone);
    alone.drain(None);
    assert!(first.is_some() && until(&alone) == first);
}

#[test]
fn the_thread_that_became_idle_last_is_woken_first_and_counts_as_coming() {
    let threads = [Arc::new(Condvar::new()), Arc::new(Condvar::new())];
    let mut state = PoolState {
        idle: threads.to_vec(),
        ..PoolState::default()
    };
    state.wake_one();
    assert!(state.idle.len() == 1 && Arc::ptr_eq(&state.idle[0], &threads[0]));
    state.wake_one();
    // No thread is left to wake.
    state.wake_one();
    assert_eq!((state.idle.len(), state.coming), (0, 2));
}
