//! The pool, and how it is made.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use annulus::buf::{Arena, BufferLayout, HugePages};
use annulus::{Engine, OpenOptions};

use crate::entry::FRAMES_MAX;
use crate::file::PoolFile;
use crate::page::Page;
use crate::shared::{Check, Shared};
use crate::stats::Stats;
use crate::{batch, waiting};

/// The size of the parts in which a page may be.
const GRAIN_BYTES: usize = 4096;
/// The memory of a frame's state, uses and place in the order of eviction, in bytes.
const FRAME_BYTES: usize = 96;

/// Memory for pages of files. Cheap to clone; files keep their pool.
///
/// See the [crate](crate) for an example.
#[derive(Clone)]
pub struct PagePool {
    core: Arc<Shared>,
}

/// Builds a [`PagePool`].
#[must_use = "a builder does nothing until `build`"]
pub struct Builder {
    engine: Engine,
    memory: usize,
    page_bytes: usize,
    huge_pages: HugePages,
    check: Option<Box<Check>>,
}

impl PagePool {
    /// Begins to build a pool that reads with `engine`: 64 MiB of memory, pages of 4,096 bytes.
    pub fn builder(engine: &Engine) -> Builder {
        Builder {
            engine: engine.clone(),
            memory: 64 << 20,
            page_bytes: GRAIN_BYTES,
            huge_pages: HugePages::default(),
            check: None,
        }
    }

    /// Opens an immutable file, with direct I/O if the file system has it.
    ///
    /// # Errors
    ///
    /// Fails with the error of the open, with `FileTooLarge` past 4,294,967,295 pages, with `OutOfMemory` if there is
    /// none for the table of pages, and in a forked child.
    pub async fn open(&self, path: impl AsRef<Path>) -> io::Result<PoolFile> {
        self.core.check_process()?;
        let path = path.as_ref();
        let engine = &self.core.engine;
        let mut options = OpenOptions::new();
        options.read(true);
        let direct = engine.open_with(options.clone().direct(true), path).await;
        let (file, is_direct) = match direct {
            Ok(file) => (file, true),
            // Older file systems in memory, and some of FUSE.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                (engine.open_with(&options, path).await?, false)
            }
            Err(error) => return Err(error),
        };
        let len = file.metadata().await?.len();
        PoolFile::new(&self.core, file, path.to_owned(), len, is_direct)
    }

    /// Returns pages of several files, in the order of `asked`. All that are not in memory are read at the same time.
    ///
    /// # Errors
    ///
    /// The first error, as [`PoolFile::page`]; `InvalidInput` if the pool has fewer frames, or a file is of another
    /// pool.
    pub async fn pages(&self, asked: &[(&PoolFile, u64)]) -> io::Result<Vec<Page>> {
        if asked
            .iter()
            .any(|(file, _)| !Arc::ptr_eq(&file.core().pool, &self.core))
        {
            let what = "a file of another pool: open it with this one";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        batch::pages(asked.iter().copied()).await
    }

    /// Returns the registered memory of the frames: how much of it the engine's rings have registered, and its kind of
    /// pages.
    pub fn memory(&self) -> &Arena {
        &self.core.arena
    }

    /// Returns the size of a page in bytes.
    pub fn page_bytes(&self) -> usize {
        self.core.page_bytes
    }

    /// Returns what the pool has done, and what it holds.
    pub fn stats(&self) -> Stats {
        let counters = &self.core.counters;
        let (resident, held) = if self.core.is_here() {
            self.core.held()
        } else {
            (0, 0)
        };
        Stats {
            hits: self.core.hits.sum(),
            misses: counters.misses.load(Ordering::Relaxed),
            loads: counters.loads.load(Ordering::Relaxed),
            failed: counters.failed.load(Ordering::Relaxed),
            evicted: counters.evicted.load(Ordering::Relaxed),
            starved: counters.starved.load(Ordering::Relaxed),
            frames: self.core.frame_count(),
            resident,
            held,
        }
    }
}

impl Builder {
    /// Sets how much memory the pool takes, in bytes, with what it needs beside the pages. The tables of files are not
    /// part of it: 4 bytes for each page of a file that was read.
    pub fn memory(mut self, bytes: usize) -> Builder {
        self.memory = bytes;
        self
    }

    /// Sets the size of a page: a multiple of 4,096, at most 1 GiB. Pages as long as the records that are read at once
    /// take fewer reads than shorter ones.
    pub fn page_bytes(mut self, bytes: usize) -> Builder {
        self.page_bytes = bytes;
        self
    }

    /// Sets the kind of memory pages to request; transparent huge pages by default.
    pub fn huge_pages(mut self, huge_pages: HugePages) -> Builder {
        self.huge_pages = huge_pages;
        self
    }

    /// Sets a check of each page that has been read, such as of a checksum: path of the file, number and bytes of the
    /// page. Its error goes to all who wait for the page, which does not enter memory. A panic is an error, too.
    pub fn check(
        mut self,
        check: impl Fn(&Path, u64, &[u8]) -> io::Result<()> + Send + Sync + 'static,
    ) -> Builder {
        self.check = Some(Box::new(check));
        self
    }

    /// Takes the memory, and registers it with the engine's rings. If the limit of locked memory forbids that
    /// (`ulimit -l`), the pool works with more CPU time; [`PagePool::memory`] has the reason.
    ///
    /// # Errors
    ///
    /// Fails with `InvalidInput` for a size that is not allowed, or memory for less than one page, and with
    /// `OutOfMemory`.
    pub fn build(self) -> io::Result<PagePool> {
        waiting::prepare();
        let Builder {
            memory, page_bytes, ..
        } = self;
        let invalid = |reason: &str| {
            let what =
                format!("a pool of {memory} bytes with pages of {page_bytes} bytes: {reason}");
            Err(io::Error::new(io::ErrorKind::InvalidInput, what))
        };
        if page_bytes == 0 || page_bytes % GRAIN_BYTES != 0 {
            return invalid("the size of a page has to be a multiple of 4,096");
        }
        let frames = memory / (page_bytes + FRAME_BYTES);
        if frames == 0 {
            return invalid("it has no space for one page");
        }
        if frames > FRAMES_MAX {
            return invalid("a pool has at most 2,147,483,646 pages; use larger ones");
        }
        let layout = BufferLayout::new(frames, page_bytes).huge_pages(self.huge_pages);
        // In a forked child, the memory may have the address of its parent's. The guards of threads that the child does
        // not have would hold frames.
        let mut others = Vec::new();
        let mut core = loop {
            let arena = self.engine.register_buffers(layout)?;
            let core = Shared::new(self.engine.clone(), arena, page_bytes)?;
            if core.protected().is_empty() {
                break core;
            }
            others.push(core);
        };
        core.check = self.check;
        Ok(PagePool {
            core: Arc::new(core),
        })
    }
}

impl fmt::Debug for PagePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PagePool({})", self.core.arena)
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("memory", &self.memory)
            .field("page_bytes", &self.page_bytes)
            .finish_non_exhaustive()
    }
}
