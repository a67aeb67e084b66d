//! Flags of socket operations, and fields of their completions.

use super::Cqe;

/// `IOSQE_IO_LINK`: the next entry of the same enter starts when this one has completed in full; otherwise it fails
/// with ECANCELED.
pub(crate) const LINKED: u8 = io_uring::squeue::Flags::IO_LINK.bits();
/// `IORING_SEND_ZC_REPORT_USAGE`, in `ioprio`: the notification reports whether the data was copied after all. Since
/// Linux 6.2; before that, EINVAL.
pub(crate) const SEND_ZC_REPORT_USAGE: u16 = 1 << 3;
/// `IORING_NOTIF_USAGE_ZC_COPIED`, in the `res` of such a notification.
pub(crate) const ZC_COPIED: u32 = 1 << 31;
/// `IORING_ACCEPT_MULTISHOT`, in `ioprio`. Since Linux 5.19.
pub(crate) const ACCEPT_MULTISHOT: u16 = 1;
/// Poll event: space to write to.
pub(crate) const POLL_WRITE: u32 = libc::POLLOUT as u32;

impl Cqe {
    /// Returns the number of transferred bytes; 0 for an error.
    #[inline]
    pub(crate) fn bytes(&self) -> u32 {
        u32::try_from(self.res).unwrap_or(0)
    }

    /// Returns whether this is the final notification of a zero-copy send: its memory is free (`IORING_CQE_F_NOTIF`).
    pub(crate) fn is_notice(&self) -> bool {
        io_uring::cqueue::notif(self.flags)
    }
}
