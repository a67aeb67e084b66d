//! The engine, and its builder.

#[path = "../engine/everywhere.rs"]
mod everywhere;

use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Backend, BackendInUse};
use crate::driver::Submitter;
use crate::error::SetupError;

/// Default number of blocking threads: about the number that keeps a disk busy.
const BLOCKING_THREADS: usize = 64;
/// Default time that the end of an engine waits for operations that run.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

/// A handle to the threads that do file I/O. `Send`, `Sync` and cheap to clone.
///
/// The engine's futures run on any executor, because they need only a waker.
///
/// When the last handle, file and future of an engine is dropped, operations that have not started are cancelled. The
/// drop blocks until the rest complete, or until [`EngineBuilder::drain_timeout`] has passed.
#[derive(Clone, Debug)]
pub struct Engine {
    submitter: Arc<Submitter>,
    backend: Arc<BackendInUse>,
}

/// Settings for a new [`Engine`], returned by [`Engine::builder`].
#[derive(Clone, Debug)]
pub struct EngineBuilder {
    backend: Backend,
    blocking_threads: usize,
    drain_timeout: Duration,
}

impl Default for EngineBuilder {
    fn default() -> EngineBuilder {
        EngineBuilder {
            backend: Backend::Auto,
            blocking_threads: BLOCKING_THREADS,
            drain_timeout: DRAIN_TIMEOUT,
        }
    }
}

impl EngineBuilder {
    /// Sets the backend; [`Backend::Auto`] by default.
    pub fn backend(mut self, backend: Backend) -> Self {
        self.backend = backend;
        self
    }

    /// Sets the maximum number of blocking threads; 64 by default. They start when they are needed.
    pub fn blocking_threads(mut self, threads: usize) -> Self {
        self.blocking_threads = threads;
        self
    }

    /// Sets how long the end of the engine waits for operations that run; 30 s by default.
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.drain_timeout = timeout;
        self
    }

    /// Builds the engine.
    ///
    /// # Errors
    ///
    /// Fails with [`SetupError::Config`] if the number of threads is 0, and with [`SetupError::Platform`] for
    /// [`Backend::Uring`].
    pub fn build(self) -> Result<Engine, SetupError> {
        match self.backend {
            _ if self.blocking_threads == 0 => {
                let text = "blocking_threads is 0; it must be at least 1";
                Err(SetupError::Config(text.to_owned()))
            }
            Backend::Auto => Ok(self.build_for(Some(no_uring()))),
            Backend::Fallback => Ok(self.build_for(None)),
            Backend::Uring => Err(no_uring()),
        }
    }

    fn build_for(self, reason: Option<SetupError>) -> Engine {
        let backend = BackendInUse::Fallback {
            blocking_threads: self.blocking_threads,
            epoll: false,
            reason,
        };
        Engine {
            submitter: Arc::new(Submitter::new(self.blocking_threads, self.drain_timeout)),
            backend: Arc::new(backend),
        }
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn build_anyway() -> Engine {
        EngineBuilder::default().build_for(Some(no_uring()))
    }
}

fn no_uring() -> SetupError {
    SetupError::Platform {
        built_for: match cfg!(annulus_portable) {
            true => "every platform (--cfg annulus_portable)",
            false => std::env::consts::OS,
        },
    }
}

/// Functions for `tokio::fs`.
#[cfg(feature = "tokio")]
mod of_tokio {
    use std::io;
    use std::path::Path;

    use super::Engine;
    use crate::fs::{File, paths};

    impl Engine {
        pub(crate) fn is_simulated(&self) -> bool {
            false
        }

        pub(crate) async fn run_blocking<T, W>(&self, work: W) -> io::Result<T>
        where
            T: Send + 'static,
            W: FnOnce() -> io::Result<T> + Send + 'static,
        {
            self.submitter.op::<(), T>(work).await
        }

        pub(crate) async fn std_metadata(
            &self,
            path: &Path,
            follow: bool,
        ) -> io::Result<std::fs::Metadata> {
            let path = path.to_owned();
            self.run_blocking(move || paths::std_metadata(&path, follow))
                .await
        }

        pub(crate) fn adopt_anyway(&self, file: std::fs::File) -> File {
            File::new(file, &self.submitter, false)
        }
    }
}

impl Engine {
    fn end(&self) {
        self.submitter.end();
    }
}
