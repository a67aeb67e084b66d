//! The end of a pool, requested by its engine and by its drop.

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
