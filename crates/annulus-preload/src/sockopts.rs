//! Detects connections with a socket option that prevents serving them. Connections inherit the options of their
//! listener, which is queried once; an accepted connection is not queried.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use crate::counters::Why;
use crate::events::{IN, OUT};
use crate::fd_table::{Entry, Kind};
use crate::sockopt_effects::{self, Effect};
use crate::stops;
use crate::sys;

/// Returns whether a served connection can stay served when this option is set. `value` is `None` if the argument is
/// not an `int`.
pub(crate) fn is_harmless(level: c_int, name: c_int, value: Option<c_int>) -> bool {
    match sockopt_effects::effect(level, name) {
        Some(Effect::None) => true,
        Some(Effect::Differs { unless }) => value == Some(unless),
        Some(Effect::DiffersUnqueryable) | None => false,
    }
}

/// Returns the events that the kernel reports once more to edge-triggered members when this option is set.
pub(crate) fn edges_of(level: c_int, name: c_int) -> u32 {
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT) => IN,
        (libc::SOL_SOCKET, libc::SO_SNDBUF | libc::SO_SNDBUFFORCE)
        | (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT) => OUT,
        _ => 0,
    }
}

/// Returns whether an option makes the results of a ring differ from those of the kernel.
pub(crate) fn changes_data(level: c_int, name: c_int) -> bool {
    !matches!(
        sockopt_effects::effect(level, name),
        None | Some(Effect::None)
    )
}

/// The program has set SO_LINGER, or inherited a listener with it.
static LINGER_SET: AtomicBool = AtomicBool::new(false);

/// The program has set the size of a send buffer, or inherited a socket with one.
static SEND_BUFFER_SET: AtomicBool = AtomicBool::new(false);

/// The size of a send buffer, by the kernel's count, below which EPOLLOUT follows the kernel's rule. The kernel reports
/// a socket as writable while a third of the buffer is free, but appends to a segment of up to 64 KiB even if the
/// buffer is full. A program that writes at each report would otherwise fill a segment that does not fit into a small
/// window, and wait for a probe of the window.
const NARROW_BELOW: c_int = 192 << 10;

/// Records that the program sets an option. `on` is the first word of the argument.
pub(crate) fn on_set(level: c_int, name: c_int, on: Option<c_int>) {
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_LINGER) if on != Some(0) => {
            LINGER_SET.store(true, Ordering::Relaxed);
        }
        (libc::SOL_SOCKET, libc::SO_SNDBUF | libc::SO_SNDBUFFORCE) => {
            SEND_BUFFER_SET.store(true, Ordering::Relaxed);
        }
        _ => {}
    }
}

/// Returns whether the program has given a connection a small send buffer.
pub(crate) fn has_small_send_buffer(fd: c_int) -> bool {
    SEND_BUFFER_SET.load(Ordering::Relaxed)
        && sys::option(fd, libc::SOL_SOCKET, libc::SO_BUF_LOCK).is_ok_and(|locked| locked & 1 != 0)
        && sys::option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF)
            .is_ok_and(|bytes| bytes < NARROW_BELOW)
}

/// Queries the options of a new listener, which its connections inherit, once. Returns whether they prevent serving.
/// `setsockopt` records options that the program sets later.
pub(crate) fn listener_is_unusual(listener_fd: c_int) -> bool {
    if sys::option(listener_fd, libc::SOL_SOCKET, libc::SO_LINGER) != Ok(0) {
        LINGER_SET.store(true, Ordering::Relaxed);
    }
    is_unusual(listener_fd)
}

/// Returns whether a socket has an option that prevents serving it, at the cost of one call per option.
pub(crate) fn is_unusual(fd: c_int) -> bool {
    if sys::option(fd, libc::SOL_SOCKET, libc::SO_BUF_LOCK) != Ok(0) {
        SEND_BUFFER_SET.store(true, Ordering::Relaxed);
    }
    sockopt_effects::OPTIONS
        .iter()
        .any(|&(level, name, _, effect)| {
            let Effect::Differs { unless } = effect else {
                return false;
            };
            sys::option(fd, level, name).is_ok_and(|value| value != unless)
        })
}

/// Returns whether the socket has an upper-layer protocol such as TLS, which may encrypt what is sent.
pub(crate) fn has_ulp(fd: c_int) -> bool {
    // The value is the name of the protocol, or empty.
    !matches!(
        sys::option(fd, libc::IPPROTO_TCP, libc::TCP_ULP),
        Ok(0) | Err(_)
    )
}

/// The reason plus one for which connections that the program connected itself are no longer served; 0: they are
/// served.
static CLIENTS_NEVER_SERVED: AtomicU8 = AtomicU8::new(0);

/// Stops serving new connections of the same listener. The program made a call on a served connection that should also
/// have applied to bytes which the ring had already received. It will probably make the same call on other connections.
/// Returns `false` if new connections were not served before.
pub(crate) fn never_serve_siblings(entry: &Entry, why: Why) -> bool {
    if why_siblings_never_served(entry).is_some() {
        return false;
    }
    match entry.listener() {
        None => CLIENTS_NEVER_SERVED.store(why as u8 + 1, Ordering::Relaxed),
        Some(listener) if listener.kind() == Kind::Listener => {
            stops::stop_listener(listener, why);
        }
        // It no longer listens, so there will be no others.
        Some(_) => return false,
    }
    true
}

/// Returns the reason for which other connections of the same listener have shown that they cannot be served.
pub(crate) fn why_siblings_never_served(entry: &Entry) -> Option<Why> {
    let Some(listener) = entry.listener() else {
        let why = CLIENTS_NEVER_SERVED
            .load(Ordering::Relaxed)
            .checked_sub(1)?;
        return Some(Why::ALL[usize::from(why)]);
    };
    let shown = |why: &Why| matches!(why, Why::UnknownOption | Why::UnknownFlags | Why::PassedOn);
    (listener.kind() == Kind::Listener)
        .then(|| listener.why_never_served().filter(shown))
        .flatten()
}

/// Returns whether closing the socket waits or resets the connection.
pub(crate) fn has_linger(fd: c_int) -> bool {
    LINGER_SET.load(Ordering::Relaxed)
        && sys::option(fd, libc::SOL_SOCKET, libc::SO_LINGER) != Ok(0)
}
