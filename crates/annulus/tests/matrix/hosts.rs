//! The hosts: where futures are polled, and what drives their operations.

use std::pin::Pin;

use annulus::metrics::SourceKind;
use annulus::runtime::{self, RuntimeBuilder};
use annulus::{Backend, Engine};
use tokio::runtime::{Builder, Runtime};
use tokio::task::LocalSet;

use crate::on_core::OnCore;
use crate::operations::Fs;
use crate::tokio_runtimes::{several, single};

pub(crate) type Task = Pin<Box<dyn Future<Output = ()> + Send>>;
/// The cells of a host. They get the operations by path.
pub(crate) type Body = Box<dyn FnOnce(Fs) -> Task + Send>;

/// A line of the table of hosts.
#[derive(Clone, Copy)]
pub(crate) struct Host {
    pub(crate) name: &'static str,
    /// The kind of source that counts the operations of a ring.
    pub(crate) ring: SourceKind,
    /// Runs the cells, and ends the host with what is in flight.
    pub(crate) run: fn(Backend, Body),
    /// Starts a task and returns a future that waits for it.
    pub(crate) spawn: fn(Task) -> Task,
}

impl Host {
    pub(crate) fn has_sockets(&self) -> bool {
        self.ring == SourceKind::CoreFiles
    }
}

fn engine(backend: Backend) -> Engine {
    Engine::builder().backend(backend).build().unwrap()
}

fn in_a_task(runtime: &Runtime, backend: Backend, body: Body) {
    let task = body(Fs::Engine(engine(backend)));
    runtime.block_on(runtime.spawn(task)).unwrap();
}

pub(crate) fn driver_thread(backend: Backend, body: Body) {
    let engine = engine(backend);
    pollster::block_on(body(Fs::Engine(engine.clone())));
    engine.shutdown();
}

pub(crate) fn current_thread_driver(backend: Backend, body: Body) {
    let engine = engine(backend);
    match engine.current_thread_driver() {
        Ok(driver) => driver.block_on(body(Fs::Engine(engine))),
        // The fallback: there is no such driver, and operations go to blocking threads.
        Err(_) => pollster::block_on(body(Fs::Engine(engine))),
    }
}

pub(crate) fn tokio_multi_thread(backend: Backend, body: Body) {
    in_a_task(&several(2), backend, body);
}

pub(crate) fn tokio_one_worker(backend: Backend, body: Body) {
    in_a_task(&several(1), backend, body);
}

pub(crate) fn tokio_current_thread(backend: Backend, body: Body) {
    in_a_task(&single(), backend, body);
}

pub(crate) fn tokio_without_io(backend: Backend, body: Body) {
    let mut builder = Builder::new_multi_thread();
    in_a_task(&builder.worker_threads(2).build().unwrap(), backend, body);
}

pub(crate) fn tokio_local_set(backend: Backend, body: Body) {
    let task = body(Fs::Engine(engine(backend)));
    let set = LocalSet::new();
    set.block_on(&single(), async {
        tokio::task::spawn_local(task).await.unwrap()
    });
}

pub(crate) fn tokio_block_on(backend: Backend, body: Body) {
    several(1).block_on(body(Fs::Engine(engine(backend))));
}

pub(crate) fn tokio_blocking_thread(backend: Backend, body: Body) {
    let runtime = several(1);
    let task = body(Fs::Engine(engine(backend)));
    let handle = runtime.handle().clone();
    let blocking = runtime.spawn_blocking(move || handle.block_on(task));
    runtime.block_on(blocking).unwrap();
}

fn builder(backend: Backend) -> RuntimeBuilder {
    runtime::Runtime::builder().backend(backend).cores(1)
}

pub(crate) fn core(backend: Backend, body: Body) {
    builder(backend)
        .block_on(async { body(Fs::Core).await })
        .unwrap();
}

pub(crate) fn core_that_has_used_tokio(backend: Backend, body: Body) {
    let cells = async {
        tokio::spawn(async {}).await.unwrap();
        body(Fs::Core).await;
    };
    builder(backend).with_tokio().block_on(cells).unwrap();
}

pub(crate) fn task_of_tokio_on_a_core(backend: Backend, body: Body) {
    let cells = async { tokio::spawn(body(Fs::Core)).await.unwrap() };
    builder(backend).with_tokio().block_on(cells).unwrap();
}

/// The host has no tasks but its future.
pub(crate) fn in_place(task: Task) -> Task {
    task
}

pub(crate) fn tokio_task(task: Task) -> Task {
    let task = tokio::spawn(task);
    Box::pin(async { task.await.unwrap() })
}

pub(crate) fn core_task(task: Task) -> Task {
    let task = runtime::spawn(task);
    Box::pin(OnCore::new(async { task.await.unwrap() }))
}
