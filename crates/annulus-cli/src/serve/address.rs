//! The address that all cores of a server listen at.

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

use crate::fault::Fault;
use crate::signals::Removal;

/// A server that was killed keeps its address until the kernel has ended its rings, some milliseconds after its
/// process has gone. One that is started at once waits for that, as long as this: so often, and so much each time.
const TAKEN_TRIES: u32 = 40;
const TAKEN_PAUSE: Duration = Duration::from_millis(10);

/// The address of an echo server, with what its cores need to listen at it.
pub(crate) enum EchoAddr {
    /// Each core binds its own.
    Tcp(SharedAddr),
    Udp(SharedAddr),
    /// One for all, of which each core gets a clone.
    Unix(UnixListener, SocketPath),
}

/// The options that choose the address.
pub(crate) struct Options<'a> {
    pub(crate) addr: SocketAddr,
    pub(crate) unix: Option<&'a Path>,
    pub(crate) udp: bool,
}

impl EchoAddr {
    pub(crate) fn of(args: &Options<'_>) -> Result<EchoAddr, Fault> {
        if let Some(path) = args.unix {
            let listener = bind_path(path)?;
            let own_path = SocketPath::new(path.to_owned())
                .map_err(|error| Fault::failed(format!("{}: {error}", path.display())))?;
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

    /// A listener of the calling core's.
    pub(crate) fn listen(&self) -> io::Result<TcpListener> {
        self.bind(|at| {
            let listener = TcpListener::bind(at)?;
            Ok((listener.local_addr()?, listener))
        })
    }

    /// A socket of the calling core's.
    pub(crate) fn receive(&self) -> io::Result<UdpSocket> {
        self.bind(|at| {
            let socket = UdpSocket::bind_shared(at)?;
            Ok((socket.local_addr()?, socket))
        })
    }

    /// One core after another: the first has port 0 become one that is free, which is that of the others.
    fn bind<T>(&self, bind: impl Fn(SocketAddr) -> io::Result<(SocketAddr, T)>) -> io::Result<T> {
        let mut at = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut tries = 0;
        loop {
            match bind(*at) {
                Ok((bound_to, bound)) => {
                    *at = bound_to;
                    return Ok(bound);
                }
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && tries < TAKEN_TRIES => {
                    tries += 1;
                    thread::sleep(TAKEN_PAUSE);
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
            "somebody else has it; choose another port, or 0 for any that is free"
        }
        io::ErrorKind::AddrNotAvailable => {
            "this machine does not have that address; `ip address` lists those it has"
        }
        io::ErrorKind::PermissionDenied => "ports below 1024 are root's; choose a higher one",
        _ => "choose another address",
    };
    let says = format!("can't listen at {address}: {error}; {advice}");
    io::Error::new(error.kind(), says)
}

/// Listens at a path. A socket that nobody listens at any more is replaced.
pub(super) fn bind_path(path: &Path) -> Result<UnixListener, Fault> {
    let shown = path.display();
    let error = match UnixListener::bind(path) {
        Ok(listener) => return Ok(listener),
        Err(error) => error,
    };
    match error.kind() {
        io::ErrorKind::AddrInUse => {}
        io::ErrorKind::InvalidInput => {
            let says = format!("`{shown}` can't be a socket's path: {error}; choose a shorter one");
            return Err(Fault::usage(says));
        }
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            let says = format!("can't listen at {shown}: {error}; its folder must exist");
            return Err(Fault::usage(says));
        }
        _ => return Err(Fault::failed(format!("can't listen at {shown}: {error}"))),
    }
    let is_socket =
        fs::symlink_metadata(path).is_ok_and(|bound_to| bound_to.file_type().is_socket());
    if !is_socket {
        let says = format!("{shown} exists and is no socket; choose another path");
        return Err(Fault::usage(says));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
        _ => {
            let says = format!("can't listen at {shown}: somebody else does; choose another path");
            return Err(Fault::failed(says));
        }
    }
    fs::remove_file(path)
        .and_then(|()| UnixListener::bind(path))
        .map_err(|error| Fault::failed(format!("can't replace the old socket {shown}: {error}")))
}

/// The path of a Unix socket. It is removed at the end if it is still the same socket.
pub(crate) struct SocketPath {
    path: PathBuf,
    _removal: Removal,
}

impl SocketPath {
    pub(super) fn new(path: PathBuf) -> io::Result<SocketPath> {
        let (own_path, removed) = (identity(&path)?, path.clone());
        let removal = Removal::new(move || {
            if identity(&removed).is_ok_and(|bound_to| bound_to == own_path) {
                // It may have gone since.
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
