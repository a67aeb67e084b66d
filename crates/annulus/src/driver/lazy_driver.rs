//! A driver thread that starts with the first operation submitted to it. An engine all of whose callers have their own
//! rings starts none. There is one per ring with a thread.

use std::io;
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::thread::{self, JoinHandle};

use super::handle::{DriverHandle, Wake, Why};
use super::limits::Limits;
use super::uring::{Driver, Tuning};
use crate::sys::engine_error::EngineError;
use crate::sys::errno::EAGAIN;
use crate::sys::ring::Ring;
use crate::sys::size_limit;
use crate::sys::wake::EventFd;

/// The name of a driver thread, visible in `/proc`.
pub(crate) const THREAD_NAME: &str = "annulus-ring";

/// A driver whose thread has not necessarily started.
pub(crate) struct LazyDriver {
    /// The driver, until the thread takes it.
    driver: Mutex<Option<Driver<Ring>>>,
    start_once: Once,
    thread: Mutex<Option<JoinHandle<()>>>,
    wake: Arc<EventFd>,
}

impl LazyDriver {
    /// Creates a driver handle for `ring`, whose thread starts when it is needed.
    pub(crate) fn new(
        ring: Ring,
        limits: Limits,
        tuning: Tuning,
    ) -> (Arc<DriverHandle>, Arc<LazyDriver>) {
        let lazy = Arc::new(LazyDriver {
            driver: Mutex::new(None),
            start_once: Once::new(),
            thread: Mutex::new(None),
            wake: ring.waker(),
        });
        let handle = Arc::new(DriverHandle::new(Box::new(Arc::clone(&lazy))));
        // The first submission wakes the driver, which starts the thread.
        handle.sleeper.about_to_sleep();
        *lazy.lock_driver() = Some(Driver::new(Arc::clone(&handle), ring, limits, tuning));
        (handle, lazy)
    }

    fn lock_driver(&self) -> std::sync::MutexGuard<'_, Option<Driver<Ring>>> {
        self.driver.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(self: &Arc<Self>) -> io::Result<()> {
        let lazy = Arc::clone(self);
        let run = move || {
            let driver = lazy.lock_driver().take();
            if let Some(mut driver) = driver {
                size_limit::block_signal();
                driver.bind_to_thread();
                driver.run();
            }
        };
        let builder = thread::Builder::new().name(THREAD_NAME.to_owned());
        *self.lock_thread() = Some(builder.spawn(run)?);
        Ok(())
    }

    /// Fails the waiting operations because no thread could be started.
    #[cold]
    fn fail(&self, error: &io::Error) {
        let driver = self.lock_driver().take();
        if let Some(mut driver) = driver {
            let errno = error.raw_os_error().unwrap_or(EAGAIN);
            driver.fail(EngineError::NoThread { errno });
            driver.run();
        }
    }

    fn lock_thread(&self) -> std::sync::MutexGuard<'_, Option<JoinHandle<()>>> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the thread if it has been started, for the caller to join.
    pub(super) fn take_thread(&self) -> Option<JoinHandle<()>> {
        self.lock_thread().take()
    }
}

impl Wake for Arc<LazyDriver> {
    fn wake(&self, why: Why) {
        match why {
            Why::Work => {
                let mut refused = None;
                self.start_once.call_once(|| refused = self.start().err());
                if let Some(error) = refused {
                    self.fail(&error);
                }
            }
            Why::Arenas => {
                // The thread is not started for this.
                if let Some(driver) = self.lock_driver().as_mut() {
                    return driver.follow_arenas();
                }
            }
            Why::Stop => {
                // A thread that was never needed is not started just to be stopped.
                let mut idle = None;
                self.start_once
                    .call_once(|| idle = self.lock_driver().take());
                if let Some(driver) = idle {
                    return driver.run();
                }
            }
            Why::Deadline => {}
        }
        self.wake.wake(why);
    }
}
