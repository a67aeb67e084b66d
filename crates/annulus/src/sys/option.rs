//! Socket options, read and set by system calls that never block.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::RawFd;
use std::time::Duration;

use rustix::net::sockopt;

use super::call::borrow_fd;

/// Returns and clears the pending error of the socket.
pub(crate) fn take_error(fd: RawFd) -> io::Result<Option<io::Error>> {
    Ok(sockopt::socket_error(borrow_fd(fd))?
        .err()
        .map(io::Error::from))
}

pub(crate) fn join_multicast(fd: RawFd, group: Ipv4Addr, interface: Ipv4Addr) -> io::Result<()> {
    Ok(sockopt::set_ip_add_membership(
        borrow_fd(fd),
        &group,
        &interface,
    )?)
}
pub(crate) fn leave_multicast(fd: RawFd, group: Ipv4Addr, interface: Ipv4Addr) -> io::Result<()> {
    Ok(sockopt::set_ip_drop_membership(
        borrow_fd(fd),
        &group,
        &interface,
    )?)
}
pub(crate) fn join_multicast_v6(fd: RawFd, group: Ipv6Addr, interface: u32) -> io::Result<()> {
    Ok(sockopt::set_ipv6_add_membership(
        borrow_fd(fd),
        &group,
        interface,
    )?)
}
pub(crate) fn leave_multicast_v6(fd: RawFd, group: Ipv6Addr, interface: u32) -> io::Result<()> {
    Ok(sockopt::set_ipv6_drop_membership(
        borrow_fd(fd),
        &group,
        interface,
    )?)
}
pub(crate) fn set_multicast_interface(fd: RawFd, interface: Ipv4Addr) -> io::Result<()> {
    Ok(sockopt::set_ip_multicast_if(borrow_fd(fd), &interface)?)
}

