//! Options of listeners, and the bind of an address that a runtime's cores share.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use crate::driver::core::Core;
use crate::fd::{Claim, Share, Socket};
use crate::sys::net::{self, Address, SocketKind};
use crate::sys::option;

/// Default backlog. The kernel's limit (`net.core.somaxconn`) is lower.
const BACKLOG: u32 = 65_535;

/// Options for [`TcpListener::bind_with`](super::TcpListener::bind_with) and
/// [`UnixListener::bind_with`](super::UnixListener::bind_with). The defaults are those of `bind`.
///
/// ```
/// use annulus::net::{ListenOptions, TcpListener};
/// use annulus::runtime::Runtime;
///
/// # fn main() -> std::io::Result<()> {
/// Runtime::builder().cores(1).run(|_core| async {
///     let options = ListenOptions::new().backlog(128);
///     let listener = TcpListener::bind_with("127.0.0.1:0", &options)?;
///     # drop(listener);
///     Ok(())
/// })
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ListenOptions {
    backlog: u32,
    reuse_address: bool,
    reuse_port: bool,
    shared_by_cores: bool,
}

impl Default for ListenOptions {
    fn default() -> ListenOptions {
        ListenOptions::new()
    }
}

impl ListenOptions {
    /// Returns the options of `bind`: the address can be reused, only cores of this runtime share it, and the backlog
    /// is the kernel's limit.
    pub fn new() -> ListenOptions {
        ListenOptions {
            backlog: BACKLOG,
            reuse_address: true,
            reuse_port: false,
            shared_by_cores: true,
        }
    }

    /// Sets how many connections may wait to be accepted; 65,535 by default. Beyond that, clients wait or retry. The
    /// kernel's limit also applies (`net.core.somaxconn`, 4096 since Linux 5.4).
    ///
    /// The backlog is full with one connection more than its number; the next clients then retry:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// use annulus::net::{ListenOptions, TcpListener};
    ///
    /// let listener = TcpListener::bind_with("127.0.0.1:0", &ListenOptions::new().backlog(1))?;
    /// let address = listener.local_addr()?;
    /// let clients = [std::net::TcpStream::connect(address)?, std::net::TcpStream::connect(address)?];
    /// # drop(clients);
    /// # Ok(()) })? }
    /// ```
    pub fn backlog(mut self, connections: u32) -> Self {
        self.backlog = connections;
        self
    }

    /// Sets whether the address can be bound while connections of an earlier listener are closing (`SO_REUSEADDR`).
    /// On by default, as in std and Tokio. It does not let two listeners share an address. TCP only.
    ///
    /// Without it, a restarted server can't bind its address (`EADDRINUSE`) until the last of those connections has
    /// closed, which takes up to a minute. Neither can a task that has just dropped a listener at that address.
    ///
    /// A test that wants to find out whether the port of an old server is still in use:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// use annulus::net::{ListenOptions, TcpListener};
    ///
    /// let strict = ListenOptions::new().reuse_address(false);
    /// let listener = TcpListener::bind_with("127.0.0.1:0", &strict)?;
    /// let error = TcpListener::bind_with(listener.local_addr()?, &strict).unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    /// # Ok(()) })? }
    /// ```
    pub fn reuse_address(mut self, on: bool) -> Self {
        self.reuse_address = on;
        self
    }

    /// Sets whether other listeners of the same user that set this option may bind the address, in this or another
    /// process (`SO_REUSEPORT`). The kernel spreads connections over them. Off by default. TCP only.
    ///
    /// Use it for servers of several processes, or for a server that starts before its predecessor ends.
    ///
    /// A new version of a server can bind the address while the old one still accepts:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// use annulus::net::{ListenOptions, TcpListener};
    ///
    /// let options = ListenOptions::new().reuse_port(true);
    /// let old = TcpListener::bind_with("127.0.0.1:0", &options)?;
    /// let address = old.local_addr()?;
    /// assert!(TcpListener::bind(address).is_err()); // both need the option
    /// let new = TcpListener::bind_with(address, &options)?;
    /// drop(old);
    /// # drop(new);
    /// # Ok(()) })? }
    /// ```
    pub fn reuse_port(mut self, on: bool) -> Self {
        self.reuse_port = on;
        self
    }

    /// Sets whether other cores of this runtime may listen at the same address, with this option on. The kernel
    /// spreads connections over the cores. On by default: each core of a server binds its own listener. TCP only.
    ///
    /// If off, the second core fails with `EADDRINUSE`. Other runtimes and processes can't bind the address in either
    /// case, except a process of the same user that sets `SO_REUSEPORT`: a runtime of several cores sets it on its
    /// listeners.
    ///
    /// A service on one core only. With the option on, a second core could bind the address by mistake, and would get
    /// some of the connections:
    ///
    /// ```
    /// use std::net::{Ipv4Addr, TcpListener as Std};
    /// use annulus::net::{ListenOptions, TcpListener};
    /// use annulus::runtime::{self, Runtime};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// Runtime::builder().cores(2).run(|core| async move {
    ///     if core.index() != 0 {
    ///         return Ok(());
    ///     }
    ///     let only = ListenOptions::new().shared_by_cores(false);
    ///     let listener = TcpListener::bind_with((Ipv4Addr::LOCALHOST, 0), &only)?;
    ///     let address = listener.local_addr()?;
    ///     let second = runtime::handle().spawn_on(1, move || async move { TcpListener::bind(address).is_err() });
    ///     assert!(!matches!(second.await, Ok(false)));
    ///     Ok(())
    /// })
    /// # }
    /// ```
    pub fn shared_by_cores(mut self, on: bool) -> Self {
        self.shared_by_cores = on;
        self
    }

    pub(super) fn backlog_of_kernel(&self) -> i32 {
        i32::try_from(self.backlog).unwrap_or(i32::MAX)
    }
}

/// Opens a socket that listens at `address`. Returns it with its claim on the address.
pub(super) fn listen(
    core: &Rc<Core>,
    address: SocketAddr,
    options: &ListenOptions,
) -> io::Result<(Rc<Socket>, Option<Claim>)> {
    let name = net::internet(address);
    let socket = core.socket(net::socket(
        &name,
        SocketKind::Stream,
        core.wants_nonblocking(),
    )?);
    option::set_reuse_address(socket.raw(), options.reuse_address)?;
    let begin = |socket: &Socket, name: &Address| {
        net::bind(socket.raw(), name)?;
        net::listen(socket.raw(), options.backlog_of_kernel())
    };
    if options.reuse_port || !options.shared_by_cores {
        option::set_reuse_port(socket.raw(), options.reuse_port)?;
        begin(&socket, &name)?;
        return Ok((socket, None));
    }
    let claim = bind_shared(core, &socket, address, SocketKind::Stream, || {
        begin(&socket, &name)
    })?;
    Ok((socket, claim))
}

/// Binds `socket` to `address` with `begin`. Only the other cores of the runtime may share the address.
pub(super) fn bind_shared(
    core: &Core,
    socket: &Socket,
    address: SocketAddr,
    kind: SocketKind,
    begin: impl FnOnce() -> io::Result<()>,
) -> io::Result<Option<Claim>> {
    core.claim(kind, address, |share| {
        if share == Share::Joins {
            option::set_reuse_port(socket.raw(), true)?;
        }
        begin()?;
        if share == Share::First {
            option::set_reuse_port(socket.raw(), true)?;
        }
        let bound = net::to_internet(net::local_address(socket.raw())?);
        bound.ok_or_else(|| io::ErrorKind::Unsupported.into())
    })
}
