//! # Safety
//!
//! An arena: buffers of one size in one range of memory, which rings register as a whole. A buffer
//! is a lease: it belongs to one `ArenaBuf` at a time, and is given back when that is dropped, which
//! for a lent one is after the final CQE (Lent). The range stays mapped at its address as long as an
//! arena, a lease or a ring has it (Owned, Still).
#![allow(unsafe_code)]

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::free_list::FreeList;
use super::registered_region::{Arenas, Bytes, Registered, RegisteredRegion};
use super::{IoBuf, IoBufMut};
use crate::error::SetupError;
use crate::narrow::to_u32;
use crate::sys::lent::RANGE_BYTES_MAX;
use crate::sys::mapping::{HugePages, Mapping, PAGE_BYTES, PagesInUse};

/// The largest arena, bytes: what half of a ring's table has slots for.
const ARENA_BYTES_MAX: u64 = 1 << 40;
/// The most buffers of an arena: their numbers have 32 bits, and one is taken.
const COUNT_MAX: usize = 1 << 30;

/// What an arena is to be: given to [`Engine::register_buffers`](crate::Engine::register_buffers).
///
/// ```
/// # use annulus::buf::BufferLayout;
/// let layout = BufferLayout::new(64, 64 << 10);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BufferLayout {
    /// How many buffers; 64 by default.
    pub count: usize,
    /// Bytes of each; 65,536 by default. Each starts at a multiple of 4,096; at most 1 GiB.
    pub bytes: usize,
    /// Which pages to ask for; transparent huge pages by default.
    pub huge_pages: HugePages,
}

impl Default for BufferLayout {
    fn default() -> BufferLayout {
        BufferLayout {
            count: 64,
            bytes: 64 << 10,
            huge_pages: HugePages::default(),
        }
    }
}

impl BufferLayout {
    /// `count` buffers of `bytes` each, on transparent huge pages.
    pub fn new(count: usize, bytes: usize) -> BufferLayout {
        BufferLayout {
            count,
            bytes,
            ..BufferLayout::default()
        }
    }

    /// The same on these pages.
    #[must_use]
    pub fn huge_pages(mut self, huge_pages: HugePages) -> BufferLayout {
        self.huge_pages = huge_pages;
        self
    }

    /// From one buffer to the next, and all together; or what is wrong with it. What passes has both numbers in
    /// 32 bits.
    fn check(&self) -> Result<(usize, usize), SetupError> {
        let BufferLayout { count, bytes, .. } = *self;
        let wrong = |why: &str| {
            let what = format!("no arena of {count} buffers of {bytes} bytes: {why}");
            Err(SetupError::Config(what))
        };
        if count == 0 || bytes == 0 {
            return wrong("both must be at least 1");
        }
        if bytes > RANGE_BYTES_MAX {
            return wrong("the kernel registers at most 1 GiB in one piece");
        }
        if count > COUNT_MAX {
            return wrong("at most 1,073,741,824 buffers");
        }
        let stride = bytes.next_multiple_of(PAGE_BYTES);
        match stride.checked_mul(count) {
            Some(all) if all as u64 <= ARENA_BYTES_MAX => Ok((stride, all)),
            _ => wrong("together they are more than 1 TiB"),
        }
    }
}

/// Buffers of one size that the rings of an engine have registered: the kernel has their pages at
/// hand, and pins nothing when an operation uses one. Cheap to clone.
///
/// When the last clone and the last [`ArenaBuf`] have been dropped, the rings let go of the memory immediately,
/// idle ones included.
///
/// Made by [`Engine::register_buffers`](crate::Engine::register_buffers). Which operations gain by
/// it the engine sees at the buffer: reads and writes of an [`ArenaBuf`], or of a
/// [`subslice`](IoBuf::subslice) of one, use the registration by themselves.
///
/// `Display` says how large it is and how far it is registered.
#[derive(Clone)]
pub struct Arena {
    shared: Arc<Shared>,
}

