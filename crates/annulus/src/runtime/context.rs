//! The Tokio context that the cores have, with the feature `tokio`.
//!
//! A Tokio runtime runs beside the cores, and each core's thread enters it. Wakers of tasks are thread-safe, so Tokio's
//! threads wake a core's task through the core's inbox. A task that does not use Tokio pays nothing.

#[cfg(feature = "tokio")]
pub(super) use of_tokio::{Context, TokioChoice};

/// Without the feature there is no context.
#[cfg(not(feature = "tokio"))]
pub(super) struct Context;

#[cfg(not(feature = "tokio"))]
impl Context {
    pub(super) fn start(_: &super::RuntimeBuilder) -> Result<Context, crate::error::SetupError> {
        Ok(Context)
    }

    pub(super) fn enter(&self) -> Option<std::convert::Infallible> {
        None
    }
}

#[cfg(feature = "tokio")]
mod of_tokio {
    use std::sync::{Arc, Mutex, PoisonError};
    use std::thread;
    use std::time::Duration;

    use tokio::runtime::{Builder, EnterGuard, Handle, Runtime};

    use crate::error::SetupError;
    use crate::runtime::RuntimeBuilder;
    use crate::sys::forked;

    /// The Tokio runtime whose context the cores are to have.
    #[derive(Clone, Debug)]
    pub(in super::super) enum TokioChoice {
        None,
        Own,
        Of(Handle),
    }

    /// The Tokio runtime beside the cores. It ends after them.
    pub(in super::super) struct Context {
        handle: Option<Handle>,
        own: Option<Runtime>,
        drain_timeout: Duration,
        process: u64,
    }

    impl Context {
        /// Starts a runtime, unless the builder has none or an existing one.
        pub(in super::super) fn start(builder: &RuntimeBuilder) -> Result<Context, SetupError> {
            let own = match builder.tokio {
                TokioChoice::Own => Some(start(builder.options.threads)?),
                TokioChoice::None | TokioChoice::Of(_) => None,
            };
            let handle = match &builder.tokio {
                TokioChoice::Of(handle) => Some(handle.clone()),
                TokioChoice::None | TokioChoice::Own => {
                    own.as_ref().map(|own| own.handle().clone())
                }
            };
            Ok(Context {
                handle,
                own,
                drain_timeout: builder.options.drain_timeout,
                process: forked::process(),
            })
        }

        /// Enters the context on the calling thread until the guard is dropped.
        pub(in super::super) fn enter(&self) -> Option<EnterGuard<'_>> {
            self.handle.as_ref().map(Handle::enter)
        }
    }

    fn start(threads: usize) -> Result<Runtime, SetupError> {
        let built = Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name("annulus-tokio")
            .enable_all()
            .build();
        built.map_err(|error| SetupError::Os {
            what: "the Tokio runtime beside the cores",
            error,
        })
    }

    impl Drop for Context {
        fn drop(&mut self) {
            let Some(own) = self.own.take() else {
                return;
            };
            if self.process != forked::process() {
                // A forked child does not have its threads.
                std::mem::forget(own);
                return;
            }
            // On another thread, because Tokio panics if the calling thread is in a task of another Tokio runtime.
            let own = Arc::new(Mutex::new(Some(own)));
            let take = |own: &Mutex<Option<Runtime>>| {
                own.lock().unwrap_or_else(PoisonError::into_inner).take()
            };
            let (shared, time) = (Arc::clone(&own), self.drain_timeout);
            let end = move || {
                if let Some(own) = take(&shared) {
                    own.shutdown_timeout(time);
                }
            };
            let named = thread::Builder::new().name("annulus-tokio-end".to_owned());
            match named.spawn(end) {
                Ok(thread) => drop(thread.join()),
                // Without waiting for its blocking threads.
                Err(_) => take(&own)
                    .into_iter()
                    .for_each(Runtime::shutdown_background),
            }
        }
    }
}
