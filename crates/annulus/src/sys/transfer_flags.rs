//! The flags of reads and writes of files (`preadv2(2)`).

/// `RWF_NOWAIT`: read from the page cache, or fail with EAGAIN.
pub(crate) const RWF_NOWAIT: u32 = libc::RWF_NOWAIT as u32;
/// `RWF_DONTCACHE`: the pages that the transfer brings into the page cache are dropped. Since Linux 6.14.
pub(crate) const RWF_DONTCACHE: u32 = 0x80;

/// The flags (`RWF_*`) of a read or write. `Fd::flags` makes them, so that no transfer forgets those of its file.
#[derive(Clone, Copy, Debug)]
pub struct TransferFlags(u32);

impl TransferFlags {
    /// Makes flags for `Fd::flags`, or for a descriptor that belongs to no file of a caller.
    pub(crate) const fn new(bits: u32) -> TransferFlags {
        TransferFlags(bits)
    }

    pub(crate) const fn bits(self) -> u32 {
        self.0
    }

    pub(crate) const fn has(self, flag: u32) -> bool {
        self.0 & flag != 0
    }

    pub(crate) const fn with(self, flag: u32) -> TransferFlags {
        TransferFlags(self.0 | flag)
    }

    pub(crate) const fn without(self, flag: u32) -> TransferFlags {
        TransferFlags(self.0 & !flag)
    }
}
