//! Options of a socket, one by one: by the system call, which never waits.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use crate::fd::Socket;
use crate::sys::{net, option};

/// A socket's options. One that the socket's kind does not have is refused by the kernel, mostly with
/// `EOPNOTSUPP` or `ENOPROTOOPT`.
#[derive(Clone, Copy)]
pub struct SocketOptions<'a>(&'a Socket);

impl<'a> SocketOptions<'a> {
    pub(super) fn of(socket: &'a Socket) -> SocketOptions<'a> {
        SocketOptions(socket)
    }

    /// The error that the kernel keeps for the socket (`SO_ERROR`), which is forgotten by that; `None`
    /// if there is none.
    ///
    /// # Errors
    ///
    /// What `getsockopt(2)` says.
    pub fn take_error(self) -> io::Result<Option<io::Error>> {
        option::take_error(self.0.raw())
    }

    /// Receives what is sent to the group, on the interface with that address; unspecified is the kernel's
    /// choice (`IP_ADD_MEMBERSHIP`).
    ///
    /// # Errors
    ///
    /// What `setsockopt(2)` says.
    pub fn join_multicast(self, group: Ipv4Addr, interface: Ipv4Addr) -> io::Result<()> {
        option::join_multicast(self.0.raw(), group, interface)
    }

    /// Leaves the group (`IP_DROP_MEMBERSHIP`).
    ///
    /// # Errors
    ///
    /// `EADDRNOTAVAIL`: it is not in it.
    pub fn leave_multicast(self, group: Ipv4Addr, interface: Ipv4Addr) -> io::Result<()> {
        option::leave_multicast(self.0.raw(), group, interface)
    }

    /// Receives what is sent to the group, on the interface with that number; 0 is the kernel's choice
    /// (`IPV6_ADD_MEMBERSHIP`).
    ///
    /// # Errors
    ///
    /// What `setsockopt(2)` says.
    pub fn join_multicast_v6(self, group: Ipv6Addr, interface: u32) -> io::Result<()> {
        option::join_multicast_v6(self.0.raw(), group, interface)
    }

    /// Leaves the group (`IPV6_DROP_MEMBERSHIP`).
    ///
    /// # Errors
    ///
    /// `EADDRNOTAVAIL`: it is not in it.
    pub fn leave_multicast_v6(self, group: Ipv6Addr, interface: u32) -> io::Result<()> {
        option::leave_multicast_v6(self.0.raw(), group, interface)
    }

    /// The interface by which multicast is sent, by its address (`IP_MULTICAST_IF`).
    ///
    /// # Errors
    ///
    /// What `setsockopt(2)` says.
    pub fn set_multicast_interface(self, interface: Ipv4Addr) -> io::Result<()> {
        option::set_multicast_interface(self.0.raw(), interface)
    }

    /// Whether the address may be taken while connections of an earlier listener linger. Before the bind.
    /// (`SO_REUSEADDR`)
    ///
    /// # Errors
    ///
    /// What `setsockopt(2)` says.
    pub fn set_reuse_address(self, on: bool) -> io::Result<()> {
        option::set_reuse_address(self.0.raw(), on)
    }

    /// See [`set_reuse_address`](SocketOptions::set_reuse_address).
    ///
    /// # Errors
    ///
    /// What `getsockopt(2)` says.
    pub fn reuse_address(self) -> io::Result<bool> {
        option::reuse_address(self.0.raw())
    }

    /// Whether several sockets share the address; the kernel spreads what comes. Before the bind.
    /// (`SO_REUSEPORT`)
    ///
    /// # Errors
    ///
    /// What `setsockopt(2)` says.
    pub fn set_reuse_port(self, on: bool) -> io::Result<()> {
        option::set_reuse_port(self.0.raw(), on)
    }

    /// See [`set_reuse_port`](SocketOptions::set_reuse_port).
    ///
    /// # Errors
    ///
    /// What `getsockopt(2)` says.
    pub fn reuse_port(self) -> io::Result<bool> {
        option::reuse_port(self.0.raw())
    }

    /// The kernel's buffer for what is to be sent; it takes twice as much, for itself. (`SO_SNDBUF`)
    ///
    /// # Errors
    ///
    /// What `setsockopt(2)` says.
    pub fn set_send_buffer_bytes(self, bytes: usize) -> io::Result<()> {
        option::set_send_buffer_bytes(self.0.raw(), bytes)
    }

    /// See [`set_send_buffer_bytes`](SocketOptions::set_send_buffer_bytes).
    ///
    /// # Errors
    ///
    /// What `getsockopt(2)` says.
    pub fn send_buffer_bytes(self) -> io::Result<usize> {
        option::send_buffer_bytes(self.0.raw())
    }

    /// The kernel's buffer for what has come; it takes twice as much, for itself. (`SO_RCVBUF`)
    ///
    /// # Errors
    ///
    /// What `setsockopt(2)` says.
    pub fn set_receive_buffer_bytes(self, bytes: usize) -> io::Result<()> {
        option::set_receive_buffer_bytes(self.0.raw(), bytes)
    }

    /// See [`set_receive_buffer_bytes`](SocketOptions::set_receive_buffer_bytes).
    ///
    /// # Errors
    ///
    /// What `getsockopt(2)` says.
    pub fn receive_buffer_bytes(self) -> io::Result<usize> {
        option::receive_buffer_bytes(self.0.raw())
    }

    /// How long a close waits for what is to be sent; `Some(0)` resets the connection. In whole seconds.
    /// (`SO_LINGER`)
    ///
    /// # Errors
    ///
    /// What `setsockopt(2)` says.
    pub fn set_linger(self, linger: Option<Duration>) -> io::Result<()> {
        option::set_linger(self.0.raw(), linger)
    }

    /// See [`set_linger`](SocketOptions::set_linger).
    ///
    /// # Errors
    ///
    /// What `getsockopt(2)` says.
    pub fn linger(self) -> io::Result<Option<Duration>> {
        option::linger(self.0.raw())
    }

    /// Whether datagrams may go to everybody on a network. (`SO_BROADCAST`)
    ///
    /// # Errors
    ///
    /// What `setsockopt(2)` says.
    pub fn set_broadcast(self, on: bool) -> io::Result<()> {
        option::set_broadcast(self.0.raw(), on)
    }

    /// See [`set_broadcast`](SocketOptions::set_broadcast).
    ///
    /// # Errors
    ///
    /// What `getsockopt(2)` says.
    pub fn broadcast(self) -> io::Result<bool> {
        option::broadcast(self.0.raw())
    }

    /// A listener's connections are accepted when the client has sent something, or some seconds later: for protocols
    /// whose client speaks first. Its data is there then, and the first receive need not wait for it. TCP.
    /// (`TCP_DEFER_ACCEPT`)
    ///
    /// # Errors
    ///
    /// What `setsockopt(2)` says.
    pub fn set_defer_accept(self, seconds: u32) -> io::Result<()> {
        net::set_defer_accept(self.0.raw(), seconds)
    }

    /// Whether small segments are sent immediately. TCP. (`TCP_NODELAY`)
    ///
    /// # Errors
    ///
    /// What `setsockopt(2)` says.
    pub fn set_nodelay(self, on: bool) -> io::Result<()> {
        option::set_nodelay(self.0.raw(), on)
    }

    /// See [`set_nodelay`](SocketOptions::set_nodelay).
    ///
    /// # Errors
    ///
    /// What `getsockopt(2)` says.
    pub fn nodelay(self) -> io::Result<bool> {
        option::nodelay(self.0.raw())
    }

    /// Whether the kernel asks now and then if the peer is still there. (`SO_KEEPALIVE`)
    ///
    /// # Errors
    ///
    /// What `setsockopt(2)` says.
    pub fn set_keepalive(self, on: bool) -> io::Result<()> {
        option::set_keepalive(self.0.raw(), on)
    }

    /// See [`set_keepalive`](SocketOptions::set_keepalive).
    ///
    /// # Errors
    ///
    /// What `getsockopt(2)` says.
    pub fn keepalive(self) -> io::Result<bool> {
        option::keepalive(self.0.raw())
    }

    /// After how much silence it asks for the first time. In whole seconds. TCP. (`TCP_KEEPIDLE`)
    ///
    /// # Errors
    ///
    /// What `setsockopt(2)` says.
    pub fn set_keepalive_idle(self, idle: Duration) -> io::Result<()> {
        option::set_keepalive_idle(self.0.raw(), idle)
    }

    /// See [`set_keepalive_idle`](SocketOptions::set_keepalive_idle).
    ///
    /// # Errors
    ///
    /// What `getsockopt(2)` says.
    pub fn keepalive_idle(self) -> io::Result<Duration> {
        option::keepalive_idle(self.0.raw())
    }

    /// How long it waits for the answer before it asks again. In whole seconds. TCP. (`TCP_KEEPINTVL`)
    ///
    /// # Errors
    ///
    /// What `setsockopt(2)` says.
    pub fn set_keepalive_interval(self, interval: Duration) -> io::Result<()> {
        option::set_keepalive_interval(self.0.raw(), interval)
    }

    /// See [`set_keepalive_interval`](SocketOptions::set_keepalive_interval).
    ///
    /// # Errors
    ///
    /// What `getsockopt(2)` says.
    pub fn keepalive_interval(self) -> io::Result<Duration> {
        option::keepalive_interval(self.0.raw())
    }

    /// How often it asks before the connection is given up. TCP. (`TCP_KEEPCNT`)
    ///
    /// # Errors
    ///
    /// What `setsockopt(2)` says.
    pub fn set_keepalive_count(self, count: u32) -> io::Result<()> {
        option::set_keepalive_count(self.0.raw(), count)
    }

    /// See [`set_keepalive_count`](SocketOptions::set_keepalive_count).
    ///
    /// # Errors
    ///
    /// What `getsockopt(2)` says.
    pub fn keepalive_count(self) -> io::Result<u32> {
        option::keepalive_count(self.0.raw())
    }

    /// Over how many routers packets may go. IPv4. (`IP_TTL`)
    ///
    /// # Errors
    ///
    /// What `setsockopt(2)` says.
    pub fn set_ttl(self, ttl: u32) -> io::Result<()> {
        option::set_ttl(self.0.raw(), ttl)
    }

    /// See [`set_ttl`](SocketOptions::set_ttl).
    ///
    /// # Errors
    ///
    /// What `getsockopt(2)` says.
    pub fn ttl(self) -> io::Result<u32> {
        option::ttl(self.0.raw())
    }

    /// Whether an IPv6 socket takes no IPv4. Before the bind. (`IPV6_V6ONLY`)
    ///
    /// # Errors
    ///
    /// What `setsockopt(2)` says.
    pub fn set_only_v6(self, on: bool) -> io::Result<()> {
        option::set_only_v6(self.0.raw(), on)
    }

    /// See [`set_only_v6`](SocketOptions::set_only_v6).
    ///
    /// # Errors
    ///
    /// What `getsockopt(2)` says.
    pub fn only_v6(self) -> io::Result<bool> {
        option::only_v6(self.0.raw())
    }

    /// Over how many routers multicast goes; 1 by default. IPv4. (`IP_MULTICAST_TTL`)
    ///
    /// # Errors
    ///
    /// What `setsockopt(2)` says.
    pub fn set_multicast_ttl(self, ttl: u32) -> io::Result<()> {
        option::set_multicast_ttl(self.0.raw(), ttl)
    }

    /// See [`set_multicast_ttl`](SocketOptions::set_multicast_ttl).
    ///
    /// # Errors
    ///
    /// What `getsockopt(2)` says.
    pub fn multicast_ttl(self) -> io::Result<u32> {
        option::multicast_ttl(self.0.raw())
    }

    /// Whether multicast is heard on this machine, too. IPv4. (`IP_MULTICAST_LOOP`)
    ///
    /// # Errors
    ///
    /// What `setsockopt(2)` says.
    pub fn set_multicast_loop(self, on: bool) -> io::Result<()> {
        option::set_multicast_loop(self.0.raw(), on)
    }

    /// See [`set_multicast_loop`](SocketOptions::set_multicast_loop).
    ///
    /// # Errors
    ///
    /// What `getsockopt(2)` says.
    pub fn multicast_loop(self) -> io::Result<bool> {
        option::multicast_loop(self.0.raw())
    }

    /// The same for IPv6. (`IPV6_MULTICAST_LOOP`)
    ///
    /// # Errors
    ///
    /// What `setsockopt(2)` says.
    pub fn set_multicast_loop_v6(self, on: bool) -> io::Result<()> {
        option::set_multicast_loop_v6(self.0.raw(), on)
    }

    /// See [`set_multicast_loop_v6`](SocketOptions::set_multicast_loop_v6).
    ///
    /// # Errors
    ///
    /// What `getsockopt(2)` says.
    pub fn multicast_loop_v6(self) -> io::Result<bool> {
        option::multicast_loop_v6(self.0.raw())
    }

    /// Over how many routers multicast goes; 1 by default. IPv6. (`IPV6_MULTICAST_HOPS`)
    ///
    /// # Errors
    ///
    /// What `setsockopt(2)` says.
    pub fn set_multicast_hops_v6(self, hops: u32) -> io::Result<()> {
        option::set_multicast_hops_v6(self.0.raw(), hops)
    }

    /// See [`set_multicast_hops_v6`](SocketOptions::set_multicast_hops_v6).
    ///
    /// # Errors
    ///
    /// What `getsockopt(2)` says.
    pub fn multicast_hops_v6(self) -> io::Result<u32> {
        option::multicast_hops_v6(self.0.raw())
    }
}

impl fmt::Debug for SocketOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SocketOptions({})", self.0.raw())
    }
}
