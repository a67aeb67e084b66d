//! The layers between a program and a NOP, each with a function that runs it for a given time.
//!
//! Each [`Layer`] is a row. The layers of Annulus and the two without a kernel run the same tasks, so their rows
//! differ only in the awaited future. A task checks one shared stop flag per operation and reads no clock.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::sync::mpsc::{Sender, channel};
use std::task::Poll;
use std::time::{Duration, Instant};

use annulus::Engine;
use annulus_baselines::{Failure, NopRing, context_switches};
use futures_executor::LocalPool;
use futures_util::stream::{FuturesUnordered, StreamExt};
use futures_util::task::{AtomicWaker, LocalSpawnExt};
use tokio::runtime::Builder;

use super::json::Sample;
use crate::bench::machine::Usage;

/// The number of workers of the multi-thread runtime, equal to that of `bench file`.
const WORKERS: usize = 2;

/// A layer that a NOP passes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layer {
    Abi,
    AbiDeferred,
    NullExecutor,
    NullHandOff,
    Annulus,
    Own,
    OnTokio,
    OnTokioThreads,
}

/// All layers, from the lowest to the highest.
pub(crate) const LAYERS: [Layer; 8] = [
    Layer::Abi,
    Layer::AbiDeferred,
    Layer::NullExecutor,
    Layer::NullHandOff,
    Layer::Annulus,
    Layer::Own,
    Layer::OnTokio,
    Layer::OnTokioThreads,
];

/// The counts of a run.
struct Counted {
    ops: u64,
    enters: Option<u64>,
}

impl Layer {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Layer::Abi => "abi",
            Layer::AbiDeferred => "abi-defer",
            Layer::NullExecutor => "null-executor",
            Layer::NullHandOff => "null-hand-off",
            Layer::Annulus => "annulus",
            Layer::Own => "annulus-own",
            Layer::OnTokio => "annulus-tokio",
            Layer::OnTokioThreads => "annulus-tokio-mt",
        }
    }

    pub(crate) fn about(self) -> &'static str {
        match self {
            Layer::Abi => "the ABI crate by hand, a ring without flags, one enter per batch",
            Layer::AbiDeferred => "the same with SINGLE_ISSUER and DEFER_TASKRUN",
            Layer::NullExecutor => "tasks on the plain executor that yield: no engine, no kernel",
            Layer::NullHandOff => "the same tasks, completed by another thread: no ring",
            Layer::Annulus => {
                "Engine::nop() awaited by tasks on the plain executor, one driver thread"
            }
            Layer::Own => "the same on a driver of the thread's own",
            Layer::OnTokio => "the same on Tokio's current_thread runtime, a ring on its thread",
            Layer::OnTokioThreads => {
                "the same on Tokio's multi_thread runtime, a ring on each of 2 workers"
            }
        }
    }

    /// Keeps `depth` NOPs outstanding for the time `runtime`.
    pub(crate) fn run(self, depth: usize, runtime: Duration) -> Result<Sample, Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        let start = {
            let stop = Arc::clone(&stop);
            move || Watch::start(stop, runtime)
        };
        match self {
            Layer::Abi => by_hand(depth, false, &stop, start),
            Layer::AbiDeferred => by_hand(depth, true, &stop, start),
            Layer::NullExecutor => {
                let tasks = (0..depth).map(|_| yields(Arc::clone(&stop))).collect();
                let watch = start()?;
                let ops = plainly(tasks)?;
                Ok(watch.end(&Counted { ops, enters: None }))
            }
            Layer::NullHandOff => hand_off(depth, &stop, start),
            Layer::Annulus => {
                let engine = engine()?;
                let tasks = (0..depth)
                    .map(|_| nops(engine.clone(), Arc::clone(&stop)))
                    .collect();
                let watch = start()?;
                let ops = plainly(tasks)?;
                Ok(watch.end(&counted(&engine, ops)))
            }
            Layer::Own => on_own(depth, &stop, start),
            Layer::OnTokio => on_tokio(Builder::new_current_thread(), depth, &stop, start),
            Layer::OnTokioThreads => {
                let mut builder = Builder::new_multi_thread();
                builder.worker_threads(WORKERS);
                on_tokio(builder, depth, &stop, start)
            }
        }
    }
}

/// The clock and counters that are read at the start and the end of a run.
struct Watch {
    timer: std::thread::JoinHandle<()>,
    began: Instant,
    usage: Usage,
    switches: u64,
}

