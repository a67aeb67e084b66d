//! The server's address: TCP or a Unix socket, as text and as the kernel's structure.

#![allow(unsafe_code)]

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// A server's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// An address and a port.
    Tcp(SocketAddr),
    /// The path of a Unix stream socket.
    Unix(PathBuf),
}

/// A blocking stream of either kind.
pub(super) trait Stream: Read + Write {}
impl<S: Read + Write> Stream for S {}

impl Target {
    /// Parses `127.0.0.1:80`, `localhost:80`, `[::1]:80` or `unix:/path`.
    pub fn parse(text: &str) -> Result<Target, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = PathBuf::from(path);
            return match unix(&path) {
                Ok(_) => Ok(Target::Unix(path)),
                Err(why) => Err(format!("`{text}`: {why}")),
            };
        }
        let mut resolved = text.to_socket_addrs().map_err(|error| {
            format!("`{text}` is no address ({error}); write for example 127.0.0.1:6379 or unix:/run/app.sock")
        })?;
        let first = resolved.next().filter(|address| address.port() != 0);
        first.map(Target::Tcp).ok_or_else(|| {
            format!(
                "`{text}` names no port; write for example 127.0.0.1:6379 or unix:/run/app.sock"
            )
        })
    }

    /// Connects once with blocking calls, to check that the server is running.
    pub(super) fn connect(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Target::Tcp(address) => Box::new(TcpStream::connect(address)?),
            Target::Unix(path) => Box::new(UnixStream::connect(path)?),
        })
    }

    /// Returns the address for `connect`. [`Target::parse`] has refused addresses that the kernel cannot represent.
    pub(super) fn for_kernel(&self) -> io::Result<KernelAddress> {
        match self {
            Target::Tcp(address) => Ok(KernelAddress::tcp(*address)),
            Target::Unix(path) => unix(path).map_err(io::Error::other),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Tcp(address) => write!(f, "{address}"),
            Target::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A `sockaddr` of any family.
pub(super) struct KernelAddress {
    storage: libc::sockaddr_storage,
    pub(super) len: libc::socklen_t,
}

impl KernelAddress {
    pub(super) fn as_ptr(&self) -> *const libc::sockaddr {
        (&raw const self.storage).cast()
    }

    pub(super) fn family(&self) -> i32 {
        i32::from(self.storage.ss_family)
    }

    pub(super) fn tcp(address: SocketAddr) -> KernelAddress {
        match address {
            SocketAddr::V4(v4) => KernelAddress::from(libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(v4.ip().octets()),
                },
                sin_zero: [0; 8],
            }),
            SocketAddr::V6(v6) => KernelAddress::from(libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr {
                    s6_addr: v6.ip().octets(),
                },
                sin6_scope_id: v6.scope_id(),
            }),
        }
    }

    fn from<T: Copy>(address: T) -> KernelAddress {
        // SAFETY: all zeroes is valid for this plain struct.
        let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        assert!(
            size_of::<T>() <= size_of_val(&storage),
            "a storage has room for any address"
        );
        // SAFETY: the storage is at least as large as `T` (asserted) and aligned for any address. The addresses passed
        // here are plain data.
        unsafe { (&raw mut storage).cast::<T>().write(address) };
        KernelAddress {
            storage,
            len: size_of::<T>() as libc::socklen_t,
        }
    }
}

fn unix(path: &std::path::Path) -> Result<KernelAddress, String> {
    // SAFETY: all zeroes is valid for this plain struct.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_os_str().as_bytes();
    // The path ends with a zero byte.
    if bytes.is_empty() || bytes.len() >= address.sun_path.len() || bytes.contains(&0) {
        return Err(format!(
            "a socket's path has from 1 to {} bytes and no zero",
            address.sun_path.len() - 1
        ));
    }
    for (target, &byte) in address.sun_path.iter_mut().zip(bytes) {
        *target = byte as libc::c_char;
    }
    Ok(KernelAddress::from(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed() {
        let tcp = |text: &str| Target::Tcp(text.parse().unwrap());
        assert_eq!(Target::parse("127.0.0.1:80"), Ok(tcp("127.0.0.1:80")));
        assert_eq!(Target::parse("[::1]:80"), Ok(tcp("[::1]:80")));
        assert_eq!(Target::parse("unix:/a b"), Ok(Target::Unix("/a b".into())));
        for bad in [
            "",
            "80",
            "127.0.0.1",
            "127.0.0.1:0",
            "127.0.0.1:99999",
            "unix:",
        ] {
            assert!(Target::parse(bad).is_err(), "{bad}");
        }
        let long = format!("unix:/{}", "x".repeat(200));
        assert!(
            Target::parse(&long)
                .unwrap_err()
                .contains("from 1 to 107 bytes")
        );
    }
}
