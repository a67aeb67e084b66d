//! A run: one variant, or all clones of a stage of a job file, started together and measured.
//!
//! Each part runs on a separate thread, and is abandoned if it hangs. The thread that called [`run`] sleeps, and
//! reads the process's CPU time at the start and the end of the measured time.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use annulus_baselines::{Bench, Failure, Finished, Job, Variant};

use super::shared::Shared;
use super::tally::Tally;
use super::verify::Written;
use super::work::Work;
use super::worker::BenchWorker;
use crate::bench::machine::{self, Usage};
use crate::signals::{self, GIVE_UP};

/// The time after which a variant counts as hung, while it sets itself up or finishes after the end.
const PATIENCE: Duration = Duration::from_secs(180);

/// A variant of this tool.
pub(crate) type AnyVariant = Arc<dyn Variant<Harness>>;

/// A variant with its operations: the run of a comparison, or a clone of a job.
pub(crate) struct Part {
    pub(crate) variant: AnyVariant,
    pub(crate) job: Job,
    pub(crate) work: Work,
    /// Flush the files at the end.
    pub(crate) fsync: bool,
    /// Returns the work that reads the written blocks back, if that is requested.
    pub(crate) read_back: Option<ReadBack>,
}

/// The time in which the processor time of the process is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Window {
    /// The measured time of the only part. A part that exceeds it by far counts as hung.
    Measured,
    /// From the common start to the end of the last part.
    Whole,
}

/// The results of a run.
pub(crate) struct RunOutcome {
    pub(crate) parts: Vec<Result<Ended, Failure>>,
    /// CPU time of this process in the window.
    pub(crate) cpu_ns: f64,
    /// The most memory that was resident in this process during the run, mapped files included.
    pub(crate) peak_rss_bytes: Option<u64>,
    /// Processors used by others, and withheld by the hypervisor, on average over the window.
    pub(crate) others_busy: f64,
    pub(crate) stolen: f64,
}

/// The results of a part.
pub(crate) struct Ended {
    pub(crate) tally: Tally,
    /// Calls by slice, for a variant that counts them itself.
    pub(crate) calls: Option<Vec<u64>>,
    pub(crate) finished: Finished,
    /// The measured time.
    pub(crate) measured: Duration,
    /// Set if the run ended early because every block had been used.
    pub(crate) ran_out: bool,
    /// Set if the run ended before the end of its time for another reason, such as a signal.
    pub(crate) cut_short: bool,
    /// The results of reading back the written blocks.
    pub(crate) read_back: Option<Box<Ended>>,
}

/// The reason why a run has no results.
pub(crate) enum RunFailure {
    /// A variant did not return. Its threads still run, so nothing can be measured after it.
    Hangs(String),
    /// A variant did not return after a signal.
    Abandoned(String),
}

/// The common start of all parts.
struct Stage {
    epoch: Instant,
    parts: usize,
    arrived: Mutex<Arrived>,
    changed: Condvar,
    events: Mutex<Sender<Event>>,
}

#[derive(Default)]
struct Arrived {
    parts: usize,
    /// The time of the start, and the usage then.
    start: Option<(u64, Usage)>,
}

enum Event {
    Started,
    Finished(usize, Box<Result<Ended, Failure>>),
    /// A signal requests the end.
    Stop,
}

