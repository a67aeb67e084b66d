//! The addresses of `serve http`: those of a host, a path, or sockets that systemd passes. They are resolved before the
//! cores start, so that all cores listen at the same addresses.

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

/// One address to listen at.
pub(super) enum ListenAddr {
    /// Each core binds its own.
    Tcp(SharedAddr),
    /// One for all cores, of which each gets a clone. `says`: where it listens.
    Shared {
        socket: OwnedFd,
        says: String,
        /// Removed at the end, if we have made it.
        _path: Option<SocketPath>,
    },
}

/// Finds where to listen. `passed`: what [`passed`] has found.
pub(super) fn of(address: &Address, passed: Vec<ListenAddr>) -> Result<Vec<ListenAddr>, Fault> {
    match address {
        Address::Tcp(address) => Ok(vec![ListenAddr::Tcp(SharedAddr::new(*address))]),
        Address::Host(host, port) => of_host(host, *port),
        Address::Unix(path) => Ok(vec![of_path(path)?]),
        Address::Systemd => Ok(passed),
    }
}

impl ListenAddr {
    /// The calling core's listener.
    pub(super) fn listener(&self) -> io::Result<TcpListener> {
        match self {
            ListenAddr::Tcp(address) => address.listen(),
            // Of any family: what is done with a connection is the same for each.
            ListenAddr::Shared { socket, says, .. } => (socket.try_clone())
                .and_then(|socket| TcpListener::from_std(StdTcpListener::from(socket)))
                .map_err(|error| {
                    io::Error::new(error.kind(), format!("can't listen at {says}: {error}"))
                }),
        }
    }
}

impl fmt::Display for ListenAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddr::Tcp(address) => address.fmt(f),
            ListenAddr::Shared { says, .. } => f.write_str(says),
        }
    }
}

/// The address itself, with a port, if this machine has it. Whether it is free the cores find out.
fn check_address(address: SocketAddr) -> io::Result<SocketAddr> {
    match StdTcpListener::bind(address) {
        Ok(listener) => listener.local_addr(),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(address),
        Err(error) => Err(error),
    }
}

/// All addresses of a host, as nginx does it; those of a family that this machine does not have are left out.
fn of_host(host: &str, port: u16) -> Result<Vec<ListenAddr>, Fault> {
    let query = (host.to_owned(), port);
    let resolved = signals::unless_interrupted("asking for the addresses of a host", move || {
        query.to_socket_addrs().map(Iterator::collect::<Vec<_>>)
    })?;
    let resolved = resolved.map_err(|error| {
        Fault::failed(format!(
            "can't find the addresses of `{host}`: {error}; give an address, such as 127.0.0.1"
        ))
    })?;
    let mut addresses: Vec<SocketAddr> = Vec::new();
    let mut left_out = None;
    for mut address in resolved {
        // Where any port will do, it is one for all.
        if let (0, Some(first)) = (port, addresses.first()) {
            address.set_port(first.port());
        }
        if addresses.contains(&address) {
            continue;
        }
        match self::check_address(address) {
            Ok(address) => addresses.push(address),
            Err(error) if is_of_no_use(&error) => left_out = Some((address, error)),
            Err(error) => return Err(Fault::failed(refused(address, &error).to_string())),
        }
    }
    match (&left_out, addresses.is_empty()) {
        (Some((address, error)), true) => {
            return Err(Fault::failed(refused(*address, error).to_string()));
        }
        (None, true) => {
            return Err(Fault::failed(format!(
                "`{host}` has no address; give one, such as 127.0.0.1"
            )));
        }
        (Some((address, error)), false) => {
            eprintln!("annulus: not listening on {address}: {error}")
        }
        (None, false) => {}
    }
    let addresses = addresses.into_iter().map(SharedAddr::new);
    Ok(addresses.map(ListenAddr::Tcp).collect())
}

/// The machine does not have that address, or that family.
fn is_of_no_use(error: &io::Error) -> bool {
    let errno = rustix::io::Errno::from_io_error(error);
    error.kind() == io::ErrorKind::AddrNotAvailable || errno == Some(rustix::io::Errno::AFNOSUPPORT)
}

fn of_path(path: &Path) -> Result<ListenAddr, Fault> {
    let listener = bind_path(path)?;
    let ours = SocketPath::new(path.to_owned());
    let ours = ours.map_err(|error| Fault::failed(format!("{}: {error}", path.display())))?;
    Ok(ListenAddr::Shared {
        socket: listener.into(),
        says: format!("unix:{}", path.display()),
        _path: Some(ours),
    })
}

/// The sockets that systemd has passed, where they are wanted. To be called before anything is opened: what has a
/// number from 3 on is passed, and nothing of our own, only then.
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
            "--addr systemd: no socket was passed to this process (LISTEN_FDS, LISTEN_PID); start it by a .socket \
             unit, or by systemd-socket-activate",
        ));
    }
    Ok(addresses)
}

fn of_passed(passed: &mut ListenFd, index: usize) -> Result<ListenAddr, Fault> {
    // One that is not TCP's stays there.
    let (socket, says): (OwnedFd, _) = match passed.take_tcp_listener(index) {
        Ok(Some(listener)) => {
            let says = listener.local_addr().map(|address| address.to_string());
            (
                listener.into(),
                says.unwrap_or_else(|error| error.to_string()),
            )
        }
        _ => match passed.take_unix_listener(index) {
            Ok(Some(listener)) => {
                let says = shown(&listener);
                (listener.into(), says)
            }
            Ok(None) => return Err(not_a_listener(index, "it was closed")),
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
        says,
        _path: None,
    })
}

fn shown(listener: &StdUnixListener) -> String {
    let address = listener.local_addr().ok();
    let path = address.as_ref().and_then(|address| address.as_pathname());
    path.map_or_else(
        || "unix:".to_owned(),
        |path| format!("unix:{}", path.display()),
    )
}

fn not_a_listener(index: usize, error: &str) -> Fault {
    Fault::usage(format!(
        "--addr systemd: socket {index} of those that were passed is no listener of streams: {error}"
    ))
}
