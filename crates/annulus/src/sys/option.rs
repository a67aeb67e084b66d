//! Socket options, read and set by system calls that never block.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use rustix::net::sockopt;

use super::call::borrow_fd;

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
pub(crate) fn set_nodelay(fd: RawFd, on: bool) -> io::Result<()> {
    Ok(sockopt::set_tcp_nodelay(borrow_fd(fd), on)?)
}
pub(crate) fn nodelay(fd: RawFd) -> io::Result<bool> {
    Ok(sockopt::tcp_nodelay(borrow_fd(fd))?)
}
