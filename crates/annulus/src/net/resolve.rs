//! Addresses to connect to, and the resolution of host names on a blocking thread.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::{
    IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, ToSocketAddrs as _,
};

use crate::driver::Operation;
use crate::op::{RunBlocking, RunBlockingError};
use crate::sys::on_core::OnCore;

/// An address to connect to: a socket address, several of them, or a host name and a port.
///
/// Implemented for the same types as [`std::net::ToSocketAddrs`]. Numeric addresses are used unchanged. A host name
/// is resolved on one of the runtime's [blocking threads](crate::runtime::RuntimeBuilder::blocking_threads), so that
/// the core continues with its other tasks.
///
/// ```
/// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
/// use annulus::net::{TcpListener, TcpStream};
///
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let port = listener.local_addr()?.port();
/// TcpStream::connect(("127.0.0.1", port)).await?; // no thread is needed
/// TcpStream::connect(format!("localhost:{port}")).await?; // a blocking thread resolves the name
/// let error = TcpStream::connect("localhost").await.unwrap_err(); // a port is missing
/// assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
/// # Ok(()) })? }
/// ```
pub trait ToSocketAddrs: sealed::Sealed {}

impl<T: sealed::Sealed + ?Sized> ToSocketAddrs for T {}

/// Addresses, or a host name to resolve.
pub enum AddressTarget {
    One(SocketAddr),
    Several(Vec<SocketAddr>),
    Name { host: String, port: Option<u16> },
}

mod sealed {
    /// Prevents other implementations, so that [`AddressTarget`](super::AddressTarget) may change.
    pub trait Sealed {
        #[doc(hidden)]
        fn target(&self) -> super::AddressTarget;
    }
}

use sealed::Sealed;

impl Sealed for SocketAddr {
    fn target(&self) -> AddressTarget {
        AddressTarget::One(*self)
    }
}

impl Sealed for SocketAddrV4 {
    fn target(&self) -> AddressTarget {
        AddressTarget::One((*self).into())
    }
}

impl Sealed for SocketAddrV6 {
    fn target(&self) -> AddressTarget {
        AddressTarget::One((*self).into())
    }
}

impl Sealed for (IpAddr, u16) {
    fn target(&self) -> AddressTarget {
        AddressTarget::One((*self).into())
    }
}

impl Sealed for (Ipv4Addr, u16) {
    fn target(&self) -> AddressTarget {
        AddressTarget::One((*self).into())
    }
}

impl Sealed for (Ipv6Addr, u16) {
    fn target(&self) -> AddressTarget {
        AddressTarget::One((*self).into())
    }
}

impl Sealed for [SocketAddr] {
    fn target(&self) -> AddressTarget {
        AddressTarget::Several(self.to_vec())
    }
}

impl<const N: usize> Sealed for [SocketAddr; N] {
    fn target(&self) -> AddressTarget {
        AddressTarget::Several(self.to_vec())
    }
}

impl Sealed for Vec<SocketAddr> {
    fn target(&self) -> AddressTarget {
        AddressTarget::Several(self.clone())
    }
}

impl Sealed for str {
    fn target(&self) -> AddressTarget {
        match self.parse() {
            Ok(address) => AddressTarget::One(address),
            Err(_) => AddressTarget::Name {
                host: self.to_owned(),
                port: None,
            },
        }
    }
}

impl Sealed for String {
    fn target(&self) -> AddressTarget {
        self.as_str().target()
    }
}

impl Sealed for (&str, u16) {
    fn target(&self) -> AddressTarget {
        let (host, port) = *self;
        match host.parse::<IpAddr>() {
            Ok(ip) => AddressTarget::One((ip, port).into()),
            Err(_) => AddressTarget::Name {
                host: host.to_owned(),
                port: Some(port),
            },
        }
    }
}

impl Sealed for (String, u16) {
    fn target(&self) -> AddressTarget {
        (self.0.as_str(), self.1).target()
    }
}

impl<T: Sealed + ?Sized> Sealed for &T {
    fn target(&self) -> AddressTarget {
        (**self).target()
    }
}