struct Shared {
    region: Arc<RegisteredRegion>,
    layout: BufferLayout,
    arenas: Arc<Arenas>,
    free_list: Mutex<FreeList>,
}

impl Arena {
    /// Makes an arena and adds it to `arenas`.
    pub(crate) fn new(layout: BufferLayout, arenas: &Arc<Arenas>) -> Result<Arena, SetupError> {
        let (stride, bytes) = layout.check()?;
        let memory = Mapping::new(bytes, layout.huge_pages).map_err(|error| SetupError::Os {
            what: "mapping the memory of an arena",
            error,
        })?;
        memory.keep_from_children(true);
        let region = Arc::new(RegisteredRegion::new(Arc::new(memory), stride, bytes));
        arenas.add(&region);
        let shared = Shared {
            region,
            layout,
            arenas: Arc::clone(arenas),
            free_list: Mutex::new(FreeList::new(to_u32(layout.count))),
        };
        Ok(Arena {
            shared: Arc::new(shared),
        })
    }

    pub(crate) fn region(&self) -> &RegisteredRegion {
        &self.shared.region
    }

    /// A buffer; waits until one is given back where there is none, in the order of the calls.
    ///
    /// Its contents are what its last user left there, zeros at first.
    ///
    /// Cancel safe: who stops waiting loses its position in the queue, and no buffer.
    pub fn take(&self) -> Take<'_> {
        Take {
            arena: self,
            position: None,
        }
    }

    /// A buffer, if one is free.
    pub fn try_take(&self) -> Option<ArenaBuf> {
        let index = self.shared.free_list().take()?;
        Some(self.lease(index))
    }

    /// Buffers that nobody has, at the moment.
    pub fn free(&self) -> usize {
        self.shared.free_list().free()
    }

    /// What it was asked to be.
    pub fn layout(&self) -> BufferLayout {
        self.shared.layout
    }

    /// Which pages it got.
    pub fn pages(&self) -> PagesInUse {
        self.shared.region.memory.pages()
    }

    /// How far the engine's rings have registered it, by now: a ring that is made later tries, too.
    pub fn registered(&self) -> Registered {
        self.shared.region.registered()
    }

    fn lease(&self, index: u32) -> ArenaBuf {
        let offset = index as usize * self.shared.region.stride;
        let base = self.shared.region.memory.base().wrapping_add(offset);
        ArenaBuf {
            base: NonNull::new(base).unwrap_or(NonNull::dangling()),
            len: to_u32(self.shared.layout.bytes),
            index,
            shared: Arc::clone(&self.shared),
        }
    }
}

impl Shared {
    fn free_list(&self) -> MutexGuard<'_, FreeList> {
        // Nothing panics while it is held but for want of memory, and the room is whole then.
        self.free_list
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn give(&self, index: u32) {
        // Woken without the lock: a waker is foreign code.
        let waker = self.free_list().give(index);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // No lease is left, so no operation names the memory.
        self.arenas.remove(&self.region);
    }
}

impl fmt::Display for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BufferLayout { count, bytes, .. } = self.shared.layout;
        let plural = if count == 1 { "buffer" } else { "buffers" };
        let bytes = Bytes(bytes as u64);
        write!(
            f,
            "{count} {plural} of {bytes} in {}, {}",
            self.pages(),
            self.registered()
        )
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Arena({self})")
    }
}

/// The wait for a buffer; made by [`Arena::take`].
#[must_use = "a buffer is taken when this is awaited"]
pub struct Take<'a> {
    arena: &'a Arena,
    /// In the queue.
    position: Option<u32>,
}

