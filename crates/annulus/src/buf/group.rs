//! # Safety
//!
//! The receive buffers of a core. With a ring, they form a group (a provided buffer ring) from which the kernel takes
//! buffers. Without a ring, they form a list. Each buffer is in one of three places: in the kernel's ring (Lent), in a
//! `Chunk`, or on the list. It is returned once (Once), because a `Chunk` cannot be copied and returns its buffer on
//! drop. The last owner frees the memory (Owned).
//!
//! If the kernel fills a buffer incrementally (`incremental.rs`), several chunks share the buffer, each with its own
//! bytes. The buffer is returned when the kernel has finished with it and the last of these chunks has been dropped.
//!
//! Only the home thread touches `Home` (Held). A chunk that is dropped on another thread leaves its number under the
//! lock, and the home thread collects it.
#![allow(unsafe_code)]

mod incremental;
#[cfg(test)]
mod tests;

use std::cell::{Cell, UnsafeCell};
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use super::{IoBuf, IoBufMut, ReadTarget, copy_in};
use crate::error::SetupError;
use crate::fd::Socket;
use crate::narrow::to_u32;
use crate::sys::forked;
use crate::sys::mapping::{HugePages, Mapping};
use crate::sys::net;
use crate::sys::register::BufRing;
use crate::sys::ring::Ring;
use incremental::Parts;

/// The way the kernel fills a core's receive buffers.
///
/// ```
/// use annulus::runtime::{ReceiveMode, Runtime};
///
/// // The kernel may lack the mode; then another one is used, and `CoreInfo::backend` reports the reason.
/// # fn main() -> std::io::Result<()> {
/// Runtime::builder().receive_mode(ReceiveMode::Incremental).run(|core| async move {
///     println!("{}", core.backend());
///     Ok(())
/// })
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReceiveMode {
    /// Each receive takes a whole buffer, however little data arrives.
    #[default]
    Whole,
    /// A receive continues in the buffer of the previous one until that is full, so little data takes little memory.
    /// Needs Linux 6.12.
    Incremental,
}

/// The number, size and filling mode of a core's receive buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupLayout {
    /// A power of two, at most 32,768.
    pub(crate) count: u16,
    pub(crate) bytes: u32,
    pub(crate) mode: ReceiveMode,
}

impl GroupLayout {
    /// Returns the best layout for `mode` (docs/internals/design.md, "Receive buffers").
    pub(crate) const fn of(mode: ReceiveMode) -> GroupLayout {
        let (count, bytes) = match mode {
            ReceiveMode::Whole => (128, 4096),
            ReceiveMode::Incremental => (8, 64 << 10),
        };
        GroupLayout { count, bytes, mode }
    }
}

/// The group's number in the ring: one group per ring.
const GROUP: u16 = 0;

thread_local! {
    /// The group of the core that runs on this thread.
    static HOME: Cell<*const GroupShared> = const { Cell::new(std::ptr::null()) };
}

/// The core's handle to the group.
pub(crate) struct Group(NonNull<GroupShared>);

struct GroupShared {
    /// The process that created the group. A forked child has neither the memory nor the ring of buffers.
    process: u64,
    memory: Mapping,
    layout: GroupLayout,
    home: UnsafeCell<Home>,
    /// The numbers of buffers that were returned on other threads.
    away: Mutex<Away>,
    /// Set while `away` has numbers.
    has_away: AtomicBool,
}

/// The state that only the core's thread touches.
struct Home {
    /// `None` without a ring; then `free` has the buffers.
    ring: Option<BufRing>,
    free: Vec<u16>,
    /// The number of existing chunks. Equal to the number of buffers in use, unless chunks share a buffer.
    lent: u32,
    filling: Filling,
}

/// The state that the filling mode needs.
enum Filling {
    Whole,
    Incremental(Parts),
}

#[derive(Default)]
struct Away {
    ids: Vec<u16>,
    /// Set once the core has ended: the number of remaining chunks. The last one frees the memory.
    ended: Option<u32>,
}

