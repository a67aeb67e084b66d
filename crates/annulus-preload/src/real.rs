//! # Safety
//!
//! The functions behind the hooks: the next ones with the same names, usually libc's. They are looked up when the
//! library is loaded, or by the first call if another library's constructor runs earlier. The types are those of the C
//! library's headers (Typed).
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_ulong, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    FILE, addrinfo, aiocb, clockid_t, epoll_event, fd_set, gid_t, id_t, idtype_t, iovec, mmsghdr,
    msghdr, nfds_t, off_t, off64_t, pid_t, pollfd, posix_spawn_file_actions_t, posix_spawnattr_t,
    pthread_attr_t, pthread_t, rusage, sem_t, sembuf, sigevent, siginfo_t, sigset_t, sigval,
    size_t, sockaddr, socklen_t, ssize_t, timespec, timeval, uid_t,
};

use crate::errno;

/// The function that a child of `clone` runs.
pub(crate) type Run = unsafe extern "C-unwind" fn(*mut c_void) -> c_int;

/// The return value of a function that does not exist.
trait Missing {
    const MISSING: Self;
}

impl Missing for c_int {
    const MISSING: c_int = -1;
}

impl Missing for ssize_t {
    const MISSING: ssize_t = -1;
}

impl Missing for () {
    const MISSING: () = ();
}

impl Missing for c_uint {
    const MISSING: c_uint = 0;
}

impl Missing for size_t {
    const MISSING: size_t = 0;
}

impl<T> Missing for *mut T {
    const MISSING: *mut T = std::ptr::null_mut();
}

#[cold]
fn resolve(slot: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    // SAFETY: Typed: a name that ends; the handle means "after this library".
    let symbol = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    slot.store(symbol, Ordering::Relaxed);
    symbol
}

