//! Buffers: the traits [`IoBuf`] and [`IoBufMut`], aligned memory, registered arenas and received chunks.
//!
//! # Safety
//!
//! `IoBuf` and `IoBufMut` are promises about an address: it stays valid and in place while the value
//! lives, wherever the value itself is moved (Still). The implementations here are the ones std's
//! types can keep.
#![allow(unsafe_code)]

mod aligned;
mod arena;
mod bounce;
#[cfg(feature = "bytes")]
mod bytes;
mod contract;
#[cfg(feature = "net")]
mod filling;
mod free_list;
#[cfg(feature = "net")]
mod group;
mod region;
mod registered_region;
mod slice;

pub use aligned::AlignedBuf;
pub use arena::{Arena, ArenaBuf, BufferLayout, Take};
pub(crate) use bounce::{Bounce, BouncePool};
pub(crate) use contract::{check_capacity, check_lent, no_capacity};
#[cfg(feature = "net")]
pub(crate) use filling::Filling;
#[cfg(feature = "net")]
pub use group::{Chunk, ReceiveMode};
#[cfg(feature = "net")]
pub(crate) use group::{Group, GroupLayout};
pub use region::Region;
pub(crate) use region::{Piece, Pieces};
pub use registered_region::Registered;
pub(crate) use registered_region::{Arenas, Follow, RegisteredRegion};
pub use slice::Slice;

pub use crate::sys::mapping::{HugePages, PagesInUse};

use std::mem::MaybeUninit;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

/// A buffer whose bytes an operation may read: the source of a write.
///
/// Owned, so that it can outlive the future that was given it (a dropped future leaves its buffer
/// with the engine until the kernel lets go). To lend a part, wrap it: [`IoBuf::subslice`].
///
/// What is only borrowed is refused by the compiler; [`File::read_into`](crate::File::read_into)
/// fills it soundly:
///
/// ```compile_fail,E0277
/// async fn fill(file: &annulus::File, page: &mut [u8]) {
///     let _ = file.read_at(page, 0).await;
/// }
/// ```
///
/// So is a buffer that borrows, though its type could be lent permanently:
///
/// ```compile_fail,E0521
/// async fn store(file: &annulus::File, page: &[u8]) {
///     let _ = file.write_at(page, 0).await;
/// }
/// ```
///
/// # Safety
///
/// The library reads the bytes through a raw pointer, from other threads, and after the future that was
/// given the buffer is gone. It relies on the following from the moment a buffer is passed to it until the
/// buffer is given back or dropped, wherever the value is moved meanwhile:
///
/// - `stable_ptr` points to `init_bytes` bytes of one allocation. They are initialised and may be read from
///   any thread. The pointer is not null, even if `init_bytes` is 0.
/// - Both methods return the same at every call. A transfer that was short goes on from the pointer and the
///   count that they return then, and [`Slice`] checks its bounds only once. Only
///   [`set_init`](IoBufMut::set_init) changes `init_bytes`, and nothing changes the address.
/// - Nobody else writes to the bytes: neither through a handle that shares the memory nor by the methods
///   themselves.
///
/// A method that panics breaks no promise. A driver or a blocking thread calls both methods; if one of them panics
/// there, its operation fails with [`EngineError::Panicked`](crate::EngineError::Panicked), and no other one does.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be lent to the kernel",
    label = "not an owned buffer with a stable address",
    note = "pass an owned `Vec<u8>`, `Box<[u8]>`, `Arc<[u8]>` or `AlignedBuf`; it comes back with the result",
    note = "`Bytes` and `BytesMut` need the feature `bytes` of annulus",
    note = "to fill a borrowed `&mut [u8]`, use `File::read_into`"
)]
pub unsafe trait IoBuf: Send + 'static {
    /// Where the bytes are.
    fn stable_ptr(&self) -> *const u8;

    /// How many of them, from the start, are initialised.
    fn init_bytes(&self) -> usize;

    /// Returns the bytes of `range` as a buffer. An operation on it sees only those bytes.
    /// [`Slice::into_inner`] returns the whole buffer.
    ///
    /// An open end stands for [`init_bytes`](IoBuf::init_bytes). The name differs from `slice` because `Bytes` and
    /// `BytesMut` have methods of their own by that name, which would take precedence.
    ///
    /// ```
    /// use annulus::IoBuf;
    ///
    /// let part = b"0123456789".to_vec().subslice(4..7);
    /// assert_eq!(&part[..], b"456");
    /// assert_eq!(part.into_inner(), b"0123456789");
    /// ```
    ///
    /// # Panics
    ///
    /// If the range starts after its end, or ends beyond the buffer's initialised bytes.
    fn subslice(self, range: impl RangeBounds<usize>) -> Slice<Self>
    where
        Self: Sized,
    {
        let from = match range.start_bound() {
            Bound::Included(&from) => from,
            Bound::Excluded(&before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let to = match range.end_bound() {
            Bound::Included(&last) => last.saturating_add(1),
            Bound::Excluded(&to) => to,
            Bound::Unbounded => self.init_bytes(),
        };
        Slice::new(self, from, to)
    }
}

/// A buffer that an operation may fill: the target of a read.
///
/// # Safety
///
/// As for [`IoBuf`], and for as long:
///
/// - `stable_mut_ptr` returns the same address as [`stable_ptr`](IoBuf::stable_ptr): what is filled is what
///   is read afterwards.
/// - `lent_bytes` bytes from there, of the same allocation, may be written to from any thread, initialised
///   or not, and nobody else reads or writes them.
/// - What is initialised lies within what is lent: `init_bytes` is at most `lent_bytes`.
/// - What a read keeps is initialised: `kept_bytes` is at most `init_bytes`.
/// - All three methods return the same at every call until `set_init` is called. After that `lent_bytes` and
///   `kept_bytes` may be other numbers; the address stays.
/// - After `set_init(n)`, `init_bytes` is at least `n` and not less than it was.
///
/// The library calls `set_init` with at most the number of bytes that it was lent, once they are written.
///
/// A buffer is checked before it is lent. If its two addresses differ, or if it has more initialised bytes than
/// it lends, or keeps more than it has, the operation returns it with [`InvalidInput`].
///
/// [`InvalidInput`]: std::io::ErrorKind::InvalidInput
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be lent to the kernel to be filled",
    label = "not an owned, writable buffer with a stable address",
    note = "pass an owned `Vec<u8>`, `Box<[u8]>` or `AlignedBuf`; it comes back with the result",
    note = "`BytesMut` needs the feature `bytes` of annulus",
    note = "to fill a borrowed `&mut [u8]`, use `File::read_into`"
)]
pub unsafe trait IoBufMut: IoBuf {
    /// Where the bytes are: the address that [`stable_ptr`](IoBuf::stable_ptr) returns.
    fn stable_mut_ptr(&mut self) -> *mut u8;

