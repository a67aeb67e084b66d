//! Polling instead of interrupts: the request, and its result.

use std::fmt;

use super::EngineBuilder;
use crate::error::SetupError;
use crate::ring_options::RingOptions;
use crate::sys::probe;
use crate::sys::sq_poll::{self, SqPoll};

/// The state of the polling that was requested for an engine. `Display` writes a part of the sentence of
/// [`EngineBackend`](crate::EngineBackend), and nothing if no polling was requested.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct PollingInUse {
    /// The thread that polls the submission queues, or the reason why it is not used; `None` if it was not requested.
    pub sqpoll: Option<Result<SqPoll, SetupError>>,
    /// The ring that polls devices, or the reason why there is none; `None` if it was not requested.
    /// [`File::poll_support`](crate::File::poll_support) reports whether a file uses it.
    pub iopoll: Option<Result<(), SetupError>>,
    /// Advice against the requested setting. The setting is used all the same.
    pub advice: Option<String>,
}

impl PollingInUse {
    /// Returns the requested polling, as if it were all available.
    pub(super) fn requested(options: &RingOptions, iopoll: bool) -> PollingInUse {
        let advice = |_| sq_poll::advice(probe::processors().len());
        PollingInUse {
            sqpoll: options.sqpoll.map(Ok),
            iopoll: iopoll.then_some(Ok(())),
            advice: options.sqpoll.and_then(advice),
        }
    }

    /// Returns why a part of the requested polling is missing.
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
            Some(Ok(())) => f.write_str("; a separate ring polls devices"),
            Some(Err(error)) => write!(f, "; without iopoll: {error}"),
        }
    }
}

impl EngineBuilder {
    /// Adds a driver whose ring polls devices (IOPOLL). This saves the interrupt of each completion, and occupies a
    /// processor while operations are in flight. io_uring only.
    ///
    /// Reads and writes use this ring if their file was opened with [`direct`](crate::OpenOptions::direct) and its
    /// device has poll queues. All other operations use the ordinary drivers.
    /// [`File::poll_support`](crate::File::poll_support) reports which ring a file uses, and what to change. A polled
    /// transfer cannot be cancelled: if it is dropped or times out, its memory is kept until the device has completed
    /// it.
    ///
    /// Needs Linux 5.17, because a polled write might hang on earlier kernels. If the kernel refuses,
    /// [`Backend::Auto`](crate::Backend::Auto) continues without it and reports the reason;
    /// [`Backend::Uring`](crate::Backend::Uring) fails.
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
    use crate::op::OpenedFd;
    use crate::sys::poll_queue::NotPolled;

    /// The kernel refuses to poll if a device has lost its poll queues, or never had any.
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
        let opened = OpenedFd {
            fd: fd.clone(),
            flags: 0,
            mount: None,
        };
        let file = File::new(opened, Arc::clone(&engine.submitter)).unwrap();
        assert_eq!(file.poll_support(), Err(NotPolled::Buffered));
        // Untrue: buffered files cannot be polled.
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
        assert_eq!(engine.metrics().polled, 2, "later reads are not polled");
    }
}