impl Group {
    /// Creates the group of the calling thread. The kernel takes buffers from it if there is a `ring`.
    pub(crate) fn new(ring: Option<&mut Ring>, layout: GroupLayout) -> Result<Group, SetupError> {
        let bytes = usize::from(layout.count) * layout.bytes as usize;
        let os = |error: io::Error| SetupError::Os {
            what: "memory for receive buffers",
            error,
        };
        let memory = Mapping::new(bytes, HugePages::SystemDefault).map_err(os)?;
        memory.keep_from_children(true);
        // Without a ring, each buffer is filled by one receive.
        let mode = ring.as_ref().map_or(ReceiveMode::Whole, |_| layout.mode);
        let ring = match ring {
            Some(ring) => Some(match mode {
                ReceiveMode::Incremental => {
                    ring.register_incremental_buf_ring(layout.count, GROUP)?
                }
                _ => ring.register_buf_ring(layout.count, GROUP)?,
            }),
            None => None,
        };
        let layout = GroupLayout { mode, ..layout };
        let shared = Box::new(GroupShared {
            process: forked::process(),
            memory,
            layout,
            home: UnsafeCell::new(Home {
                ring,
                free: Vec::with_capacity(usize::from(layout.count)),
                lent: 0,
                filling: match mode {
                    ReceiveMode::Whole => Filling::Whole,
                    ReceiveMode::Incremental => Filling::Incremental(Parts::new(layout)),
                },
            }),
            away: Mutex::default(),
            has_away: AtomicBool::new(false),
        });
        let group = Group(NonNull::from(Box::leak(shared)));
        HOME.set(group.0.as_ptr());
        (0..layout.count).for_each(|id| group.shared().provide(id));
        Ok(group)
    }

    fn shared(&self) -> &GroupShared {
        // SAFETY: Owned: freed by `end`, which consumes the group, or by the last chunk after it.
        unsafe { self.0.as_ref() }
    }

    pub(crate) fn id(&self) -> u16 {
        GROUP
    }

    /// Returns the size of one buffer in bytes.
    pub(crate) fn buffer_bytes(&self) -> u32 {
        self.shared().layout.bytes
    }

    pub(crate) fn layout(&self) -> GroupLayout {
        self.shared().layout
    }

    /// Returns the way the kernel fills the buffers.
    pub(crate) fn mode(&self) -> ReceiveMode {
        self.shared().layout.mode
    }

    /// Returns the number of buffers without chunks, if no chunks share a buffer.
    pub(crate) fn free(&self) -> u32 {
        // SAFETY: Held: on the home thread, where a `Group` stays (it is not `Send`).
        let lent = unsafe { (*self.shared().home.get()).lent };
        u32::from(self.shared().layout.count) - lent
    }

    /// Returns whether no chunk exists.
    pub(crate) fn is_whole(&self) -> bool {
        self.free() == u32::from(self.shared().layout.count)
    }

    /// Returns whether buffers run low, so that received data must be copied out.
    fn is_scarce(&self) -> bool {
        // The last buffer never stays with a chunk, even in the smallest group.
        self.free() < (u32::from(self.shared().layout.count) / 4).max(1)
    }

    /// Returns the chunk for `bytes` bytes that the kernel has put into the whole buffer `id` and reported in a CQE.
    #[inline]
    pub(crate) fn received(&self, id: u16, bytes: u32) -> Chunk {
        let shared = self.shared();
        let bytes = bytes.min(shared.layout.bytes);
        // SAFETY: Held: on the home thread.
        let home = unsafe { &mut *shared.home.get() };
        home.lent += 1;
        let chunk = self.chunk(id, 0, bytes);
        // A task that keeps chunks must not starve the others.
        if self.is_scarce() {
            return Chunk::copy_of(&chunk);
        }
        chunk
    }

