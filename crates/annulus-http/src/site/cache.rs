//! The results of recent lookups by path. Each core has one, bounded in bytes, with least-recently-used eviction.
//!
//! The size of an entry changes while it is cached, because a file's encodings are read when they are first requested.
//! Each entry therefore stores the size that it was charged with.

use std::cell::{Cell, RefCell};
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::time::{Duration, Instant};

use lru::LruCache;

use super::beneath::FileId;
use super::load::OpenFile;
use super::response::Ready;
use super::survey::Page;

/// The approximate size of an entry without its path and bodies.
const ENTRY_BYTES: usize = 512;
/// The time after which an unused large file is closed. A deleted file occupies disk space until then.
const IDLE: Duration = Duration::from_secs(20);

/// The result of a path lookup.
#[derive(Debug)]
pub(crate) enum Lookup {
    /// A file and its encodings, or the index of a directory.
    Page(Page),
    /// A fixed response: an error or a listing.
    Fixed(Rc<Ready>),
    /// A directory that was requested without the trailing slash.
    Directory,
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) lookup: Lookup,
    /// The time of the last lookup in the file system.
    pub(crate) checked: Cell<Instant>,
    charged: Cell<usize>,
}

impl Entry {
    pub(crate) fn new(lookup: Lookup, checked: Instant) -> Rc<Entry> {
        Rc::new(Entry {
            lookup,
            checked: Cell::new(checked),
            charged: Cell::new(0),
        })
    }

    fn bytes(&self, path: &[u8]) -> usize {
        let lookup = match &self.lookup {
            Lookup::Page(page) => page.bytes(),
            Lookup::Fixed(ready) => ready.bytes(),
            Lookup::Directory => 0,
        };
        ENTRY_BYTES + path.len() + lookup
    }
}

/// Entries by path, up to a total size.
#[derive(Debug)]
pub(crate) struct Cache {
    entries: RefCell<LruCache<Box<[u8]>, Rc<Entry>>>,
    used_bytes: Cell<usize>,
    bound_bytes: usize,
}

impl Cache {
    pub(crate) fn new(bound_bytes: usize) -> Cache {
        Cache {
            entries: RefCell::new(LruCache::unbounded()),
            used_bytes: Cell::new(0),
            bound_bytes,
        }
    }

    /// Returns the entry of a path and marks it as recently used.
    pub(crate) fn get(&self, path: &[u8]) -> Option<Rc<Entry>> {
        self.entries.borrow_mut().get(path).map(Rc::clone)
    }

    /// Calls `read` with the entry of a path, which is marked as recently used.
    pub(crate) fn with_entry<T>(
        &self,
        path: &[u8],
        read: impl FnOnce(&Entry) -> Option<T>,
    ) -> Option<T> {
        self.entries
            .borrow_mut()
            .get(path)
            .and_then(|entry| read(entry))
    }

    /// Sets the entry of a path, and evicts others until all fit.
    pub(crate) fn put(&self, path: &[u8], entry: &Rc<Entry>) {
        let old = self.entries.borrow_mut().put(path.into(), Rc::clone(entry));
        self.uncharge(old);
        self.recount(path, entry);
    }

    /// Updates the size of an entry that has grown, if it is still cached.
    pub(crate) fn grown(&self, path: &[u8], entry: &Rc<Entry>) {
        let here = self
            .entries
            .borrow()
            .peek(path)
            .is_some_and(|cached| Rc::ptr_eq(cached, entry));
        if here {
            self.recount(path, entry);
        }
    }

    fn recount(&self, path: &[u8], entry: &Entry) {
        let bytes = entry.bytes(path);
        let before = entry.charged.replace(bytes);
        self.used_bytes.set(self.used_bytes.get() - before + bytes);
        if bytes > self.bound_bytes {
            // The entry cannot stay, so no other entry is evicted for it.
            let gone = self.entries.borrow_mut().pop(path);
            self.uncharge(gone);
        }
        while self.used_bytes.get() > self.bound_bytes {
            let Some((_, oldest)) = self.entries.borrow_mut().pop_lru() else {
                break;
            };
            self.uncharge(Some(oldest));
        }
    }

