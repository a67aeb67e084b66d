//! The frames of a pool: which page each of them has, and how they become free.
//!
//! Locks are taken in this order: the loads of a file, the queues, a frame. No lock is held while foreign code runs:
//! wakers, checks, the engine.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use annulus::buf::{Arena, ArenaBuf};
use annulus::{Engine, IoBuf};

use crate::entry::{self, State};
use crate::page::{self, Base, Page};
use crate::policy::{Queues, Uses};
use crate::stats::{Counters, Hits};
use crate::sync::lock;
use crate::table::FileCore;
use crate::waiting::Pool;
use crate::{barrier, forked, hazard, waiting};

/// The most frames that become free with one barrier.
const BATCH: usize = 256;
/// The share of the frames that is free when pages are evicted in time. At most twice a batch, because a preempted
/// thread that evicts may hold up the others.
const RESERVE_SHARE: usize = 16;

/// Looks at the bytes of a page that has been read: file, number of the page, bytes.
pub(crate) type Check = dyn Fn(&std::path::Path, u64, &[u8]) -> io::Result<()> + Send + Sync;

pub(crate) struct Shared {
    pub(crate) engine: Engine,
    pub(crate) arena: Arena,
    pub(crate) page_bytes: usize,
    pub(crate) check: Option<Box<Check>>,
    /// Batches that need more frames than are free.
    pub(crate) turn: async_lock::Mutex<()>,
    pub(crate) counters: Counters,
    pub(crate) hits: Hits,
    /// The process that made the pool.
    process: u32,
    /// A copy of `process`, or a number of no process where readers execute fences.
    unfenced: u32,
    /// The number of the process that looks at it.
    current: &'static AtomicU32,
    base: Base,
    frames: Box<[Mutex<Frame>]>,
    uses: Uses,
    queues: Mutex<Evictor>,
    /// Frames that have been filled, and are not on the queues yet.
    filled: Mutex<Vec<(u32, Option<u32>)>>,
    /// The number of those who wait for a frame.
    starving: AtomicUsize,
    /// Loads that no one awaits.
    prefetched: Mutex<VecDeque<(Weak<FileCore>, u32)>>,
    pub(crate) files: AtomicU64,
}

/// The state of a frame.
#[derive(Default)]
struct Frame {
    /// The right to its memory, while it has a page.
    buf: Option<ArenaBuf>,
    page: Option<Owner>,
    /// Pages that are passed on to those who waited.
    pins: u32,
}

/// The page of a frame.
#[derive(Clone)]
pub(crate) struct Owner {
    pub(crate) file: Weak<FileCore>,
    pub(crate) file_id: u64,
    pub(crate) page: u32,
}

/// The state of eviction, which one thread at a time does.
struct Evictor {
    queues: Queues,
    /// Unlinked frames with readers, and of pages that were read again in the meantime.
    limbo: Vec<(u32, ArenaBuf)>,
}

/// A frame whose page has been unlinked.
struct Unlinked {
    frame: u32,
    /// The file, and what the entry says now, if the page may be linked again.
    entry: Option<(Arc<FileCore>, u32, State)>,
}

impl Shared {
    pub(crate) fn new(engine: Engine, arena: Arena, page_bytes: usize) -> io::Result<Shared> {
        let frames = arena.layout().count;
        let base = Base::new(first_frame(&arena, page_bytes)?);
        let process = forked::prepare();
        Ok(Shared {
            engine,
            arena,
            page_bytes,
            check: None,
            turn: async_lock::Mutex::new(()),
            counters: Counters::default(),
            hits: Hits::default(),
            process,
            unfenced: if barrier::is_fenced() {
                u32::MAX
            } else {
                process
            },
            current: forked::page(),
            base,
            frames: (0..frames).map(|_| Mutex::default()).collect(),
            uses: Uses::new(frames),
            queues: Mutex::new(Evictor {
                queues: Queues::new(frames),
                limbo: Vec::new(),
            }),
            filled: Mutex::default(),
            starving: AtomicUsize::new(0),
            prefetched: Mutex::default(),
            files: AtomicU64::new(0),
        })
    }

    /// Returns an error in a child of a fork, which has no frames.
    #[inline]
    pub(crate) fn check_process(&self) -> io::Result<()> {
        if self.is_here() {
            return Ok(());
        }
        Err(forked::elsewhere())
    }

    #[inline]
    pub(crate) fn is_here(&self) -> bool {
        self.current.load(Ordering::Relaxed) == self.process
    }

    /// Returns whether a hit is in the pool's process and executes no fence.
    #[inline(always)]
    pub(crate) fn is_usual(&self) -> bool {
        self.current.load(Ordering::Relaxed) == self.unfenced
    }

