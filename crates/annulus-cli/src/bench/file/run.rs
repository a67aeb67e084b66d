//! One run of a variant at a depth: starts it, measures it, and abandons it if it hangs.
//!
//! The variant runs on its own thread. The thread that called [`run`] sleeps, and reads the process's CPU time at the
//! start and the end of the measured time.

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Relaxed, Ordering::Release};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use annulus_baselines::{Bench, Failure, Finished, Job, Variant};

use super::check::Contents;
use super::order::Order;
use super::worker::{BenchWorker, Tally};
use crate::bench::machine::{self, Usage};
use crate::bench::timeline::CallSamples;
use crate::signals::{self, GIVE_UP};

/// The time before the measured time; at most a fifth of it.
const RAMP: Duration = Duration::from_millis(200);
/// The time after which a variant counts as hung, while it sets itself up or finishes after the end.
const PATIENCE: Duration = Duration::from_secs(180);

/// A variant of this tool.
pub(crate) type AnyVariant = Arc<dyn Variant<Harness>>;

/// The parameters of a run besides the job.
pub(crate) struct RunSpec {
    pub(crate) job: Job,
    pub(crate) order: Order,
    pub(crate) contents: Contents,
    pub(crate) write_percent: u8,
    pub(crate) runtime: Duration,
    /// Measure from the first operation to the last, of an order that ends.
    pub(crate) once: bool,
    pub(crate) seed: u64,
    /// The number of the run, which written data carries.
    pub(crate) stamp: u64,
}

/// The results of a run.
pub(crate) struct RunOutcome {
    pub(crate) tally: Tally,
    /// Calls by slice, for a variant that counts them itself.
    pub(crate) calls: Option<Vec<u64>>,
    pub(crate) finished: Finished,
    /// The measured time.
    pub(crate) measured: Duration,
    /// Set if the run ended early because every block had been used.
    pub(crate) ran_out: bool,
    /// Set if a signal ended the run early.
    pub(crate) cut_short: bool,
    /// CPU time of this process per measured operation.
    pub(crate) cpu_ns_per_op: f64,
    /// The most memory that was resident in this process during the run, mapped files included.
    pub(crate) peak_rss_bytes: Option<u64>,
    /// Processors used by others, and withheld by the hypervisor, on average over the measured time.
    pub(crate) others_busy: f64,
    pub(crate) stolen: f64,
}

/// The reason why a run has no results.
pub(crate) enum RunFailure {
    Variant(Failure),
    /// The variant did not return. Its threads still run, so nothing can be measured after it.
    Hangs(String),
    /// The variant did not return after a signal.
    Abandoned(String),
}

/// The state that all workers of a run share.
pub(crate) struct Shared {
    epoch: Instant,
    pub(crate) measured_from_ns: AtomicU64,
    pub(crate) end_ns: AtomicU64,
    ran_out: AtomicU64,
    /// The time of the last completion.
    last_ns: AtomicU64,
    pub(crate) order: Order,
    pub(crate) contents: Contents,
    pub(crate) files: usize,
    pub(crate) offset_bytes: u64,
    /// The length of the used part of each file.
    pub(crate) file_bytes: u64,
    pub(crate) blocks_per_file: u64,
    pub(crate) block_bytes: usize,
    pub(crate) write_percent: u8,
    pub(crate) seed: u64,
    pub(crate) stamp: u64,
    pub(crate) calls: CallSamples,
    runtime: Duration,
    once: bool,
}

impl Shared {
    #[inline]
    pub(crate) fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    pub(crate) fn runtime_ns(&self) -> u64 {
        self.runtime.as_nanos() as u64
    }

    /// Ends the run for all workers, because no block is left. A run that uses each block once ends with its last
    /// completion instead.
    #[cold]
    pub(crate) fn ran_out(&self, now_ns: u64) {
        if !self.once {
            self.end_ns.fetch_min(now_ns, Relaxed);
        }
        self.ran_out.store(1, Relaxed);
    }

    /// Ends the run for all workers. Operations in flight still complete.
    fn stop(&self) {
        self.end_ns.fetch_min(self.now_ns(), AcqRel);
    }
}

