//! The driver of a core's file operations, a client of the core's ring. It is the same driver as for other rings. Its
//! `Kernel` passes SQEs on to the core's ring and receives the CQEs that belong to them.

use std::cell::{Cell, RefCell};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;

use crate::driver::handle::DriverHandle;
use crate::driver::limits::Limits;
use crate::driver::uring::{Driver, Tuning};
use crate::error::SetupError;
use crate::sys::kernel::{Entered, Kernel};
use crate::sys::mapping::Mapping;
use crate::sys::ring::Ring;
use crate::sys::sqe::{Cqe, Sqe};

use super::token::Token;

/// The ring of a core, and completions for its file operations.
pub(super) struct SubmissionPort {
    pub(super) ring: RefCell<Ring>,
    /// The number of SQEs pushed so far.
    pushed: Cell<u64>,
    /// Called at the next push, while the core sleeps in another runtime.
    #[cfg(feature = "tokio")]
    pub(super) on_push: Cell<Option<fn()>>,
    for_files: RefCell<Vec<Cqe>>,
    /// CQEs of the core that were reaped while the file driver waited; handled in the core's next poll.
    for_core: RefCell<Vec<Cqe>>,
}

impl SubmissionPort {
    pub(super) fn new(ring: Ring) -> Rc<SubmissionPort> {
        Rc::new(SubmissionPort {
            ring: RefCell::new(ring),
            pushed: Cell::new(0),
            #[cfg(feature = "tokio")]
            on_push: Cell::new(None),
            for_files: RefCell::default(),
            for_core: RefCell::default(),
        })
    }

    #[inline]
    pub(super) fn push(&self, sqe: Sqe) -> bool {
        let pushed = self.ring.borrow_mut().push(sqe);
        self.pushed.set(self.pushed.get() + u64::from(pushed));
        #[cfg(feature = "tokio")]
        if let Some(tell) = self.on_push.take() {
            tell();
        }
        pushed
    }

    pub(super) fn pushed(&self) -> u64 {
        self.pushed.get()
    }

    /// Takes a CQE that does not belong to the core.
    pub(super) fn pass_on(&self, cqe: Cqe) {
        self.for_files.borrow_mut().push(cqe);
    }

    /// Reaps CQEs and sorts them by owner.
    fn sort(&self) {
        let mut all = Vec::new();
        self.ring.borrow_mut().reap(&mut all);
        for cqe in all {
            let whose = match Token::of(cqe.user_data) {
                Some(_) => &self.for_core,
                None => &self.for_files,
            };
            whose.borrow_mut().push(cqe);
        }
    }

    /// Returns whether the file driver has reaped CQEs for the core.
    #[cfg(feature = "tokio")]
    pub(super) fn has_for_core(&self) -> bool {
        !self.for_core.borrow().is_empty()
    }

    /// Moves the CQEs that the file driver has reaped for the core.
    pub(super) fn take_for_core(&self, into: &mut Vec<Cqe>) {
        into.append(&mut self.for_core.borrow_mut());
    }
}

/// The ring in its role as the file driver's kernel.
struct FileClient(Rc<SubmissionPort>);

impl Kernel for FileClient {
    fn push(&mut self, sqe: Sqe) -> bool {
        self.0.push(sqe)
    }

    #[inline]
    fn unsubmitted(&self) -> u32 {
        self.0.ring.borrow().unsubmitted()
    }

    fn submit(&mut self) -> io::Result<()> {
        self.0.ring.borrow_mut().submit()
    }

    /// Used only at the end, when the core does not poll any more.
    fn wait(&mut self, timeout_ns: Option<u64>) -> io::Result<()> {
        let waited = self.0.ring.borrow_mut().wait(timeout_ns);
        self.0.sort();
        waited
    }

    fn ready(&mut self) -> bool {
        !self.0.for_files.borrow().is_empty()
    }

    fn reap(&mut self, into: &mut Vec<Cqe>) {
        into.append(&mut self.0.for_files.borrow_mut());
    }

    /// The core's notifier takes this role.
    fn arm_wake(&mut self, _: u64) -> bool {
        false
    }

    fn supports(&self, opcode: u8) -> bool {
        self.0.ring.borrow().supports(opcode)
    }