    pub(crate) fn frame_count(&self) -> usize {
        self.frames.len()
    }

    /// Returns the address of a frame.
    #[inline(always)]
    pub(crate) fn address(&self, frame: u32) -> usize {
        self.base.address(frame as usize * self.page_bytes)
    }

    /// Asks the processor for the first bytes of a frame, and for its uses.
    #[inline(always)]
    pub(crate) fn ask(&self, frame: u32) {
        page::prefetch(self.base.pointer(self.address(frame)));
        self.uses.ask(frame);
    }

    /// Counts a use of a frame.
    #[inline(always)]
    pub(crate) fn used(&self, frame: u32) {
        self.uses.count(frame);
    }

    /// Takes a frame, and waits until one is free.
    pub(crate) async fn frame(self: &Arc<Shared>) -> ArenaBuf {
        if let Some(buf) = self.try_frame() {
            return buf;
        }
        let starving = Starving::new(self);
        self.end_prefetches();
        self.evict();
        let buf = self.arena.take().await;
        drop(starving);
        buf
    }

    /// Takes a frame if one is free, or can be made free.
    pub(crate) fn try_frame(&self) -> Option<ArenaBuf> {
        let Some(buf) = self.arena.try_take() else {
            self.evict();
            return self.arena.try_take();
        };
        // Not for each frame: half of the reserve becomes free with one barrier, which interrupts all processors.
        if self.arena.free() < self.reserve() / 2 {
            // Another thread that evicts does the same.
            if let Ok(evictor) = self.queues.try_lock() {
                self.evict_with(evictor);
            }
        }
        Some(buf)
    }

    fn reserve(&self) -> usize {
        (self.frames.len() / RESERVE_SHARE).min(2 * BATCH)
    }

    /// Gives a frame its page. `pinned`: until `unpin`.
    pub(crate) fn fill(
        &self,
        buf: ArenaBuf,
        owner: Owner,
        pinned: bool,
        evicted: Option<u32>,
    ) -> u32 {
        let frame = index(&buf);
        let mut filled = lock(&self.frames[frame as usize]);
        filled.buf = Some(buf);
        filled.page = Some(owner);
        filled.pins = u32::from(pinned);
        drop(filled);
        lock(&self.filled).push((frame, evicted));
        frame
    }

    /// Ends the passing on of a frame's page: each receiver has filled a slot or gone.
    pub(crate) fn unpin(self: &Arc<Shared>, frame: u32) {
        lock(&self.frames[frame as usize]).pins -= 1;
        self.tell();
    }

    /// Evicts for those who wait for a frame, if there are any.
    pub(crate) fn tell(&self) {
        if self.starving.load(Ordering::SeqCst) > 0 && self.is_here() {
            self.evict();
        }
    }

    pub(crate) fn evict(&self) {
        self.evict_with(lock(&self.queues));
    }

    /// Evicts pages until enough frames are free, or no more can be.
    fn evict_with(&self, mut evictor: MutexGuard<'_, Evictor>) {
        self.absorb(&mut evictor);
        let mut gone = evictor.free_limbo(self);
        let before = gone.len();
        // Another thread may have made some free since the caller looked.
        let enough = self.reserve().max(1);
        let missing = enough.saturating_sub(self.arena.free() + gone.len());
        let starving = self.starving.load(Ordering::SeqCst);
        let wanted = missing.max(starving).min(BATCH);
        let mut files = Vec::new();
        // Frames that cannot go are put back at the end, so that each frame is considered once.
        let mut kept = Vec::new();
        while gone.len() < wanted {
            let wanted = wanted - gone.len();
            let chosen = self.choose(&mut evictor.queues, wanted, &mut kept, &mut files);
            if chosen.is_empty() {
                break;
            }
            gone.extend(self.free(&mut evictor, chosen, &mut kept, &mut files));
        }
        kept.into_iter()
            .for_each(|frame| evictor.queues.keep(frame));
        self.counters
            .evict(gone.len() - before, evictor.limbo.len());
        drop(evictor);
        // Outside of the lock: the last reference to a file frees its pages, and a frame wakes who waits for it.
        drop(files);
        drop(gone);
    }

