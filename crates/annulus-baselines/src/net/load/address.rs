//! The server's address: TCP or a Unix socket, as text and as the kernel's structure.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use socket2::SockAddr;

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
    pub(super) fn for_kernel(&self) -> io::Result<SockAddr> {
        match self {
            Target::Tcp(address) => Ok(SockAddr::from(*address)),
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

/// Returns the address of a Unix socket.
fn unix(path: &Path) -> Result<SockAddr, String> {
    let bytes = path.as_os_str().as_bytes();
    // The path ends with a zero byte, and begins with none.
    let is_path = !bytes.is_empty() && !bytes.contains(&0);
    let address = is_path.then(|| SockAddr::unix(path).ok()).flatten();
    address.ok_or_else(|| "a socket's path has from 1 to 107 bytes and no zero".into())
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