pub(crate) fn set_reuse_address(fd: RawFd, on: bool) -> io::Result<()> {
    Ok(sockopt::set_socket_reuseaddr(borrow_fd(fd), on)?)
}
pub(crate) fn reuse_address(fd: RawFd) -> io::Result<bool> {
    Ok(sockopt::socket_reuseaddr(borrow_fd(fd))?)
}
pub(crate) fn set_reuse_port(fd: RawFd, on: bool) -> io::Result<()> {
    Ok(sockopt::set_socket_reuseport(borrow_fd(fd), on)?)
}
pub(crate) fn reuse_port(fd: RawFd) -> io::Result<bool> {
    Ok(sockopt::socket_reuseport(borrow_fd(fd))?)
}
pub(crate) fn set_send_buffer_bytes(fd: RawFd, bytes: usize) -> io::Result<()> {
    Ok(sockopt::set_socket_send_buffer_size(borrow_fd(fd), bytes)?)
}
pub(crate) fn send_buffer_bytes(fd: RawFd) -> io::Result<usize> {
    Ok(sockopt::socket_send_buffer_size(borrow_fd(fd))?)
}
pub(crate) fn set_receive_buffer_bytes(fd: RawFd, bytes: usize) -> io::Result<()> {
    Ok(sockopt::set_socket_recv_buffer_size(borrow_fd(fd), bytes)?)
}
pub(crate) fn receive_buffer_bytes(fd: RawFd) -> io::Result<usize> {
    Ok(sockopt::socket_recv_buffer_size(borrow_fd(fd))?)
}
pub(crate) fn set_linger(fd: RawFd, linger: Option<Duration>) -> io::Result<()> {
    Ok(sockopt::set_socket_linger(borrow_fd(fd), linger)?)
}
pub(crate) fn linger(fd: RawFd) -> io::Result<Option<Duration>> {
    Ok(sockopt::socket_linger(borrow_fd(fd))?)
}
pub(crate) fn set_broadcast(fd: RawFd, on: bool) -> io::Result<()> {
    Ok(sockopt::set_socket_broadcast(borrow_fd(fd), on)?)
}
pub(crate) fn broadcast(fd: RawFd) -> io::Result<bool> {
    Ok(sockopt::socket_broadcast(borrow_fd(fd))?)
}
pub(crate) fn set_nodelay(fd: RawFd, on: bool) -> io::Result<()> {
    Ok(sockopt::set_tcp_nodelay(borrow_fd(fd), on)?)
}
pub(crate) fn nodelay(fd: RawFd) -> io::Result<bool> {
    Ok(sockopt::tcp_nodelay(borrow_fd(fd))?)
}
pub(crate) fn set_keepalive(fd: RawFd, on: bool) -> io::Result<()> {
    Ok(sockopt::set_socket_keepalive(borrow_fd(fd), on)?)
}
pub(crate) fn keepalive(fd: RawFd) -> io::Result<bool> {
    Ok(sockopt::socket_keepalive(borrow_fd(fd))?)
}
pub(crate) fn set_keepalive_idle(fd: RawFd, idle: Duration) -> io::Result<()> {
    Ok(sockopt::set_tcp_keepidle(borrow_fd(fd), idle)?)
}
pub(crate) fn keepalive_idle(fd: RawFd) -> io::Result<Duration> {
    Ok(sockopt::tcp_keepidle(borrow_fd(fd))?)
}
pub(crate) fn set_keepalive_interval(fd: RawFd, interval: Duration) -> io::Result<()> {
    Ok(sockopt::set_tcp_keepintvl(borrow_fd(fd), interval)?)
}
pub(crate) fn keepalive_interval(fd: RawFd) -> io::Result<Duration> {
    Ok(sockopt::tcp_keepintvl(borrow_fd(fd))?)
}
pub(crate) fn set_keepalive_count(fd: RawFd, count: u32) -> io::Result<()> {
    Ok(sockopt::set_tcp_keepcnt(borrow_fd(fd), count)?)
}
pub(crate) fn keepalive_count(fd: RawFd) -> io::Result<u32> {
    Ok(sockopt::tcp_keepcnt(borrow_fd(fd))?)
}
pub(crate) fn set_ttl(fd: RawFd, ttl: u32) -> io::Result<()> {
    Ok(sockopt::set_ip_ttl(borrow_fd(fd), ttl)?)
}
pub(crate) fn ttl(fd: RawFd) -> io::Result<u32> {
    Ok(sockopt::ip_ttl(borrow_fd(fd))?)
}
pub(crate) fn set_only_v6(fd: RawFd, on: bool) -> io::Result<()> {
    Ok(sockopt::set_ipv6_v6only(borrow_fd(fd), on)?)
}
pub(crate) fn only_v6(fd: RawFd) -> io::Result<bool> {
    Ok(sockopt::ipv6_v6only(borrow_fd(fd))?)
}
pub(crate) fn set_multicast_ttl(fd: RawFd, ttl: u32) -> io::Result<()> {
    Ok(sockopt::set_ip_multicast_ttl(borrow_fd(fd), ttl)?)
}
pub(crate) fn multicast_ttl(fd: RawFd) -> io::Result<u32> {
    Ok(sockopt::ip_multicast_ttl(borrow_fd(fd))?)
}
pub(crate) fn set_multicast_loop(fd: RawFd, on: bool) -> io::Result<()> {
    Ok(sockopt::set_ip_multicast_loop(borrow_fd(fd), on)?)
}
pub(crate) fn multicast_loop(fd: RawFd) -> io::Result<bool> {
    Ok(sockopt::ip_multicast_loop(borrow_fd(fd))?)
}
pub(crate) fn set_multicast_loop_v6(fd: RawFd, on: bool) -> io::Result<()> {
    Ok(sockopt::set_ipv6_multicast_loop(borrow_fd(fd), on)?)
}
pub(crate) fn multicast_loop_v6(fd: RawFd) -> io::Result<bool> {
    Ok(sockopt::ipv6_multicast_loop(borrow_fd(fd))?)
}
pub(crate) fn set_multicast_hops_v6(fd: RawFd, hops: u32) -> io::Result<()> {
    Ok(sockopt::set_ipv6_multicast_hops(borrow_fd(fd), hops)?)
}
pub(crate) fn multicast_hops_v6(fd: RawFd) -> io::Result<u32> {
    Ok(sockopt::ipv6_multicast_hops(borrow_fd(fd))?)
}