impl Future for Take<'_> {
    type Output = ArenaBuf;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<ArenaBuf> {
        let shared = &self.arena.shared;
        let waker = context.waker();
        let mut free_list = shared.free_list();
        let taken = match self.position {
            Some(position) if free_list.wakes(position, waker) => return Poll::Pending,
            Some(position) => free_list.collect(position),
            None => free_list.take(),
        };
        drop(free_list);
        if let Some(index) = taken {
            self.position = None;
            return Poll::Ready(self.arena.lease(index));
        }
        // Cloned and dropped without the lock: a waker is foreign code.
        let waker = waker.clone();
        let mut free_list = shared.free_list();
        let taken = match self.position {
            Some(position) => free_list.collect(position),
            None => free_list.take(),
        };
        if let Some(index) = taken {
            drop(free_list);
            self.position = None;
            return Poll::Ready(self.arena.lease(index));
        }
        let old = match self.position {
            Some(position) => free_list.rewake(position, waker),
            None => {
                let position = free_list.join(waker);
                drop(free_list);
                self.position = Some(position);
                return Poll::Pending;
            }
        };
        drop(free_list);
        drop(old);
        Poll::Pending
    }
}

impl Drop for Take<'_> {
    fn drop(&mut self) {
        if let Some(position) = self.position {
            let (own, next) = self.arena.shared.free_list().leave(position);
            drop(own);
            next.into_iter().for_each(Waker::wake);
        }
    }
}

impl fmt::Debug for Take<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Take")
            .field("waits", &self.position.is_some())
            .finish_non_exhaustive()
    }
}

/// A buffer of an [`Arena`], on loan: given back when it is dropped, by its holder. That
/// may be the engine, when the future of an operation that it was given to is dropped.
pub struct ArenaBuf {
    base: NonNull<u8>,
    // Both in 32 bits, so that an operation on a slice of a lease still fits its slot.
    len: u32,
    index: u32,
    shared: Arc<Shared>,
}

// SAFETY: Owned: the lease is the only way to these bytes, like a Box's.
unsafe impl Send for ArenaBuf {}
// SAFETY: Owned: the lease is the only way to these bytes, like a Box's; shared access reads only.
unsafe impl Sync for ArenaBuf {}

impl ArenaBuf {
    /// Shortens what is lent and seen to `bytes`, or lengthens it again up to the capacity.
    ///
    /// # Panics
    ///
    /// If `bytes` exceeds [`capacity`](ArenaBuf::capacity).
    pub fn set_len(&mut self, bytes: usize) {
        assert!(
            bytes <= self.capacity(),
            "{bytes} bytes asked of an arena's buffer of {}",
            self.capacity()
        );
        self.len = to_u32(bytes);
    }

    /// Bytes of the buffer, as the arena's layout says.
    pub fn capacity(&self) -> usize {
        self.shared.layout.bytes
    }

    /// Which buffer of the arena it is, from 0 on.
    pub fn index(&self) -> usize {
        self.index as usize
    }
}

impl Drop for ArenaBuf {
    fn drop(&mut self) {
        self.shared.give(self.index);
    }
}

impl Deref for ArenaBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: Owned: `len` bytes of the lease, mapped zeroed, so initialised.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len as usize) }
    }
}

impl DerefMut for ArenaBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: Owned, as in `deref`, and `&mut self` is the only access.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len as usize) }
    }
}

impl fmt::Debug for ArenaBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ArenaBuf({} bytes, no. {})", self.len, self.index)
    }
}

// SAFETY: Still. The lease keeps the mapping, whose address never changes.
unsafe impl IoBuf for ArenaBuf {
    fn stable_ptr(&self) -> *const u8 {
        self.base.as_ptr()
    }

    fn init_bytes(&self) -> usize {
        self.len as usize
    }
}

// SAFETY: Still, and the lease is the only way to these bytes.
unsafe impl IoBufMut for ArenaBuf {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.base.as_ptr()
    }

    fn lent_bytes(&self) -> usize {
        self.len as usize
    }

    unsafe fn set_init(&mut self, _: usize) {
        // Zeroed at birth: nothing is ever uninitialised.
    }
}
