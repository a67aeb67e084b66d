//! Polling instead of interrupts, where a user asks for it: how it is asked, and what became of it.

use std::fmt;

use super::EngineBuilder;
use crate::error::SetupError;
use crate::sys::polling::RingPoll;
use crate::sys::probe;
use crate::sys::sq_poll::{self, SqPoll};

/// What became of the polling that an engine was asked for. `Display` is a part of the sentence of
/// [`EngineBackend`](crate::EngineBackend), and empty where none was asked for.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct PollingInUse {
    /// The thread that polls the submission queues: how it is used, or why it is not; `None` if it was
    /// not asked for.
    pub sqpoll: Option<Result<SqPoll, SetupError>>,
    /// The ring that polls devices: there, or why not; `None` if it was not asked for. Which files it
    /// serves is another matter: [`File::poll_support`](crate::File::poll_support).
    pub iopoll: Option<Result<(), SetupError>>,
    /// What speaks against what was asked for. It has been done all the same.
    pub advice: Option<String>,
}

impl PollingInUse {
    /// What is asked for, taken for granted.
    pub(super) fn requested(builder: &EngineBuilder) -> PollingInUse {
        PollingInUse {
            sqpoll: builder.sqpoll.map(Ok),
            iopoll: builder.iopoll.then_some(Ok(())),
            advice: builder
                .sqpoll
                .and_then(|_| sq_poll::advice(probe::processors().len())),
        }
    }

    /// Why something of what was asked for is not there.
    pub(super) fn refusal(&self) -> Option<&SetupError> {
        let sqpoll = self
            .sqpoll
            .as_ref()
            .and_then(|result| result.as_ref().err());
        let iopoll = self
            .iopoll
            .as_ref()
            .and_then(|result| result.as_ref().err());
        sqpoll.or(iopoll)
    }

    /// The same for the rings; all of an engine's share one poller.
    pub(super) fn poll(&self, builder: &EngineBuilder) -> RingPoll {
        match builder.sqpoll {
            None => RingPoll::Nothing,
            Some(request) => request.ring_poll(),
        }
    }
}

impl fmt::Display for PollingInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.sqpoll {
            None => {}
            Some(Ok(poll)) => write!(f, "; {poll}")?,
            Some(Err(error)) => write!(f, "; without sqpoll: {error}")?,
        }
        if let (Some(advice), Some(Ok(_))) = (&self.advice, &self.sqpoll) {
            write!(f, "; {advice}")?;
        }
        match &self.iopoll {
            None => Ok(()),
            Some(Ok(())) => f.write_str("; a ring of its own for devices that are polled"),
            Some(Err(error)) => write!(f, "; without iopoll: {error}"),
        }
    }
}

impl EngineBuilder {
    /// Has a kernel thread take operations from the drivers' submission queues, so that submitting
    /// is no system call while that thread is awake. All drivers of the engine share one. Backends: uring.
    ///
    /// It pays where drivers are bound by their system calls and a processor is to spare; with fewer than four
    /// [`Engine::backend`](crate::Engine::backend) advises against it, and does it. Not together with a
    /// [`setup_mode`](EngineBuilder::setup_mode): the kernel takes no such flags beside it.
    ///
    /// Since Linux 5.11 with `CAP_SYS_NICE`, since 5.13 for everybody. Where it is refused,
    /// [`Backend::Auto`](crate::Backend::Auto) goes on without and says why; with
    /// [`Backend::Uring`](crate::Backend::Uring) it is an error.
    pub fn sqpoll(mut self, poll: SqPoll) -> Self {
        self.sqpoll = Some(poll);
        self
    }

    /// Adds a driver whose ring polls devices (IOPOLL), which saves the interrupt of each completion and
    /// costs a processor while anything is in flight. Backends: uring.
    ///
    /// Reads and writes go there if their file was opened with
    /// [`direct`](crate::OpenOptions::direct) and its device has queues to poll; everything else goes
    /// where it would have gone without. [`File::poll_support`](crate::File::poll_support) says which it is, and what
    /// to change. Such a transfer can't be cancelled: dropped, or past its timeout, it keeps its
    /// memory until the device has answered.
    ///
    /// Since Linux 5.17; before that, a polled write might hang, and it is refused. Where it is refused,
    /// [`Backend::Auto`](crate::Backend::Auto) goes on without and says why; with
    /// [`Backend::Uring`](crate::Backend::Uring) it is an error.
    pub fn iopoll(mut self, poll: bool) -> Self {
        self.iopoll = poll;
        self
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::backend::Backend;
    use crate::engine::Engine;
    use crate::fd::Fd;
    use crate::fs::File;
    use crate::sys::poll_queue::NotPolled;

    /// What the kernel answers where a device has lost its queues, or never had any.
    #[test]
    fn a_transfer_that_the_kernel_will_not_poll_for_is_done_by_a_system_call_and_the_next_go_elsewhere()
     {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = dir.path().join("data");
        let contents: Vec<u8> = (0..8192_u32).map(|at| (at % 251) as u8).collect();
        std::fs::write(&path, &contents).unwrap();
        let engine = match Engine::builder()
            .backend(Backend::Uring)
            .iopoll(true)
            .build()
        {
            Ok(engine) => engine,
            Err(error) => return println!("skip: {error}"),
        };
        let opened = std::fs::File::options()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        let fd = Fd::adopt(opened);
        let file = File::new(fd.clone(), Arc::clone(&engine.submitter)).unwrap();
        assert_eq!(file.poll_support(), Err(NotPolled::Buffered));
        // A lie: no buffered file can be polled for.
        fd.set_polled(true);
        let write = file.write_all_at(vec![1; 100], 8192);
        pollster::block_on(write).unwrap();
        assert!(!fd.is_polled());
        assert_eq!(
            (engine.metrics().polled, engine.metrics().poll_refused),
            (1, 1)
        );
        fd.set_polled(true);
        let reads = (0..64).map(|n| (vec![0; 128], n * 128));
        let past_the_cache = pollster::block_on(file.read_vectored_at(vec![vec![0; 100]; 2], 8000));
        assert_eq!(past_the_cache.unwrap().0, 200);
        assert_eq!(
            (engine.metrics().polled, engine.metrics().poll_refused),
            (2, 2)
        );
        for (n, result) in pollster::block_on(file.read_many_at(reads))
            .into_iter()
            .enumerate()
        {
            assert_eq!(result.unwrap().1, contents[n * 128..][..128]);
        }
        assert_eq!(engine.metrics().polled, 2, "the next go elsewhere");
    }
}
