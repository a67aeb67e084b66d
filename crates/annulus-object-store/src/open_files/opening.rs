//! Opens through the cache: the open file, if it is still the file at its path, or a new one.

use std::io;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use annulus::File;
use annulus::fs::Metadata;

use super::{Entry, OpenFiles, Opened};
use crate::calls::Calls;
use crate::error::Failure;
use crate::stat::Stat;
use crate::store::Store;

impl OpenFiles {
    /// Opens the file at `path`, or returns the open one.
    pub(crate) async fn open(&self, store: &Store, path: &Path) -> Result<Opened, Failure> {
        let Some(cache) = &self.cache else {
            return Ok(self.open_new(store, path).await?.0);
        };
        let changes = self.shared.changes.load(Ordering::SeqCst);
        if let Some(entry) = cache.get(path.as_os_str()) {
            if let Some(stat) = self.current(store, path, &entry, changes).await {
                let file = entry.file.clone();
                return Ok(Opened { file, stat });
            }
            cache.remove(path.as_os_str());
        }
        let compared_ns = self.now_ns();
        let (opened, is_local) = self.open_new(store, path).await?;
        if opened.stat.is_file {
            let entry = Entry {
                file: opened.file.clone(),
                identity: opened.stat.identity,
                is_local,
                compared_after: AtomicU64::new(changes),
                compared_ns: AtomicU64::new(compared_ns),
            };
            let key = path.as_os_str().to_owned();
            cache.insert(key, Arc::new(entry));
            // A change meanwhile may have removed the entry before it was there. It must not keep a removed file open.
            if self.shared.changes.load(Ordering::SeqCst) != changes {
                cache.remove(path.as_os_str());
            }
        }
        Ok(opened)
    }

    /// Returns the metadata of an open file, if it is the file at `path`.
    async fn current(
        &self,
        store: &Store,
        path: &Path,
        entry: &Entry,
        changes: u64,
    ) -> Option<Stat> {
        let now_ns = self.now_ns();
        if self.is_trusted(entry, changes, now_ns) {
            return Some(Stat::from(&entry.file.metadata().await.ok()?));
        }
        let stat = match entry.is_local {
            // The open file keeps the entries of its path in the kernel's memory.
            true => Stat::from(&std::fs::metadata(path).ok()?),
            false => store.way_to(path).ok()?.stat(path).await.ok()?,
        };
        if stat.identity != entry.identity {
            return None;
        }
        entry.compared_ns.store(now_ns, Ordering::SeqCst);
        entry.compared_after.store(changes, Ordering::SeqCst);
        Some(stat)
    }

    fn is_trusted(&self, entry: &Entry, changes: u64, now_ns: u64) -> bool {
        let age_ns = now_ns.saturating_sub(entry.compared_ns.load(Ordering::SeqCst));
        !self.trusted.is_zero()
            && Duration::from_nanos(age_ns) < self.trusted
            && entry.compared_after.load(Ordering::SeqCst) == changes
    }

    /// Returns the file, and whether it is local.
    async fn open_new(&self, store: &Store, path: &Path) -> Result<(Opened, bool), Failure> {
        let failed = |source| Failure::not_found_or("open", path, source);
        let way = store.way_to(path)?;
        let file = self
            .with_room_async(|| way.open(path))
            .await
            .map_err(failed)?;
        let (metadata, is_local) = metadata(&file).await;
        // A simulated kernel has other files.
        let is_local = is_local && matches!(store.calls, Calls::System);
        let stat = Stat::from(&metadata.map_err(failed)?);
        Ok((Opened { file, stat }, is_local))
    }
}

/// Returns the metadata of an open file, and whether its file system is local.
///
/// The engine makes the call on the calling thread if it is, and then completes it at the first poll. Another first
/// poll is pending, also if the task has run for long and the engine makes it yield. So a second call decides.
async fn metadata(file: &File) -> (io::Result<Metadata>, bool) {
    let mut has_waited = false;
    loop {
        let mut metadata = pin!(file.metadata());
        if let Poll::Ready(metadata) = futures_util::poll!(metadata.as_mut()) {
            return (metadata, true);
        }
        let metadata = metadata.await;
        if has_waited || metadata.is_err() {
            return (metadata, false);
        }
        has_waited = true;
    }
}
