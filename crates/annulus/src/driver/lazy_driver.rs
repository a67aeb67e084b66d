//! A driver thread that starts with the first operation submitted to it. An engine all of whose callers have their own
//! rings starts none. There is one per ring with a thread.

use std::io;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
    thread: Mutex<LazyThread>,
    wake: Arc<EventFd>,
}

/// The thread of a driver.
enum LazyThread {
    /// The next submission starts it.
    NotStarted,
    Started(JoinHandle<()>),
    /// No thread: it has been passed to its joiner, or is not needed any more.
    Gone,
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
            thread: Mutex::new(LazyThread::NotStarted),
            wake: ring.waker(),
        });
        let handle = Arc::new(DriverHandle::new(Box::new(Arc::clone(&lazy))));
        // The first submission wakes the driver, which starts the thread.
        handle.sleeper.about_to_sleep();
        *lazy.lock_driver() = Some(Driver::new(Arc::clone(&handle), ring, limits, tuning));
        (handle, lazy)
    }

    fn lock_driver(&self) -> MutexGuard<'_, Option<Driver<Ring>>> {
        self.driver.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_thread(&self) -> MutexGuard<'_, LazyThread> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the thread, unless that has been done.
    fn start(self: &Arc<Self>) -> io::Result<()> {
        let mut thread = self.lock_thread();
        if !matches!(*thread, LazyThread::NotStarted) {
            return Ok(());
        }
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
        *thread = LazyThread::Started(builder.spawn(run)?);
        Ok(())
    }

    /// Fails the waiting operations because no thread could be started. The next one makes another attempt.
    #[cold]
    fn refuse(&self, error: &io::Error) {
        let errno = error.raw_os_error().unwrap_or(EAGAIN);
        let refused = (self.lock_driver().as_mut())
            .map(|driver| driver.refuse_waiting(EngineError::NoThread { errno }));
        // With no lock held, because wakers are foreign code.
        if let Some((handle, mut done)) = refused {
            done.deliver(&handle);
        }
    }

    /// Returns the thread if it has been started, for the caller to join.
    pub(super) fn take_thread(&self) -> Option<JoinHandle<()>> {
        match mem::replace(&mut *self.lock_thread(), LazyThread::Gone) {
            LazyThread::Started(thread) => Some(thread),
            LazyThread::NotStarted | LazyThread::Gone => None,
        }
    }

    /// Returns the driver of a thread that was never needed. It is not started just to be stopped.
    fn take_idle(&self) -> Option<Driver<Ring>> {
        let mut thread = self.lock_thread();
        match *thread {
            LazyThread::NotStarted => {
                *thread = LazyThread::Gone;
                self.lock_driver().take()
            }
            LazyThread::Started(_) | LazyThread::Gone => None,
        }
    }
}

impl Wake for Arc<LazyDriver> {
    fn wake(&self, why: Why) {
        match why {
            Why::Work => {
                if let Err(error) = self.start() {
                    return self.refuse(&error);
                }
            }
            Why::Arenas => {
                // The thread is not started for this.
                if let Some(driver) = self.lock_driver().as_mut() {
                    return driver.follow_arenas();
                }
            }
            Why::Stop => {
                if let Some(driver) = self.take_idle() {
                    return driver.run();
                }
            }
            Why::Deadline => {}
        }
        self.wake.wake(why);
    }
}