impl Watch {
    /// Starts the clock. `stop` becomes true after the time `runtime`.
    fn start(stop: Arc<AtomicBool>, runtime: Duration) -> Result<Watch, Failure> {
        let timer = std::thread::Builder::new()
            .name("timer".into())
            .spawn(move || {
                crate::signals::sleep(runtime);
                stop.store(true, Relaxed);
            })
            .map_err(|error| Failure::failed("starting a thread", &error))?;
        Ok(Watch {
            timer,
            switches: context_switches(),
            usage: Usage::now(),
            began: Instant::now(),
        })
    }

    fn end(self, counted: &Counted) -> Sample {
        let ns = self.began.elapsed().as_nanos() as f64;
        let used = Usage::now().since(&self.usage);
        let switches = context_switches().saturating_sub(self.switches);
        // The thread has already set the flag that ended the run.
        let _ = self.timer.join();
        let ops = counted.ops.max(1) as f64;
        Sample {
            seconds: ns / 1e9,
            ops: counted.ops,
            ns_per_op: ns / ops,
            cpu_ns_per_op: used.own_cpu_ns / ops,
            enters_per_op: counted.enters.map(|enters| enters as f64 / ops),
            context_switches_per_op: switches as f64 / ops,
            others_busy: (used.machine_busy_ns - used.own_cpu_ns).max(0.0) / ns,
            stolen: used.stolen_ns / ns,
        }
    }
}

fn by_hand(
    depth: usize,
    deferred: bool,
    stop: &AtomicBool,
    start: impl FnOnce() -> Result<Watch, Failure>,
) -> Result<Sample, Failure> {
    let mut ring = NopRing::new(depth, deferred)?;
    let watch = start()?;
    let (mut ops, mut enters) = (0, 0);
    while !stop.load(Relaxed) {
        enters += ring.round()?;
        ops += depth as u64;
    }
    let enters = Some(enters);
    Ok(watch.end(&Counted { ops, enters }))
}

fn engine() -> Result<Engine, Failure> {
    Engine::builder()
        .build()
        .map_err(|error| Failure::Failed(format!("building the engine: {error}")))
}

fn counted(engine: &Engine, ops: u64) -> Counted {
    Counted {
        ops,
        enters: Some(engine.metrics().enters).filter(|&enters| enters > 0),
    }
}

/// Runs the tasks on the plain executor, all on this thread. Returns the number of their operations.
fn plainly<F>(tasks: Vec<F>) -> Result<u64, Failure>
where
    F: Future<Output = Result<u64, Failure>> + 'static,
{
    let sum = Rc::new(RefCell::new(Ok(0)));
    let mut pool = LocalPool::new();
    let spawner = pool.spawner();
    for task in tasks {
        let sum = Rc::clone(&sum);
        let counting = async move {
            let ops = task.await;
            let mut sum = sum.borrow_mut();
            match (&mut *sum, ops) {
                (Ok(all), Ok(ops)) => *all += ops,
                (_, ops) => *sum = ops,
            }
        };
        spawner
            .spawn_local(counting)
            .map_err(|error| Failure::Failed(format!("spawning a task: {error}")))?;
    }
    pool.run();
    sum.replace(Ok(0))
}

async fn nops(engine: Engine, stop: Arc<AtomicBool>) -> Result<u64, Failure> {
    let mut ops = 0;
    while !stop.load(Relaxed) {
        engine
            .nop()
            .await
            .map_err(|error| Failure::failed("a NOP", &error))?;
        ops += 1;
    }
    Ok(ops)
}