    /// How many bytes a read may fill, from the start.
    ///
    /// A buffer with contents lends just those (`vec![0; 4096]` asks for 4,096 bytes); an empty one
    /// lends its capacity (`Vec::with_capacity(4096)` does too).
    fn lent_bytes(&self) -> usize;

    /// Returns how many bytes at the start a read keeps. It fills the bytes from there to
    /// [`lent_bytes`](IoBufMut::lent_bytes).
    ///
    /// 0 unless implemented: a read overwrites the contents. A buffer that reads append to returns
    /// [`init_bytes`](IoBuf::init_bytes), as `BytesMut` does.
    fn kept_bytes(&self) -> usize {
        0
    }

    /// Tells the buffer that its first `bytes` bytes are initialised; never shortens it.
    ///
    /// # Safety
    ///
    /// Written: they are, and they are at most [`lent_bytes`](IoBufMut::lent_bytes).
    unsafe fn set_init(&mut self, bytes: usize);
}

// SAFETY: Still. A Vec's heap block does not move while nobody resizes it, and the engine does not.
unsafe impl IoBuf for Vec<u8> {
    fn stable_ptr(&self) -> *const u8 {
        self.as_ptr()
    }

    fn init_bytes(&self) -> usize {
        self.len()
    }
}

// SAFETY: Still. A Vec's heap block does not move while nobody resizes it, and the engine does not;
// `capacity` bytes of the block are ours to write.
unsafe impl IoBufMut for Vec<u8> {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }

    fn lent_bytes(&self) -> usize {
        if self.is_empty() {
            self.capacity()
        } else {
            self.len()
        }
    }

    unsafe fn set_init(&mut self, bytes: usize) {
        if bytes > self.len() {
            // SAFETY: Written, by the caller's promise; `lent_bytes` never exceeds the capacity.
            unsafe { self.set_len(bytes) }
        }
    }
}