    /// Passes on the chunk, if any, that the kernel has reported in a CQE, in either mode. `goes_on` means that the
    /// kernel keeps the buffer. Returns `false` if the kernel names a buffer that it does not have; the received data
    /// is then unknown.
    #[inline]
    pub(crate) fn received_parts(
        &self,
        id: u16,
        bytes: u32,
        goes_on: bool,
        mut each: impl FnMut(Chunk),
    ) -> bool {
        match self.mode() {
            ReceiveMode::Incremental => match self.received_behind(id, bytes, goes_on) {
                Some(chunk) => {
                    chunk.into_iter().for_each(each);
                    true
                }
                None => false,
            },
            ReceiveMode::Whole => {
                let chunk = self.received(id, bytes);
                if bytes > 0 {
                    each(chunk);
                }
                true
            }
        }
    }

    /// Returns the next `bytes` bytes of buffer `id`, if any.
    fn received_behind(&self, id: u16, bytes: u32, goes_on: bool) -> Option<Option<Chunk>> {
        let shared = self.shared();
        // SAFETY: Held: on the home thread; no chunk is dropped while this reference is alive.
        let home = unsafe { &mut *shared.home.get() };
        let Filling::Incremental(parts) = &mut home.filling else {
            return None;
        };
        let part = parts.receive(id, bytes, goes_on)?;
        if bytes == 0 {
            return Some(None);
        }
        home.lent += 1;
        let chunk = self.chunk(id, part.from, bytes);
        Some(Some(if part.is_scarce {
            Chunk::copy_of(&chunk)
        } else {
            chunk
        }))
    }

    /// Returns an empty buffer to receive into without a ring: from the list, or newly allocated.
    pub(crate) fn blank(&self) -> Chunk {
        let shared = self.shared();
        // SAFETY: Held: on the home thread, and nothing else refers to it meanwhile.
        let home = unsafe { &mut *shared.home.get() };
        match home.free.pop() {
            Some(id) => {
                home.lent += 1;
                self.chunk(id, 0, 0)
            }
            None => Chunk::with_capacity(shared.layout.bytes as usize),
        }
    }

    /// Returns a chunk for `bytes` bytes of buffer `id`, starting at `start`. The caller has counted it in `lent`.
    #[inline]
    fn chunk(&self, id: u16, start: u32, bytes: u32) -> Chunk {
        let start = start as usize;
        Chunk {
            base: self.shared().base(id),
            start,
            end: start + bytes as usize,
            memory: Memory::Group { id, group: self.0 },
        }
    }

    /// Collects the buffers that other threads have returned.
    pub(crate) fn fetch(&self) {
        let shared = self.shared();
        if !shared.has_away.swap(false, Ordering::Acquire) {
            return;
        }
        let ids = std::mem::take(&mut shared.lock().ids);
        ids.into_iter().for_each(|id| shared.take_back(id));
    }

    /// Ends the core while the kernel may still take a buffer: leaks all memory.
    pub(crate) fn leak(self) {
        HOME.set(std::ptr::null());
    }