/// Calls `attempt` for each address of `target` in order, until one succeeds. Returns the last error if none does.
pub(super) async fn try_each<T, F>(
    target: AddressTarget,
    attempt: impl Fn(SocketAddr) -> F,
) -> io::Result<T>
where
    F: Future<Output = io::Result<T>>,
{
    let addresses = match target {
        AddressTarget::One(address) => return attempt(address).await,
        AddressTarget::Several(addresses) => addresses,
        AddressTarget::Name { host, port } => resolve(host, port).await?,
    };
    let mut last = io::Error::new(
        io::ErrorKind::InvalidInput,
        "there is no address to connect to: the list of addresses is empty",
    );
    for address in addresses {
        match attempt(address).await {
            Ok(value) => return Ok(value),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Resolves a host name on a blocking thread. `host` includes the port if `port` is `None`.
async fn resolve(host: String, port: Option<u16>) -> io::Result<Vec<SocketAddr>> {
    let core = OnCore::from(super::core()?);
    let Some(files) = core.files() else {
        return Err(io::Error::other(
            "can't resolve a host name before the core of the runtime has started",
        ));
    };
    let name = match port {
        Some(port) => format!("{host}:{port}"),
        None => host.clone(),
    };
    let look_up = move || -> io::Result<Vec<SocketAddr>> {
        Ok(match port {
            Some(port) => (host.as_str(), port).to_socket_addrs()?.collect(),
            None => host.to_socket_addrs()?.collect(),
        })
    };
    let addresses = match Operation::new(&files, RunBlocking::new(look_up)).await {
        Ok(addresses) => addresses,
        Err(RunBlockingError::NotRun(error)) => return Err(error),
        Err(RunBlockingError::Panicked(panic)) => std::panic::resume_unwind(panic),
    };
    addresses.map_err(|error| unresolved(&name, &error))
}

/// Returns an error that names the host; the resolver's error does not.
fn unresolved(name: &str, error: &io::Error) -> io::Error {
    let text = match error.kind() {
        io::ErrorKind::InvalidInput => {
            format!("can't connect to {name:?}: {error}; write it as host:port")
        }
        _ => format!(
            "can't resolve the host name {name:?}: {error}; check the name and the DNS settings of this machine"
        ),
    };
    io::Error::new(error.kind(), text)
}

impl fmt::Debug for AddressTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AddressTarget::One(address) => address.fmt(f),
            AddressTarget::Several(addresses) => addresses.fmt(f),
            AddressTarget::Name { host, port } => write!(f, "{host:?} {port:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numeric_addresses_are_used_as_they_are_and_names_are_resolved() {
        let address: SocketAddr = "127.0.0.1:80".parse().unwrap();
        let six: SocketAddr = "[::1]:80".parse().unwrap();
        for target in [
            address.target(),
            "127.0.0.1:80".target(),
            "127.0.0.1:80".to_owned().target(),
            ("127.0.0.1", 80).target(),
            (String::from("127.0.0.1"), 80).target(),
            (Ipv4Addr::LOCALHOST, 80).target(),
            (IpAddr::from(Ipv4Addr::LOCALHOST), 80).target(),
        ] {
            assert!(
                matches!(target, AddressTarget::One(addresses) if addresses == address),
                "{target:?}"
            );
        }
        for target in [
            "[::1]:80".target(),
            ("::1", 80).target(),
            (Ipv6Addr::LOCALHOST, 80).target(),
        ] {
            assert!(
                matches!(target, AddressTarget::One(addresses) if addresses == six),
                "{target:?}"
            );
        }
        for target in [[address, six].target(), vec![address, six].target()] {
            let AddressTarget::Several(addresses) = target else {
                panic!("{target:?}");
            };
            assert_eq!(addresses, [address, six]);
        }
        for target in ["localhost:80".target(), ("localhost", 80).target()] {
            assert!(matches!(target, AddressTarget::Name { .. }), "{target:?}");
        }
    }
}
