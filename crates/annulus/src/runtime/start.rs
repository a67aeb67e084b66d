//! The start and the end of a runtime with a thread and a ring per core.
//!
//! All cores are made before the first of them runs, so that a file can go to any of them. If one can't be made, the
//! others are dropped. If a core's `main` returns successfully, the other cores continue. If it fails or panics, all
//! cores end, and the caller gets the error or the panic.

use std::any::Any;
use std::future::Future;
#[cfg(feature = "signal")]
use std::future::poll_fn;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
#[cfg(feature = "signal")]
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
#[cfg(feature = "signal")]
use std::task::Poll;
use std::task::Waker;
use std::thread::{self, Scope, ScopedJoinHandle};

use super::builder::{CoreInfo, RuntimeBuilder};
use super::executor::{Executor, Inbox};
use super::handle::Handle;
use super::surroundings::{self, Surroundings};
use super::task::{End, JoinHandle, ReportedTask};
use crate::backend::{Backend, BackendInUse, PollingInUse, ReceiveInUse, UringInUse};
use crate::buf::{GroupLayout, ReceiveMode};
use crate::driver::core::{Core, CoreConfig};
use crate::driver::thread_rings::Driving;
use crate::driver::{DriverHandle, DriverThread, Opcodes, Submitter, Thread};
use crate::engine::Engine;
use crate::error::SetupError;
use crate::metrics::SourceKind;
use crate::narrow::to_ns;
use crate::ring_options::RingOptions;
#[cfg(feature = "signal")]
use crate::signal::TerminationHandlers;
use crate::sys::affinity::{Affinity, Pinned};
use crate::sys::mount;
use crate::sys::polling::RingPoll;
use crate::sys::size_limit::SignalBlocked;

/// The result of a core's `main`, or the panic that ended it.
type Outcome = Result<io::Result<()>, Box<dyn Any + Send>>;

/// The other runtime of the cores, if there is one.
type Around = Option<Box<dyn Surroundings>>;

/// A core's part in the submitter: its driver handle, and the opcodes of its ring. `None` without a ring.
type FilesDriver = Option<(Arc<DriverHandle>, Opcodes)>;

/// The future of a core's `main`. Boxed, so that a program does not compile the life of a core again for each type.
type MainFuture = Pin<Box<dyn Future<Output = io::Result<()>>>>;

/// The parts that the cores of a runtime share.
struct Plan<'a> {
    builder: &'a RuntimeBuilder,
    config: CoreConfig,
    handle: Handle,
    main: &'a (dyn Fn(CoreInfo) -> MainFuture + Sync),
    /// The processors for blocking threads, if the cores are pinned.
    affinity: Option<Affinity>,
    around: Around,
}

/// A thread that is making its core.
struct CoreThread<'scope> {
    thread: ScopedJoinHandle<'scope, Outcome>,
    /// Sends the submitter to start the core; dropped, the thread drops its core.
    go: mpsc::Sender<Arc<Submitter>>,
}

pub(super) fn run<M, F>(
    builder: &RuntimeBuilder,
    on_start: impl FnOnce(Handle),
    main: &M,
) -> io::Result<()>
where
    M: Fn(CoreInfo) -> F + Sync,
    F: Future<Output = io::Result<()>> + 'static,
{
    let main = |info| Box::pin(main(info)) as MainFuture;
    let plan = Plan {
        builder,
        config: builder.core(),
        handle: new_handle(builder)?,
        main: &main,
        affinity: affinity(builder),
        around: surroundings::start(builder)?,
    };
    let plan = &plan;
    let (outcome, files) = thread::scope(|scope| plan.start(scope, on_start))?;
    plan.handle.close();
    // Blocking threads finish their work. Files that are still open can't be used any more.
    files.drain();
    outcome.unwrap_or_else(|panic| resume_unwind(panic))
}

pub(super) fn block_on<F>(builder: &RuntimeBuilder, future: F) -> Result<F::Output, SetupError>
where
    F: Future + 'static,
{
    let handle = new_handle(builder)?;
    let affinity = affinity(builder);
    let around = surroundings::start(builder)?;
    let made = NewCore::new(builder, &builder.core(), 0, handle.inbox(0), &around)?;
    let files = files(builder, affinity, [made.seat()].into_iter());
    handle.set_files(&files);
    // Boxed for the same reason as a `MainFuture`.
    let main = || Box::pin(future) as Pin<Box<dyn Future<Output = F::Output>>>;
    let (ended, failure) = made.run(builder, &files, &handle, &around, false, main);
    handle.close();
    files.drain();
    match ended {
        Some(Ok(value)) => Ok(value),
        Some(Err(panic)) => resume_unwind(panic),
        // Only a failed ring, or a fork, stops the main future of `block_on`.
        None => Err(SetupError::Os {
            what: match handle.is_elsewhere() {
                true => "running a core in a forked child",
                false => "the io_uring of a core (the kernel accepts no more calls on it)",
            },
            error: failure.unwrap_or_else(|| io::Error::other("the kernel reported no error")),
        }),
    }
}