/// The variant's view of the run.
pub(crate) struct Harness {
    shared: Arc<Shared>,
    workers: AtomicU64,
    tally: Mutex<Tally>,
    started: Mutex<Sender<Event>>,
}

enum Event {
    Started,
    Finished(Result<Finished, Failure>),
    /// A signal requests the end.
    Stop,
}

impl Bench for Harness {
    type Worker = BenchWorker;

    fn worker(&self) -> BenchWorker {
        BenchWorker::new(Arc::clone(&self.shared), self.workers.fetch_add(1, Relaxed))
    }

    fn go(&self) {
        let ramp = match self.shared.once {
            true => Duration::ZERO,
            false => RAMP.min(self.shared.runtime / 5),
        };
        let from = self.shared.now_ns() + ramp.as_nanos() as u64;
        let end = from + self.shared.runtime.as_nanos() as u64;
        // A swap, not a store: if a signal has already set an end, this synchronizes with it.
        self.shared.end_ns.swap(end, AcqRel);
        if signals::received().is_some() {
            self.shared.stop();
        }
        self.shared.measured_from_ns.store(from, Release);
        self.send(Event::Started);
    }

    fn done(&self, worker: BenchWorker) {
        self.shared.last_ns.fetch_max(worker.now_ns(), Relaxed);
        self.tally
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .add(worker.into_tally());
    }

    fn counts_calls(&self, read: Box<dyn Fn() -> u64 + Send + Sync>) {
        self.shared.calls.read_from(read);
    }
}

impl Harness {
    fn send(&self, event: Event) {
        // Without a receiver, this run has been abandoned.
        let _ = self
            .started
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .send(event);
    }
}

/// Measures `variant` with the parameters `spec`.
pub(crate) fn run(variant: &AnyVariant, spec: RunSpec) -> Result<RunOutcome, RunFailure> {
    let (sender, events) = channel();
    let harness = Arc::new(Harness {
        shared: Arc::new(Shared {
            epoch: Instant::now(),
            measured_from_ns: AtomicU64::new(0),
            end_ns: AtomicU64::new(u64::MAX),
            ran_out: AtomicU64::new(0),
            last_ns: AtomicU64::new(0),
            order: spec.order,
            contents: spec.contents,
            files: spec.job.files.len().max(spec.job.paths.len()),
            offset_bytes: spec.job.offset_bytes,
            file_bytes: spec.job.size_bytes,
            blocks_per_file: spec.job.size_bytes / spec.job.block_bytes as u64,
            block_bytes: spec.job.block_bytes,
            write_percent: spec.write_percent,
            seed: spec.seed,
            stamp: spec.stamp,
            calls: CallSamples::default(),
            runtime: spec.runtime,
            once: spec.once,
        }),
        workers: AtomicU64::new(1),
        tally: Mutex::new(Tally::new()),
        started: Mutex::new(sender),
    });
    // Before the variant starts, because the kernel locks the process's memory map for it.
    machine::reset_peak_rss();
    let thread = {
        let (harness, variant, job) = (Arc::clone(&harness), Arc::clone(variant), spec.job);
        std::thread::Builder::new()
            .name(format!("run {}", variant.name()))
            .spawn(move || {
                let work = std::panic::AssertUnwindSafe(|| variant.run(&job, &*harness));
                let result = std::panic::catch_unwind(work).unwrap_or_else(|panic| {
                    Err(Failure::Failed(format!(
                        "panicked: {}",
                        panic_text(&*panic)
                    )))
                });
                harness.shared.calls.close();
                harness.send(Event::Finished(result));
            })
    };
    thread.map_err(|error| RunFailure::Variant(Failure::failed("starting a thread", &error)))?;
    let stopped = Arc::clone(&harness);
    let _hook = signals::on_first(move || {
        stopped.shared.stop();
        stopped.send(Event::Stop);
    });
    let mut events = Events {
        receiver: events,
        stopped: false,
    };
    watch(&mut events, &harness)
}