    /// Ends the core when nothing is in flight. Existing chunks stay valid.
    pub(crate) fn end(self, ring: Option<&mut Ring>) {
        HOME.set(std::ptr::null());
        self.fetch();
        // SAFETY: Held: on the home thread, for the last time.
        let home = unsafe { &mut *self.shared().home.get() };
        if let (Some(buffers), Some(ring)) = (home.ring.take(), ring) {
            // If the kernel refuses, the ring's pages stay mapped; nothing is received into it any more.
            let _ = ring.unregister_buf_ring(buffers);
        }
        let mut away = self.shared().lock();
        let left = home.lent - to_u32(away.ids.len());
        if left > 0 {
            away.ended = Some(left);
            return;
        }
        drop(away);
        // SAFETY: Owned: leaked in `new`; no chunk refers to it any more, and this handle is consumed.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl GroupShared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Away> {
        self.away.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn base(&self, id: u16) -> NonNull<u8> {
        let from = usize::from(id) * self.layout.bytes as usize;
        debug_assert!(from < self.memory.bytes());
        // SAFETY: Owned: `id` is below the count that the mapping was made for.
        unsafe { NonNull::new_unchecked(self.memory.base().add(from)) }
    }

    /// Removes a chunk of buffer `id`. Called on the home thread.
    #[inline]
    fn take_back(&self, id: u16) {
        // SAFETY: Held: the callers ensure the thread; no other reference is alive.
        let home = unsafe { &mut *self.home.get() };
        home.lent -= 1;
        if let Filling::Incremental(parts) = &mut home.filling
            && !parts.release(id)
        {
            return;
        }
        self.provide(id);
    }

    /// Makes the unused buffer `id` available for the next receive. Called on the home thread.
    #[inline]
    fn provide(&self, id: u16) {
        // SAFETY: Held: the callers ensure the thread; no other reference is alive.
        let home = unsafe { &mut *self.home.get() };
        match &mut home.ring {
            Some(_) if self.process != forked::process() => {}
            Some(ring) => {
                let base = self.base(id).as_ptr();
                // SAFETY: Lent, Still, Once: the buffer belongs to the mapping, which stays until the group is
                // unregistered; its chunks have been dropped, and no other buffer has this number.
                unsafe { ring.add(base, self.layout.bytes, id) };
                ring.publish();
            }
            None => home.free.push(id),
        }
    }

    /// Returns a buffer on any other thread, or after the core has ended. Returns `true` for the last one.
    fn leave(&self, id: u16) -> bool {
        let mut away = self.lock();
        if let Some(left) = &mut away.ended {
            *left -= 1;
            return *left == 0;
        }
        away.ids.push(id);
        self.has_away.store(true, Ordering::Release);
        false
    }
}

/// Bytes that a socket has received, in a buffer of the core. Dropping the chunk returns the buffer.
///
/// While fewer than a quarter of the buffers are free, received data is copied into separate memory, so a task that
/// keeps chunks cannot starve other connections. A chunk may be sent to other threads, and may outlive its core.
///
/// A parser consumes the front of a chunk and keeps the rest:
///
/// ```
/// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
/// # let (near, far) = annulus::net::UnixStream::pair()?;
/// near.send_all("key=value").await?;
/// let mut chunk = far.recv_multishot().next().await.expect("the stream is open")?;
/// if let Some(end) = chunk.iter().position(|&byte| byte == b'=') {
///     chunk.advance(end + 1); // without a copy
/// }
/// assert_eq!(&chunk[..], b"value");
/// let owned = chunk.to_vec(); // for data that is kept: a chunk occupies a whole buffer of the core
/// # drop(owned);
/// # Ok(()) })? }
/// ```
pub struct Chunk {
    base: NonNull<u8>,
    // `usize`, because data that a caller pushes back (`copy_of`) may have any size.
    start: usize,
    end: usize,
    memory: Memory,
}

/// The owner of a chunk's memory.
#[derive(Clone, Copy)]
enum Memory {
    /// Buffer `id` of a group, to which it is returned.
    Group {
        id: u16,
        group: NonNull<GroupShared>,
    },
    /// A box of `bytes` bytes, which the chunk frees.
    Own { bytes: usize },
}

// Streams keep chunks in queues, so a chunk must not grow unnoticed.
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Option<Chunk>>() == 40);

// SAFETY: Owned: a chunk is the only reference to its bytes; `Drop` handles foreign threads.
unsafe impl Send for Chunk {}
// SAFETY: Owned: a shared reference only reads the bytes.
unsafe impl Sync for Chunk {}

impl Chunk {
    /// Creates a chunk with its own memory, of which the first `filled` bytes are initialised.
    fn owning(memory: Box<[MaybeUninit<u8>]>, filled: usize) -> Chunk {
        let bytes = memory.len();
        debug_assert!(filled <= bytes);
        let base = NonNull::from(Box::leak(memory)).cast();
        Chunk {
            base,
            start: 0,
            end: filled,
            memory: Memory::Own { bytes },
        }
    }

    /// Creates a chunk with a copy of `bytes`.
    pub(crate) fn copy_of(bytes: &[u8]) -> Chunk {
        Chunk::from_vec(bytes.to_vec())
    }

