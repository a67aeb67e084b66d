//! The errors of the library, and the errno values that they stand for on this platform.

#[allow(dead_code, reason = "drivers of Linux pass errors as numbers")]
#[path = "../sys/engine_error.rs"]
pub(crate) mod engine_error;

/// The end of the process waits for bytes that a cursor has taken.
#[cfg(any(feature = "futures", feature = "tokio", feature = "tokio-io"))]
#[path = "../sys/at_exit.rs"]
pub(crate) mod at_exit;

#[cfg(any(feature = "futures", feature = "tokio", feature = "tokio-io"))]
pub(crate) mod forked {
    /// Returns a number that a forked child does not have in common with its parent.
    pub(crate) fn process() -> u64 {
        std::process::id().into()
    }

    /// Returns whether this process was created by a fork, which is known on Linux only.
    #[cfg(feature = "tokio")]
    pub(crate) fn is_child() -> bool {
        false
    }
}

#[allow(dead_code, reason = "a cursor needs more of them")]
pub(crate) mod errno {
    /// Declares the closest values of each platform. Windows has those of Winsock.
    macro_rules! errno {
        ($($name:ident = linux $linux:literal, unix $unix:literal, windows $windows:literal;)*) => {
            $(pub(crate) const $name: i32 = match () {
                () if cfg!(windows) => $windows,
                () if cfg!(target_os = "linux") => $linux,
                () => $unix,
            };)*
        };
    }

    errno! {
        EAGAIN = linux 11, unix 35, windows 10035;
        // Elsewhere `EIO`, and `ERROR_GEN_FAILURE`.
        EBADR = linux 53, unix 5, windows 31;
        ENOBUFS = linux 105, unix 55, windows 10055;
        ESPIPE = linux 29, unix 29, windows 132;
        ESHUTDOWN = linux 108, unix 58, windows 10058;
        ETIMEDOUT = linux 110, unix 60, windows 10060;
    }
}
