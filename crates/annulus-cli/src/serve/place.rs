//! Where a server listens: found free before its cores start, so that they all listen at the same place.

use std::fmt;
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use crate::fault::Fault;
use crate::signals::Removal;

/// Where, and by what.
pub(crate) enum Place {
    /// Each core binds its own (`SO_REUSEPORT`).
    Tcp(SocketAddr),
    Udp(SocketAddr),
    /// One for all, of which each core gets a clone.
    Unix(UnixListener, PathOfOurs),
}

/// What was typed.
pub(crate) struct Wanted<'a> {
    pub(crate) addr: SocketAddr,
    pub(crate) unix: Option<&'a Path>,
    pub(crate) udp: bool,
}

impl Place {
    pub(crate) fn of(args: &Wanted<'_>) -> Result<Place, Fault> {
        if let Some(path) = args.unix {
            let listener = bind_path(path)?;
            let ours = PathOfOurs::new(path.to_owned())
                .map_err(|error| Fault::failed(format!("{}: {error}", path.display())))?;
            return Ok(Place::Unix(listener, ours));
        }
        let refused = |error| refused(args.addr, &error);
        // Not shared, unlike the cores' own: a port that somebody else shares would get half of the load.
        if args.udp {
            let found = UdpSocket::bind(args.addr).and_then(|socket| socket.local_addr());
            return Ok(Place::Udp(found.map_err(refused)?));
        }
        let found = TcpListener::bind(args.addr).and_then(|listener| listener.local_addr());
        Ok(Place::Tcp(found.map_err(refused)?))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Tcp(address) | Place::Udp(address) => address.fmt(f),
            Place::Unix(_, ours) => write!(f, "unix:{}", ours.path.display()),
        }
    }
}

pub(super) fn refused(address: SocketAddr, error: &io::Error) -> Fault {
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
    Fault::failed(format!("can't listen at {address}: {error}; {advice}"))
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
    let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
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

/// A path that is removed at the end, if it is still the same socket.
pub(crate) struct PathOfOurs {
    path: PathBuf,
    _removal: Removal,
}

impl PathOfOurs {
    pub(super) fn new(path: PathBuf) -> io::Result<PathOfOurs> {
        let (ours, removed) = (identity(&path)?, path.clone());
        let removal = Removal::new(move || {
            if identity(&removed).is_ok_and(|found| found == ours) {
                // It may have gone since.
                let _ = fs::remove_file(&removed);
            }
        });
        Ok(PathOfOurs {
            path,
            _removal: removal,
        })
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}