/// Returns the next function with a name, whatever its type.
pub(crate) fn next(name: &CStr) -> *mut c_void {
    // SAFETY: Typed: a NUL-terminated name; the handle means "after this library".
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

macro_rules! real {
    ($($name:ident($($arg:ident: $type:ty),*) -> $ret:ty;)*) => {
        $(
            /// The next function with this name.
            ///
            /// # Safety
            ///
            /// Typed: that function's own conditions, which the caller of the hook guarantees.
            #[inline]
            #[allow(non_snake_case, reason = "libc's names")]
            pub(crate) unsafe fn $name($($arg: $type),*) -> $ret {
                static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
                const NAME: &CStr = match CStr::from_bytes_with_nul(
                    concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => c"",
                };
                let mut next = NEXT.load(Ordering::Relaxed);
                if next.is_null() {
                    next = resolve(&NEXT, NAME);
                    if next.is_null() {
                        errno::set(libc::ENOSYS);
                        return <$ret as Missing>::MISSING;
                    }
                }
                type Function = unsafe extern "C-unwind" fn($($type),*) -> $ret;
                // SAFETY: Typed: the function of that name has this type.
                let next = unsafe { std::mem::transmute::<*mut c_void, Function>(next) };
                // SAFETY: Typed: the caller guarantees that function's own conditions.
                unsafe { next($($arg),*) }
            }
        )*
    };
}

real! {
    read(fd: c_int, base: *mut c_void, bytes: size_t) -> ssize_t;
    write(fd: c_int, base: *const c_void, bytes: size_t) -> ssize_t;
    readv(fd: c_int, vectors: *const iovec, count: c_int) -> ssize_t;
    writev(fd: c_int, vectors: *const iovec, count: c_int) -> ssize_t;
    recv(fd: c_int, base: *mut c_void, bytes: size_t, flags: c_int) -> ssize_t;
    send(fd: c_int, base: *const c_void, bytes: size_t, flags: c_int) -> ssize_t;
    recvfrom(fd: c_int, base: *mut c_void, bytes: size_t, flags: c_int, from: *mut sockaddr,
        from_bytes: *mut socklen_t) -> ssize_t;
    sendto(fd: c_int, base: *const c_void, bytes: size_t, flags: c_int, to: *const sockaddr,
        to_bytes: socklen_t) -> ssize_t;
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int;
    sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    preadv2(fd: c_int, vectors: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t;
    pwritev2(fd: c_int, vectors: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t;
    vdprintf(fd: c_int, format: *const c_char, values: *mut c_void) -> c_int;
    __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, values: *mut c_void) -> c_int;
    backtrace_symbols_fd(frames: *const *mut c_void, count: c_int, fd: c_int) -> ();
    wordexp(words: *const c_char, result: *mut c_void, flags: c_int) -> c_int;
    aio_read(request: *mut aiocb) -> c_int;
    aio_read64(request: *mut aiocb) -> c_int;
    aio_write(request: *mut aiocb) -> c_int;
    aio_write64(request: *mut aiocb) -> c_int;
    lio_listio(mode: c_int, requests: *const *mut aiocb, count: c_int, event: *mut sigevent) -> c_int;
    lio_listio64(mode: c_int, requests: *const *mut aiocb, count: c_int, event: *mut sigevent) -> c_int;
    connect(fd: c_int, address: *const sockaddr, bytes: socklen_t) -> c_int;
    accept(fd: c_int, from: *mut sockaddr, from_bytes: *mut socklen_t) -> c_int;
    accept4(fd: c_int, from: *mut sockaddr, from_bytes: *mut socklen_t, flags: c_int) -> c_int;
    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    close(fd: c_int) -> c_int;
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    dup(fd: c_int) -> c_int;
    dup2(fd: c_int, to: c_int) -> c_int;
    dup3(fd: c_int, to: c_int, flags: c_int) -> c_int;
    fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int;
    ioctl(fd: c_int, request: c_ulong, argument: c_ulong) -> c_int;
    shutdown(fd: c_int, how: c_int) -> c_int;
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, bytes: socklen_t) -> c_int;
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, bytes: *mut socklen_t) -> c_int;
    sendfile64(to: c_int, from: c_int, offset: *mut off64_t, count: size_t) -> ssize_t;
    splice(from: c_int, from_offset: *mut off64_t, to: c_int, to_offset: *mut off64_t, bytes: size_t,
        flags: c_uint) -> ssize_t;
    poll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int;
    ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int;
    pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec,
        mask: *const sigset_t) -> c_int;
    epoll_create(size: c_int) -> c_int;
    epoll_create1(flags: c_int) -> c_int;
    epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    epoll_wait(set: c_int, events: *mut epoll_event, max: c_int, timeout_ms: c_int) -> c_int;
    epoll_pwait(set: c_int, events: *mut epoll_event, max: c_int, timeout_ms: c_int, mask: *const sigset_t) -> c_int;
    epoll_pwait2(set: c_int, events: *mut epoll_event, max: c_int, timeout: *const timespec,
        mask: *const sigset_t) -> c_int;
    fdopen(fd: c_int, mode: *const c_char) -> *mut FILE;
    fclose(stream: *mut FILE) -> c_int;
    freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE;
    freopen64(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE;
    fork() -> pid_t;
    _Fork() -> pid_t;
    clone(run: Option<Run>, stack: *mut c_void, flags: c_int, argument: *mut c_void, parent: *mut pid_t,
        thread: *mut c_void, child: *mut pid_t) -> c_int;
    execveat(folder: c_int, path: *const c_char, arguments: *const *const c_char, variables: *const *const c_char,
        flags: c_int) -> c_int;
    __assert_fail(what: *const c_char, file: *const c_char, line: c_uint, function: *const c_char) -> c_int;
    __assert_perror_fail(errno: c_int, file: *const c_char, line: c_uint, function: *const c_char) -> c_int;
    __assert(what: *const c_char, file: *const c_char, line: c_int) -> c_int;
    __stack_chk_fail() -> c_int;
    __chk_fail() -> c_int;
    raise(signal: c_int) -> c_int;
    kill(pid: pid_t, signal: c_int) -> c_int;
    killpg(group: pid_t, signal: c_int) -> c_int;
    tgkill(process: pid_t, thread: pid_t, signal: c_int) -> c_int;
    pthread_kill(thread: pthread_t, signal: c_int) -> c_int;
    sigqueue(pid: pid_t, signal: c_int, value: sigval) -> c_int;
    pthread_sigqueue(thread: pthread_t, signal: c_int, value: sigval) -> c_int;
    posix_spawn(child: *mut pid_t, path: *const c_char, actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t, arguments: *const *mut c_char, variables: *const *mut c_char) -> c_int;
    posix_spawnp(child: *mut pid_t, file: *const c_char, actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t, arguments: *const *mut c_char, variables: *const *mut c_char) -> c_int;
    system(command: *const c_char) -> c_int;
    popen(command: *const c_char, mode: *const c_char) -> *mut FILE;
    prctl(what: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int;
    setuid(user: uid_t) -> c_int;
    setgid(group: gid_t) -> c_int;
    seteuid(user: uid_t) -> c_int;
    setegid(group: gid_t) -> c_int;
    setreuid(real: uid_t, effective: uid_t) -> c_int;
    setregid(real: gid_t, effective: gid_t) -> c_int;
    setresuid(real: uid_t, effective: uid_t, saved: uid_t) -> c_int;
    setresgid(real: gid_t, effective: gid_t, saved: gid_t) -> c_int;
    execve(path: *const c_char, arguments: *const *const c_char, variables: *const *const c_char) -> c_int;
    execv(path: *const c_char, arguments: *const *const c_char) -> c_int;
    execvp(file: *const c_char, arguments: *const *const c_char) -> c_int;
    execvpe(file: *const c_char, arguments: *const *const c_char, variables: *const *const c_char) -> c_int;
    fexecve(fd: c_int, arguments: *const *const c_char, variables: *const *const c_char) -> c_int;
    nanosleep(time: *const timespec, left: *mut timespec) -> c_int;
    clock_nanosleep(clock: clockid_t, flags: c_int, time: *const timespec, left: *mut timespec) -> c_int;
    usleep(us: c_uint) -> c_int;
    sleep(seconds: c_uint) -> c_uint;
    pause() -> c_int;
    sigsuspend(mask: *const sigset_t) -> c_int;
    sigwait(set: *const sigset_t, signal: *mut c_int) -> c_int;
    sigwaitinfo(set: *const sigset_t, info: *mut siginfo_t) -> c_int;
    sigtimedwait(set: *const sigset_t, info: *mut siginfo_t, timeout: *const timespec) -> c_int;
    wait(status: *mut c_int) -> pid_t;
    waitpid(child: pid_t, status: *mut c_int, options: c_int) -> pid_t;
    wait3(status: *mut c_int, options: c_int, usage: *mut rusage) -> pid_t;
    wait4(child: pid_t, status: *mut c_int, options: c_int, usage: *mut rusage) -> pid_t;
    waitid(kind: idtype_t, child: id_t, info: *mut siginfo_t, options: c_int) -> c_int;
    pclose(stream: *mut FILE) -> c_int;
    flock(fd: c_int, operation: c_int) -> c_int;
    lockf(fd: c_int, command: c_int, bytes: off_t) -> c_int;
    lockf64(fd: c_int, command: c_int, bytes: off_t) -> c_int;
    sem_wait(semaphore: *mut sem_t) -> c_int;
    sem_timedwait(semaphore: *mut sem_t, until: *const timespec) -> c_int;
    semop(set: c_int, operations: *mut sembuf, count: size_t) -> c_int;
    semtimedop(set: c_int, operations: *mut sembuf, count: size_t, timeout: *const timespec) -> c_int;
    msgrcv(queue: c_int, message: *mut c_void, bytes: size_t, kind: c_long, flags: c_int) -> ssize_t;
    getaddrinfo(node: *const c_char, service: *const c_char, hints: *const addrinfo, found: *mut *mut addrinfo)
        -> c_int;
    fgets(line: *mut c_char, bytes: c_int, stream: *mut FILE) -> *mut c_char;
    fgetc(stream: *mut FILE) -> c_int;
    getc(stream: *mut FILE) -> c_int;
    getchar() -> c_int;
    fread(base: *mut c_void, bytes: size_t, count: size_t, stream: *mut FILE) -> size_t;
    getline(line: *mut *mut c_char, bytes: *mut size_t, stream: *mut FILE) -> ssize_t;
    getdelim(line: *mut *mut c_char, bytes: *mut size_t, end: c_int, stream: *mut FILE) -> ssize_t;
    __getdelim(line: *mut *mut c_char, bytes: *mut size_t, end: c_int, stream: *mut FILE) -> ssize_t;
    fgets_unlocked(line: *mut c_char, bytes: c_int, stream: *mut FILE) -> *mut c_char;
    fread_unlocked(base: *mut c_void, bytes: size_t, count: size_t, stream: *mut FILE) -> size_t;
    __uflow(stream: *mut FILE) -> c_int;
    __fgets_chk(line: *mut c_char, capacity: size_t, bytes: c_int, stream: *mut FILE) -> *mut c_char;
    __fread_chk(base: *mut c_void, capacity: size_t, bytes: size_t, count: size_t, stream: *mut FILE) -> size_t;
    pthread_create(thread: *mut pthread_t, attributes: *const pthread_attr_t, run: *mut c_void, argument: *mut c_void)
        -> c_int;
    thrd_create(thread: *mut pthread_t, run: *mut c_void, argument: *mut c_void) -> c_int;
    unshare(what: c_int) -> c_int;
    setns(fd: c_int, kind: c_int) -> c_int;
}
