//! Socket options. Each is one system call, which does not block.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use crate::fd::Socket;
use crate::sys::{net, option};

/// Reads and writes a socket's options. The kernel refuses an option that the kind of socket lacks, mostly with
/// `EOPNOTSUPP` or `ENOPROTOOPT`.
#[derive(Clone, Copy)]
pub struct SocketOptions<'a>(&'a Socket);

impl<'a> SocketOptions<'a> {
    pub(super) fn of(socket: &'a Socket) -> SocketOptions<'a> {
        SocketOptions(socket)
    }

    /// Returns and clears the socket's pending error (`SO_ERROR`); `None` if there is none.
    ///
    /// # Errors
    ///
    /// Fails with any error of `getsockopt(2)`, unchanged.
    pub fn take_error(self) -> io::Result<Option<io::Error>> {
        option::take_error(self.0.raw())
    }

    /// Joins a multicast group on the interface with the given address; with the unspecified address, the kernel
    /// chooses one (`IP_ADD_MEMBERSHIP`).
    ///
    /// # Errors
    ///
    /// Fails with any error of `setsockopt(2)`, unchanged.
    pub fn join_multicast(self, group: Ipv4Addr, interface: Ipv4Addr) -> io::Result<()> {
        option::join_multicast(self.0.raw(), group, interface)
    }

    /// Leaves a multicast group (`IP_DROP_MEMBERSHIP`).
    ///
    /// # Errors
    ///
    /// Fails with `EADDRNOTAVAIL` if the socket is not a member.
    pub fn leave_multicast(self, group: Ipv4Addr, interface: Ipv4Addr) -> io::Result<()> {
        option::leave_multicast(self.0.raw(), group, interface)
    }

    /// Joins a multicast group on the interface with the given index; with 0, the kernel chooses one
    /// (`IPV6_ADD_MEMBERSHIP`).
    ///
    /// # Errors
    ///
    /// Fails with any error of `setsockopt(2)`, unchanged.
    pub fn join_multicast_v6(self, group: Ipv6Addr, interface: u32) -> io::Result<()> {
        option::join_multicast_v6(self.0.raw(), group, interface)
    }

    /// Leaves a multicast group (`IPV6_DROP_MEMBERSHIP`).
    ///
    /// # Errors
    ///
    /// Fails with `EADDRNOTAVAIL` if the socket is not a member.
    pub fn leave_multicast_v6(self, group: Ipv6Addr, interface: u32) -> io::Result<()> {
        option::leave_multicast_v6(self.0.raw(), group, interface)
    }

    /// Sets the interface that sends multicast, by its address (`IP_MULTICAST_IF`).
    ///
    /// # Errors
    ///
    /// Fails with any error of `setsockopt(2)`, unchanged.
    pub fn set_multicast_interface(self, interface: Ipv4Addr) -> io::Result<()> {
        option::set_multicast_interface(self.0.raw(), interface)
    }

    /// Sets whether the address can be bound while connections of an earlier listener are closing (`SO_REUSEADDR`).
    /// Set it before the bind.
    ///
    /// # Errors
    ///
    /// Fails with any error of `setsockopt(2)`, unchanged.
    pub fn set_reuse_address(self, on: bool) -> io::Result<()> {
        option::set_reuse_address(self.0.raw(), on)
    }

    /// Returns the current setting; see [`set_reuse_address`](SocketOptions::set_reuse_address).
    ///
    /// # Errors
    ///
    /// Fails with any error of `getsockopt(2)`, unchanged.
    pub fn reuse_address(self) -> io::Result<bool> {
        option::reuse_address(self.0.raw())
    }

    /// Sets whether several sockets may bind the same address; the kernel spreads incoming traffic over them
    /// (`SO_REUSEPORT`). Set it before the bind.
    ///
    /// # Errors
    ///
    /// Fails with any error of `setsockopt(2)`, unchanged.
    pub fn set_reuse_port(self, on: bool) -> io::Result<()> {
        option::set_reuse_port(self.0.raw(), on)
    }

    /// Returns the current setting; see [`set_reuse_port`](SocketOptions::set_reuse_port).
    ///
    /// # Errors
    ///
    /// Fails with any error of `getsockopt(2)`, unchanged.
    pub fn reuse_port(self) -> io::Result<bool> {
        option::reuse_port(self.0.raw())
    }

    /// Sets the size of the kernel's send buffer, bytes. The kernel doubles it for its own overhead (`SO_SNDBUF`).
    ///
    /// # Errors
    ///
    /// Fails with any error of `setsockopt(2)`, unchanged.
    pub fn set_send_buffer_bytes(self, bytes: usize) -> io::Result<()> {
        option::set_send_buffer_bytes(self.0.raw(), bytes)
    }

    /// Returns the size of the kernel's send buffer, bytes; see
    /// [`set_send_buffer_bytes`](SocketOptions::set_send_buffer_bytes).
    ///
    /// # Errors
    ///
    /// Fails with any error of `getsockopt(2)`, unchanged.
    pub fn send_buffer_bytes(self) -> io::Result<usize> {
        option::send_buffer_bytes(self.0.raw())
    }

    /// Sets the size of the kernel's receive buffer, bytes. The kernel doubles it for its own overhead (`SO_RCVBUF`).
    ///
    /// # Errors
    ///
    /// Fails with any error of `setsockopt(2)`, unchanged.
    pub fn set_receive_buffer_bytes(self, bytes: usize) -> io::Result<()> {
        option::set_receive_buffer_bytes(self.0.raw(), bytes)
    }

    /// Returns the size of the kernel's receive buffer, bytes; see
    /// [`set_receive_buffer_bytes`](SocketOptions::set_receive_buffer_bytes).
    ///
    /// # Errors
    ///
    /// Fails with any error of `getsockopt(2)`, unchanged.
    pub fn receive_buffer_bytes(self) -> io::Result<usize> {
        option::receive_buffer_bytes(self.0.raw())
    }

    /// Sets how long the kernel keeps unsent data after the close, in whole seconds (`SO_LINGER`). With
    /// `Some(Duration::ZERO)` the close resets the connection.
    ///
    /// # Errors
    ///
    /// Fails with any error of `setsockopt(2)`, unchanged.
    pub fn set_linger(self, linger: Option<Duration>) -> io::Result<()> {
        option::set_linger(self.0.raw(), linger)
    }

    /// Returns the current setting; see [`set_linger`](SocketOptions::set_linger).
    ///
    /// # Errors
    ///
    /// Fails with any error of `getsockopt(2)`, unchanged.
    pub fn linger(self) -> io::Result<Option<Duration>> {
        option::linger(self.0.raw())
    }

    /// Sets whether datagrams may be sent to a broadcast address (`SO_BROADCAST`).
    ///
    /// # Errors
    ///
    /// Fails with any error of `setsockopt(2)`, unchanged.
    pub fn set_broadcast(self, on: bool) -> io::Result<()> {
        option::set_broadcast(self.0.raw(), on)
    }

    /// Returns the current setting; see [`set_broadcast`](SocketOptions::set_broadcast).
    ///
    /// # Errors
    ///
    /// Fails with any error of `getsockopt(2)`, unchanged.
    pub fn broadcast(self) -> io::Result<bool> {
        option::broadcast(self.0.raw())
    }

    /// Delays accepting a connection until the client has sent data, or for some seconds (`TCP_DEFER_ACCEPT`). For
    /// protocols whose client speaks first: the first receive then finds the data. TCP only.
    ///
    /// # Errors
    ///
    /// Fails with any error of `setsockopt(2)`, unchanged.
    pub fn set_defer_accept(self, seconds: u32) -> io::Result<()> {
        net::set_defer_accept(self.0.raw(), seconds)
    }

    /// Sets whether small segments are sent immediately (`TCP_NODELAY`). TCP only.
    ///
    /// # Errors
    ///
    /// Fails with any error of `setsockopt(2)`, unchanged.
    pub fn set_nodelay(self, on: bool) -> io::Result<()> {
        option::set_nodelay(self.0.raw(), on)
    }

    /// Returns the current setting; see [`set_nodelay`](SocketOptions::set_nodelay).
    ///
    /// # Errors
    ///
    /// Fails with any error of `getsockopt(2)`, unchanged.
    pub fn nodelay(self) -> io::Result<bool> {
        option::nodelay(self.0.raw())
    }

    /// Sets whether the kernel checks with probes that an idle peer is still reachable (`SO_KEEPALIVE`).
    ///
    /// # Errors
    ///
    /// Fails with any error of `setsockopt(2)`, unchanged.
    pub fn set_keepalive(self, on: bool) -> io::Result<()> {
        option::set_keepalive(self.0.raw(), on)
    }

    /// Returns the current setting; see [`set_keepalive`](SocketOptions::set_keepalive).
    ///
    /// # Errors
    ///
    /// Fails with any error of `getsockopt(2)`, unchanged.
    pub fn keepalive(self) -> io::Result<bool> {
        option::keepalive(self.0.raw())
    }

    /// Sets the idle time before the first keepalive probe, in whole seconds (`TCP_KEEPIDLE`). TCP only.
    ///
    /// # Errors
    ///
    /// Fails with any error of `setsockopt(2)`, unchanged.
    pub fn set_keepalive_idle(self, idle: Duration) -> io::Result<()> {
        option::set_keepalive_idle(self.0.raw(), idle)
    }

    /// Returns the current setting; see [`set_keepalive_idle`](SocketOptions::set_keepalive_idle).
    ///
    /// # Errors
    ///
    /// Fails with any error of `getsockopt(2)`, unchanged.
    pub fn keepalive_idle(self) -> io::Result<Duration> {
        option::keepalive_idle(self.0.raw())
    }

    /// Sets the time between keepalive probes, in whole seconds (`TCP_KEEPINTVL`). TCP only.
    ///
    /// # Errors
    ///
    /// Fails with any error of `setsockopt(2)`, unchanged.
    pub fn set_keepalive_interval(self, interval: Duration) -> io::Result<()> {
        option::set_keepalive_interval(self.0.raw(), interval)
    }

    /// Returns the current setting; see [`set_keepalive_interval`](SocketOptions::set_keepalive_interval).
    ///
    /// # Errors
    ///
    /// Fails with any error of `getsockopt(2)`, unchanged.
    pub fn keepalive_interval(self) -> io::Result<Duration> {
        option::keepalive_interval(self.0.raw())
    }

    /// Sets the number of unanswered keepalive probes after which the connection is closed (`TCP_KEEPCNT`). TCP only.
    ///
    /// # Errors
    ///
    /// Fails with any error of `setsockopt(2)`, unchanged.
    pub fn set_keepalive_count(self, count: u32) -> io::Result<()> {
        option::set_keepalive_count(self.0.raw(), count)
    }

    /// Returns the current setting; see [`set_keepalive_count`](SocketOptions::set_keepalive_count).
    ///
    /// # Errors
    ///
    /// Fails with any error of `getsockopt(2)`, unchanged.
    pub fn keepalive_count(self) -> io::Result<u32> {
        option::keepalive_count(self.0.raw())
    }

    /// Sets the time to live of packets, in hops (`IP_TTL`). IPv4 only.
    ///
    /// # Errors
    ///
    /// Fails with any error of `setsockopt(2)`, unchanged.
    pub fn set_ttl(self, ttl: u32) -> io::Result<()> {
        option::set_ttl(self.0.raw(), ttl)
    }

    /// Returns the current setting; see [`set_ttl`](SocketOptions::set_ttl).
    ///
    /// # Errors
    ///
    /// Fails with any error of `getsockopt(2)`, unchanged.
    pub fn ttl(self) -> io::Result<u32> {
        option::ttl(self.0.raw())
    }

    /// Sets whether an IPv6 socket refuses IPv4 traffic (`IPV6_V6ONLY`). Set it before the bind.
    ///
    /// # Errors
    ///
    /// Fails with any error of `setsockopt(2)`, unchanged.
    pub fn set_only_v6(self, on: bool) -> io::Result<()> {
        option::set_only_v6(self.0.raw(), on)
    }

    /// Returns the current setting; see [`set_only_v6`](SocketOptions::set_only_v6).
    ///
    /// # Errors
    ///
    /// Fails with any error of `getsockopt(2)`, unchanged.
    pub fn only_v6(self) -> io::Result<bool> {
        option::only_v6(self.0.raw())
    }

    /// Sets the time to live of multicast packets, in hops; 1 by default (`IP_MULTICAST_TTL`). IPv4 only.
    ///
    /// # Errors
    ///
    /// Fails with any error of `setsockopt(2)`, unchanged.
    pub fn set_multicast_ttl(self, ttl: u32) -> io::Result<()> {
        option::set_multicast_ttl(self.0.raw(), ttl)
    }

    /// Returns the current setting; see [`set_multicast_ttl`](SocketOptions::set_multicast_ttl).
    ///
    /// # Errors
    ///
    /// Fails with any error of `getsockopt(2)`, unchanged.
    pub fn multicast_ttl(self) -> io::Result<u32> {
        option::multicast_ttl(self.0.raw())
    }

    /// Sets whether sent multicast is also received on this machine (`IP_MULTICAST_LOOP`). IPv4 only.
    ///
    /// # Errors
    ///
    /// Fails with any error of `setsockopt(2)`, unchanged.
    pub fn set_multicast_loop(self, on: bool) -> io::Result<()> {
        option::set_multicast_loop(self.0.raw(), on)
    }

    /// Returns the current setting; see [`set_multicast_loop`](SocketOptions::set_multicast_loop).
    ///
    /// # Errors
    ///
    /// Fails with any error of `getsockopt(2)`, unchanged.
    pub fn multicast_loop(self) -> io::Result<bool> {
        option::multicast_loop(self.0.raw())
    }

    /// Sets whether sent multicast is also received on this machine (`IPV6_MULTICAST_LOOP`). IPv6 only.
    ///
    /// # Errors
    ///
    /// Fails with any error of `setsockopt(2)`, unchanged.
    pub fn set_multicast_loop_v6(self, on: bool) -> io::Result<()> {
        option::set_multicast_loop_v6(self.0.raw(), on)
    }

    /// Returns the current setting; see [`set_multicast_loop_v6`](SocketOptions::set_multicast_loop_v6).
    ///
    /// # Errors
    ///
    /// Fails with any error of `getsockopt(2)`, unchanged.
    pub fn multicast_loop_v6(self) -> io::Result<bool> {
        option::multicast_loop_v6(self.0.raw())
    }

    /// Sets the hop limit of multicast packets; 1 by default (`IPV6_MULTICAST_HOPS`). IPv6 only.
    ///
    /// # Errors
    ///
    /// Fails with any error of `setsockopt(2)`, unchanged.
    pub fn set_multicast_hops_v6(self, hops: u32) -> io::Result<()> {
        option::set_multicast_hops_v6(self.0.raw(), hops)
    }

    /// Returns the current setting; see [`set_multicast_hops_v6`](SocketOptions::set_multicast_hops_v6).
    ///
    /// # Errors
    ///
    /// Fails with any error of `getsockopt(2)`, unchanged.
    pub fn multicast_hops_v6(self) -> io::Result<u32> {
        option::multicast_hops_v6(self.0.raw())
    }
}

impl fmt::Debug for SocketOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SocketOptions({})", self.0.raw())
    }
}
