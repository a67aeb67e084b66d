//! The meaning of each error of a send. No other place decides whether an error ends the connection.

/// The effect of a failed send on its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendFailure {
    /// The connection is unaffected. The same bytes can be sent once the socket is writable.
    Retry,
    /// The connection is unaffected, but the kernel, a security module or a filter refuses this call. Bytes that an
    /// earlier write has accepted cannot be sent either: they would be refused again, and later bytes must not overtake
    /// them.
    Call,
    /// The connection has ended, or the descriptor is no longer that of the connection.
    Ended,
}

/// Returns the meaning of an errno, from a system call or from a completion.
pub(crate) fn meaning(errno: i32) -> SendFailure {
    match errno {
        libc::EAGAIN | libc::EINTR | libc::ENOMEM | libc::ENOBUFS | libc::ECANCELED => {
            SendFailure::Retry
        }
        libc::EFAULT
        | libc::EINVAL
        | libc::EMSGSIZE
        | libc::EOPNOTSUPP
        | libc::EPERM
        | libc::EACCES
        | libc::ENOSYS => SendFailure::Call,
        _ => SendFailure::Ended,
    }
}

/// Returns whether bytes that a write has accepted stay deferred after this error.
pub(crate) fn keeps_bytes(errno: i32) -> bool {
    meaning(errno) == SendFailure::Retry
}
