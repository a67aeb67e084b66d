//! A bounded cache of open files, so that a read does not pay for an open.
//!
//! A file is used again only if it is still the file at its path. By default each access compares the two, which is one
//! `statx` of a path whose entries the kernel has in memory. An open file keeps its inode, so the kernel cannot give
//! its number to another file meanwhile.

mod opening;

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use annulus::File;
use nix::errno::Errno;
use quick_cache::sync::Cache;

use crate::stat::{Identity, Stat};

/// The default limit: a quarter of the descriptors that most systems allow a process.
pub(crate) const OPEN_FILES: usize = 256;

/// An open file with its metadata.
pub(crate) struct Opened {
    pub(crate) file: File,
    pub(crate) stat: Stat,
}

/// Open files by their paths.
type Files = Cache<OsString, Arc<Entry>>;

/// The open files of a store.
#[derive(Debug)]
pub(crate) struct OpenFiles {
    /// `None`: no file stays open.
    cache: Option<Arc<Files>>,
    /// The time for which a file is used without a comparison.
    trusted: Duration,
    start: Instant,
    shared: Arc<Shared>,
}

/// The record that a store shares with its clones, also those with other settings.
#[derive(Debug, Default)]
struct Shared {
    /// The number of changes. An entry is trusted only if it was compared since the last one.
    changes: AtomicU64,
    /// The number of times that files were closed to make room.
    closed: AtomicU64,
    /// One for each setting.
    caches: RwLock<Vec<Weak<Files>>>,
}

impl Shared {
    /// Returns the files of all settings.
    fn caches(&self) -> impl Iterator<Item = Arc<Files>> {
        let caches = self.caches.read().unwrap_or_else(PoisonError::into_inner);
        caches
            .clone()
            .into_iter()
            .filter_map(|cache| cache.upgrade())
    }
}

#[derive(Debug)]
struct Entry {
    file: File,
    identity: Identity,
    /// The calling thread can make calls on the file and its path without waiting for another process or machine.
    is_local: bool,
    /// The number of changes before the last comparison.
    compared_after: AtomicU64,
    /// The time of the last comparison, ns after the start.
    ///
    /// The two numbers are not stored together. A larger number of changes means a later time, so a mixture of two
    /// comparisons is trusted less than the later one.
    compared_ns: AtomicU64,
}

impl OpenFiles {
    pub(crate) fn new(max: usize, trusted: Duration) -> OpenFiles {
        OpenFiles::sharing(Arc::default(), max, trusted)
    }

    /// Returns the open files of a clone with other settings.
    pub(crate) fn with(&self, max: usize, trusted: Duration) -> OpenFiles {
        OpenFiles::sharing(Arc::clone(&self.shared), max, trusted)
    }

    fn sharing(shared: Arc<Shared>, max: usize, trusted: Duration) -> OpenFiles {
        let cache = (max > 0).then(|| Arc::new(Cache::new(max)));
        let mut caches = shared
            .caches
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        caches.retain(|cache| cache.strong_count() > 0);
        caches.extend(cache.as_ref().map(Arc::downgrade));
        drop(caches);
        OpenFiles {
            cache,
            trusted,
            start: Instant::now(),
            shared,
        }
    }

    pub(crate) fn max(&self) -> usize {
        let cache = self.cache.as_ref();
        cache.map_or(0, |cache| {
            usize::try_from(cache.capacity()).unwrap_or(usize::MAX)
        })
    }

    pub(crate) fn trusted(&self) -> Duration {
        self.trusted
    }

    /// Closes all files, also those of clones, except those in use.
    pub(crate) fn close(&self) {
        for cache in self.shared.caches().filter(|cache| !cache.is_empty()) {
            cache.clear();
            self.shared.closed.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Forgets the file at `path`, which this store or a clone has just created, replaced or removed. No later access
    /// uses the old file, whichever path led to it.
    pub(crate) fn changed(&self, path: &Path) {
        self.shared.changes.fetch_add(1, Ordering::SeqCst);
        for cache in self.shared.caches() {
            cache.remove(path.as_os_str());
        }
    }

    /// Makes a call that needs a descriptor. If there are too many, closes all files and tries again.
    pub(crate) fn with_room<T>(&self, mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        let mut room = Room::of(self);
        loop {
            match call() {
                Err(error) if room.was_made(&error) => {}
                result => return result,
            }
        }
    }

    /// Does the same as `with_room`, for calls that may wait.
    pub(crate) async fn with_room_async<T, F>(&self, mut call: impl FnMut() -> F) -> io::Result<T>
    where
        F: Future<Output = io::Result<T>>,
    {
        let mut room = Room::of(self);
        loop {
            match call().await {
                Err(error) if room.was_made(&error) => {}
                result => return result,
            }
        }
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// The number of times that files are closed for one call.
const ROOM_TRIES: usize = 16;

/// The room for a call that needs a descriptor.
struct Room<'a> {
    files: &'a OpenFiles,
    /// The number of times that files had been closed before the last attempt.
    closed: u64,
    tries: usize,
}

impl Room<'_> {
    fn of(files: &OpenFiles) -> Room<'_> {
        let closed = files.shared.closed.load(Ordering::SeqCst);
        let tries = 0;
        Room {
            files,
            closed,
            tries,
        }
    }

    /// Closes all files if `error` says that there are too many. Returns whether another attempt may succeed: this or
    /// another call has closed files since the last one.
    fn was_made(&mut self, error: &io::Error) -> bool {
        let errno = error.raw_os_error().map(Errno::from_raw);
        if !matches!(errno, Some(Errno::EMFILE | Errno::ENFILE)) || self.tries == ROOM_TRIES {
            return false;
        }
        self.files.close();
        self.tries += 1;
        let before = self.closed;
        self.closed = self.files.shared.closed.load(Ordering::SeqCst);
        self.closed != before
    }
}
