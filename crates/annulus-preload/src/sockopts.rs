//! Socket options: whether a connection has one that prevents serving it. Connections inherit the options of their
//! listener, which is queried once; an accepted connection is not queried.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::fd_table::{BY_OPTION, Entry, Kind, NEVER_SERVED};
use crate::sockopt_effects::{self, Effect};
use crate::sys;

/// Whether a connection on which it is set can go on being served.
pub(crate) fn is_harmless(level: c_int, name: c_int) -> bool {
    sockopt_effects::effect(level, name) == Some(Effect::None)
}

/// Whether it is one that makes what a ring brings another thing.
pub(crate) fn changes_data(level: c_int, name: c_int) -> bool {
    !matches!(
        sockopt_effects::effect(level, name),
        None | Some(Effect::None)
    )
}

/// Whether the program has ever set SO_LINGER, or inherited a listener with it.
static LINGER_SET: AtomicBool = AtomicBool::new(false);

/// The program sets an option.
pub(crate) fn on_set(level: c_int, name: c_int) {
    if (level, name) == (libc::SOL_SOCKET, libc::SO_LINGER) {
        LINGER_SET.store(true, Ordering::Relaxed);
    }
}

/// Queries the options of a new listener, which its connections inherit, once. Returns whether they prevent serving.
/// `setsockopt` records options that the program sets later.
pub(crate) fn listener_is_unusual(listener_fd: c_int) -> bool {
    if sys::option(listener_fd, libc::SOL_SOCKET, libc::SO_LINGER) != Ok(0) {
        LINGER_SET.store(true, Ordering::Relaxed);
    }
    is_unusual(listener_fd)
}

/// Whether a socket has an option with which it can't be served: a call for each of them.
pub(crate) fn is_unusual(fd: c_int) -> bool {
    sockopt_effects::OPTIONS
        .iter()
        .any(|&(level, name, _, effect)| {
            let Effect::Differs { unless } = effect else {
                return false;
            };
            sys::option(fd, level, name).is_ok_and(|value| value != unless)
        })
}

/// Whether the kernel encrypts what is sent, or may.
pub(crate) fn has_ulp(fd: c_int) -> bool {
    // The name of the layer, or nothing.
    !matches!(
        sys::option(fd, libc::IPPROTO_TCP, libc::TCP_ULP),
        Ok(0) | Err(_)
    )
}

/// The same for connections that the program has connected itself.
static CLIENTS_NEVER_SERVED: AtomicBool = AtomicBool::new(false);

/// What the program does to a connection that is served comes too late for what the ring has taken of it: it will do so
/// to others of the same listener, and none is served from now on. False: that is so already.
pub(crate) fn never_serve_siblings(entry: &Entry) -> bool {
    if are_siblings_never_served(entry) {
        return false;
    }
    match entry.listener() {
        None => CLIENTS_NEVER_SERVED.store(true, Ordering::Relaxed),
        Some(listener) if listener.kind() == Kind::Listener => {
            listener.set_kind(Kind::Listener, listener.flags() | NEVER_SERVED | BY_OPTION);
        }
        // It listens no more: there will be no others.
        Some(_) => return false,
    }
    true
}

/// Whether others of its listener have shown that they can't be served.
pub(crate) fn are_siblings_never_served(entry: &Entry) -> bool {
    match entry.listener() {
        None => CLIENTS_NEVER_SERVED.load(Ordering::Relaxed),
        Some(listener) => listener.kind() == Kind::Listener && listener.flags() & BY_OPTION != 0,
    }
}

/// Whether a close of it waits, or resets.
pub(crate) fn has_linger(fd: c_int) -> bool {
    LINGER_SET.load(Ordering::Relaxed)
        && sys::option(fd, libc::SOL_SOCKET, libc::SO_LINGER) != Ok(0)
}
