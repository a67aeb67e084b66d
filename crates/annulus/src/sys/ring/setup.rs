//! The creation of a ring: the newest set-up mode that works, and smaller if memory is short.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use io_uring::IoUring;

use super::Ring;
use crate::error::SetupError;
use crate::sys::errno::{EACCES, EINVAL, ENOMEM, ENOSYS, EPERM};
use crate::sys::filter_probe;
use crate::sys::forked::Queues;
use crate::sys::kernel::Entered;
use crate::sys::lent::Lent;
use crate::sys::polling::RingPoll;
use crate::sys::probe;
use crate::sys::sqe::{Sqe, opcode};
use crate::sys::wake::EventFd;

/// The set of flags that a ring was set up with. A ring uses the newest mode that the kernel accepts.
///
/// A test of a program in the mode of an older kernel:
///
/// ```
/// use annulus::{Engine, engine::SetupMode};
///
/// let engine = Engine::builder().setup_mode(SetupMode::Plain).build()?;
/// assert!(SetupMode::Deferred > SetupMode::Plain); // in the order of the kernels that brought them
/// println!("{}", engine.backend()); // names the mode
/// # Ok::<(), annulus::SetupError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum SetupMode {
    /// No flag that needs a recent kernel.
    Plain,
    /// `COOP_TASKRUN`. Since Linux 5.19.
    Cooperative,
    /// `SINGLE_ISSUER` and `DEFER_TASKRUN`. Since Linux 6.1.
    Deferred,
}

impl SetupMode {
    /// Returns the description that `Engine::backend` prints.
    pub(crate) fn describe(self) -> &'static str {
        match self {
            SetupMode::Plain => "plain",
            SetupMode::Cooperative => "cooperative task work",
            SetupMode::Deferred => "single issuer, deferred task work",
        }
    }
}

/// The configuration of a new ring.
#[derive(Clone, Debug)]
pub(crate) struct RingConfig {
    /// The entries of the submission queue, halved until the kernel has memory for them.
    pub(crate) sq_entries: u32,
    /// The entries of the completion queue; at least the number of operations that may be in flight.
    pub(crate) cq_entries: u32,
    /// The newest set-up mode to try.
    pub(crate) setup_mode: SetupMode,
    /// The maximum number of kernel workers (io-wq), bounded and unbounded. Since Linux 5.15.
    pub(crate) workers: [u32; 2],
    pub(crate) poll: RingPoll,
}

/// The smallest useful submission queue. Below it the fallback performs better.
const SQ_ENTRIES_MIN: u32 = 8;
/// Pauses before retries after ENOMEM: the kernel uncharges the memory of a closed ring asynchronously.
const ENOMEM_PAUSES_MS: [u64; 3] = [10, 50, 200];
/// `IORING_ENTER_NO_IOWAIT`: a sleeping driver does not count as waiting for a disk. Since Linux 6.15.
const ENTER_NO_IOWAIT: u32 = 1 << 7;

impl Ring {
    /// Creates a ring with the newest set-up mode that works, and smaller if memory is short. Fails if a seccomp filter
    /// would end the process for it.
    pub(crate) fn new(config: RingConfig) -> Result<Ring, SetupError> {
        filter_probe::check()?;
        Ring::with_probed_filter(config)
    }

    /// Creates a ring after [`filter_probe::check`].
    pub(crate) fn with_probed_filter(config: RingConfig) -> Result<Ring, SetupError> {
        match &config.poll {
            RingPoll::Submissions(poller) => {
                poller.share(|attach| Ring::make(config.clone(), attach))
            }
            RingPoll::Nothing | RingPoll::Completions => Ring::make(config, None),
        }
    }

    /// Creates a ring. `attach` is the ring whose poller of the submission queue is shared.
    fn make(mut config: RingConfig, attach: Option<RawFd>) -> Result<Ring, SetupError> {
        let (ring, setup_mode) = loop {
            match Ring::build_newest(&config, attach) {
                Ok(made) => break made,
                Err(error) if error.raw_os_error() == Some(ENOMEM) => {
                    if config.sq_entries / 2 < SQ_ENTRIES_MIN {
                        return Err(probe::explain_setup(error));
                    }
                    config.sq_entries /= 2;
                    config.cq_entries = (config.cq_entries / 2).max(config.sq_entries * 2);
                }
                Err(error) => return Err(Ring::refused(&config, error)),
            }
        };
        for (has, need, what) in [
            (
                ring.params().is_feature_nodrop(),
                "5.5",
                "a completion queue that drops nothing (NODROP)",
            ),
            (
                ring.params().is_feature_submit_stable(),
                "5.5",
                "SUBMIT_STABLE",
            ),
            (
                ring.params().is_feature_ext_arg(),
                "5.11",
                "a timeout on enter (EXT_ARG)",
            ),
        ] {
            if !has {
                return Err(SetupError::TooOld {
                    have: probe::kernel_release(),
                    need,
                    what,
                });
            }
        }
        Ring::furnish(ring, setup_mode, config)
    }

    /// Explains a refusal. Distinguishes a refusal of the ring from one of the poller of its submission queue.
    fn refused(config: &RingConfig, error: io::Error) -> SetupError {
        if let RingPoll::Submissions(poller) = &config.poll
            && matches!(error.raw_os_error(), Some(EPERM | EACCES | EINVAL))
        {
            let unpolled = RingConfig {
                poll: RingPoll::Nothing,
                ..config.clone()
            };
            if Ring::build_newest(&unpolled, None).is_ok() {
                return poller.explain(&error);
            }
        }
        probe::explain_setup(error)
    }