fn new_handle(builder: &RuntimeBuilder) -> Result<Handle, SetupError> {
    let inboxes = (0..builder.options.threads).map(Inbox::new);
    let inboxes = inboxes.collect::<io::Result<Vec<_>>>();
    let os = |error| SetupError::Os {
        what: "making an eventfd for a core",
        error,
    };
    Ok(Handle::new(inboxes.map_err(os)?))
}

/// Returns the calling thread's affinity, before the thread is pinned.
fn affinity(builder: &RuntimeBuilder) -> Option<Affinity> {
    builder.pin.then(Affinity::of_this_thread).flatten()
}

/// Makes the submitter for the files of all cores.
fn files(
    builder: &RuntimeBuilder,
    affinity: Option<Affinity>,
    seats: impl Iterator<Item = FilesDriver>,
) -> Arc<Submitter> {
    let mut opcodes = Opcodes::NONE;
    let handles = seats.flatten().map(|(files_driver, takes)| {
        opcodes = takes;
        DriverThread {
            handle: files_driver,
            thread: Thread::None,
        }
    });
    let handles = handles.collect();
    let config = builder.options.blocking(affinity);
    mount::learn_root();
    Arc::new(Submitter::new(handles, opcodes, config))
}

impl Plan<'_> {
    /// Makes all cores, and runs them to their end.
    fn start<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        on_start: impl FnOnce(Handle),
    ) -> Result<(Outcome, Arc<Submitter>), SetupError> {
        // An early return drops the `go` senders, so that the started threads drop their cores.
        let (sender, receiver) = mpsc::channel();
        let mut others = Vec::new();
        for index in 1..self.builder.options.threads {
            others.push(self.start_thread(scope, index, sender.clone())?);
        }
        // Only the threads of cores hold senders now.
        drop(sender);
        let inbox = self.handle.inbox(0);
        #[cfg_attr(
            not(feature = "signal"),
            expect(unused_mut, reason = "it gets signal handlers")
        )]
        let mut made = NewCore::new(self.builder, &self.config, 0, inbox, &self.around)?;
        let mut seats = vec![made.seat()];
        for _ in &others {
            match receiver.recv() {
                Ok(Ok(seat)) => seats.push(seat),
                Ok(Err(error)) => return Err(made.give_up(error)),
                // A thread has panicked. The scope reports its panic.
                Err(_) => return Err(made.give_up(could_not_start())),
            }
        }
        let files = files(self.builder, self.affinity, seats.into_iter());
        self.handle.set_files(&files);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| on_start(self.handle.clone()))) {
            made.executor.leave();
            return Ok((Err(panic), files));
        }
        // Before any core runs: a signal must not find the default action.
        #[cfg(feature = "signal")]
        if self.builder.shutdown_on_signals {
            let what = "handling SIGINT and SIGTERM";
            match TerminationHandlers::new() {
                Ok(handlers) => made.termination = Some(handlers),
                Err(error) => return Err(made.give_up(SetupError::Os { what, error })),
            }
        }
        for other in &others {
            let _ = other.go.send(Arc::clone(&files));
        }
        let mut outcome = self.serve(made, &files);
        for other in others {
            let other = other.thread.join().unwrap_or_else(Err);
            outcome = match (outcome, other) {
                (Err(panic), _) | (Ok(_), Err(panic)) => Err(panic),
                (Ok(one), Ok(other)) => Ok(one.and(other)),
            };
        }
        Ok((outcome, files))
    }

    fn start_thread<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        index: usize,
        sender: mpsc::Sender<Result<FilesDriver, SetupError>>,
    ) -> Result<CoreThread<'scope>, SetupError> {
        let (go, gone) = mpsc::channel::<Arc<Submitter>>();
        let body = move || {
            let inbox = self.handle.inbox(index);
            let made = NewCore::new(self.builder, &self.config, index, inbox, &self.around);
            let made = match made {
                Ok(made) => made,
                Err(error) => {
                    let _ = sender.send(Err(error));
                    return Ok(Ok(()));
                }
            };
            let _ = sender.send(Ok(made.seat()));
            drop(sender);
            match gone.recv() {
                Ok(files) => self.serve(made, &files),
                Err(_) => {
                    made.executor.leave();
                    Ok(Ok(()))
                }
            }
        };
        let thread = thread::Builder::new().name(format!("annulus-{index}"));
        let refused = |error| {
            SetupError::Config(format!(
                "can't start the thread of core {index} of {}: {error}; raise the limits on threads (RLIMIT_NPROC, \
                 pids.max), or configure fewer cores",
                self.builder.options.threads
            ))
        };
        let thread = thread.spawn_scoped(scope, body).map_err(refused)?;
        Ok(CoreThread { thread, go })
    }

    /// Runs a core to its end. If its `main` fails, all other cores end, too.
    fn serve(&self, made: NewCore, files: &Arc<Submitter>) -> Outcome {
        let info = CoreInfo {
            index: made.index,
            cores: self.handle.cores(),
            backend: Arc::clone(&made.backend),
        };
        let main = self.main;
        let failed = |ended: &thread::Result<io::Result<()>>| !matches!(ended, Ok(Ok(())));
        let handle = &self.handle;
        let around = &self.around;
        let (ended, failure) = made.run(self.builder, files, handle, around, true, || main(info));
        if handle.is_elsewhere() && handle.cores() > 1 {
            no_threads_to_join();
        }
        let ended = match failure {
            Some(error) => Ok(Err(error)),
            // No value: the runtime was shut down.
            None => ended.unwrap_or(Ok(Ok(()))),
        };
        if failed(&ended) {
            handle.shutdown();
        }
        ended
    }
}