impl Stage {
    fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    /// Counts a part as ready, or as failed before its start. The last one starts the stage.
    fn arrive(&self) -> MutexGuard<'_, Arrived> {
        let mut arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        arrived.parts += 1;
        if arrived.parts == self.parts {
            let usage = Usage::now();
            arrived.start = Some((self.now_ns(), usage));
            self.changed.notify_all();
        }
        arrived
    }

    /// Reports that a part is ready, and blocks until all are. Returns the time of the start.
    fn start(&self) -> u64 {
        let mut arrived = self.arrive();
        loop {
            if let Some((begin_ns, _)) = arrived.start {
                return begin_ns;
            }
            arrived = (self.changed.wait(arrived)).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn send(&self, event: Event) {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        // Without a receiver, this run has been abandoned.
        let _ = events.send(event);
    }
}

/// The variant's view of the run.
pub(crate) struct Harness {
    shared: Arc<Shared>,
    stage: Arc<Stage>,
    /// True until this part has arrived at the start of the stage.
    due: AtomicBool,
    workers: AtomicU64,
    tally: Mutex<Tally>,
}

impl Bench for Harness {
    type Worker = BenchWorker;

    fn worker(&self) -> BenchWorker {
        BenchWorker::new(Arc::clone(&self.shared), self.workers.fetch_add(1, Relaxed))
    }

    fn go(&self) {
        let begin_ns = match self.due.swap(false, Relaxed) {
            true => self.stage.start(),
            false => self.stage.now_ns(),
        };
        self.shared.start(begin_ns);
        if signals::received().is_some() {
            self.shared.stop();
        }
        self.stage.send(Event::Started);
    }

    fn done(&self, worker: BenchWorker) {
        let done_ns = self.shared.now_ns();
        self.shared.done_ns.fetch_max(done_ns, Relaxed);
        let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        tally.add(worker.into_tally());
    }

    fn counts_calls(&self, read: Box<dyn Fn() -> u64 + Send + Sync>) {
        self.shared.calls.read_from(read);
    }
}

impl Harness {
    fn new(stage: &Arc<Stage>, work: Work, due: bool) -> Harness {
        Harness {
            shared: Arc::new(Shared::new(stage.epoch, work)),
            stage: Arc::clone(stage),
            due: AtomicBool::new(due),
            workers: AtomicU64::new(1),
            tally: Mutex::new(Tally::new()),
        }
    }

    /// Runs the variant to its end.
    fn run(&self, variant: &AnyVariant, job: &Job) -> Result<Ended, Failure> {
        let work = AssertUnwindSafe(|| variant.run(job, self));
        let mut result = catch_unwind(work).unwrap_or_else(|panic| {
            let text = format!("panicked: {}", panic_text(&*panic));
            Err(Failure::Failed(text))
        });
        self.shared.calls.close();
        if self.due.swap(false, Relaxed) {
            drop(self.stage.arrive());
            result = result.and(Err(Failure::Failed("ended without starting".into())));
        }
        let finished = result?;
        let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        let tally = std::mem::replace(&mut *tally, Tally::new());
        let ran_out = self.shared.ran_out.load(Relaxed);
        let mut end_ns = self.shared.end_ns.load(Relaxed);
        // Work that ends before its time ends at its last completion.
        if self.shared.done_ns.load(Relaxed) < end_ns {
            end_ns = tally.last_ns;
        }
        let from_ns = self.shared.measured_from_ns.load(Relaxed);
        let measured_ns = end_ns.saturating_sub(from_ns);
        let runtime_ns = self.shared.runtime_ns();
        Ok(Ended {
            calls: self.shared.calls.by_slice(),
            finished,
            measured: Duration::from_nanos(measured_ns),
            ran_out,
            cut_short: !ran_out && runtime_ns.is_some_and(|runtime_ns| measured_ns < runtime_ns),
            read_back: None,
            tally,
        })
    }
}

/// Returns the work that reads the given blocks back.
pub(crate) type ReadBack = Box<dyn FnOnce(Written) -> Work + Send>;

/// Runs a part, flushes its files, and reads back the blocks that it has written.
fn perform(
    harness: &Harness,
    variant: &AnyVariant,
    job: &Job,
    fsync: bool,
    read_back: Option<ReadBack>,
) -> Result<Ended, Failure> {
    let mut ended = harness.run(variant, job)?;
    for file in job.files.iter().filter(|_| fsync) {
        file.sync_all()
            .map_err(|error| Failure::failed("fsync at the end of the job", &error))?;
    }
    if let (Some(work), Some(written)) = (read_back, ended.tally.written.take()) {
        let again = Harness::new(&harness.stage, work(written), false);
        ended.read_back = Some(Box::new(again.run(variant, job)?));
    }
    Ok(ended)
}

/// Runs all parts at the same time.
pub(crate) fn run(parts: Vec<Part>, window: Window) -> Result<RunOutcome, RunFailure> {
    let (sender, receiver) = channel();
    let stage = Arc::new(Stage {
        epoch: Instant::now(),
        parts: parts.len(),
        arrived: Mutex::default(),
        changed: Condvar::new(),
        events: Mutex::new(sender),
    });
    let mut watch = Watch {
        receiver,
        results: parts.iter().map(|_| None).collect(),
        started: false,
        stopped: false,
        patience: (window == Window::Measured).then_some(PATIENCE),
    };
    // Before the variant starts, because the kernel locks the process's memory map for it.
    machine::reset_peak_rss();
    let mut shared = Vec::new();
    for (index, part) in parts.into_iter().enumerate() {
        let name = format!("run {}", part.variant.name());
        let harness = Harness::new(&stage, part.work, true);
        shared.push(Arc::clone(&harness.shared));
        let work = move || {
            let (variant, job) = (&part.variant, &part.job);
            let result = perform(&harness, variant, job, part.fsync, part.read_back);
            harness.stage.send(Event::Finished(index, Box::new(result)));
        };
        if let Err(error) = std::thread::Builder::new().name(name).spawn(work) {
            drop(stage.arrive());
            watch.results[index] = Some(Err(Failure::failed("starting a thread", &error)));
        }
    }
    let stopped = (Arc::clone(&stage), shared.clone());
    let _hook = signals::on_first(move || {
        stopped.1.iter().for_each(|shared| shared.stop());
        stopped.0.send(Event::Stop);
    });
    watch.measure(&stage, &shared, window)
}

/// The thread that watches a run.
struct Watch {
    receiver: Receiver<Event>,
    results: Vec<Option<Result<Ended, Failure>>>,
    started: bool,
    /// A signal has requested the end.
    stopped: bool,
    patience: Option<Duration>,
}

impl Watch {
    /// Sleeps during the run, and reads the usage at the start and the end of the window.
    fn measure(
        mut self,
        stage: &Stage,
        shared: &[Arc<Shared>],
        window: Window,
    ) -> Result<RunOutcome, RunFailure> {
        if !self.patiently(|watch| watch.started || watch.is_over()) {
            return Err(self.hangs("to set itself up"));
        }
        // The other parts may not have seen it yet, so it stays.
        let arrived = stage.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        let start = arrived.start;
        drop(arrived);
        let (mut before_ns, mut before) = start.unwrap_or_else(|| (stage.now_ns(), Usage::now()));
        match (window, shared.first()) {
            (Window::Measured, Some(shared)) => {
                let at = |ns: u64| stage.epoch.checked_add(Duration::from_nanos(ns));
                self.until(at(shared.measured_from_ns.load(Acquire)), Watch::is_over);
                (before_ns, before) = (stage.now_ns(), Usage::now());
                self.until(at(shared.end_ns.load(Relaxed)), Watch::is_over);
            }
            _ => drop(self.patiently(Watch::is_over)),
        }
        let (after_ns, after) = (stage.now_ns(), Usage::now());
        let peak_rss_bytes = machine::peak_rss_bytes();
        if !self.patiently(Watch::is_over) {
            return Err(self.hangs("to finish after the end of its run"));
        }
        let parts: Vec<_> = self.results.into_iter().flatten().collect();
        let window_ns = after_ns.saturating_sub(before_ns).max(1) as f64;
        // The thread may have woken late, so scale the usage to the measured time. If the run ended early, the process
        // was idle until the wake-up, and there is nothing to scale.
        let scale = match (window, parts.first()) {
            (Window::Measured, Some(Ok(ended))) if !ended.ran_out && !ended.cut_short => {
                ended.measured.as_nanos() as f64 / window_ns
            }
            _ => 1.0,
        };
        let used = after.since(&before);
        let (others_busy, stolen) = used.shares(window_ns);
        Ok(RunOutcome {
            parts,
            cpu_ns: used.own_cpu_ns * scale,
            peak_rss_bytes,
            others_busy,
            stolen,
        })
    }

    /// Returns whether all parts have finished.
    fn is_over(&self) -> bool {
        self.results.iter().all(Option::is_some)
    }

    /// Takes events until the run has reached a point, but not beyond this time or a signal. Returns whether it has.
    fn until(&mut self, deadline: Option<Instant>, reached: fn(&Watch) -> bool) -> bool {
        while !reached(self) {
            let event = match deadline {
                Some(deadline) => {
                    let time = deadline.saturating_duration_since(Instant::now());
                    self.receiver.recv_timeout(time).ok()
                }
                None => self.receiver.recv().ok(),
            };
            match event {
                Some(Event::Started) => self.started = true,
                Some(Event::Finished(index, result)) => self.results[index] = Some(*result),
                Some(Event::Stop) => {
                    self.stopped = true;
                    return false;
                }
                None => return false,
            }
        }
        true
    }

    /// Waits for a point that the variants must reach. A signal shortens the wait.
    fn patiently(&mut self, reached: fn(&Watch) -> bool) -> bool {
        let deadline = self.patience.map(|time| Instant::now() + time);
        if !self.stopped && self.until(deadline, reached) {
            return true;
        }
        self.stopped && self.until(Some(Instant::now() + GIVE_UP), reached)
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
