//! A file's table of pages, and the loads of those that are being read.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll};

use annulus::buf::ArenaBuf;
use annulus::{File, IoBuf};

use crate::entry::{self, Entry, State};
use crate::hazard;
use crate::load::{self, Completion, Failure, Left, Load};
use crate::page::Page;
use crate::shared::{Owner, Shared};
use crate::stats::Counters;
use crate::sync::lock;

/// The most pages of a file: their numbers have 32 bits.
const PAGES_MAX: u64 = u32::MAX as u64;

/// A file and its table of pages.
pub(crate) struct FileCore {
    pub(crate) pool: Arc<Shared>,
    file: Arc<File>,
    pub(crate) path: PathBuf,
    pub(crate) len: u64,
    id: u64,
    /// True if it is read with direct I/O.
    pub(crate) direct: bool,
    me: Weak<FileCore>,
    table: Box<[Entry]>,
    /// The last page, and its bytes.
    last: u32,
    last_bytes: u32,
    loads: Mutex<BTreeMap<u32, Arc<Load>>>,
}

impl FileCore {
    pub(crate) fn new(
        pool: &Arc<Shared>,
        file: File,
        path: PathBuf,
        len: u64,
        direct: bool,
    ) -> io::Result<Arc<FileCore>> {
        let pages = len.div_ceil(pool.page_bytes as u64);
        if pages > PAGES_MAX {
            let what = format!(
                "{}: {pages} pages of {} bytes; a pool holds files of at most {PAGES_MAX} pages, so use larger pages",
                path.display(),
                pool.page_bytes
            );
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
        }
        let table = entry::table(pages as usize).ok_or_else(|| {
            let what = format!(
                "{}: a table of {pages} pages; use larger pages",
                path.display()
            );
            io::Error::new(io::ErrorKind::OutOfMemory, what)
        })?;
        let id = pool
            .files
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok(Arc::new_cyclic(|me| FileCore {
            pool: Arc::clone(pool),
            file: Arc::new(file),
            path,
            len,
            id,
            direct,
            me: me.clone(),
            table,
            last: pages.saturating_sub(1) as u32,
            last_bytes: (len - pages.saturating_sub(1) * pool.page_bytes as u64) as u32,
            loads: Mutex::default(),
        }))
    }

    /// Returns the number of pages.
    #[inline]
    pub(crate) fn page_count(&self) -> u64 {
        self.table.len() as u64
    }

    #[inline]
    pub(crate) fn entry(&self, page: u32) -> &Entry {
        &self.table[page as usize]
    }

    /// Checks the number of a page.
    pub(crate) fn number(&self, number: u64) -> io::Result<u32> {
        if number < self.table.len() as u64 {
            // At most `PAGES_MAX`.
            return Ok(number as u32);
        }
        let what = format!(
            "page {number} of {}: the file has {} pages",
            self.path.display(),
            self.table.len()
        );
        Err(io::Error::new(io::ErrorKind::InvalidInput, what))
    }

    /// Returns the page of an offset, and where in the page that is.
    pub(crate) fn find(&self, offset: u64) -> io::Result<(u32, usize)> {
        let bytes = self.pool.page_bytes as u64;
        if offset < self.len {
            return Ok(((offset / bytes) as u32, (offset % bytes) as usize));
        }
        let what = format!(
            "reading at offset {offset} of {}, which has {} bytes",
            self.path.display(),
            self.len
        );
        Err(io::Error::new(io::ErrorKind::UnexpectedEof, what))
    }

    /// Returns the pages that have a byte of a range.
    pub(crate) fn pages_of(&self, bytes: &Range<u64>) -> Range<u32> {
        let size = self.pool.page_bytes as u64;
        let to = bytes.end.min(self.len).div_ceil(size);
        let from = (bytes.start / size).min(to);
        from as u32..to as u32
    }

    /// Returns how many bytes a page has: at most 1 GiB.
    #[inline(always)]
    fn bytes_of(&self, page: u32) -> u32 {
        if page == self.last {
            self.last_bytes
        } else {
            self.pool.page_bytes as u32
        }
    }

    /// Returns a guard of a page in memory.
    ///
    /// Always inlined: a guard that is returned in memory is written in parts and read as a whole. The processor cannot
    /// forward such stores, and would wait for the read of the page before.
    #[inline(always)]
    pub(crate) fn hit(&self, number: u64) -> Option<Page> {
        let entry = self.table.get(usize::try_from(number).ok()?)?;
        if self.pool.is_usual() {
            self.protect(number as u32, entry, false)
        } else {
            self.hit_fenced(number as u32, entry)
        }
    }