// SAFETY: Still. The heap block of a Box stays where it is.
unsafe impl IoBuf for Box<[u8]> {
    fn stable_ptr(&self) -> *const u8 {
        self.as_ptr()
    }

    fn init_bytes(&self) -> usize {
        self.len()
    }
}

// SAFETY: Still, and a Box is its block's only owner.
unsafe impl IoBufMut for Box<[u8]> {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }

    fn lent_bytes(&self) -> usize {
        self.len()
    }

    unsafe fn set_init(&mut self, _: usize) {}
}

// SAFETY: Still. A fixed block behind a pointer, all of it initialised.
unsafe impl<const N: usize> IoBuf for Box<[u8; N]> {
    fn stable_ptr(&self) -> *const u8 {
        self.as_ptr()
    }

    fn init_bytes(&self) -> usize {
        N
    }
}

// SAFETY: Still, and a Box is its block's only owner.
unsafe impl<const N: usize> IoBufMut for Box<[u8; N]> {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }

    fn lent_bytes(&self) -> usize {
        N
    }

    unsafe fn set_init(&mut self, _: usize) {}
}

// SAFETY: Still. Shared and immutable while any handle lives.
unsafe impl IoBuf for Arc<[u8]> {
    fn stable_ptr(&self) -> *const u8 {
        self.as_ptr()
    }

    fn init_bytes(&self) -> usize {
        self.len()
    }
}

// SAFETY: Still. Statics are never freed.
unsafe impl IoBuf for &'static [u8] {
    fn stable_ptr(&self) -> *const u8 {
        self.as_ptr()
    }

    fn init_bytes(&self) -> usize {
        self.len()
    }
}

// SAFETY: Still. Statics are never freed.
unsafe impl IoBuf for &'static str {
    fn stable_ptr(&self) -> *const u8 {
        self.as_ptr()
    }

    fn init_bytes(&self) -> usize {
        self.len()
    }
}

// SAFETY: Still. A String's heap block does not move while nobody resizes it.
unsafe impl IoBuf for String {
    fn stable_ptr(&self) -> *const u8 {
        self.as_ptr()
    }

    fn init_bytes(&self) -> usize {
        self.len()
    }
}

// SAFETY: Still. The box stays where it is, and its contents keep their own promise.
unsafe impl IoBuf for Box<dyn IoBuf> {
    fn stable_ptr(&self) -> *const u8 {
        (**self).stable_ptr()
    }

    fn init_bytes(&self) -> usize {
        (**self).init_bytes()
    }
}

/// The part of a buffer that a read fills: behind what it keeps.
pub(crate) trait ReadTarget: IoBufMut {
    /// Returns the address of the first byte to fill.
    #[inline]
    fn fill_ptr(&mut self) -> *mut u8 {
        let kept = self.kept_bytes();
        self.stable_mut_ptr().wrapping_add(kept)
    }

    /// Returns how many bytes may be filled from `fill_ptr` on.
    #[inline]
    fn fill_bytes(&self) -> usize {
        self.lent_bytes().saturating_sub(self.kept_bytes())
    }

    /// Tells the buffer that `bytes` bytes from `fill_ptr` on are initialised. `fill_ptr` and `fill_bytes` may be
    /// others afterwards.
    ///
    /// # Safety
    ///
    /// Written: they are, and they are at most `fill_bytes`.
    #[inline]
    unsafe fn set_filled(&mut self, bytes: usize) {
        let init = self.kept_bytes() + bytes;
        // SAFETY: Written: the kept bytes by the buffer's promise, those behind them by the caller's.
        unsafe { self.set_init(init) };
    }
}

impl<B: IoBufMut> ReadTarget for B {}

/// Copies `from` to where a read would fill `into`, and tells it so.
pub(crate) fn copy_in<B: IoBufMut>(into: &mut B, from: &[u8]) {
    assert!(
        from.len() <= into.fill_bytes(),
        "a copy stays inside the buffer"
    );
    // SAFETY: Lent: the buffer is ours here, and at least `from.len()` bytes may be filled.
    let target = unsafe {
        std::slice::from_raw_parts_mut(into.fill_ptr().cast::<MaybeUninit<u8>>(), from.len())
    };
    target.write_copy_of_slice(from);
    // SAFETY: Written: these `from.len()` bytes were copied just now.
    unsafe { into.set_filled(from.len()) };
}
