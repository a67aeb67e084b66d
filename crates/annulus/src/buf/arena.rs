//! # Safety
//!
//! An arena: buffers of one size in one range of memory, which rings register as a whole. A buffer is a lease: it
//! belongs to one `ArenaBuf` at a time and is returned when that is dropped. A lent buffer is dropped only after the
//! final CQE (Lent). The range stays mapped at its address while an arena, a lease or a ring refers to it (Owned,
//! Still).
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

/// The maximum size of an arena, in bytes: half of the slots in a ring's table.
const ARENA_BYTES_MAX: u64 = 1 << 40;
/// The maximum number of buffers of an arena: their numbers have 32 bits, and one value is reserved.
const COUNT_MAX: usize = 1 << 30;

/// The number and size of the buffers of an arena, for [`Engine::register_buffers`](crate::Engine::register_buffers).
///
/// ```
/// # use annulus::buf::BufferLayout;
/// let layout = BufferLayout::new(64, 64 << 10);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BufferLayout {
    /// The number of buffers; 64 by default.
    pub count: usize,
    /// The size of each buffer in bytes; 65,536 by default, at most 1 GiB. Each buffer starts at a multiple of 4,096.
    pub bytes: usize,
    /// The kind of pages to request; transparent huge pages by default.
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
    /// Returns a layout of `count` buffers of `bytes` bytes each, on transparent huge pages.
    pub fn new(count: usize, bytes: usize) -> BufferLayout {
        BufferLayout {
            count,
            bytes,
            ..BufferLayout::default()
        }
    }

    /// Sets the kind of pages to request.
    ///
    /// The request is no guarantee; [`Arena::pages`] returns the kind that the memory got:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// use annulus::buf::{BufferLayout, HugePages, PagesInUse};
    ///
    /// let engine = annulus::Engine::new()?;
    /// let layout = BufferLayout::new(4, 1 << 20).huge_pages(HugePages::Reserved);
    /// let arena = engine.register_buffers(layout)?;
    /// if arena.pages() != PagesInUse::Reserved {
    ///     eprintln!("{}; increase the sysctl vm.nr_hugepages", arena.pages());
    /// }
    /// # Ok(()) }) }
    /// ```
    #[must_use]
    pub fn huge_pages(mut self, huge_pages: HugePages) -> BufferLayout {
        self.huge_pages = huge_pages;
        self
    }

    /// Returns the distance between buffers and the total size, or an error if the layout is invalid. `count` and
    /// `bytes` of a valid layout fit into 32 bits.
    fn check(&self) -> Result<(usize, usize), SetupError> {
        let BufferLayout { count, bytes, .. } = *self;
        let invalid = |reason: &str| {
            let what =
                format!("cannot create an arena of {count} buffers of {bytes} bytes: {reason}");
            Err(SetupError::Config(what))
        };
        if count == 0 || bytes == 0 {
            return invalid("both numbers must be at least 1");
        }
        if bytes > RANGE_BYTES_MAX {
            return invalid("a buffer may have at most 1 GiB");
        }
        if count > COUNT_MAX {
            return invalid("an arena may have at most 1,073,741,824 buffers");
        }
        let stride = bytes.next_multiple_of(PAGE_BYTES);
        match stride.checked_mul(count) {
            Some(all) if all as u64 <= ARENA_BYTES_MAX => Ok((stride, all)),
            _ => invalid("an arena may have at most 1 TiB"),
        }
    }
}

/// Buffers of one size that the rings of an engine have registered. The kernel has their pages pinned, so an operation
/// does not pin them again. Cheap to clone.
///
/// Returned by [`Engine::register_buffers`](crate::Engine::register_buffers). Reads and writes of an [`ArenaBuf`], or
/// of a [`subslice`](IoBuf::subslice) of one, use the registration automatically.
///
/// When the last clone and the last [`ArenaBuf`] have been dropped, the rings release the memory immediately, including
/// idle rings.
///
/// `Display` writes its size, and how much of it is registered.
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// # let dir = tempfile::tempdir()?; let path = dir.path().join("data"); std::fs::write(&path, vec![7; 65_536])?;
/// use annulus::buf::BufferLayout;
///
/// let engine = annulus::Engine::new()?;
/// let arena = engine.register_buffers(BufferLayout::new(64, 4096))?;
/// println!("{arena}");                                     // the reason, if it is not registered
///
/// let file = engine.open(&path).await?;
/// let page = file.read_exact_at(arena.take().await, 8192).await?;
/// assert_eq!((page.len(), page[0]), (4096, 7));
/// drop(page);                                              // returns the buffer to the arena
/// assert_eq!(arena.free(), 64);
/// # Ok(()) }) }
/// ```
#[derive(Clone)]
pub struct Arena {
    shared: Arc<ArenaShared>,
}