    fn uncharge(&self, gone: Option<Rc<Entry>>) {
        let bytes = gone.map_or(0, |entry| entry.charged.take());
        self.used_bytes.set(self.used_bytes.get() - bytes);
    }

    #[cfg(test)]
    pub(crate) fn used_bytes(&self) -> usize {
        self.used_bytes.get()
    }
}

/// Open large files, up to a number.
#[derive(Debug)]
pub(crate) struct OpenFiles {
    files: RefCell<LruCache<FileId, (Rc<OpenFile>, Instant)>>,
    keeps_any: bool,
}

impl OpenFiles {
    pub(crate) fn new(bound: usize) -> OpenFiles {
        // Takes no memory before there are files.
        let mut files = LruCache::unbounded();
        files.resize(NonZeroUsize::new(bound).unwrap_or(NonZeroUsize::MIN));
        OpenFiles {
            files: RefCell::new(files),
            keeps_any: bound > 0,
        }
    }

    pub(crate) fn get(&self, id: FileId, now: Instant) -> Option<Rc<OpenFile>> {
        let mut files = self.files.borrow_mut();
        let (file, used) = files.get_mut(&id)?;
        *used = now;
        Some(Rc::clone(file))
    }

    pub(crate) fn put(&self, id: FileId, file: &Rc<OpenFile>, now: Instant) {
        if !self.keeps_any {
            return;
        }
        // Dropped after the borrow, because closing runs other code.
        let _gone = self.files.borrow_mut().push(id, (Rc::clone(file), now));
    }

    /// Closes the files that have not been used recently.
    pub(crate) fn sweep(&self, now: Instant) {
        loop {
            let mut files = self.files.borrow_mut();
            let idle = |used: Instant| now.saturating_duration_since(used) >= IDLE;
            if !files.peek_lru().is_some_and(|(_, (_, used))| idle(*used)) {
                return;
            }
            let _gone = files.pop_lru();
        }
    }

    /// Closes all files, to free descriptors.
    pub(crate) fn clear(&self) {
        self.files.borrow_mut().clear();
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    fn fixed(bytes: usize) -> Rc<Entry> {
        let ready = Ready::new(StatusCode::OK, Vec::new(), &vec![b'x'; bytes]);
        Entry::new(Lookup::Fixed(Rc::new(ready)), Instant::now())
    }

    #[test]
    fn the_least_recently_used_entry_is_evicted_first() {
        let cache = Cache::new(3 * (ENTRY_BYTES + 1100));
        for path in ["/a", "/b", "/c"] {
            cache.put(path.as_bytes(), &fixed(1000));
        }
        assert!(cache.get(b"/a").is_some());
        cache.put(b"/d", &fixed(1000));
        assert!(cache.get(b"/b").is_none());
        assert!(cache.get(b"/a").is_some());
    }

    #[test]
    fn memory_stays_within_the_bound() {
        let bound = 100_000;
        let cache = Cache::new(bound);
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..20_000 {
            let path = format!("/{}", random.u32(..500));
            if random.bool() {
                cache.put(path.as_bytes(), &fixed(random.usize(..3000)));
            } else if let Some(entry) = cache.get(path.as_bytes()) {
                cache.grown(path.as_bytes(), &entry);
            }
            assert!(cache.used_bytes() <= bound);
        }
        let cached = cache.entries.borrow();
        let sum: usize = cached.iter().map(|(path, entry)| entry.bytes(path)).sum();
        assert_eq!(sum, cache.used_bytes());
    }

    #[test]
    fn an_entry_larger_than_the_cache_is_not_kept_and_not_charged() {
        let cache = Cache::new(10_000);
        let large = fixed(20_000);
        cache.put(b"/large", &large);
        assert!(cache.get(b"/large").is_none());
        cache.grown(b"/large", &large);
        assert_eq!(cache.used_bytes(), 0);
    }
}
