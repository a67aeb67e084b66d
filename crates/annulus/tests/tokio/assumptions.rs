//! Assumptions of the library about Tokio. If a version of Tokio changes one of them, the library falls back as
//! docs/internals/design.md says, and a test here fails.

use tokio::runtime::{Builder, Handle, Runtime, worker_index};
use tokio::task::{LocalSet, yield_now};

fn runtimes() -> [Runtime; 2] {
    let mut several = Builder::new_multi_thread();
    [
        several.worker_threads(1).enable_all().build().unwrap(),
        Builder::new_current_thread().enable_all().build().unwrap(),
    ]
}

#[test]
fn a_thread_has_a_worker_index_exactly_while_it_runs_a_scheduler() {
    for runtime in runtimes() {
        let inside = runtime.block_on(runtime.spawn(async { worker_index() }));
        assert_eq!(inside.unwrap(), Some(0));
        let blocking = runtime.block_on(runtime.spawn_blocking(worker_index));
        assert_eq!(blocking.unwrap(), None);
        let _entered = runtime.enter();
        assert_eq!(worker_index(), None);
    }
    let [several, single] = runtimes();
    assert_eq!(several.block_on(async { worker_index() }), None);
    assert_eq!(single.block_on(async { worker_index() }), Some(0));
    let index = |runtime: &Runtime| LocalSet::new().block_on(runtime, async { worker_index() });
    assert_eq!((index(&several), index(&single)), (None, Some(0)));
}

#[test]
fn a_task_that_yields_runs_after_the_tasks_that_are_ready() {
    for runtime in runtimes() {
        let task = runtime.spawn(async {
            let others: Vec<_> = (0..10).map(|_| tokio::spawn(async {})).collect();
            yield_now().await;
            others.iter().all(tokio::task::JoinHandle::is_finished)
        });
        assert!(
            runtime.block_on(task).unwrap(),
            "{:?}",
            runtime.handle().runtime_flavor()
        );
    }
}

#[test]
fn runtimes_of_a_process_have_ids_of_their_own() {
    let [one, two] = runtimes();
    assert_ne!(one.handle().id(), two.handle().id());
    let first = one.handle().id();
    drop(one);
    let [three, _] = runtimes();
    assert_ne!(first, three.handle().id());
    assert_eq!(
        two.block_on(async { Handle::current().id() }),
        two.handle().id()
    );
}