/// Sleeps during the run, and reads the usage at the start and the end of the measured time.
fn watch(events: &mut Events, harness: &Harness) -> Result<RunOutcome, RunFailure> {
    let shared = &harness.shared;
    match events.patiently() {
        Some(Event::Started) => {}
        Some(Event::Finished(Err(failure))) => return Err(RunFailure::Variant(failure)),
        Some(Event::Finished(Ok(_))) => {
            return Err(RunFailure::Variant(Failure::Failed(
                "ended without starting".into(),
            )));
        }
        Some(Event::Stop) | None => return Err(events.hangs("to set itself up")),
    }
    let until = |ns: u64| Duration::from_nanos(ns.saturating_sub(shared.now_ns()));
    let mut early = events.wait(until(shared.measured_from_ns.load(Relaxed)));
    let (before, before_ns) = (Usage::now(), shared.now_ns());
    early = early.or_else(|| events.wait(until(shared.end_ns.load(Relaxed))));
    let (after, after_ns) = (Usage::now(), shared.now_ns());
    let peak_rss_bytes = machine::peak_rss_bytes();
    let finished = match early.or_else(|| events.patiently()) {
        Some(Event::Finished(Ok(finished))) => finished,
        Some(Event::Finished(Err(failure))) => return Err(RunFailure::Variant(failure)),
        Some(Event::Started) => {
            return Err(RunFailure::Variant(Failure::Failed("started twice".into())));
        }
        Some(Event::Stop) | None => {
            return Err(events.hangs("to finish after the end of its run"));
        }
    };
    let mut tally = harness.tally.lock().unwrap_or_else(PoisonError::into_inner);
    let tally = std::mem::replace(&mut *tally, Tally::new());
    let ran_out = shared.ran_out.load(Relaxed) != 0;
    let (from_ns, mut end_ns) = (
        shared.measured_from_ns.load(Relaxed),
        shared.end_ns.load(Relaxed),
    );
    if shared.once && ran_out {
        end_ns = end_ns.min(shared.last_ns.load(Relaxed));
    }
    let measured_ns = end_ns.saturating_sub(from_ns);
    // The thread may have woken late, so scale the usage to the measured time. If the run ended early, the process
    // was idle until the wake-up, and there is nothing to scale.
    let window_ns = after_ns.saturating_sub(before_ns).max(1) as f64;
    let cut_short = !ran_out && measured_ns < shared.runtime.as_nanos() as u64;
    let scale = if ran_out || cut_short {
        1.0
    } else {
        measured_ns as f64 / window_ns
    };
    let used = after.since(&before);
    let (others_busy, stolen) = used.shares(window_ns);
    Ok(RunOutcome {
        cpu_ns_per_op: used.own_cpu_ns * scale / tally.measured.max(1) as f64,
        peak_rss_bytes,
        others_busy,
        stolen,
        measured: Duration::from_nanos(measured_ns),
        ran_out,
        cut_short,
        calls: shared.calls.by_slice(),
        finished,
        tally,
    })
}

/// The events of a run, for the thread that watches it.
struct Events {
    receiver: Receiver<Event>,
    /// A signal has requested the end.
    stopped: bool,
}

impl Events {
    /// Returns the next event, if one occurs within this time and before a signal.
    fn wait(&mut self, time: Duration) -> Option<Event> {
        match self.receiver.recv_timeout(time) {
            Ok(Event::Stop) => {
                self.stopped = true;
                None
            }
            Ok(event) => Some(event),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Event::Finished(Err(Failure::Failed(
                "its thread has ended".into(),
            )))),
        }
    }

    /// Waits for an event that the variant must reach. A signal shortens the wait.
    fn patiently(&mut self) -> Option<Event> {
        if !self.stopped
            && let Some(event) = self.wait(PATIENCE)
        {
            return Some(event);
        }
        self.stopped.then(|| self.wait(GIVE_UP)).flatten()
    }

    fn hangs(&self, doing: &str) -> RunFailure {
        match self.stopped {
            true => RunFailure::Abandoned(format!(
                "abandoned: it took more than {} s {doing}",
                GIVE_UP.as_secs()
            )),
            false => RunFailure::Hangs(format!("took more than {} s {doing}", PATIENCE.as_secs())),
        }
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
}
