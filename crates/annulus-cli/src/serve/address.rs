//! The address that all cores of a server listen on.

use std::fmt;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use annulus::net::{TcpListener, UdpSocket};

use crate::args::EchoArgs;
use crate::fault::Fault;
use crate::signals::Removal;

/// The number of retries while the address is in use. The address of a killed server stays in use until the kernel has
/// ended its rings, some milliseconds after the end of the process. A server that starts in that time waits.
const IN_USE_RETRIES: u32 = 40;
/// The pause between two retries.
const IN_USE_PAUSE: Duration = Duration::from_millis(10);

/// The address of an echo server, with the resources that its cores need to listen.
pub(crate) enum EchoAddr {
    /// Each core binds its own socket.
    Tcp(SharedAddr),
    Udp(SharedAddr),
    /// All cores share a listener, of which each has a duplicate.
    Unix(UnixListener, SocketPath),
}

impl EchoAddr {
    pub(crate) fn of(args: &EchoArgs) -> Result<EchoAddr, Fault> {
        if let Some(path) = &args.unix {
            let listener = bind_path(path)?;
            let own_path = SocketPath::new(path.to_owned())
                .map_err(|error| failed!("{}: {error}", path.display()))?;
            return Ok(EchoAddr::Unix(listener, own_path));
        }
        let address = SharedAddr::new(args.addr);
        Ok(if args.udp {
            EchoAddr::Udp(address)
        } else {
            EchoAddr::Tcp(address)
        })
    }
}

/// An address that all cores bind.
pub(crate) struct SharedAddr(Mutex<SocketAddr>);

impl SharedAddr {
    pub(crate) fn new(address: SocketAddr) -> SharedAddr {
        SharedAddr(Mutex::new(address))
    }

    /// Returns a listener for the calling core.
    pub(crate) fn listen(&self) -> io::Result<TcpListener> {
        self.bind(|at| {
            let listener = TcpListener::bind(at)?;
            Ok((listener.local_addr()?, listener))
        })
    }

    /// Returns a UDP socket for the calling core.
    pub(crate) fn receive(&self) -> io::Result<UdpSocket> {
        self.bind(|at| {
            let socket = UdpSocket::bind_shared(at)?;
            Ok((socket.local_addr()?, socket))
        })
    }

    /// Binds the address. The first core replaces port 0 by a free port, which the other cores then use.
    fn bind<T>(&self, bind: impl Fn(SocketAddr) -> io::Result<(SocketAddr, T)>) -> io::Result<T> {
        let mut at = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut retries = 0;
        loop {
            match bind(*at) {
                Ok((bound_to, bound)) => {
                    *at = bound_to;
                    return Ok(bound);
                }
                Err(error)
                    if error.kind() == io::ErrorKind::AddrInUse && retries < IN_USE_RETRIES =>
                {
                    retries += 1;
                    thread::sleep(IN_USE_PAUSE);
                }
                Err(error) => return Err(refused(*at, &error)),
            }
        }
    }
}

impl fmt::Display for SharedAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        at.fmt(f)
    }
}

impl fmt::Display for EchoAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EchoAddr::Tcp(address) | EchoAddr::Udp(address) => address.fmt(f),
            EchoAddr::Unix(_, own_path) => write!(f, "unix:{}", own_path.path.display()),
        }
    }
}

pub(super) fn refused(address: SocketAddr, error: &io::Error) -> io::Error {
    let advice = match error.kind() {
        io::ErrorKind::AddrInUse => {
            "another process uses it; choose another port, or 0 for a free one"
        }
        io::ErrorKind::AddrNotAvailable => {
            "this machine does not have that address; `ip address` lists its addresses"
        }
        io::ErrorKind::PermissionDenied => "ports below 1024 need root; choose a higher one",
        _ => "choose another address",
    };
    let message = format!("cannot listen on {address}: {error}; {advice}");
    io::Error::new(error.kind(), message)
}

/// Listens on a Unix socket at `path`. A stale socket without a listener is replaced.
pub(super) fn bind_path(path: &Path) -> Result<UnixListener, Fault> {
    let shown = path.display();
    let error = match UnixListener::bind(path) {
        Ok(listener) => return Ok(listener),
        Err(error) => error,
    };
    match error.kind() {
        io::ErrorKind::AddrInUse => {}
        io::ErrorKind::InvalidInput => {
            let message =
                format!("`{shown}` is not a valid path of a socket: {error}; choose a shorter one");
            return Err(Fault::usage(message));
        }
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            let message = format!("cannot listen on {shown}: {error}; its directory must exist");
            return Err(Fault::usage(message));
        }
        _ => return Err(failed!("cannot listen on {shown}: {error}")),
    }
    let is_socket =
        fs::symlink_metadata(path).is_ok_and(|bound_to| bound_to.file_type().is_socket());
    if !is_socket {
        let message = format!("{shown} exists and is not a socket; choose another path");
        return Err(Fault::usage(message));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
        _ => {
            let message =
                format!("cannot listen on {shown}: another process does; choose another path");
            return Err(Fault::failed(message));
        }
    }
    fs::remove_file(path)
        .and_then(|()| UnixListener::bind(path))
        .map_err(|error| failed!("cannot replace the stale socket {shown}: {error}"))
}

/// The path of a Unix socket, which is removed at the end if it is still the same socket.
pub(crate) struct SocketPath {
    path: PathBuf,
    _removal: Removal,
}

impl SocketPath {
    pub(super) fn new(path: PathBuf) -> io::Result<SocketPath> {
        let (own_path, removed) = (identity(&path)?, path.clone());
        let removal = Removal::new(move || {
            if identity(&removed).is_ok_and(|bound_to| bound_to == own_path) {
                // It may have been removed already.
                let _ = fs::remove_file(&removed);
            }
        });
        Ok(SocketPath {
            path,
            _removal: removal,
        })
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let bound_to = fs::symlink_metadata(path)?;
    Ok((bound_to.dev(), bound_to.ino()))
}
