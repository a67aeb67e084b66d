//! Writes of a cursor, made one after another in a task without an executor: the thread that completes a write also
//! starts the next.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::buf::IoBuf;
use crate::fs::File;
use crate::sys::at_exit::Unfinished;
use crate::sys::engine_error::same_error;
use crate::sys::forked;

/// Written bytes on their way to a file.
pub(super) struct WriteBehind {
    state: Mutex<State>,
    /// The process that writes them.
    process: u64,
}

#[derive(Default)]
pub(super) struct State {
    /// Bytes that follow those being written.
    pub(super) gathered: Vec<u8>,
    /// A task will write the gathered bytes.
    is_taken_care_of: bool,
    /// Tasks that have a handle of the file: one, and perhaps others that are ending.
    tasks: u32,
    /// The position after the last write, if it is not the one that the cursor expects.
    moved_to: Option<u64>,
    /// The error of a write whose bytes are lost.
    failed: Option<io::Error>,
    /// Tasks of the program that wait for the writes.
    waiting: Vec<Waker>,
}

impl State {
    /// Returns the error of a write that failed.
    pub(super) fn check(&self) -> io::Result<()> {
        match &self.failed {
            Some(error) => Err(same_error(error)),
            None => Ok(()),
        }
    }

    /// Returns the new position if the last write has moved it.
    pub(super) fn position(&self) -> Option<u64> {
        self.moved_to.filter(|_| !self.is_taken_care_of)
    }

    /// Returns the new position, once.
    pub(super) fn take_position(&mut self) -> Option<u64> {
        self.position().inspect(|_| self.moved_to = None)
    }

    /// Wakes the task when the gathered bytes are being written, and when all writes are complete.
    pub(super) fn wait(&mut self, context: &Context<'_>) {
        let waker = context.waker();
        if !self.waiting.iter().any(|known| known.will_wake(waker)) {
            self.waiting.push(waker.clone());
        }
    }
}

/// Wakes the tasks that wait, after unlocking: wakers are foreign code.
fn wake_all(mut state: MutexGuard<'_, State>) {
    let waiting = std::mem::take(&mut state.waiting);
    drop(state);
    waiting.into_iter().for_each(Waker::wake);
}

impl WriteBehind {
    pub(super) fn new() -> Arc<WriteBehind> {
        Arc::new(WriteBehind {
            state: Mutex::default(),
            process: forked::process(),
        })
    }

    /// Returns whether this is a forked child. Its parent writes the bytes, and may have held the lock.
    pub(super) fn is_elsewhere(&self) -> bool {
        self.process != forked::process()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all writes are complete.
    pub(super) fn poll_idle(&self, context: &Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if state.tasks == 0 {
            return Poll::Ready(());
        }
        state.wait(context);
        Poll::Pending
    }

    /// Forgets the error of a write that failed, and returns it. The position stays moved.
    pub(super) fn take_error(&self) -> Option<io::Error> {
        self.lock().failed.take()
    }

    /// Exchanges `buf`, which is empty, for gathered bytes. If there are none, the calling task ends: returns `false`,
    /// and records the position if the writes have moved it.
    fn take_gathered(&self, buf: &mut Vec<u8>, moved_to: impl FnOnce() -> Option<u64>) -> bool {
        let mut state = self.lock();
        if state.gathered.is_empty() {
            state.moved_to = moved_to();
            state.is_taken_care_of = false;
            return false;
        }
        std::mem::swap(&mut state.gathered, buf);
        wake_all(state);
        true
    }

    /// Records the error of a write, which ends the calling task.
    fn fail(&self, error: io::Error, offset: u64) {
        let mut state = self.lock();
        state.gathered.clear();
        state.moved_to = Some(offset);
        state.failed = Some(error);
        state.is_taken_care_of = false;
    }

    /// Writes the gathered bytes of `state` at `offset`, or after the writes in progress.
    pub(super) fn start(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, State>,
        file: &File,
        offset: u64,
    ) {
        if state.gathered.is_empty() || std::mem::replace(&mut state.is_taken_care_of, true) {
            return;
        }
        state.tasks += 1;
        drop(state);
        let write = write_gathered(Arc::clone(self), file.clone(), offset);
        let run = |runnable: async_task::Runnable| _ = runnable.run();
        let (runnable, task) = async_task::spawn(write, run);
        task.detach();
        runnable.schedule();
    }
}

/// Writes gathered bytes until there are none, or until a write fails.
async fn write_gathered(behind: Arc<WriteBehind>, file: File, mut offset: u64) {
    let unfinished = Unfinished::new();
    let mut buf = Vec::new();
    let mut result = Ok(());
    while result.is_ok() && behind.take_gathered(&mut buf, || file.appends().then_some(offset)) {
        (buf, offset, result) = write_all(&file, buf, offset).await;
    }
    if let Err(error) = result {
        behind.fail(error, offset);
    }
    // Before the tasks that wait, which may take the file apart.
    drop(file);
    drop(unfinished);
    let mut state = behind.lock();
    state.tasks -= 1;
    wake_all(state);
}

/// Writes all of `buf` at `offset`, and counts the bytes, which a failed `write_all_at` does not. Returns the buffer,
/// cleared, and the offset behind the last byte that was written.
async fn write_all(file: &File, mut buf: Vec<u8>, offset: u64) -> (Vec<u8>, u64, io::Result<()>) {
    let mut end = offset;
    let mut written = 0;
    let mut result = Ok(());
    while written < buf.len() && result.is_ok() {
        let part = buf.subslice(written..);
        match file.write_next(part, end).await {
            Ok((0, part)) => {
                buf = part.into_inner();
                result = Err(io::ErrorKind::WriteZero.into());
            }
            Ok((bytes, part)) => {
                buf = part.into_inner();
                written += bytes;
                end = offset + written as u64;
            }
            Err(error) => {
                buf = Vec::new();
                result = Err(error.into());
            }
        }
    }
    if file.appends() {
        match file.metadata().await {
            Ok(metadata) => end = metadata.len(),
            Err(error) => result = result.and(Err(error)),
        }
    }
    buf.clear();
    (buf, end, result)
}