    fn entered(&self) -> Entered {
        self.0.ring.borrow().entered()
    }

    fn now_ns(&self) -> u64 {
        self.0.ring.borrow().now_ns()
    }

    fn pause(&mut self, ns: u64) {
        self.0.ring.borrow_mut().pause(ns);
    }

    fn lend(
        &mut self,
        index: u16,
        memory: &Arc<Mapping>,
        from: usize,
        bytes: usize,
    ) -> Result<(), SetupError> {
        Kernel::lend(&mut *self.0.ring.borrow_mut(), index, memory, from, bytes)
    }

    fn take_back(&mut self, index: u16) -> bool {
        Kernel::take_back(&mut *self.0.ring.borrow_mut(), index)
    }
}

/// The driver of the core's file operations.
pub(super) struct Files {
    driver: Option<Driver<FileClient>>,
    handle: Arc<DriverHandle>,
    port: Rc<SubmissionPort>,
}

impl Files {
    pub(super) fn new(
        port: Rc<SubmissionPort>,
        handle: Arc<DriverHandle>,
        limits: Limits,
        tuning: Tuning,
    ) -> Files {
        let file_client = FileClient(Rc::clone(&port));
        // Entries that do not fill a chunk are submitted with the core's next enter.
        let mut driver = Driver::new(Arc::clone(&handle), file_client, limits, tuning);
        driver.keep_rest(true);
        Files {
            driver: Some(driver),
            handle,
            port,
        }
    }

    /// Handles submissions, completions and deadlines. Returns whether there were any.
    pub(super) fn work(&mut self) -> bool {
        let called = !self.handle.inbox.is_empty() || !self.handle.cancels.is_empty();
        let has_work = self.has_work();
        let Some(driver) = &mut self.driver else {
            return false;
        };
        let due = (driver.next_deadline_ns()).is_some_and(|at| at <= crate::sys::call::now_ns());
        if !(called || has_work || due) {
            return false;
        }
        let polled = catch_unwind(AssertUnwindSafe(|| driver.poll()));
        if let Err(panic) = polled {
            std::mem::forget(panic);
            // A bug ends the file driver, but not the core and its sockets.
            self.driver.take().into_iter().for_each(Driver::break_off);
        }
        true
    }

    /// Returns whether the engine is ending or has other arenas.
    #[inline]
    pub(super) fn is_changed(&self) -> bool {
        self.driver.as_ref().is_some_and(Driver::is_changed)
    }

    /// Returns whether there is work that no caller announces: completions, entries to push, or a change of the engine's
    /// arenas.
    #[inline]
    pub(super) fn has_work(&self) -> bool {
        let Some(driver) = &self.driver else {
            return false;
        };
        !self.port.for_files.borrow().is_empty() || driver.is_owing()
    }

    /// Prepares for a sleep of the core: every later submission wakes it. Returns `false` if there already is one.
    #[inline]
    pub(super) fn prepare_sleep(&self) -> bool {
        self.handle.may_sleep() || self.driver.is_none()
    }

    #[inline]
    pub(super) fn wake_up(&self) {
        self.handle.sleeper.awake();
    }

    /// Returns the time of the next deadline, ns.
    #[inline]
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.driver.as_ref()?.next_deadline_ns()
    }

    /// Leaks the driver in a child of a fork: the ring and the operations in flight belong to the parent.
    pub(super) fn forsake(&mut self) {
        std::mem::forget(self.driver.take());
    }

    /// Refuses waiting operations and cancels those in flight. They are waited for until `until_ns`.
    pub(super) fn begin_end(&mut self, until_ns: u64) {
        if let Some(driver) = &mut self.driver {
            driver.drain_by(until_ns);
            self.handle.request_stop();
            self.work();
        }
    }

    /// Refuses waiting operations and waits for those in flight. Returns the number of operations that are left and
    /// leaked.
    pub(super) fn end(&mut self) -> u32 {
        let Some(driver) = self.driver.take() else {
            return 0;
        };
        self.handle.request_stop();
        let before = self.handle.counters.leaked().get();
        driver.drive();
        u32::try_from(self.handle.counters.leaked().get() - before).unwrap_or(u32::MAX)
    }
}
