//! That each call the library takes over is there.

use std::process::Command;

use crate::program::library;
use crate::skip::skip;

/// The symbols that the library must define, so that programs find them before those of libc.
const HOOKS: &str = "read write readv writev recv send recvfrom sendto recvmsg sendmsg recvmmsg sendmmsg \
    accept accept4 socket close close_range closefrom dup dup2 dup3 fcntl fcntl64 ioctl shutdown setsockopt getsockopt \
    sendfile sendfile64 splice poll ppoll select pselect epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait \
    epoll_pwait2 vfork execve execv execvp execvpe execl execlp execle fexecve prctl _exit _Exit abort \
    __read_chk __recv_chk __recvfrom_chk __poll_chk __ppoll_chk";

#[test]
fn every_hook_is_exported() {
    let listed = Command::new("nm")
        .args(["--dynamic", "--defined-only", "--format=posix"])
        .arg(library())
        .output();
    let Ok(listed) = listed else {
        return skip("no nm to list the library's symbols");
    };
    let listed = String::from_utf8(listed.stdout).unwrap();
    let defined: Vec<&str> = listed
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    let missing: Vec<&str> = HOOKS
        .split_whitespace()
        .filter(|hook| !defined.contains(hook))
        .collect();
    assert!(missing.is_empty(), "not exported: {missing:?}");
}
