//! A run: starts the threads, switches the phases, and merges the results.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use super::echo::Echo;
use super::http::Http;
use super::keyed::Store;
use super::os;
use super::plan::{Pace, Plan, Workload};
use super::protocol::Protocol;
use super::tally::Outcome;
use super::worker;
use crate::Failure;

/// The minimum time limit for opening all connections, in addition to the timeout of one.
const OPENING: Duration = Duration::from_secs(20);
/// Descriptors that are not connections: rings, standard streams, open files.
const OTHER_FILES: u64 = 64;
/// The interval of checks for threads that ended early.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The minimum share of a fixed rate. A run below it is invalid.
const RATE_MIN: f64 = 0.95;
/// The maximum wait for outstanding responses after [`run_until`] was stopped.
const STOP_PATIENCE: Duration = Duration::from_secs(3);
/// The maximum memory of the requests of all connections.
const MEMORY_BYTES_MAX: usize = 4 << 30;

/// An event that the caller is notified of during a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The measured time begins.
    Begin,
    /// The measured time ended.
    End,
    /// The load continues until the callback returns.
    After,
}

/// The phases of a run, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    Connecting,
    WarmUp,
    Measured,
    After,
    Draining,
}

impl Phase {
    pub(super) const ALL: [Phase; 5] = [
        Phase::Connecting,
        Phase::WarmUp,
        Phase::Measured,
        Phase::After,
        Phase::Draining,
    ];
}

/// State that the threads of a run share.
pub(super) struct Shared<'r> {
    base: Instant,
    phase: AtomicU8,
    /// The start of the warm-up, and of the schedule of a fixed rate.
    start_ns: AtomicU64,
    /// The number of threads whose connections are all open.
    ready: AtomicUsize,
    /// Responses of all threads so far, one loop iteration late.
    responses: AtomicU64,
    /// An error was counted in the measured time. Set up to a tick late.
    failed: AtomicBool,
    /// Requests the end of the run.
    stop: &'r AtomicBool,
}

/// Progress of a running load.
pub struct Live<'r> {
    shared: &'r Shared<'r>,
}

impl Live<'_> {
    /// Returns the number of responses so far.
    pub fn responses(&self) -> u64 {
        self.shared.responses.load(Ordering::Relaxed)
    }
}

impl Shared<'_> {
    pub(super) fn now_ns(&self) -> u64 {
        self.base.elapsed().as_nanos() as u64
    }

    pub(super) fn phase(&self) -> Phase {
        let phase = usize::from(self.phase.load(Ordering::Acquire));
        Phase::ALL[phase.min(Phase::ALL.len() - 1)]
    }

    pub(super) fn start_ns(&self) -> u64 {
        self.start_ns.load(Ordering::Relaxed)
    }

    pub(super) fn one_is_ready(&self) {
        self.ready.fetch_add(1, Ordering::Release);
    }

    pub(super) fn count_responses(&self, more: u64) {
        self.responses.fetch_add(more, Ordering::Relaxed);
    }

    pub(super) fn one_has_failed(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    /// Returns the maximum wait for outstanding responses at the end.
    pub(super) fn patience(&self, timeout: Duration) -> Duration {
        match self.is_stopped() {
            true => timeout.min(STOP_PATIENCE),
            false => timeout,
        }
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn go_to(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Release);
    }
}

type Handle<'s> = ScopedJoinHandle<'s, Result<Outcome, Failure>>;