    #[cold]
    fn hit_fenced(&self, page: u32, entry: &Entry) -> Option<Page> {
        if self.pool.is_here() {
            return self.protect(page, entry, true);
        }
        None
    }

    #[inline(always)]
    fn protect(&self, page: u32, entry: &Entry, fenced: bool) -> Option<Page> {
        let pool = &*self.pool;
        let (slot, thread) = hazard::empty_slot();
        let (frame, address) = entry::protect(entry, slot, |frame| pool.address(frame), fenced)?;
        pool.used(frame);
        pool.hits.add(thread, &pool.counters.metrics);
        Some(pool.guard(address, slot, self.bytes_of(page)))
    }

    /// Asks the processor for the first bytes of a page, and for what a hit of it reads.
    #[inline(always)]
    pub(crate) fn ask(&self, number: u64) {
        let entry = usize::try_from(number)
            .ok()
            .and_then(|at| self.table.get(at));
        if let Some(frame) = entry.and_then(Entry::frame) {
            self.pool.ask(frame);
        }
    }

    /// Ends the load of a page if it is ready, for those who do not wait.
    #[cold]
    pub(crate) fn hit_late(&self, number: u64) -> Option<Page> {
        let page = self.number(number).ok()?;
        let is_loading = self.entry(page).state() == State::Loading;
        if is_loading && self.pool.is_here() && self.poll_load(page) {
            return self.hit(number);
        }
        None
    }

    /// Reads a page, or waits for its read.
    pub(crate) async fn miss(&self, page: u32) -> io::Result<Page> {
        self.pool.check_process()?;
        self.pool.counters.miss();
        loop {
            let is_absent = matches!(self.entry(page).state(), State::Absent { .. });
            let frame = if is_absent {
                self.pool.try_frame()
            } else {
                None
            };
            if let Some(waiting) = self.join(page, frame) {
                return waiting.await;
            }
            if let Some(guard) = self.hit(u64::from(page)) {
                return Ok(guard);
            }
        }
    }

