//! The ways in which an operation's future ends.

use std::future::poll_fn;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{ThreadId, current};

use crate::Cell;
use crate::operations::Work;

/// The maximum number of polls before a drop. Longer operations are dropped in their first steps only.
const POLLS_MAX: u32 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Awaited,
    /// Polled once and dropped; then polled twice and dropped, and so on.
    Dropped,
    /// The end by its waker, which polls it or starts it once more.
    Inline,
    /// Beside a future that yields and is always ready to be polled.
    Raced,
    /// In flight at the end of the host.
    Left,
}

pub(crate) const ENDS: [End; 5] = [
    End::Awaited,
    End::Dropped,
    End::Inline,
    End::Raced,
    End::Left,
];

/// Events of one cell.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// The operation was pending: awaited, dropped, beside the other future or left.
    pub(crate) pending: u32,
    /// The times that its waker polled it, or started another one.
    pub(crate) inline: u32,
}

impl Counts {
    /// Returns how often the operation was in the state that an end is about.
    pub(crate) fn times(self, end: End) -> u32 {
        match end {
            End::Inline => self.inline,
            _ => self.pending,
        }
    }
}

impl End {
    pub(crate) async fn run(self, cell: &Cell) -> Counts {
        let mut counts = Counts::default();
        match self {
            End::Awaited => cell.check(observe(cell.start(), &mut counts).await),
            End::Dropped => dropped(cell, &mut counts).await,
            End::Inline => inline(cell, &mut counts).await,
            End::Raced => {
                let yields = async {
                    loop {
                        yield_now().await;
                    }
                };
                let raced = observe(cell.start(), &mut counts);
                cell.check(futures_lite::future::or(raced, yields).await);
            }
            End::Left => {
                let mut work = cell.start();
                let mut context = Context::from_waker(Waker::noop());
                match work.as_mut().poll(&mut context) {
                    Poll::Ready(result) => cell.check(result),
                    Poll::Pending => {
                        counts.pending = 1;
                        cell.leave(work);
                    }
                }
            }
        }
        counts
    }
}

/// Awaits the operation, and counts when it was pending.
async fn observe(mut work: Work, counts: &mut Counts) -> io::Result<()> {
    poll_fn(|context| {
        let polled = work.as_mut().poll(context);
        counts.pending += u32::from(polled.is_pending());
        polled
    })
    .await
}

async fn dropped(cell: &Cell, counts: &mut Counts) {
    for polls in 1..=POLLS_MAX {
        let mut work = cell.start();
        let mut left = polls;
        let has_ended = poll_fn(|context| match work.as_mut().poll(context) {
            Poll::Ready(result) => Poll::Ready(result.map(|()| true)),
            Poll::Pending => {
                left -= 1;
                match left {
                    0 => Poll::Ready(Ok(false)),
                    _ => Poll::Pending,
                }
            }
        });
        if cell.check(has_ended.await) {
            break;
        }
        drop(work);
        counts.pending += 1;
    }
    // The host goes on.
    cell.check(cell.start().await);
}

/// Yields to the tasks of the executor.
async fn yield_now() {
    match tokio::runtime::Handle::try_current() {
        Ok(_) => tokio::task::yield_now().await,
        Err(_) => yield_once().await,
    }
}

pub(crate) async fn yield_once() {
    let mut has_yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Two operations that their waker polls, so that they go on where completions are delivered. That may be inside of the
/// reactor or the scheduler of an executor, or of a poll of the first one. The second one is started there.
struct Chain {
    cell: Cell,
    works: [Mutex<Option<Work>>; 2],
    inline: AtomicU32,
    /// The thread that must poll them, if any.
    home: Option<ThreadId>,
    /// The task that waits for them. It polls them where the waker can't.
    task: Mutex<Waker>,
}

impl Chain {
    /// Polls an operation. Returns whether it has ended.
    fn poll(self: &Arc<Self>, mut work: MutexGuard<'_, Option<Work>>) -> bool {
        let waker = Waker::from(Arc::clone(self));
        let mut context = Context::from_waker(&waker);
        let polled = work.as_mut().map(|work| work.as_mut().poll(&mut context));
        if let Some(Poll::Ready(result)) = polled {
            self.cell.check(result);
            *work = None;
        }
        work.is_none()
    }
}

impl Wake for Chain {
    fn wake(self: Arc<Self>) {
        if self.home.is_none_or(|home| home == current().id()) {
            for work in self.works.iter().flat_map(Mutex::try_lock) {
                self.inline.fetch_add(u32::from(work.is_some()), Relaxed);
                self.poll(work);
            }
        }
        let task = self.task.lock().unwrap().clone();
        task.wake();
    }
}

async fn inline(cell: &Cell, counts: &mut Counts) {
    let chain = Arc::new(Chain {
        cell: cell.clone(),
        works: [cell.start(), cell.start()].map(|work| Mutex::new(Some(work))),
        inline: AtomicU32::new(0),
        home: cell.is_bound().then(|| current().id()),
        task: Mutex::new(Waker::noop().clone()),
    });
    poll_fn(|context| {
        context.waker().clone_into(&mut chain.task.lock().unwrap());
        let mut works = chain.works.iter();
        match works.all(|work| chain.poll(work.lock().unwrap())) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
    counts.inline = chain.inline.load(Relaxed);
}
