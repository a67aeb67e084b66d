//! What was found lately, by path: one per core, bounded in bytes, the least recently asked goes first. Used by
//! `service`.
//!
//! An entry's size changes while it is here (a file's encodings are read when they are first asked for), so each
//! says what it has been charged with.

use std::cell::{Cell, RefCell};
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::time::{Duration, Instant};

use lru::LruCache;

use super::load::OpenFile;
use super::response::Ready;
use super::survey::Page;

/// What an entry costs besides its path and bodies, about.
const ENTRY_BYTES: usize = 512;
/// How long a large file stays open that nobody asks for: a deleted one keeps its disk space for as long.
const IDLE: Duration = Duration::from_secs(20);

/// The result of a path lookup.
#[derive(Debug)]
pub(crate) enum Lookup {
    /// A file and its encodings; a directory's index is one, too.
    Page(Page),
    /// A response that is always the same: an error, a listing.
    Fixed(Rc<Ready>),
    /// A directory asked without its slash.
    Directory,
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) lookup: Lookup,
    /// When the file system was asked last.
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

/// Entries by path, within a bound.
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

    /// The entry of a path; it is now the most recent one.
    pub(crate) fn get(&self, path: &[u8]) -> Option<Rc<Entry>> {
        self.entries.borrow_mut().get(path).map(Rc::clone)
    }

    /// What `ask` says of the path's entry, which is now the most recent one.
    pub(crate) fn ask<T>(&self, path: &[u8], ask: impl FnOnce(&Entry) -> Option<T>) -> Option<T> {
        self.entries
            .borrow_mut()
            .get(path)
            .and_then(|entry| ask(entry))
    }

    /// Replaces the entry of the path, and evicts others until all fit.
    pub(crate) fn put(&self, path: &[u8], entry: &Rc<Entry>) {
        let old = self.entries.borrow_mut().put(path.into(), Rc::clone(entry));
        self.uncharge(old);
        self.recount(path, entry);
    }

    /// An entry has grown; counts if it is still here.
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
            // Nothing else has to go for what can't stay.
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

/// Which file, wherever it is found: its device and inode. Those of an open file are not given to another.
pub(crate) type FileId = (u64, u64);

/// Large files that are kept open, within a number.
#[derive(Debug)]
pub(crate) struct OpenFiles {
    files: RefCell<LruCache<FileId, (Rc<OpenFile>, Instant)>>,
}

impl OpenFiles {
    pub(crate) fn new(bound: usize) -> OpenFiles {
        let bound = NonZeroUsize::new(bound).unwrap_or(NonZeroUsize::MIN);
        OpenFiles {
            files: RefCell::new(LruCache::new(bound)),
        }
    }

    pub(crate) fn get(&self, id: FileId, now: Instant) -> Option<Rc<OpenFile>> {
        let mut files = self.files.borrow_mut();
        let (file, used) = files.get_mut(&id)?;
        *used = now;
        Some(Rc::clone(file))
    }

    pub(crate) fn put(&self, id: FileId, file: &Rc<OpenFile>, now: Instant) {
        // Dropped after the borrow: closing is not ours.
        let _gone = self.files.borrow_mut().push(id, (Rc::clone(file), now));
    }

    /// Closes those that have not been asked for in a while.
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

    /// Closes all of them: descriptors are short.
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
    fn the_least_recently_used_goes_first() {
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
    fn memory_stays_within_the_bound_whatever_comes() {
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
    fn what_is_larger_than_the_cache_is_not_kept_and_leaves_no_debt() {
        let cache = Cache::new(10_000);
        let large = fixed(20_000);
        cache.put(b"/large", &large);
        assert!(cache.get(b"/large").is_none());
        cache.grown(b"/large", &large);
        assert_eq!(cache.used_bytes(), 0);
    }
}