    /// Joins the load of a page, and begins it if there is none. Returns `None` if the page is in memory.
    pub(crate) fn join(&self, page: u32, frame: Option<ArenaBuf>) -> Option<Waiting<'_>> {
        let (load, at) = self.load(page, frame, true)?;
        let at = at.unwrap_or_default();
        Some(Waiting {
            file: self,
            page,
            load: Some(load),
            at,
        })
    }

    fn load(
        &self,
        page: u32,
        frame: Option<ArenaBuf>,
        joins: bool,
    ) -> Option<(Arc<Load>, Option<usize>)> {
        let mut loads = lock(&self.loads);
        let load = match self.entry(page).state() {
            State::Resident(_) => return None,
            State::Loading => Arc::clone(loads.get(&page)?),
            absent @ State::Absent { evicted } => {
                // Only the one who evicts links a page again without the lock.
                if !self.entry(page).change(absent, State::Loading) {
                    return None;
                }
                Counters::add(&self.pool.counters.loads, 1);
                let has_frame = frame.is_some();
                let reading = Box::pin(read(
                    Arc::clone(&self.pool),
                    Arc::clone(&self.file),
                    page,
                    self.bytes_of(page) as usize,
                    frame,
                ));
                let load = Arc::new(Load::new(reading, evicted, has_frame, !joins));
                loads.insert(page, Arc::clone(&load));
                load
            }
        };
        let at = joins.then(|| load.join());
        Some((load, at))
    }

    /// Begins to read a page that no one waits for. Returns `false` if there is no frame for it, or too much is read
    /// ahead already.
    pub(crate) fn prefetch(&self, page: u32) -> bool {
        if !matches!(self.entry(page).state(), State::Absent { .. }) {
            return true;
        }
        let Some(me) = self.me.upgrade() else {
            return false;
        };
        let mut frame = None;
        if self.pool.has_room_ahead() {
            frame = self.pool.try_frame();
        }
        let begins = frame.is_some();
        if begins
            && let Some((load, _)) = self.load(page, frame, false)
            && !self.go_on(page, &load, None)
        {
            // Only now: a thread that finds a page without a load forgets it.
            self.pool.remember(&me, page);
        }
        // Someone who began to wait for a frame meanwhile may have overlooked this load, and the one that
        // `has_room_ahead` looked at.
        self.pool.end_prefetches();
        begins
    }

    /// Ends the load of a page that no one awaits: publishes it if it is ready, and gives up its frame otherwise.
    pub(crate) fn end_prefetch(&self, page: u32) {
        if self.poll_load(page) {
            return;
        }
        let mut loads = lock(&self.loads);
        if let Some(load) = loads
            .get(&page)
            .filter(|load| load.end_unless_awaited())
            .cloned()
        {
            self.forget(&mut loads, page, &load);
            drop(loads);
            load.abandon();
        }
    }

    /// Removes an unfinished load, unless its page was invalidated.
    fn forget(&self, loads: &mut BTreeMap<u32, Arc<Load>>, page: u32, load: &Arc<Load>) {
        if is_current(loads, page, load) {
            loads.remove(&page);
            let evicted = load.evicted;
            self.entry(page).set(State::Absent { evicted });
        }
    }

    /// Goes on with the load of a page. Returns whether there is none any more.
    pub(crate) fn poll_load(&self, page: u32) -> bool {
        let load = lock(&self.loads).get(&page).cloned();
        load.is_none_or(|load| self.go_on(page, &load, None))
    }

    /// Goes on with a load; `by`: in the poll of this one who waits. Returns whether it ended here.
    fn go_on(&self, page: u32, load: &Arc<Load>, by: Option<usize>) -> bool {
        let Some(result) = load.poll() else {
            return false;
        };
        // The check is foreign code, which may panic: those who wait get an error. It ends here, because the caller may
        // wait for another page.
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            result.and_then(|buf| self.checked(page, buf))
        }));
        let result = checked.unwrap_or_else(|_| Err(io::Error::other("the check panicked")));
        self.finish(page, load, result, by);
        true
    }

    fn checked(&self, page: u32, buf: ArenaBuf) -> io::Result<ArenaBuf> {
        if let Some(check) = &self.pool.check {
            check(
                &self.path,
                u64::from(page),
                &buf[..self.bytes_of(page) as usize],
            )?;
        }
        Ok(buf)
    }

    /// Publishes the page, or gives the error to those who wait.
    fn finish(&self, page: u32, load: &Arc<Load>, result: io::Result<ArenaBuf>, by: Option<usize>) {
        let owner = Owner {
            file: self.me.clone(),
            file_id: self.id,
            page,
        };
        let mut loads = lock(&self.loads);
        let is_awaited = load.is_awaited();
        let is_current = is_current(&loads, page, load);
        // The last one who waited may have gone while this thread polled.
        if !is_current && !is_awaited {
            drop(loads);
            return;
        }
        let (outcome, state) = match result {
            Ok(buf) => {
                let frame = self.pool.fill(buf, owner, is_awaited, load.evicted);
                (Ok(frame), State::Resident(frame))
            }
            Err(error) => {
                Counters::add(&self.pool.counters.failed, 1);
                let evicted = load.evicted;
                let what = format!("reading page {page} of {}: {error}", self.path.display());
                (Err(Failure::new(&error, what)), State::Absent { evicted })
            }
        };
        if is_current {
            // No one joins from here on.
            loads.remove(&page);
            self.entry(page).set(state);
        }
        let wakers = load.finish(outcome, by);
        drop(loads);
        if let (false, State::Resident(frame)) = (is_current, state) {
            // Its page was invalidated, so only those who wait get it.
            self.pool
                .remove(self.id, || vec![(page, frame)], |_, _| true);
        }
        load::wake(wakers);
        if !is_awaited {
            self.pool.tell();
        }
    }

    /// Removes one who waited.
    fn leave(&self, page: u32, load: &Arc<Load>, at: usize) {
        let mut loads = lock(&self.loads);
        let (left, waiter) = load.leave(at);
        match left {
            Left::Others => drop(loads),
            Left::Page(frame) => {
                drop(loads);
                self.pool.unpin(frame);
            }
            Left::Unfinished => {
                self.forget(&mut loads, page, load);
                drop(loads);
                load.abandon();
            }
        }
        // A waker is foreign code.
        drop(waiter);
    }

    /// Removes pages from memory. Those who ask for one from now on read it again.
    pub(crate) fn remove(&self, pages: Range<u32>) {
        let mut loads = lock(&self.loads);
        let reading = loads.range(pages.clone());
        let reading: Vec<_> = reading
            .map(|(page, load)| (*page, Arc::clone(load)))
            .collect();
        for (page, load) in &reading {
            self.forget(&mut loads, *page, load);
        }
        drop(loads);
        // A load and the waker of its operation hold each other.
        let unawaited = reading.iter().filter(|(_, load)| load.end_unless_awaited());
        unawaited.for_each(|(_, load)| load.abandon());
        // A large file has more pages than the pool has frames.
        let resident = || {
            if pages.len() > self.pool.frame_count() {
                return self.pool.pages_of(self.id, &pages);
            }
            let frames = pages.map(|page| (page, self.entry(page).frame()));
            frames
                .filter_map(|(page, frame)| Some((page, frame?)))
                .collect()
        };
        self.pool.remove(self.id, resident, |page, frame| {
            let absent = State::Absent { evicted: None };
            self.entry(page).change(State::Resident(frame), absent)
        });
    }
}