/// Wakes itself and returns `Pending` once per operation.
async fn yields(stop: Arc<AtomicBool>) -> Result<u64, Failure> {
    let mut ops = 0;
    while !stop.load(Relaxed) {
        let mut polled = false;
        poll_fn(|context| {
            if polled {
                return Poll::Ready(());
            }
            polled = true;
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
        ops += 1;
    }
    Ok(ops)
}

/// The state that a task shares with the thread that completes its requests.
#[derive(Default)]
struct Slot {
    completed: AtomicBool,
    waker: AtomicWaker,
}

async fn request_tasks(to: Sender<Arc<Slot>>, stop: Arc<AtomicBool>) -> Result<u64, Failure> {
    let slot = Arc::new(Slot::default());
    let mut ops = 0;
    while !stop.load(Relaxed) {
        slot.completed.store(false, Relaxed);
        let mut requested = false;
        poll_fn(|context| {
            slot.waker.register(context.waker());
            if !requested {
                requested = true;
                // If the thread has ended, the request never completes and the run hangs until the test times out.
                let _ = to.send(Arc::clone(&slot));
            }
            match slot.completed.load(Acquire) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
        ops += 1;
    }
    Ok(ops)
}

/// Sends each request to a thread through a standard channel. The thread completes it with a waker.
fn hand_off(
    depth: usize,
    stop: &Arc<AtomicBool>,
    start: impl FnOnce() -> Result<Watch, Failure>,
) -> Result<Sample, Failure> {
    let (to, requested) = channel::<Arc<Slot>>();
    let thread = std::thread::Builder::new()
        .name("completer".into())
        .spawn(move || {
            for slot in requested {
                slot.completed.store(true, Release);
                slot.waker.wake();
            }
        })
        .map_err(|error| Failure::failed("starting a thread", &error))?;
    let tasks = (0..depth)
        .map(|_| request_tasks(to.clone(), Arc::clone(stop)))
        .collect();
    // The thread ends when the last sender is dropped.
    drop(to);
    let watch = start()?;
    let ops = plainly(tasks)?;
    let sample = watch.end(&Counted { ops, enters: None });
    thread
        .join()
        .map_err(|_| Failure::Failed("the completing thread panicked".into()))?;
    Ok(sample)
}

/// Runs the tasks and the ring on one thread.
fn on_own(
    depth: usize,
    stop: &Arc<AtomicBool>,
    start: impl FnOnce() -> Result<Watch, Failure>,
) -> Result<Sample, Failure> {
    let engine = engine()?;
    let own = engine
        .current_thread_driver()
        .map_err(|error| Failure::Unavailable(error.to_string()))?;
    let mut tasks: FuturesUnordered<_> = (0..depth)
        .map(|_| nops(engine.clone(), Arc::clone(stop)))
        .collect();
    let watch = start()?;
    let mut ops = 0;
    own.block_on(async {
        while let Some(done) = tasks.next().await {
            ops += done?;
        }
        Ok(())
    })?;
    Ok(watch.end(&counted(&engine, ops)))
}

fn on_tokio(
    mut builder: Builder,
    depth: usize,
    stop: &Arc<AtomicBool>,
    start: impl FnOnce() -> Result<Watch, Failure>,
) -> Result<Sample, Failure> {
    let runtime = builder
        .enable_all()
        .build()
        .map_err(|error| Failure::failed("starting the Tokio runtime", &error))?;
    let engine = engine()?;
    let watch = start()?;
    let completions = runtime.block_on(async {
        let tasks: Vec<_> = (0..depth)
            .map(|_| tokio::spawn(nops(engine.clone(), Arc::clone(stop))))
            .collect();
        let mut completions = Vec::with_capacity(depth);
        for task in tasks {
            completions.push(task.await);
        }
        completions
    });
    let mut ops = 0;
    for completion in completions {
        ops += completion
            .map_err(|error| Failure::Failed(format!("a task ended early: {error}")))??;
    }
    Ok(watch.end(&counted(&engine, ops)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a sample with at least one operation. On a busy machine, a short run may end before its first
    /// operation completes, so the time grows with each attempt.
    fn some(layer: Layer, depth: usize) -> Option<Sample> {
        for milliseconds in [20, 100, 500, 2500, 12_500] {
            match layer.run(depth, Duration::from_millis(milliseconds)) {
                Ok(sample) if sample.ops > 0 => return Some(sample),
                Ok(_) => {}
                Err(Failure::Unavailable(why)) => {
                    println!("skip: {}: {why}", layer.name());
                    return None;
                }
                Err(error) => panic!("{} at {depth}: {error}", layer.name()),
            }
        }
        panic!("{} at {depth}: no completion", layer.name());
    }

    #[test]
    fn every_layer_completes_operations_at_every_depth() {
        for layer in LAYERS {
            for depth in [1, 3, 32] {
                let Some(sample) = some(layer, depth) else {
                    continue;
                };
                assert!(sample.seconds > 0.0, "{} at {depth}", layer.name());
            }
        }
    }

    #[test]
    fn a_batch_by_hand_is_one_enter() {
        let Some(sample) = some(Layer::Abi, 32) else {
            return;
        };
        let enters = sample.enters_per_op.unwrap();
        assert!((enters - 1.0 / 32.0).abs() < 1e-3, "{enters}");
        assert_eq!(Layer::NullExecutor.name(), "null-executor");
    }
}
