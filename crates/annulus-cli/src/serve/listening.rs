//! The addresses of `serve http`: those of a host, a path, or sockets that systemd passes. They are resolved before the
//! cores start, so that all cores listen on the same addresses.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::Path;

use annulus::net::TcpListener;
use listenfd::ListenFd;

use super::address::{SharedAddr, SocketPath, bind_path, refused};
use crate::args::Address;
use crate::fault::Fault;
use crate::signals;

/// An address to listen on.
pub(super) enum ListenAddr {
    /// Each core binds its own socket.
    Tcp(SharedAddr),
    /// All cores share a socket, of which each has a duplicate.
    Shared {
        socket: OwnedFd,
        /// The address, for messages.
        name: String,
        /// The path to remove at the end, if this process created the socket.
        _path: Option<SocketPath>,
    },
}

/// Resolves the addresses. `passed` is the result of [`passed`].
pub(super) fn resolve(
    address: &Address,
    passed: Vec<ListenAddr>,
) -> Result<Vec<ListenAddr>, Fault> {
    match address {
        Address::Tcp(address) => Ok(vec![ListenAddr::Tcp(SharedAddr::new(*address))]),
        Address::Host(host, port) => resolve_host(host, *port),
        Address::Unix(path) => Ok(vec![of_path(path)?]),
        Address::Systemd => Ok(passed),
    }
}

impl ListenAddr {
    /// Returns a listener for the calling core.
    pub(super) fn listener(&self) -> io::Result<TcpListener> {
        match self {
            ListenAddr::Tcp(address) => address.listen(),
            // The family does not matter: connections of all families are served alike.
            ListenAddr::Shared { socket, name, .. } => (socket.try_clone())
                .and_then(|socket| TcpListener::from_std(StdTcpListener::from(socket)))
                .map_err(|error| {
                    io::Error::new(error.kind(), format!("cannot listen on {name}: {error}"))
                }),
        }
    }
}

impl fmt::Display for ListenAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddr::Tcp(address) => address.fmt(f),
            ListenAddr::Shared { name, .. } => f.write_str(name),
        }
    }
}

/// Returns the address with a port, if this machine has it. An address in use is not an error; the cores retry it.
fn check_address(address: SocketAddr) -> io::Result<SocketAddr> {
    match StdTcpListener::bind(address) {
        Ok(listener) => listener.local_addr(),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(address),
        Err(error) => Err(error),
    }
}

/// Resolves all addresses of a host, like nginx. Addresses that this machine does not have are left out.
fn resolve_host(host: &str, port: u16) -> Result<Vec<ListenAddr>, Fault> {
    let query = (host.to_owned(), port);
    let resolved = signals::unless_interrupted("resolving a host name", move || {
        query.to_socket_addrs().map(Iterator::collect::<Vec<_>>)
    })?;
    let resolved = resolved.map_err(|error| {
        failed!("cannot resolve `{host}`: {error}; write an address, such as 127.0.0.1")
    })?;
    let mut addresses: Vec<SocketAddr> = Vec::new();
    let mut left_out = None;
    for mut address in resolved {
        // With port 0, all addresses use the same free port.
        if let (0, Some(first)) = (port, addresses.first()) {
            address.set_port(first.port());
        }
        if addresses.contains(&address) {
            continue;
        }
        match check_address(address) {
            Ok(address) => addresses.push(address),
            Err(error) if is_unavailable(&error) => left_out = Some((address, error)),
            Err(error) => return Err(Fault::failed(refused(address, &error).to_string())),
        }
    }
    match (&left_out, addresses.is_empty()) {
        (Some((address, error)), true) => {
            return Err(Fault::failed(refused(*address, error).to_string()));
        }
        (None, true) => {
            return Err(failed!(
                "`{host}` has no address; write an address, such as 127.0.0.1"
            ));
        }
        (Some((address, error)), false) => {
            note!("annulus: cannot listen on {address}, which is skipped: {error}")
        }
        (None, false) => {}
    }
    let addresses = addresses.into_iter().map(SharedAddr::new);
    Ok(addresses.map(ListenAddr::Tcp).collect())
}

/// Returns whether the machine lacks the address or its family.
fn is_unavailable(error: &io::Error) -> bool {
    let errno = rustix::io::Errno::from_io_error(error);
    error.kind() == io::ErrorKind::AddrNotAvailable || errno == Some(rustix::io::Errno::AFNOSUPPORT)
}

fn of_path(path: &Path) -> Result<ListenAddr, Fault> {
    let listener = bind_path(path)?;
    let own_path = SocketPath::new(path.to_owned());
    let own_path = own_path.map_err(|error| failed!("{}: {error}", path.display()))?;
    Ok(ListenAddr::Shared {
        socket: listener.into(),
        name: format!("unix:{}", path.display()),
        _path: Some(own_path),
    })
}

/// Returns the sockets that systemd has passed, if the address is `systemd`. Call this before any file is opened: only
/// then do the descriptors from 3 on belong to systemd.
pub(super) fn passed(address: &Address) -> Result<Vec<ListenAddr>, Fault> {
    if *address != Address::Systemd {
        return Ok(Vec::new());
    }
    let mut passed = ListenFd::from_env();
    let addresses: Vec<ListenAddr> = (0..passed.len())
        .map(|index| of_passed(&mut passed, index))
        .collect::<Result<_, _>>()?;
    if addresses.is_empty() {
        return Err(Fault::usage(
            "--addr systemd: no socket was passed to this process (LISTEN_FDS, LISTEN_PID); start it with a .socket \
             unit or with systemd-socket-activate",
        ));
    }
    Ok(addresses)
}

fn of_passed(passed: &mut ListenFd, index: usize) -> Result<ListenAddr, Fault> {
    // A socket of another family stays in the list.
    let (socket, name): (OwnedFd, _) = match passed.take_tcp_listener(index) {
        Ok(Some(listener)) => {
            let name = listener.local_addr().map(|address| address.to_string());
            (
                listener.into(),
                name.unwrap_or_else(|error| error.to_string()),
            )
        }
        _ => match passed.take_unix_listener(index) {
            Ok(Some(listener)) => {
                let name = unix_name(&listener);
                (listener.into(), name)
            }
            Ok(None) => return Err(not_a_listener(index, "it is closed")),
            Err(error) => return Err(not_a_listener(index, &error.to_string())),
        },
    };
    match rustix::net::sockopt::socket_acceptconn(&socket) {
        Ok(true) => {}
        Ok(false) => {
            return Err(not_a_listener(
                index,
                "it does not listen; set Accept=no in the .socket unit",
            ));
        }
        Err(error) => return Err(not_a_listener(index, &error.to_string())),
    }
    Ok(ListenAddr::Shared {
        socket,
        name,
        _path: None,
    })
}

fn unix_name(listener: &StdUnixListener) -> String {
    let address = listener.local_addr().ok();
    let path = address.as_ref().and_then(|address| address.as_pathname());
    path.map_or_else(
        || "unix:".to_owned(),
        |path| format!("unix:{}", path.display()),
    )
}

fn not_a_listener(index: usize, error: &str) -> Fault {
    usage!("--addr systemd: passed socket {index} is not a stream listener: {error}")
}