/// Aborts a forked child that has returned to a core. It can't return to the caller, which waits for the threads of
/// other cores, and a child does not have them.
#[cold]
fn no_threads_to_join() -> ! {
    eprintln!(
        "annulus: a forked child can't continue as a core of its parent's runtime; call exec or _exit in the child"
    );
    std::process::abort()
}

#[cold]
fn could_not_start() -> SetupError {
    SetupError::Os {
        what: "starting a core of the runtime",
        error: io::Error::other("its thread ended before the core had started"),
    }
}

/// A core before it runs.
struct NewCore {
    index: usize,
    executor: Rc<Executor>,
    seat: FilesDriver,
    backend: Arc<BackendInUse>,
    pinned: Option<Pinned>,
    /// Restored at the end, because the thread may be the caller's.
    signal_blocked: SignalBlocked,
    /// Handlers of signals that shut the runtime down, for the first core.
    #[cfg(feature = "signal")]
    termination: Option<TerminationHandlers>,
}

impl NewCore {
    fn new(
        builder: &RuntimeBuilder,
        config: &CoreConfig,
        index: usize,
        inbox: Arc<Inbox>,
        around: &Around,
    ) -> Result<NewCore, SetupError> {
        let pinned = builder.pin.then(|| Pinned::to_nth(index)).flatten();
        let backend = builder.options.backend;
        let ringed = match backend {
            Backend::Fallback => Err(None),
            _ => match NewCore::with_ring(&builder.options, config, &inbox) {
                Err(error) if backend == Backend::Auto && error.allows_fallback() => {
                    Err(Some(error))
                }
                other => Ok(other?),
            },
        };
        let (core, seat, backend) = match ringed {
            Ok(made) => made,
            Err(reason) => {
                let core = Core::with_readiness(config, inbox.notifier())?;
                let backend = BackendInUse::Fallback {
                    blocking_threads: builder.options.blocking_threads,
                    epoll: true,
                    reason,
                };
                (core, None, backend)
            }
        };
        let local = match around {
            Some(around) => around.local(&core)?,
            None => None,
        };
        Ok(NewCore {
            index,
            executor: Executor::new(core, inbox, local),
            seat,
            backend: Arc::new(backend),
            pinned,
            signal_blocked: SignalBlocked::new(),
            #[cfg(feature = "signal")]
            termination: None,
        })
    }

    fn with_ring(
        options: &RingOptions,
        config: &CoreConfig,
        inbox: &Inbox,
    ) -> Result<(Rc<Core>, FilesDriver, BackendInUse), SetupError> {
        let files_driver = Arc::new(DriverHandle::new(Box::new(inbox.notifier())));
        files_driver.counters.set_kind(SourceKind::CoreFiles);
        let make = |config| Core::with_ring(config, inbox.notifier(), Arc::clone(&files_driver));
        let mut polling = PollingInUse::requested(options.sqpoll, false);
        let core = match make(config.clone()) {
            Err(error @ SetupError::Polling { .. }) if options.backend == Backend::Auto => {
                polling.sqpoll = Some(Err(error));
                let mut config = config.clone();
                config.ring.poll = RingPoll::Nothing;
                make(config)?
            }
            other => other?,
        };
        let (setup_mode, sq_entries, opcodes) = core.ring_facts();
        let (group, mode_refused) = core.group_facts();
        let group = group.unwrap_or(GroupLayout::of(ReceiveMode::Whole));
        let rings = UringInUse {
            setup_mode,
            threads: options.threads,
            sq_entries,
            polling,
            receive: Some(ReceiveInUse {
                buffers: group.count,
                buffer_bytes: group.bytes,
                mode: group.mode,
                mode_refused,
            }),
            thread_ring_refusal: Arc::default(),
        };
        let backend = BackendInUse::Uring(rings);
        Ok((core, Some((files_driver, opcodes)), backend))
    }