impl Drop for FileCore {
    fn drop(&mut self) {
        if self.pool.is_here() {
            self.remove(0..self.table.len() as u32);
        } else if let Ok(loads) = self.loads.get_mut() {
            // Their frames would take locks that threads of the parent may hold.
            std::mem::forget(std::mem::take(loads));
        }
    }
}

/// Returns whether a load is the one of its page: not if the page was invalidated since, or no one waited any more.
fn is_current(loads: &BTreeMap<u32, Arc<Load>>, page: u32, load: &Arc<Load>) -> bool {
    loads.get(&page).is_some_and(|one| Arc::ptr_eq(one, load))
}

/// Waits for a load.
pub(crate) struct Waiting<'a> {
    file: &'a FileCore,
    page: u32,
    /// `None` once it is ready.
    load: Option<Arc<Load>>,
    at: usize,
}

impl Waiting<'_> {
    /// Begins the read before this is awaited. Returns `false` if it may wait for a frame.
    pub(crate) fn begin(&mut self) -> bool {
        let Some(load) = self.load.as_ref().filter(|load| load.has_frame) else {
            return false;
        };
        self.file.pool.counters.miss();
        self.file.go_on(self.page, load, None);
        true
    }

    fn found(&mut self, load: &Arc<Load>, context: &Context<'_>) -> Poll<io::Result<Page>> {
        let result = match load.look(self.at, context.waker()) {
            Completion::Nothing => return Poll::Pending,
            Completion::Failed(failure) => Err(failure.error()),
            Completion::Page(frame) => {
                // The frame is pinned until all who waited have left.
                let (slot, _) = hazard::empty_slot();
                let core = &self.file.pool;
                let address = core.address(frame);
                entry::protect_pinned(slot, address);
                Ok(core.guard(address, slot, self.file.bytes_of(self.page)))
            }
        };
        self.load = None;
        self.file.leave(self.page, load, self.at);
        Poll::Ready(result)
    }
}

impl Future for Waiting<'_> {
    type Output = io::Result<Page>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<Page>> {
        let Some(load) = self.load.clone() else {
            return Poll::Ready(Err(io::Error::other("polled after completion")));
        };
        self.file.pool.check_process()?;
        // First the waker, so that no end is missed.
        if let Poll::Ready(result) = self.found(&load, context) {
            return Poll::Ready(result);
        }
        if self.file.go_on(self.page, &load, Some(self.at)) {
            return self.found(&load, context);
        }
        Poll::Pending
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Some(load) = self.load.take() else {
            return;
        };
        if self.file.pool.is_here() {
            self.file.leave(self.page, &load, self.at);
        } else {
            // As in the drop of `FileCore`.
            std::mem::forget(load);
        }
    }
}

/// Takes a frame, and reads a page into it.
async fn read(
    pool: Arc<Shared>,
    file: Arc<File>,
    page: u32,
    bytes: usize,
    frame: Option<ArenaBuf>,
) -> io::Result<ArenaBuf> {
    let buf = match frame {
        Some(buf) => buf,
        None => pool.frame().await,
    };
    let offset = u64::from(page) * pool.page_bytes as u64;
    if bytes == pool.page_bytes {
        return Ok(file.read_exact_at(buf, offset).await?);
    }
    // The last page: a direct read of a whole page ends with the file.
    let (read, buf) = file.read_at(buf, offset).await?;
    if read >= bytes {
        return Ok(buf);
    }
    // Cut short, or the file is.
    let buf = file.read_exact_at(buf.subslice(..bytes), offset).await?;
    Ok(buf.into_inner())
}