    /// Unlinks up to `wanted` pages. Frames that cannot go go to `kept`, and files to `files`, which the caller drops
    /// outside of the lock.
    fn choose(
        &self,
        queues: &mut Queues,
        wanted: usize,
        kept: &mut Vec<u32>,
        files: &mut Vec<Arc<FileCore>>,
    ) -> Vec<Unlinked> {
        let mut chosen = Vec::new();
        while chosen.len() < wanted {
            let Some((frame, evicted)) = queues.next(&self.uses) else {
                break;
            };
            let filled = lock(&self.frames[frame as usize]);
            let owner = filled.page.as_ref().filter(|_| filled.pins == 0);
            // Without a file, the end of the file frees the frame.
            let file = owner.and_then(|owner| Some((owner.file.upgrade()?, owner.page)));
            drop(filled);
            let Some((file, page)) = file else {
                kept.push(frame);
                continue;
            };
            let absent = State::Absent { evicted };
            if file.entry(page).change(State::Resident(frame), absent) {
                let entry = Some((file, page, absent));
                chosen.push(Unlinked { frame, entry });
            } else {
                files.push(file);
                kept.push(frame);
            }
        }
        chosen
    }

    /// Frees unlinked frames that no one reads, and returns their memory. The others are linked again and go to `kept`,
    /// or are freed later.
    fn free(
        &self,
        evictor: &mut Evictor,
        unlinked: Vec<Unlinked>,
        kept: &mut Vec<u32>,
        files: &mut Vec<Arc<FileCore>>,
    ) -> Vec<ArenaBuf> {
        let ordered = barrier::heavy();
        let pinned: Vec<bool> = unlinked
            .iter()
            .map(|one| lock(&self.frames[one.frame as usize]).pins > 0)
            .collect();
        let protected = self.protected();
        let mut gone = Vec::new();
        for (one, pinned) in unlinked.into_iter().zip(pinned) {
            let frame = one.frame;
            let is_free = entry::is_free(|| pinned, || protected.binary_search(&frame).is_ok());
            let is_linked = match one.entry {
                Some((file, page, absent)) => {
                    let again = !(ordered && is_free)
                        && file.entry(page).change(absent, State::Resident(frame));
                    files.push(file);
                    again
                }
                None => false,
            };
            if is_linked {
                kept.push(frame);
                continue;
            }
            let mut filled = lock(&self.frames[frame as usize]);
            filled.page = None;
            let buf = filled.buf.take();
            match buf {
                Some(buf) if ordered && is_free => gone.push(buf),
                Some(buf) => evictor.limbo.push((frame, buf)),
                None => debug_assert!(false, "an unlinked frame has its memory"),
            }
        }
        gone
    }

    /// Returns the frames that slots protect, sorted.
    pub(crate) fn protected(&self) -> Vec<u32> {
        let from = self.address(0);
        let found = hazard::in_range(from, from + self.frames.len() * self.page_bytes);
        let frames = found
            .into_iter()
            .map(|distance| (distance / self.page_bytes) as u32);
        frames.collect()
    }

    /// Removes pages of a file from memory. `pages`: each with the frame that its entry names. They are looked up while
    /// no one evicts, because a page that is evicted in vain is linked again.
    pub(crate) fn remove(
        &self,
        file_id: u64,
        pages: impl FnOnce() -> Vec<(u32, u32)>,
        unlink: impl Fn(u32, u32) -> bool,
    ) {
        let mut evictor = lock(&self.queues);
        self.absorb(&mut evictor);
        let mut unlinked = Vec::new();
        for (page, frame) in pages() {
            let filled = lock(&self.frames[frame as usize]);
            let owner = filled.page.as_ref();
            let is_there =
                owner.is_some_and(|owner| owner.file_id == file_id && owner.page == page);
            drop(filled);
            if is_there && unlink(page, frame) {
                evictor.queues.remove(frame);
                unlinked.push(Unlinked { frame, entry: None });
            }
        }
        let mut gone = self.free(&mut evictor, unlinked, &mut Vec::new(), &mut Vec::new());
        gone.append(&mut evictor.free_limbo(self));
        self.counters.evict(0, evictor.limbo.len());
        drop(evictor);
        drop(gone);
    }

    /// Returns the pages of a file that are in memory, with their frames.
    pub(crate) fn pages_of(&self, file_id: u64, pages: &Range<u32>) -> Vec<(u32, u32)> {
        let owned = self
            .frames
            .iter()
            .enumerate()
            .filter_map(|(frame, filled)| {
                let filled = lock(filled);
                let owner = filled.page.as_ref()?;
                let is_wanted = owner.file_id == file_id && pages.contains(&owner.page);
                is_wanted.then_some((owner.page, frame as u32))
            });
        owned.collect()
    }

    /// Puts frames that have been filled on the queues.
    fn absorb(&self, evictor: &mut Evictor) {
        let filled = std::mem::take(&mut *lock(&self.filled));
        for (frame, evicted) in filled {
            // A page that was removed before it got here has no owner.
            if lock(&self.frames[frame as usize]).page.is_some() {
                evictor.queues.insert(frame, evicted, &self.uses);
            }
        }
    }