    /// Labels the counters of the core and its files with their runtime, core and backend.
    fn label_counters(&self, files: &Submitter, handle: &Handle) {
        let backend = self.backend.to_string();
        let fallback = self.backend.fallback();
        let inbox = handle.inbox(self.index);
        inbox.set_owner(files.number(), self.index);
        inbox.set_backend(&backend, fallback.as_deref());
        if let Some((files_driver, _)) = &self.seat {
            files_driver.counters.set_owner(files.number(), self.index);
        }
        files.set_backend(backend, fallback);
    }

    fn seat(&self) -> FilesDriver {
        self.seat.clone()
    }

    /// Drops the core, because another one could not be made.
    fn give_up(self, error: SetupError) -> SetupError {
        self.executor.leave();
        error
    }

    /// Runs `main` to its end, then the remaining tasks for at most the grace period.
    ///
    /// Returns no value if the runtime was shut down, which only `may_be_stopped` allows, or if the ring has failed.
    /// The second value is the error of a failed ring.
    fn run<F>(
        self,
        builder: &RuntimeBuilder,
        files: &Arc<Submitter>,
        handle: &Handle,
        around: &Around,
        may_be_stopped: bool,
        main: impl FnOnce() -> F,
    ) -> (Option<thread::Result<F::Output>>, Option<io::Error>)
    where
        F: Future + 'static,
    {
        self.label_counters(files, handle);
        let executor = self.executor;
        let beside = around.as_ref().and_then(|around| around.beside());
        let _beside = beside.map(|beside| beside.enter());
        let local = executor.local().map(|local| local.context());
        let _local = local.as_ref().map(|local| local.enter());
        executor
            .core()
            .set_address_share(handle.address_share(self.index));
        executor.enter(Engine::of_runtime(files, self.backend), handle);
        let files_driver = self
            .seat
            .and_then(|(files_driver, _)| files.core_handle(&files_driver));
        let driving = files_driver.map(|files_driver| Driving::new(files.number(), files_driver));
        #[cfg(feature = "signal")]
        if let Some(handlers) = self.termination {
            match handlers.on_core() {
                Ok(terminated) => executor.start(shut_down_at(terminated, handle.clone())),
                Err(error) => {
                    executor.leave();
                    return (None, Some(error));
                }
            }
        }
        let end = End::new();
        let mut main_handle = JoinHandle::new(Arc::clone(&end));
        // `main` may use the core from here on. The code before its first await runs now.
        match catch_unwind(AssertUnwindSafe(main)) {
            Ok(future) => executor.start(ReportedTask::new(future, end)),
            Err(panic) => {
                executor.leave();
                return (Some(Err(panic)), None);
            }
        }
        let stopped = || may_be_stopped && executor.is_stopping();
        executor.run(|| main_handle.is_finished() || stopped(), || false);
        main_handle.abort();
        executor.stop();
        let core = Rc::clone(executor.core());
        let grace_ns = to_ns(builder.grace);
        let until_ns = core.now_ns().saturating_add(grace_ns);
        let timer = core.set_timer(None, until_ns, Waker::noop());
        let is_idle = || executor.tasks() == 0 && !core.is_sending();
        // The time may pass within a round, and its timer wakes no task.
        let is_over = || is_idle() || core.now_ns() >= until_ns;
        executor.run(is_over, is_over);
        core.clear_timer(timer);
        // Blocking work of Tokio may use the rest of the grace period, as tasks do. Connections are open meanwhile.
        if grace_ns > 0
            && let Some(local) = executor.local()
        {
            local.limit_end(std::time::Duration::from_nanos(
                until_ns.saturating_sub(core.now_ns()),
            ));
        }
        let failure = core.failure();
        drop(core);
        executor.leave();
        drop(driving);
        drop(self.pinned);
        drop(self.signal_blocked);
        let ended = match main_handle.take() {
            Ok(value) => Some(Ok(value)),
            Err(error) => error.into_panic().ok().map(Err),
        };
        (ended, failure)
    }
}

/// Shuts the runtime down at a signal. Ends with the runtime, so that the grace period does not wait for it.
#[cfg(feature = "signal")]
async fn shut_down_at(mut terminated: crate::signal::Terminated, handle: Handle) {
    let (mut signal, mut stopping) = (pin!(terminated.recv()), pin!(super::stopping()));
    poll_fn(|context| match signal.as_mut().poll(context) {
        Poll::Ready(_) => {
            handle.shutdown();
            Poll::Ready(())
        }
        Poll::Pending => stopping.as_mut().poll(context),
    })
    .await;
}
