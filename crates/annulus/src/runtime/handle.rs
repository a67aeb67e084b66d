//! The way to a runtime's cores from any thread.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, OnceLock};

use super::executor::{self, Inbox, Message};
use super::task::{End, JoinHandle, Promise, ReportedTask};
use crate::buf::{Arena, BufferLayout};
use crate::driver::Submitter;
use crate::driver::core::{Seat, SharedAddresses};
use crate::error::SetupError;
use crate::metrics::{CoreMetrics, Metrics};

/// Reaches a runtime's cores from any thread. It may outlive the runtime: what it is asked then comes to
/// nothing, and says so.
#[derive(Clone)]
pub struct Handle {
    cores: Arc<Cores>,
}

struct Cores {
    inboxes: Vec<Arc<Inbox>>,
    /// Where the cores' files are submitted; set when all cores are made, before anybody has a handle.
    files: OnceLock<Arc<Submitter>>,
    addresses: Arc<SharedAddresses>,
}

impl Handle {
    pub(super) fn new(inboxes: Vec<Arc<Inbox>>) -> Handle {
        Handle {
            cores: Arc::new(Cores {
                files: OnceLock::new(),
                addresses: SharedAddresses::new(inboxes.len()),
                inboxes,
            }),
        }
    }

    /// Whether this is a child of the process that the cores run in.
    pub(super) fn is_elsewhere(&self) -> bool {
        self.cores
            .inboxes
            .iter()
            .any(|inbox| inbox.notifier().is_elsewhere())
    }

    pub(super) fn inbox(&self, core: usize) -> Arc<Inbox> {
        Arc::clone(&self.cores.inboxes[core])
    }

    pub(super) fn seat(&self, core: usize) -> Seat {
        Seat::new(Arc::clone(&self.cores.addresses), core)
    }

    pub(super) fn set_files(&self, files: &Arc<Submitter>) {
        let _ = self.cores.files.set(Arc::clone(files));
    }

    /// Nothing reaches the cores any more.
    pub(super) fn close(&self) {
        self.cores.inboxes.iter().for_each(|inbox| inbox.close());
    }

    /// How many cores there are.
    pub fn cores(&self) -> usize {
        self.cores.inboxes.len()
    }

    /// Starts a task on core `core`: `start` runs there, and makes the future, which stays there.
    ///
    /// If that core has ended, the handle says that the task was aborted.
    ///
    /// # Panics
    ///
    /// If there is no such core.
    pub fn spawn_on<S, F>(&self, core: usize, start: S) -> JoinHandle<F::Output>
    where
        S: FnOnce() -> F + Send + 'static,
        F: Future + 'static,
        F::Output: Send + 'static,
    {
        let end = End::new();
        let handle = JoinHandle::new(Arc::clone(&end));
        // Dropped unread, it tells that nothing came of it.
        let promise = Promise(Some(end));
        self.cores.inboxes[core].send(Message::Start(Box::new(move || {
            if let (Some(executor), Some(end)) = (executor::current(), promise.keep()) {
                executor.start(ReportedTask::new(async move { start().await }, end));
            }
        })));
        handle
    }

    /// Ends the runtime: each core's main future is dropped, [`stopping`](super::stopping) is ready, and
    /// other tasks have the [grace](super::RuntimeBuilder::grace) to come to an end.
    pub fn shutdown(&self) {
        (self.cores.inboxes.iter()).for_each(|inbox| inbox.send(Message::Stop));
    }

    /// What core `core` has done so far.
    ///
    /// # Panics
    ///
    /// If there is no such core.
    pub fn metrics(&self, core: usize) -> CoreMetrics {
        self.cores.inboxes[core].metrics()
    }

    /// What has been done so far with the files of all cores, and by blocking threads. `enters` and
    /// `waits` are the cores' own: see [`metrics`](Handle::metrics).
    pub fn file_metrics(&self) -> Metrics {
        let files = self.cores.files.get();
        files.map(|files| files.metrics()).unwrap_or_default()
    }

    /// Makes buffers that every core's ring registers; as
    /// [`Engine::register_buffers`](crate::Engine::register_buffers) does for an engine. Does not wait for
    /// the cores, one of which may be the caller: each core registers them when it next polls its ring.
    ///
    /// # Errors
    ///
    /// `Config` for a layout that makes no sense, and when the runtime has ended; `Os` if the memory
    /// can't be had.
    pub fn register_buffers(&self, layout: BufferLayout) -> Result<Arena, SetupError> {
        let files = self.cores.files.get();
        let Some(files) = files.filter(|files| !files.has_ended()) else {
            let what = "buffers are registered with a runtime that runs; this one does not";
            return Err(SetupError::Config(what.to_owned()));
        };
        let arena = Arena::new(layout, &files.arenas)?;
        files.register_soon();
        Ok(arena)
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("cores", &self.cores())
            .finish()
    }
}
