//! Durable puts of small objects in groups. Puts that wait at the same time share a blocking thread, the commits of the
//! file system's journal, and the sync of their folder.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::calls::{self, Calls};
use crate::error::Failure;
use crate::file_systems::FileSystem;
use crate::stat::Stat;
use crate::store::Store;
use crate::write::{Existing, Written};

/// The most puts of a group. Each has a file open.
const PUTS_MAX: usize = 32;
/// The most bytes of a small object. Its put joins a group, in which no put waits long for the others.
const BYTES_MAX: usize = 64 << 10;
/// The number of groups at a time: while one waits for the device, others write.
const LEADERS_MAX: usize = 8;

/// The groups of a store, one for each file system. A put on one that hangs stops no other.
#[derive(Debug, Default)]
pub(crate) struct Groups(Mutex<Vec<(&'static FileSystem, Arc<Group>)>>);

impl Groups {
    fn of(&self, system: &'static FileSystem) -> Arc<Group> {
        let mut groups = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_system = groups
            .iter()
            .find(|(other, _)| std::ptr::eq(*other, system));
        if let Some((_, group)) = of_system {
            return Arc::clone(group);
        }
        let group = Arc::<Group>::default();
        groups.push((system, Arc::clone(&group)));
        group
    }
}

/// The puts that wait for a group.
#[derive(Debug, Default)]
pub(crate) struct Group(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    puts: VecDeque<Put>,
    /// The number of leaders, each of which makes the puts of one group after the other.
    leaders: usize,
}

#[derive(Debug)]
struct Put {
    object: PathBuf,
    contents: Vec<Bytes>,
    existing: Existing,
    done: oneshot::Sender<Result<Stat, Failure>>,
}

/// Writes a new version of `object`. Runs to its end, also if the future is dropped.
pub(crate) async fn put(
    store: &Store,
    object: PathBuf,
    contents: Vec<Bytes>,
    existing: Existing,
) -> Result<Stat, Failure> {
    let bytes: usize = contents.iter().map(Bytes::len).sum();
    let is_small = bytes <= BYTES_MAX;
    if !store.fsync || !is_small {
        let path = object.clone();
        let put = move |store: Store| async move { store.put(&path, &contents, existing).await };
        return store.change(&[&object], is_small, put).await;
    }
    let (done, result) = oneshot::channel();
    let put = Put {
        object,
        contents,
        existing,
        done,
    };
    let group = store.groups.of(store.system(&put.object));
    if let Some(leader) = group.add(put, store) {
        let lead = leader.lead();
        match (&store.calls, Handle::try_current()) {
            (Calls::System, Ok(runtime)) => {
                drop(runtime.spawn_blocking(|| calls::without_waiting(lead)));
            }
            // Does not wait if the calls are system calls.
            _ => lead.await?,
        }
    }
    let ended = |_| {
        let source = io::Error::other("the thread of the put has ended");
        Err(Failure::new(
            "put while the Tokio runtime shuts down",
            source,
        ))
    };
    result.await.unwrap_or_else(ended)
}

impl Group {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a put. Returns a leader, unless there are enough.
    fn add(self: &Arc<Self>, put: Put, store: &Store) -> Option<Leader> {
        let mut waiting = self.lock();
        waiting.puts.push_back(put);
        let is_needed = waiting.leaders < LEADERS_MAX;
        waiting.leaders += usize::from(is_needed);
        is_needed.then(|| Leader {
            store: store.clone(),
            group: Arc::clone(self),
            has_ended: false,
        })
    }
}

/// Makes the puts of one group after the other, until none waits.
#[derive(Debug)]
struct Leader {
    store: Store,
    group: Arc<Group>,
    has_ended: bool,
}

impl Leader {
    async fn lead(mut self) -> Result<(), Failure> {
        while let Some(puts) = self.next() {
            self.make(puts).await;
        }
        Ok(())
    }

    /// Takes the puts of a group. Ends the leader if none waits.
    fn next(&mut self) -> Option<VecDeque<Put>> {
        let mut waiting = self.group.lock();
        let count = waiting.puts.len().min(PUTS_MAX);
        if count == 0 {
            waiting.leaders -= 1;
            self.has_ended = true;
            return None;
        }
        Some(waiting.puts.drain(..count).collect())
    }

    async fn make(&self, mut puts: VecDeque<Put>) {
        let mut written = Vec::with_capacity(puts.len());
        while let Some(put) = puts.pop_front() {
            match self.store.write(&put.object, &put.contents).await {
                Ok(new) => written.push((put, new)),
                Err(failure) if written.is_empty() => put.end(Err(failure)),
                // The files of the others may be too many.
                Err(_) => {
                    self.complete(std::mem::take(&mut written)).await;
                    puts.push_front(put);
                }
            }
        }
        self.complete(written).await;
    }

    /// Makes new versions durable and publishes them.
    async fn complete(&self, written: Vec<(Put, Written)>) {
        if written.len() > 1 {
            // The first sync then waits for all, and commits the journal for all.
            let start = |(_, new): &(Put, Written)| new.file.start_to_sync(new.stat.bytes);
            written.iter().for_each(start);
        }
        let mut folders: BTreeMap<PathBuf, Vec<(Put, Stat)>> = BTreeMap::new();
        for (put, new) in written {
            let published = match self.store.finish(new).await {
                Ok((staged, stat)) => {
                    let published = self.store.publish(staged, &put.object, put.existing).await;
                    published.map(|()| stat)
                }
                Err(failure) => Err(failure),
            };
            match published {
                Ok(stat) => {
                    let folder = put.object.parent().unwrap_or(Path::new("/"));
                    folders
                        .entry(folder.to_owned())
                        .or_default()
                        .push((put, stat));
                }
                Err(failure) => put.end(Err(failure)),
            }
        }
        for (folder, puts) in folders {
            let synced = self.store.sync_names(&folder).await;
            for (put, stat) in puts {
                let failed = |error| Failure::not_synced(&folder, same_error(error));
                put.end(synced.as_ref().map(|()| stat).map_err(failed));
            }
        }
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        // The runtime shuts down, or a put has panicked.
        let mut waiting = self.group.lock();
        waiting.leaders -= 1;
        if waiting.leaders == 0 {
            waiting.puts.clear();
        }
    }
}

impl Put {
    fn end(self, result: Result<Stat, Failure>) {
        // Fails if the future of the put was dropped.
        let _ = self.done.send(result);
    }
}

/// Copies an error of the system.
fn same_error(error: &io::Error) -> io::Error {
    let errno = error.raw_os_error();
    errno.map_or_else(|| error.kind().into(), io::Error::from_raw_os_error)
}
