//! Tokio's runtimes as programs make them.

use tokio::runtime::{Builder, Runtime};

pub(crate) fn several(workers: usize) -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder
        .worker_threads(workers)
        .enable_all()
        .build()
        .unwrap()
}

pub(crate) fn single() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}
