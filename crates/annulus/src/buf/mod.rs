//! Buffers: the traits [`IoBuf`] and [`IoBufMut`], aligned memory, registered arenas and received chunks.
//!
//! | for | use |
//! |---|---|
//! | reads and writes through the page cache | `Vec<u8>`, `Box<[u8]>`; writes also `String`, `Arc<[u8]>`, `&'static [u8]` |
//! | direct I/O | [`AlignedBuf`] |
//! | direct I/O without pinning pages per transfer | [`ArenaBuf`], a buffer of a registered [`Arena`] |
//! | large files | [`Region`] |
//! | a part of a buffer | [`IoBuf::subslice`] |
//! | `Bytes` and `BytesMut` | the feature `bytes` |

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
mod traits;

pub use aligned::AlignedBuf;
pub use arena::{Arena, ArenaBuf, BufferLayout, Take};
pub(crate) use bounce::{Bounce, BouncePool, copy_in};
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
pub(crate) use traits::ReadTarget;
pub use traits::{IoBuf, IoBufMut};

pub use crate::sys::mapping::{HugePages, PagesInUse};
