//! How a listener is made: its address, who may share it, and how many connections wait.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use crate::driver::core::{Claim, Core, Share};
use crate::fd::Socket;
use crate::sys::net::{self, Address, Kind};
use crate::sys::option;

/// Connections that wait to be accepted; the kernel's own bound (`net.core.somaxconn`) is below it.
const BACKLOG: u32 = 65_535;

/// Options for [`TcpListener::bind_with`](super::TcpListener::bind_with) and
/// [`UnixListener::bind_with`](super::UnixListener::bind_with). As they are made, they are those of `bind`.
///
/// ```
/// use annulus::net::{ListenOptions, TcpListener};
/// use annulus::runtime::Runtime;
///
/// # fn main() -> std::io::Result<()> {
/// Runtime::builder().threads(1).run(|_core| async {
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
    /// Those of `bind`: the address is reused, its port is shared by the runtime's own cores only, and as many
    /// connections wait as the kernel allows.
    pub fn new() -> ListenOptions {
        ListenOptions {
            backlog: BACKLOG,
            reuse_address: true,
            reuse_port: false,
            shared_by_cores: true,
        }
    }

    /// The number of connections that may wait to be accepted; beyond that, clients wait or try again. The kernel
    /// bounds it further (`net.core.somaxconn`, 4096 since Linux 5.4). 65,535 by default.
    pub fn backlog(mut self, connections: u32) -> Self {
        self.backlog = connections;
        self
    }

    /// Whether the address may be taken while connections of an earlier listener there are still closing
    /// (`SO_REUSEADDR`): for up to a minute after a server has ended. On by default, as in std and Tokio. It does not
    /// let two listeners have the same address.
    ///
    /// Without it a server that is started again is refused its address (`EADDRINUSE`) until the last of those
    /// connections has gone, and so is a task that binds the address right after it has dropped a listener there.
    /// TCP only.
    pub fn reuse_address(mut self, on: bool) -> Self {
        self.reuse_address = on;
        self
    }

    /// Whether any listener of the same user that sets this option, of this process or another, may have the same
    /// address (`SO_REUSEPORT`); the kernel spreads connections over them. For servers of several processes, or for
    /// one that starts before its predecessor ends. Off by default. TCP only.
    pub fn reuse_port(mut self, on: bool) -> Self {
        self.reuse_port = on;
        self
    }

    /// Whether the other cores of this runtime may listen at the same address with this option on; the kernel spreads
    /// connections over the cores. On by default: each core of a server binds its own listener. Listeners of other
    /// runtimes and processes are refused the address all the same, unless they set `SO_REUSEPORT` by themselves, as
    /// the same user: a runtime of several cores sets it on its listeners. Off, the second core is refused as well
    /// (`EADDRINUSE`). TCP only.
    pub fn shared_by_cores(mut self, on: bool) -> Self {
        self.shared_by_cores = on;
        self
    }

    pub(super) fn backlog_of_kernel(&self) -> i32 {
        i32::try_from(self.backlog).unwrap_or(i32::MAX)
    }
}

/// A socket that listens at `address`, and the claim on it.
pub(super) fn listen(
    core: &Rc<Core>,
    address: SocketAddr,
    options: &ListenOptions,
) -> io::Result<(Rc<Socket>, Option<Claim>)> {
    let name = net::internet(address);
    let socket = core.socket(net::socket(&name, Kind::Stream, core.wants_nonblocking())?);
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
    let claim = bind_shared(core, &socket, address, Kind::Stream, || {
        begin(&socket, &name)
    })?;
    Ok((socket, claim))
}

/// Has `begin` bind `socket` to `address`, which the other cores of the runtime may share and nobody else.
pub(super) fn bind_shared(
    core: &Core,
    socket: &Socket,
    address: SocketAddr,
    kind: Kind,
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