struct ArenaShared {
    region: Arc<RegisteredRegion>,
    layout: BufferLayout,
    arenas: Arc<Arenas>,
    free_list: Mutex<FreeList>,
}

impl Arena {
    /// Creates an arena and adds it to `arenas`.
    pub(crate) fn new(layout: BufferLayout, arenas: &Arc<Arenas>) -> Result<Arena, SetupError> {
        let (stride, bytes) = layout.check()?;
        let memory = Mapping::new(bytes, layout.huge_pages).map_err(|error| SetupError::Os {
            what: "mapping the memory of an arena",
            error,
        })?;
        memory.keep_from_children(true);
        let region = Arc::new(RegisteredRegion::new(Arc::new(memory), stride, bytes));
        arenas.add(&region);
        let shared = ArenaShared {
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

    /// Takes a buffer, and waits until one is free. Waiting tasks are served in the order of their calls.
    ///
    /// The contents are those that the last user left, and zeros at first.
    ///
    /// Cancel safe: dropping the future gives up the position in the queue, and loses no buffer.
    ///
    /// Tasks that hold one buffer and wait for a second one may wait for each other forever. Take the second one with
    /// [`try_take`](Arena::try_take):
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// use annulus::buf::BufferLayout;
    ///
    /// let engine = annulus::Engine::new()?;
    /// let arena = engine.register_buffers(BufferLayout::new(1, 4096))?;
    /// let first = arena.take().await;
    /// assert!(arena.try_take().is_none());
    /// drop(first);
    /// let first = arena.take().await; // free again
    /// # drop(first);
    /// # Ok(()) }) }
    /// ```
    pub fn take(&self) -> Take<'_> {
        Take {
            arena: self,
            position: None,
        }
    }

    /// Takes a buffer if one is free.
    ///
    /// A server that refuses work when its memory is in use, instead of letting it queue:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// use annulus::buf::BufferLayout;
    ///
    /// let engine = annulus::Engine::new()?;
    /// let arena = engine.register_buffers(BufferLayout::new(1, 4096))?;
    /// let first = arena.try_take();
    /// let second = arena.try_take();
    /// assert!(first.is_some() && second.is_none()); // answer "busy"
    /// # Ok(()) }) }
    /// ```
    pub fn try_take(&self) -> Option<ArenaBuf> {
        let index = self.shared.free_list().take()?;
        Some(self.lease(index))
    }

    /// Returns the number of free buffers.
    pub fn free(&self) -> usize {
        self.shared.free_list().free()
    }

    /// Returns the requested layout.
    pub fn layout(&self) -> BufferLayout {
        self.shared.layout
    }

    /// Returns the kind of pages in use.
    pub fn pages(&self) -> PagesInUse {
        self.shared.region.memory.pages()
    }

    /// Returns how much of the arena the engine's rings have registered so far. A ring that is created later also
    /// tries.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// use annulus::buf::BufferLayout;
    ///
    /// let engine = annulus::Engine::new()?;
    /// let arena = engine.register_buffers(BufferLayout::default())?;
    /// let registered = arena.registered();
    /// if registered.full < registered.rings {
    ///     // The buffers work; they are only slower. The reason is often `ulimit -l`.
    ///     eprintln!("{registered}");
    /// }
    /// # Ok(()) }) }
    /// ```
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

impl ArenaShared {
    fn free_list(&self) -> MutexGuard<'_, FreeList> {
        // Only a failed allocation can panic while the lock is held, and the list is consistent then.
        self.free_list
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn give(&self, index: u32) {
        // Wakes outside the lock, because a waker is foreign code.
        let waker = self.free_list().give(index);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Drop for ArenaShared {
    fn drop(&mut self) {
        // In a forked child, a thread that does not exist there may hold the locks; and its rings are not in use.
        if !self.region.memory.is_elsewhere() {
            // No lease is left, so no operation refers to the memory.
            self.arenas.remove(&self.region);
        }
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

/// The future of [`Arena::take`].
///
/// It can be raced against something else. Dropping it gives up the place in the queue:
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// use annulus::buf::BufferLayout;
///
/// let engine = annulus::Engine::new()?;
/// let arena = engine.register_buffers(BufferLayout::new(1, 4096))?;
/// let held = arena.take().await;
/// assert!(futures_lite::future::poll_once(arena.take()).await.is_none());
/// drop(held);
/// assert_eq!(arena.free(), 1); // the abandoned request took nothing
/// # Ok(()) }) }
/// ```
#[must_use = "a buffer is taken when this is awaited"]
pub struct Take<'a> {
    arena: &'a Arena,
    /// The position in the queue, while waiting.
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
        // Clones and drops outside the lock, because a waker is foreign code.
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

/// A buffer of an [`Arena`]. Dropping it returns the buffer to the arena. If the future of an operation is dropped, the
/// engine drops the operation's buffer once the kernel has finished with it.
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// # let dir = tempfile::tempdir()?;
/// # let engine = annulus::Engine::new()?;
/// use annulus::{IoBuf, buf::BufferLayout};
///
/// let arena = engine.register_buffers(BufferLayout::new(2, 4096))?;
/// let file = engine.create(dir.path().join("log")).await?;
/// let mut buf = arena.take().await;
/// buf[..6].copy_from_slice(b"record");
/// // Without the subslice, all 4,096 bytes would be written.
/// let buf = file.write_all_at(buf.subslice(..6), 0).await?.into_inner();
/// assert_eq!(file.metadata().await?.len(), 6);
/// drop(buf);
/// // Buffers are recycled with the contents that they had.
/// assert!((0..2).map(|_| arena.try_take().unwrap()).any(|buf| buf.starts_with(b"record")));
/// # Ok(()) }) }
/// ```
pub struct ArenaBuf {
    base: NonNull<u8>,
    // Both have 32 bits, so that an operation on a slice of a lease fits its slot.
    len: u32,
    index: u32,
    shared: Arc<ArenaShared>,
}

// SAFETY: Owned: like a Box, the lease is the only access to these bytes.
unsafe impl Send for ArenaBuf {}
// SAFETY: Owned: like a Box, the lease is the only access to these bytes; shared access only reads.
unsafe impl Sync for ArenaBuf {}

impl ArenaBuf {
    /// Sets the length that operations use and that the slice has. A later call may raise it again.
    ///
    /// The last page of a file that does not end at a page:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// use annulus::buf::BufferLayout;
    ///
    /// let arena = engine.register_buffers(BufferLayout::new(1, 4096))?;
    /// let file = engine.create(dir.path().join("data")).await?;
    /// let mut buf = arena.take().await;
    /// buf.set_len(100);
    /// let mut buf = file.write_all_at(buf, 0).await?; // 100 bytes
    /// buf.set_len(buf.capacity()); // for the next user; a new lease has the whole length in any case
    /// assert_eq!((file.metadata().await?.len(), buf.len()), (100, 4096));
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if `bytes` exceeds [`capacity`](ArenaBuf::capacity).
    pub fn set_len(&mut self, bytes: usize) {
        assert!(
            bytes <= self.capacity(),
            "cannot set the length to {bytes} bytes: the arena's buffers have {}",
            self.capacity()
        );
        self.len = to_u32(bytes);
    }

    /// Returns the size of the buffer in bytes, as in the arena's layout.
    pub fn capacity(&self) -> usize {
        self.shared.layout.bytes
    }

    /// Returns the number of the buffer within the arena, starting at 0.
    ///
    /// Buffers lie in the order of their numbers: buffer n starts n times the layout's `bytes`, rounded up to a
    /// multiple of 4,096, after buffer 0. A buffer may be kept as long as the program runs, and used for any number of
    /// operations; each of them uses the registration.
    ///
    /// The number finds what belongs to a buffer, in a table beside the arena:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// use annulus::buf::BufferLayout;
    ///
    /// let engine = annulus::Engine::new()?;
    /// let arena = engine.register_buffers(BufferLayout::new(4, 4096))?;
    /// let mut uses = vec![0; arena.layout().count];
    /// for _ in 0..10 {
    ///     let buf = arena.take().await;
    ///     uses[buf.index()] += 1;
    /// }
    /// assert_eq!(uses.iter().sum::<i32>(), 10);
    /// # Ok(()) }) }
    /// ```
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
        // Nothing to do: mapped zeroed, so always initialised.
    }
}