/// Runs the load. Calls `on` on the calling thread at each [`Moment`].
pub fn run(plan: &Plan, on: &mut dyn FnMut(Moment, &Live<'_>)) -> Result<Outcome, Failure> {
    run_until(plan, &AtomicBool::new(false), on)
}

/// Runs the load until it completes or `stop` becomes true. [`Outcome::measured`] is the time that was measured.
pub fn run_until(
    plan: &Plan,
    stop: &AtomicBool,
    on: &mut dyn FnMut(Moment, &Live<'_>),
) -> Result<Outcome, Failure> {
    check(plan)?;
    let close = plan.reconnect;
    let outcome = match &plan.workload {
        Workload::Echo { bytes } => start(plan, stop, on, |seed| Echo::new(*bytes, seed)),
        Workload::Http {
            path,
            post_bytes,
            host,
            body,
            compared,
        } => start(plan, stop, on, |_| {
            let http = Http::new(path, host, close, body.clone()).comparing_one_of(*compared);
            match *post_bytes {
                Some(bytes) => http.posting(bytes),
                None => http,
            }
        }),
        Workload::Redis(command, space) => {
            start(plan, stop, on, |seed| Store::of(*command, *space, seed))
        }
        Workload::Memcached(command, space) => {
            start(plan, stop, on, |seed| Store::of(*command, *space, seed))
        }
    };
    outcome.map(|mut outcome| {
        outcome.faults = faults(plan, &outcome);
        outcome
    })
}

/// Checks the plan before anything is started.
fn check(plan: &Plan) -> Result<(), Failure> {
    let refused = |why: String| Err(Failure::Failed(why));
    if plan.threads == 0 || plan.connections < plan.threads || plan.pipeline == 0 {
        return refused(format!(
            "{} connections with {} requests each for {} threads: each thread needs a connection, each connection a \
             request",
            plan.connections, plan.pipeline, plan.threads
        ));
    }
    if plan.reconnect && plan.pipeline > 1 {
        return refused("a connection for each request has no pipeline".into());
    }
    if plan.disconnect && !plan.reconnect {
        return refused("a client that disconnects after a request has to reconnect".into());
    }
    if let Some(failure) = os::kernel_refuses() {
        return Err(failure);
    }
    let files = os::raise_open_files();
    if files < plan.connections as u64 + OTHER_FILES {
        return refused(format!(
            "{} connections, but this process may have only {files} files open; raise the limit, `ulimit -Hn`",
            plan.connections
        ));
    }
    match plan.target.connect() {
        Ok(_) => Ok(()),
        Err(error) => refused(format!(
            "connecting to {}: {error}; is the server running, and is this its address?",
            plan.target
        )),
    }
}

fn start<P: Protocol + Send>(
    plan: &Plan,
    stop: &AtomicBool,
    on: &mut dyn FnMut(Moment, &Live<'_>),
    protocol: impl Fn(u64) -> P,
) -> Result<Outcome, Failure> {
    let request_bytes = protocol(0).template().len();
    let bytes = (request_bytes * plan.pipeline).saturating_mul(plan.connections);
    if bytes > MEMORY_BYTES_MAX {
        return Err(Failure::Failed(format!(
            "{} connections with {} requests of {request_bytes} bytes each take {bytes} bytes; use less than \
             {MEMORY_BYTES_MAX}",
            plan.connections, plan.pipeline
        )));
    }
    let shared = Shared {
        base: Instant::now(),
        phase: AtomicU8::new(Phase::Connecting as u8),
        start_ns: AtomicU64::new(0),
        ready: AtomicUsize::new(0),
        responses: AtomicU64::new(0),
        failed: AtomicBool::new(false),
        stop,
    };
    thread::scope(|scope| {
        let handles: Vec<Handle<'_>> = (0..plan.threads)
            .map(|thread| {
                let protocol = protocol(plan.seed.wrapping_add(thread as u64));
                let shared = &shared;
                scope.spawn(move || worker::work(plan, shared, thread, protocol))
            })
            .collect();
        conduct(plan, &shared, &handles, on);
        shared.go_to(Phase::Draining);
        let mut parts = Vec::new();
        for handle in handles {
            match handle.join() {
                Ok(part) => parts.push(part?),
                Err(_) => return Err(Failure::Failed("a client thread panicked".into())),
            }
        }
        Outcome::merged(parts).ok_or_else(|| Failure::Failed("no client thread".into()))
    })
}

/// Switches the phases. Returns early if a thread ends.
fn conduct(
    plan: &Plan,
    shared: &Shared<'_>,
    handles: &[Handle<'_>],
    on: &mut dyn FnMut(Moment, &Live<'_>),
) {
    // Connects complete at a few thousand per second.
    let opening = OPENING + plan.timeout + Duration::from_millis(plan.connections as u64);
    let all_ready = || shared.ready.load(Ordering::Acquire) == plan.threads;
    let stopped = || shared.is_stopped();
    if !wait(opening, handles, || all_ready() || stopped()) || !all_ready() {
        return;
    }
    let live = Live { shared };
    shared.start_ns.store(shared.now_ns(), Ordering::Relaxed);
    shared.go_to(Phase::WarmUp);
    if !wait(plan.warmup, handles, stopped) || stopped() {
        return;
    }
    shared.go_to(Phase::Measured);
    on(Moment::Begin, &live);
    let before = live.responses();
    let has_result = || live.responses() > before || shared.failed.load(Ordering::Relaxed);
    let lasted = wait(plan.runtime, handles, stopped)
        // On a busy machine a short run may end before its first result.
        && wait(plan.timeout, handles, || stopped() || has_result())
        && !stopped();
    shared.go_to(Phase::After);
    on(Moment::End, &live);
    if lasted {
        on(Moment::After, &live);
    }
}

/// Waits for `time` or until `enough` returns true. Returns false if a thread has ended.
fn wait(time: Duration, handles: &[Handle<'_>], enough: impl Fn() -> bool) -> bool {
    let until = Instant::now() + time;
    loop {
        if handles.iter().any(Handle::is_finished) {
            return false;
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || enough() {
            return true;
        }
        thread::sleep(left.min(POLL_INTERVAL));
    }
}

/// Lists the reasons that make a run invalid: the load was not reached, or responses were missing or wrong.
fn faults(plan: &Plan, outcome: &Outcome) -> Vec<String> {
    let mut faults: Vec<String> = (outcome.errors.list())
        .map(|(kind, count, first)| format!("{count} × {}; the first: {first}", kind.name()))
        .collect();
    if !plan.reconnect && outcome.open_at_end != plan.connections {
        faults.push(format!(
            "{} of the {} connections were open at the end",
            outcome.open_at_end, plan.connections
        ));
    }
    if outcome.responses == 0 {
        faults.push("no request completed within the measured time".into());
    }
    if outcome.unanswered > 0 {
        faults.push(format!(
            "{} requests had no response within {} s after the end",
            outcome.unanswered,
            plan.timeout.as_secs_f64()
        ));
    }
    if outcome.requests != outcome.all_responses + outcome.dropped + outcome.unanswered {
        faults.push(format!(
            "{} requests are not {} responses, {} dropped and {} without a response: the generator miscounted",
            outcome.requests, outcome.all_responses, outcome.dropped, outcome.unanswered
        ));
    }
    if let Workload::Echo { bytes } = plan.workload
        && outcome.errors.total() == 0
        && outcome.unanswered == 0
        && outcome.all_received_bytes != outcome.all_responses * bytes as u64
    {
        faults.push(format!(
            "{} bytes came back for {} messages of {bytes}",
            outcome.all_received_bytes, outcome.all_responses
        ));
    }
    if let Pace::Rate(rate) = plan.pace
        && (outcome.per_second < rate * RATE_MIN || outcome.never_sent > 0)
    {
        faults.push(format!(
            "the rate was not reached: {:.0} of {rate:.0} responses per second, {} requests due and never sent",
            outcome.per_second, outcome.never_sent
        ));
    }
    faults
}
