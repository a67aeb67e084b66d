//! The arguments of `epoll_ctl`.

use crate::errno::CallResult;
use crate::sys;

/// The arguments of `epoll_ctl`. A removal has no events and no data.
#[derive(Clone, Copy)]
pub(crate) struct CtlRequest {
    pub(crate) operation: i32,
    pub(crate) events: u32,
    pub(crate) data: u64,
}

impl CtlRequest {
    /// Makes the call for `fd` on the kernel's set.
    pub(crate) fn make(self, set: i32, fd: i32) -> CallResult {
        sys::control(set, self.operation, fd, self.events, self.data)
    }
}