    fn build_newest(
        config: &RingConfig,
        attach: Option<RawFd>,
    ) -> io::Result<(IoUring, SetupMode)> {
        let mut refused = io::Error::from_raw_os_error(EINVAL);
        let highest = match config.poll {
            // SQPOLL excludes the flags of the newer modes: they concern threads that enter.
            RingPoll::Submissions(_) => SetupMode::Plain,
            RingPoll::Nothing | RingPoll::Completions => config.setup_mode,
        };
        for setup_mode in [
            SetupMode::Deferred,
            SetupMode::Cooperative,
            SetupMode::Plain,
        ] {
            if setup_mode > highest {
                continue;
            }
            // The newest flag first: the kernel rejects the whole set with EINVAL.
            for no_sqarray in [true, false] {
                match Ring::build(config, attach, setup_mode, no_sqarray) {
                    Ok(ring) => return Ok((ring, setup_mode)),
                    Err(error) if error.raw_os_error() == Some(EINVAL) => refused = error,
                    Err(error) => return Err(error),
                }
            }
        }
        Err(refused)
    }

    fn build(
        config: &RingConfig,
        attach: Option<RawFd>,
        setup_mode: SetupMode,
        no_sqarray: bool,
    ) -> io::Result<IoUring> {
        let mut builder = IoUring::builder();
        // Trap 54: a forked child must not share the mappings.
        builder
            .dontfork()
            .setup_clamp()
            .setup_cqsize(config.cq_entries);
        if no_sqarray {
            builder.setup_no_sqarray();
        }
        match setup_mode {
            SetupMode::Deferred => {
                builder
                    .setup_single_issuer()
                    .setup_defer_taskrun()
                    .setup_taskrun_flag()
                    .setup_submit_all();
            }
            SetupMode::Cooperative => {
                builder
                    .setup_coop_taskrun()
                    .setup_taskrun_flag()
                    .setup_submit_all();
            }
            SetupMode::Plain => {}
        }
        match &config.poll {
            RingPoll::Nothing => {}
            RingPoll::Completions => _ = builder.setup_iopoll(),
            RingPoll::Submissions(poller) => {
                builder.setup_sqpoll(poller.idle_ms);
                poller.cpu.map(|cpu| builder.setup_sqpoll_cpu(cpu));
                attach.map(|ring| builder.setup_attach_wq(ring));
            }
        }
        let mut pauses = ENOMEM_PAUSES_MS.iter();
        loop {
            match builder.build(config.sq_entries) {
                Err(error) if error.raw_os_error() == Some(ENOMEM) => match pauses.next() {
                    Some(&ms) if config.sq_entries / 2 < SQ_ENTRIES_MIN => {
                        thread::sleep(Duration::from_millis(ms));
                    }
                    _ => return Err(error),
                },
                other => return other,
            }
        }
    }

    /// Probes the opcodes and tries a round trip.
    fn furnish(
        ring: IoUring,
        setup_mode: SetupMode,
        config: RingConfig,
    ) -> Result<Ring, SetupError> {
        let mut probe = io_uring::Probe::new();
        match ring.submitter().register_probe(&mut probe) {
            // Only a filter returns these. Without the probe every opcode would go to blocking threads, while the
            // engine would report that it uses a ring (trap 52).
            Err(error) if matches!(error.raw_os_error(), Some(EPERM | EACCES | ENOSYS)) => {
                return Err(probe::explain_setup(error));
            }
            // Since Linux 5.6. Without the probe every opcode counts as unsupported and goes to blocking threads.
            _ => {}
        }
        let flags_enter = if ring.params().is_feature_no_iowait() {
            ENTER_NO_IOWAIT
        } else {
            0
        };
        let wake = EventFd::new().map_err(probe::explain_setup)?;
        let is_patient = ring.params().is_feature_min_timeout();
        let mut ring = Ring {
            ring: Queues::new(ring),
            probe,
            setup_mode,
            registered: None,
            workers: config.workers,
            flags_enter,
            sq_polled: matches!(config.poll, RingPoll::Submissions(_)),
            blocks_signal: false,
            is_patient,
            wake: Arc::new(wake),
            wake_count: Box::new(0),
            timer: Box::new([0; 2]),
            entered: Entered::default(),
            lent: Lent::default(),
        };
        ring.round_trip(&config.poll)?;
        Ok(ring)
    }

    /// Executes a NOP. A filter may allow set-up and forbid enter (trap 52).
    fn round_trip(&mut self, poll: &RingPoll) -> Result<(), SetupError> {
        let cqe = self.execute(Sqe {
            user_data: 1,
            ..Sqe::new(opcode::NOP, -1)
        })?;
        // Rings that poll devices did not always accept a NOP. A refusal also proves that the round trip works.
        let no_nop = cqe.res == -EINVAL && matches!(poll, RingPoll::Completions);
        if cqe.res == 0 || no_nop {
            Ok(())
        } else {
            Err(probe::explain_setup(io::Error::from_raw_os_error(-cqe.res)))
        }
    }
}
