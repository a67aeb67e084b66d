//! Socket options: which of them change nothing in what a program reads and writes.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::sys;

/// Whether a connection on which it is set can go on being served.
pub(crate) fn is_known(level: c_int, name: c_int) -> bool {
    match level {
        libc::SOL_SOCKET => matches!(
            name,
            libc::SO_KEEPALIVE
                | libc::SO_LINGER
                | libc::SO_REUSEADDR
                | libc::SO_REUSEPORT
                | libc::SO_SNDBUF
                | libc::SO_RCVBUF
                | libc::SO_SNDBUFFORCE
                | libc::SO_RCVBUFFORCE
                | libc::SO_PRIORITY
                | libc::SO_MARK
                | libc::SO_INCOMING_CPU
                | libc::SO_DONTROUTE
                | libc::SO_MAX_PACING_RATE
                | libc::SO_SNDTIMEO
                | libc::SO_RCVTIMEO
        ),
        libc::IPPROTO_TCP => matches!(
            name,
            libc::TCP_NODELAY
                | libc::TCP_CORK
                | libc::TCP_KEEPIDLE
                | libc::TCP_KEEPINTVL
                | libc::TCP_KEEPCNT
                | libc::TCP_QUICKACK
                | libc::TCP_USER_TIMEOUT
                | libc::TCP_CONGESTION
                | libc::TCP_NOTSENT_LOWAT
                | libc::TCP_LINGER2
                | libc::TCP_DEFER_ACCEPT
                | libc::TCP_WINDOW_CLAMP
                | libc::TCP_MAXSEG
                | libc::TCP_SYNCNT
        ),
        libc::IPPROTO_IP => matches!(name, libc::IP_TOS | libc::IP_TTL | libc::IP_MTU_DISCOVER),
        libc::IPPROTO_IPV6 => matches!(name, libc::IPV6_TCLASS | libc::IPV6_V6ONLY),
        _ => false,
    }
}

/// Whether the program has ever said how long a close may wait, or has been given a listener that knows.
static LINGER_SET: AtomicBool = AtomicBool::new(false);

/// The program sets an option.
pub(crate) fn is_set(level: c_int, name: c_int) {
    if (level, name) == (libc::SOL_SOCKET, libc::SO_LINGER) {
        LINGER_SET.store(true, Ordering::Relaxed);
    }
}

/// Nothing is known yet of a listener, whose connections have its options.
pub(crate) fn is_inherited(listener_fd: c_int) {
    if sys::option(listener_fd, libc::SOL_SOCKET, libc::SO_LINGER) != Ok(0) {
        LINGER_SET.store(true, Ordering::Relaxed);
    }
}

/// Whether a close of it waits, or resets.
pub(crate) fn lingers(fd: c_int) -> bool {
    LINGER_SET.load(Ordering::Relaxed)
        && sys::option(fd, libc::SOL_SOCKET, libc::SO_LINGER) != Ok(0)
}

/// Whether it makes a socket one that is never to be served: what is read of it is more, or other, than its bytes.
pub(crate) fn changes_reading(level: c_int, name: c_int) -> bool {
    match level {
        libc::SOL_SOCKET => matches!(
            name,
            libc::SO_RCVLOWAT
                | libc::SO_OOBINLINE
                | libc::SO_TIMESTAMP
                | libc::SO_TIMESTAMPNS
                | libc::SO_TIMESTAMPING
                | libc::SO_BUSY_POLL
                | libc::SO_PEEK_OFF
                | libc::SO_ZEROCOPY
                | libc::SO_ATTACH_FILTER
        ),
        libc::IPPROTO_TCP => matches!(
            name,
            libc::TCP_ULP
                | libc::TCP_REPAIR
                | libc::TCP_INQ
                | libc::TCP_ZEROCOPY_RECEIVE
                | libc::TCP_FASTOPEN_CONNECT
        ),
        _ => false,
    }
}
