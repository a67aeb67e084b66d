//! The options that engines and runtimes have in common: stored, documented and checked once. Each builder has an
//! `options: RingOptions`, and its methods from [`ring_option_methods`].

use std::time::Duration;

use crate::backend::Backend;
use crate::driver::{Limits, blocking};
use crate::error::SetupError;
use crate::sys::affinity::Affinity;
use crate::sys::polling::RingPoll;
use crate::sys::ring::{RingConfig, SetupMode};
use crate::sys::sq_poll::SqPoll;

/// Default number of bytes in flight per driver.
const IN_FLIGHT_BYTES: u64 = 256 << 20;
/// Default number of blocking threads: about the number that keeps a disk busy.
const BLOCKING_THREADS: usize = 64;
/// Default time that the end of an engine or runtime waits for operations in flight.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
/// Kernel workers per ring: bounded (files), and unbounded (everything else).
const RING_WORKERS: [u32; 2] = [8, 16];

/// The options of the rings of an engine or a runtime.
#[derive(Clone, Debug)]
pub(crate) struct RingOptions {
    pub(crate) backend: Backend,
    /// Threads with a ring: the drivers of an engine, or the cores of a runtime.
    pub(crate) threads: usize,
    pub(crate) blocking_threads: usize,
    pub(crate) sq_entries: u32,
    pub(crate) setup_mode: SetupMode,
    pub(crate) limits: Limits,
    pub(crate) drain_timeout: Duration,
    pub(crate) sqpoll: Option<SqPoll>,
}

impl RingOptions {
    pub(crate) fn new(
        threads: usize,
        sq_entries: u32,
        in_flight: u32,
        setup_mode: SetupMode,
    ) -> RingOptions {
        RingOptions {
            backend: Backend::Auto,
            threads,
            blocking_threads: BLOCKING_THREADS,
            sq_entries,
            setup_mode,
            limits: Limits {
                in_flight,
                in_flight_bytes: IN_FLIGHT_BYTES,
            },
            drain_timeout: DRAIN_TIMEOUT,
            sqpoll: None,
        }
    }

    /// Checks that no number is 0. `threads` is the name of the method that sets the number of threads.
    pub(crate) fn check(&self, threads: &str) -> Result<(), SetupError> {
        let numbers = [
            (threads, self.threads),
            ("blocking_threads", self.blocking_threads),
            ("max_in_flight", self.limits.in_flight as usize),
            ("ring_entries", self.sq_entries as usize),
        ];
        match numbers.iter().find(|(_, value)| *value == 0) {
            None => Ok(()),
            Some((what, _)) => Err(SetupError::Config(format!(
                "{what} is 0; it must be at least 1"
            ))),
        }
    }

    /// Returns the configuration of a ring with `cq_entries` entries for completions. All rings that are made from one
    /// returned value share a polling thread.
    pub(crate) fn ring(&self, cq_entries: u32) -> RingConfig {
        RingConfig {
            sq_entries: self.sq_entries,
            cq_entries,
            setup_mode: self.setup_mode,
            workers: RING_WORKERS,
            poll: (self.sqpoll).map_or(RingPoll::Nothing, SqPoll::ring_poll),
        }
    }

    /// Returns the configuration of the blocking threads.
    pub(crate) fn blocking(&self, affinity: Option<Affinity>) -> blocking::Config {
        blocking::Config {
            threads: self.blocking_threads,
            limits: self.limits,
            drain_timeout: self.drain_timeout,
            affinity,
        }
    }
}

/// Implements the methods of a builder that set options. `$entries` is the default of `ring_entries`.
macro_rules! ring_option_methods {
    ($builder:ident, $entries:literal) => {
        /// Options of rings, which engines and runtimes have in common.
        impl $builder {
            /// Sets the backend; [`Backend::Auto`] by default. [`Backend::Fallback`] uses blocking threads for files,
            /// and in a runtime epoll for sockets. A runtime refuses `Backend::Sim`, because the simulated kernel has
            /// no sockets.
            ///
            /// Tests of a program cover the fallback on a machine with io_uring:
            ///
            /// ```
            /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
            /// # let dir = tempfile::tempdir()?;
            /// # let engine = annulus::Engine::new()?;
            /// # let path = dir.path().join("data"); std::fs::write(&path, "0123")?;
            /// use annulus::{Backend, Engine};
            ///
            /// for backend in [Backend::Auto, Backend::Fallback] {
            ///     let engine = Engine::builder().backend(backend).build()?;
            ///     assert_eq!(engine.read(&path).await?, b"0123");
            /// }
            /// # Ok(()) }) }
            /// ```
            pub fn backend(mut self, backend: Backend) -> Self {
                self.options.backend = backend;
                self
            }

            /// Sets the maximum number of blocking threads; 64 by default. They start when they are needed. With
            /// io_uring, they run operations without an opcode, durable writes of buffered files, and
            /// `runtime::spawn_blocking`.
            pub fn blocking_threads(mut self, threads: usize) -> Self {
                self.options.blocking_threads = threads;
                self
            }

            #[doc = concat!("Sets the number of entries of each submission queue; ", $entries, " by default.")]
            /// io_uring only. Linux only.
            pub fn ring_entries(mut self, entries: u32) -> Self {
                self.options.sq_entries = entries;
                self
            }

            /// Sets how long the end of the engine or the runtime waits for operations in flight; 30 s by default. It
            /// is one limit for sockets, files and threads together. In a runtime it begins after the grace period.
            ///
            /// After that, memory that the kernel may still access is leaked on purpose and counted in
            /// [`Metrics::leaked`](crate::metrics::Metrics::leaked). A ring leaks its memory permanently, a blocking
            /// thread until its system call returns.
            ///
            /// A program that must end soon, although a network file system does not respond:
            ///
            /// ```
            /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
            /// use std::time::Duration;
            ///
            /// let engine = annulus::Engine::builder().drain_timeout(Duration::from_secs(2)).build()?;
            /// engine.nop().await?;
            /// drop(engine); // waits for operations in flight; here there are none
            /// # Ok(()) }) }
            /// ```
            pub fn drain_timeout(mut self, timeout: Duration) -> Self {
                self.options.drain_timeout = timeout;
                self
            }

            /// Lets a kernel thread take entries from the submission queues (SQPOLL). Submitting then needs no system
            /// call while that thread is awake. All drivers of the engine, or cores of the runtime, share one thread.
            /// io_uring only. Linux only.
            ///
            /// This helps if system calls limit the drivers and a processor is free. With fewer than four processors,
            /// the report of the backend advises against it. Each ring uses the mode `Plain`, because the kernel does
            /// not accept the flags of the other modes beside it.
            ///
            /// Needs Linux 5.13, or 5.11 with `CAP_SYS_NICE`. If the kernel refuses, [`Backend::Auto`] continues
            /// without it and reports the reason; [`Backend::Uring`] fails.
            ///
            /// ```
            /// use annulus::{Engine, engine::SqPoll};
            ///
            /// // If the kernel refuses, the engine works without it, and the report says why.
            /// let engine = Engine::builder().sqpoll(SqPoll::new()).build()?;
            /// println!("{}", engine.backend());
            /// # Ok::<(), annulus::SetupError>(())
            /// ```
            pub fn sqpoll(mut self, poll: SqPoll) -> Self {
                self.options.sqpoll = Some(poll);
                self
            }
        }
    };
}

pub(crate) use ring_option_methods;