    /// Returns whether there may be another load that no one awaits.
    pub(crate) fn has_room_ahead(&self) -> bool {
        self.collect_prefetched();
        lock(&self.prefetched).len() < (self.frames.len() / 8).max(1)
    }

    /// Remembers a load that no one awaits.
    pub(crate) fn remember(&self, file: &Arc<FileCore>, page: u32) {
        lock(&self.prefetched).push_back((Arc::downgrade(file), page));
    }

    /// Ends all loads that no one awaits, if someone waits for a frame: they have some.
    pub(crate) fn end_prefetches(&self) {
        while self.starving.load(Ordering::SeqCst) > 0 {
            let Some((file, page)) = lock(&self.prefetched).pop_front() else {
                return;
            };
            if let Some(file) = file.upgrade() {
                file.end_prefetch(page);
            }
        }
    }

    /// Ends the loads that no one awaited and that are ready, from the oldest on.
    fn collect_prefetched(&self) {
        loop {
            let Some((file, page)) = lock(&self.prefetched).pop_front() else {
                return;
            };
            if let Some(file) = file.upgrade()
                && !file.poll_load(page)
            {
                lock(&self.prefetched).push_front((Arc::downgrade(&file), page));
                return;
            }
        }
    }

    /// Returns the numbers of frames with a page, and of unlinked frames that someone reads.
    pub(crate) fn held(&self) -> (usize, usize) {
        let mut evictor = lock(&self.queues);
        self.absorb(&mut evictor);
        (evictor.queues.queued(), evictor.limbo.len())
    }

    /// A guard of the frame at `address`, which is protected by `slot`.
    #[inline(always)]
    pub(crate) fn guard(
        &self,
        address: usize,
        slot: &'static crate::sync::AtomicUsize,
        len: u32,
    ) -> Page {
        Page::new(self.base.pointer(address), len, slot, self.process)
    }
}

impl Evictor {
    /// Takes the unlinked frames that no one reads any more.
    fn free_limbo(&mut self, core: &Shared) -> Vec<ArenaBuf> {
        if self.limbo.is_empty() || !barrier::heavy() {
            return Vec::new();
        }
        let is_free = |frame: &u32| lock(&core.frames[*frame as usize]).pins == 0;
        let unpinned: Vec<u32> = self
            .limbo
            .iter()
            .map(|(frame, _)| *frame)
            .filter(is_free)
            .collect();
        let protected = core.protected();
        let gone = self.limbo.extract_if(.., |(frame, _)| {
            unpinned.contains(frame) && protected.binary_search(frame).is_err()
        });
        gone.map(|(_, buf)| buf).collect()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if !self.is_here() {
            // The locks of the memory may be held by threads that a child does not have.
            std::mem::take(&mut self.frames)
                .into_iter()
                .for_each(std::mem::forget);
            if let Ok(evictor) = self.queues.get_mut() {
                std::mem::forget(std::mem::take(&mut evictor.limbo));
            }
            return;
        }
        self.hits.end(&self.counters.metrics);
        // Guards outlive the pool: they keep the memory.
        let frames = std::mem::take(&mut self.frames);
        let evictor = self
            .queues
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        let limbo = std::mem::take(&mut evictor.limbo);
        let left = frames.into_iter().filter_map(|frame| {
            frame
                .into_inner()
                .unwrap_or_else(PoisonError::into_inner)
                .buf
        });
        let bufs = left.chain(limbo.into_iter().map(|(_, buf)| buf)).collect();
        waiting::leave(bufs);
    }
}

impl Pool for Shared {
    fn tell(&self) {
        Shared::tell(self);
    }
}

/// One who waits for a frame.
struct Starving<'a>(&'a Arc<Shared>);

impl<'a> Starving<'a> {
    fn new(core: &'a Arc<Shared>) -> Starving<'a> {
        core.counters.wait();
        core.starving.fetch_add(1, Ordering::SeqCst);
        waiting::announce(Arc::downgrade(core) as _);
        Starving(core)
    }
}

impl Drop for Starving<'_> {
    fn drop(&mut self) {
        self.0.starving.fetch_sub(1, Ordering::SeqCst);
        waiting::withdraw();
    }
}

/// Returns the address of the first frame. The others follow it in the order of their numbers.
fn first_frame(arena: &Arena, page_bytes: usize) -> io::Result<*const u8> {
    let any = arena.try_take().ok_or(io::ErrorKind::OutOfMemory)?;
    Ok(any.stable_ptr().wrapping_sub(any.index() * page_bytes))
}

fn index(buf: &ArenaBuf) -> u32 {
    // At most `FRAMES_MAX`.
    buf.index() as u32
}
