//! The types of operations, which appear in signatures. [`File`](crate::File) and [`Engine`](crate::Engine) make them.

#[doc(hidden)]
pub use crate::error::Failure;

use std::marker::PhantomData;

/// The longest block of data in the page cache that a cursor reads.
#[cfg(any(feature = "futures", feature = "tokio", feature = "tokio-io"))]
pub(crate) const FAST_PATH_BYTES_MAX: usize = 128 << 10;

macro_rules! operations {
    ($($name:ident $(<$buf:ident>)?: $about:literal,)*) => {
        $(
            #[doc = $about]
            #[derive(Debug)]
            pub struct $name $(<$buf>)? (PhantomData<fn() -> ($($buf,)?)>);
        )*
    };
}

operations! {
    Canonicalize: "Returns an absolute path without links.",
    Close: "Closes a file.",
    Fsync: "Waits until a file is durable.",
    Link: "Creates a hard link.",
    ListDir: "Lists a part of a directory.",
    MakeDir: "Creates a directory.",
    Nop: "Does nothing.",
    OpenAt: "Opens a file.",
    ReadAt<B>: "Reads at an offset.",
    ReadLink: "Reads a symbolic link.",
    Rename: "Renames a file or a directory.",
    SetPermissions: "Sets permissions.",
    SetTimes: "Sets times.",
    Sleep: "Waits for a time.",
    StatAt: "Returns metadata.",
    Symlink: "Creates a symbolic link.",
    Truncate: "Sets the length of a file.",
    Unlink: "Removes a file or an empty directory.",
    WriteAt<B>: "Writes at an offset.",
}
