//! Buffers: the traits [`IoBuf`] and [`IoBufMut`], and aligned memory.

#[path = "../buf/aligned.rs"]
mod aligned;
#[path = "../buf/borrow.rs"]
mod borrow;
#[cfg(feature = "bytes")]
#[path = "../buf/bytes.rs"]
mod bytes;
#[path = "../buf/contract.rs"]
mod contract;
#[path = "../buf/slice.rs"]
mod slice;
#[path = "../buf/traits.rs"]
mod traits;

pub use aligned::AlignedBuf;
pub(crate) use borrow::{bytes_of, fill};
pub(crate) use contract::check_capacity;
pub use slice::Slice;
pub(crate) use traits::ReadTarget;
pub use traits::{IoBuf, IoBufMut};
