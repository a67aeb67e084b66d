//! The Tokio context that the cores have: a runtime on each core's thread
//! ([`LocalTokio`](super::local_tokio)), or one beside the cores that each core's thread enters.
//!
//! Wakers of tasks are thread-safe, so the threads of a runtime beside the cores wake a core's task through the core's
//! inbox.

use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};

use super::RuntimeBuilder;
use super::local_tokio::LocalTokio;
use super::surroundings::{Context, Entered, Local, Surroundings};
use crate::driver::core::Core;
use crate::error::SetupError;
use crate::sys::forked;

/// The Tokio runtime whose context the cores are to have.
#[derive(Clone, Debug)]
pub(super) enum TokioChoice {
    None,
    Own,
    Of(Handle),
}

/// The context of all cores. A runtime that it has started ends after them.
pub(super) struct TokioContext {
    /// The handle of a runtime beside the cores.
    handle: Option<Handle>,
    own: Option<Runtime>,
    /// Each core has a runtime on its thread.
    is_local: bool,
    drain_timeout: Duration,
    process: u64,
}

impl TokioContext {
    /// Starts a runtime beside the cores if they need one. `None` without a context.
    pub(super) fn start(builder: &RuntimeBuilder) -> Result<Option<TokioContext>, SetupError> {
        if matches!(builder.tokio, TokioChoice::None) {
            return Ok(None);
        }
        let is_own = matches!(builder.tokio, TokioChoice::Own);
        // The calling thread is the first core. Inside of a Tokio runtime, it can't run another one.
        let is_local = is_own && Handle::try_current().is_err();
        let own = match is_own && !is_local {
            true => Some(start(builder.options.threads)?),
            false => None,
        };
        let handle = match &builder.tokio {
            TokioChoice::Of(handle) => Some(handle.clone()),
            TokioChoice::None | TokioChoice::Own => own.as_ref().map(|own| own.handle().clone()),
        };
        Ok(Some(TokioContext {
            handle,
            own,
            is_local,
            drain_timeout: builder.options.drain_timeout,
            process: forked::process(),
        }))
    }
}

impl Surroundings for TokioContext {
    fn local(&self, core: &Core) -> Result<Option<Rc<dyn Local>>, SetupError> {
        if !self.is_local {
            return Ok(None);
        }
        match LocalTokio::new(core, self.drain_timeout) {
            Ok(local) => Ok(Some(Rc::new(local))),
            Err(error) => Err(SetupError::Os {
                what: "the Tokio runtime of a core",
                error,
            }),
        }
    }

    fn beside(&self) -> Option<&dyn Context> {
        let handle = self.handle.as_ref()?;
        Some(handle)
    }
}

impl Context for Handle {
    fn enter(&self) -> Entered<'_> {
        Box::new(Handle::enter(self))
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

impl Drop for TokioContext {
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
