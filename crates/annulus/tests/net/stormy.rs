//! The short form of the storm; `ci/soak` runs the long one.

use std::rc::Rc;

use crate::fixtures::for_each_way;
use crate::kernel::all_but;
use crate::storm::{Storm, Tally, run};

#[test]
fn random_operations_drops_and_resets_lose_nothing_and_leave_nothing() {
    let seed = std::env::var("SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
    println!("SEED={seed}");
    for_each_way(move |_| async move {
        let tally = Rc::new(Tally::default());
        let storm = Storm {
            seed,
            operations: 10_000,
            abreast: 16,
        };
        let ports = run(storm, Rc::clone(&tally)).await;
        println!("{tally:?}");
        for port in ports {
            all_but(0, port).await;
        }
    });
}