    /// Creates an empty chunk with its own memory.
    pub(crate) fn with_capacity(bytes: usize) -> Chunk {
        Chunk::owning(Box::new_uninit_slice(bytes), 0)
    }

    /// Creates a chunk from a vector, without a copy.
    pub(crate) fn from_vec(mut vec: Vec<u8>) -> Chunk {
        let filled = vec.len();
        let (base, bytes) = (vec.as_mut_ptr(), vec.capacity());
        if bytes == 0 {
            return Chunk::with_capacity(0);
        }
        std::mem::forget(vec);
        let memory = std::ptr::slice_from_raw_parts_mut(base.cast::<MaybeUninit<u8>>(), bytes);
        // SAFETY: Owned: the vector's block of `capacity` bytes has the layout of a box of that size, and the vector
        // has been forgotten.
        Chunk::owning(unsafe { Box::from_raw(memory) }, filled)
    }

    /// Receives into an empty chunk without waiting. Returns the number of bytes, or a negated errno.
    pub(crate) fn receive(&mut self, socket: &Socket) -> i32 {
        let space = self.space();
        // SAFETY: Lent and Open: both are borrowed for the call.
        let res = unsafe { net::recv(socket.raw(), self.base.as_ptr(), space) };
        // Written: `res` bytes have been written, or none on an error.
        self.end = usize::try_from(res).unwrap_or(0).min(space);
        res
    }

    /// Returns the size of the buffer.
    fn space(&self) -> usize {
        match self.memory {
            // SAFETY: Owned: the group's memory lives as long as a chunk of it.
            Memory::Group { group, .. } => unsafe { group.as_ref() }.layout.bytes as usize,
            Memory::Own { bytes } => bytes,
        }
    }

    /// Returns whether the buffer is full.
    pub(crate) fn is_full(&self) -> bool {
        self.end == self.space()
    }

    /// Moves as many bytes as fit to the start of `buf`, and returns the number of bytes.
    pub(crate) fn copy_to<B: IoBufMut>(&mut self, buf: &mut B) -> usize {
        let bytes = self.len().min(buf.fill_bytes());
        copy_in(buf, &self[..bytes]);
        self.advance(bytes);
        bytes
    }

    /// Drops the first `bytes` bytes, or all of them if there are fewer.
    pub fn advance(&mut self, bytes: usize) {
        self.start += bytes.min(self.len());
    }
}

impl Deref for Chunk {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: Owned, Written: `start..end` lies within the buffer and was received.
        unsafe {
            std::slice::from_raw_parts(self.base.as_ptr().add(self.start), self.end - self.start)
        }
    }
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

// SAFETY: Still: the buffer does not move until the chunk is dropped, and no code writes to it.
unsafe impl IoBuf for Chunk {
    #[inline]
    fn stable_ptr(&self) -> *const u8 {
        self.as_ptr()
    }

    #[inline]
    fn init_bytes(&self) -> usize {
        self.len()
    }
}

impl Drop for Chunk {
    #[inline]
    fn drop(&mut self) {
        let (id, home) = match self.memory {
            Memory::Group { id, group } => (id, group),
            Memory::Own { bytes } => {
                let base = self.base.cast::<MaybeUninit<u8>>();
                let memory = NonNull::slice_from_raw_parts(base, bytes);
                // SAFETY: Owned: leaked in `owning`, of `bytes` bytes, and freed here only.
                return drop(unsafe { Box::from_raw(memory.as_ptr()) });
            }
        };
        // SAFETY: Owned: the group's memory lives as long as a chunk of it.
        let shared = unsafe { home.as_ref() };
        if std::ptr::eq(HOME.get(), home.as_ptr()) {
            shared.take_back(id);
        } else if shared.leave(id) {
            // SAFETY: Owned: leaked in `new`; the core has ended and this was the last chunk.
            drop(unsafe { Box::from_raw(home.as_ptr()) });
        }
    }
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chunk({} bytes)", self.len())
    }
}
