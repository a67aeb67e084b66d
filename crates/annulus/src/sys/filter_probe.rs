//! # Safety
//!
//! Determines whether a seccomp filter ends the process for a call of io_uring. The kernel tells a process that it has
//! a filter, but not what the filter does, so a child with the same filters makes the calls. The calls get no ring and
//! no memory (Lent).
//!
//! Where the kernel allows it, the child shares the memory and the descriptors of the process, so that it costs the
//! same in a process of any size, and needs no memory under strict overcommit. It uses registers only: no stack, no
//! lock, no allocator.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{c_int, c_long};
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, Pid, Resource, WaitOptions, getpid, getrlimit, set_dumpable_behavior, waitpid,
};
use rustix::thread::{SecureComputingMode, secure_computing_mode};

use super::probe;
use crate::error::SetupError;

/// The calls of io_uring that a ring needs.
pub(crate) const RING_CALLS: [c_long; 3] = [
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
];

thread_local! {
    /// The last result of this thread, and the number of filters that it holds for. Only for a thread with filters of
    /// its own: the kernel reports their number, and equal numbers are not equal filters. A virtual machine monitor
    /// gives each thread a different filter, for example.
    static OWN: Cell<Option<(u32, bool)>> = const { Cell::new(None) };
}

/// The number of filters that the process had while it had one thread. All other threads inherited these, and a filter
/// is never removed: a thread with as many filters has the same ones. 0 if it is not known.
static INHERITED: AtomicU32 = AtomicU32::new(0);

/// The result for threads with the inherited filters: [`UNKNOWN`], [`SAFE`], [`KILLS`], or the identifier of the
/// process whose thread is finding out. That of another process is left over from a fork, and counts as unknown.
static RESULT: AtomicI32 = AtomicI32::new(UNKNOWN);
const UNKNOWN: i32 = 0;
const SAFE: i32 = -1;
const KILLS: i32 = -2;

#[used]
#[unsafe(link_section = ".init_array")]
static COUNT_INHERITED: extern "C" fn() = count_inherited;

/// Runs before `main`, or when a program loads a library that contains this crate.
extern "C" fn count_inherited() {
    if is_filtered() && probe::threads_count() == Some(1) {
        let filters = probe::seccomp_filters_count();
        INHERITED.store(filters.unwrap_or(0), Ordering::Relaxed);
    }
}

/// Fails if a filter of the calling thread ends the process for a call of io_uring. Creates a child only if the thread
/// has filters: one for all threads with the filters that the process started with, and one for each other thread until
/// it gets another filter.
pub(crate) fn check() -> Result<(), SetupError> {
    if !is_filtered() {
        return Ok(());
    }
    let filters = probe::seccomp_filters_count();
    let kills = match filters {
        Some(filters) if filters == INHERITED.load(Ordering::Relaxed) => of_process(),
        _ => of_thread(filters),
    };
    match kills.map_err(probe::explain_no_child)? {
        true => Err(probe::explain_kill()),
        false => Ok(()),
    }
}

fn of_thread(filters: Option<u32>) -> io::Result<bool> {
    let known = OWN.get().filter(|&(known, _)| filters == Some(known));
    let kills = match known {
        Some((_, kills)) => kills,
        None => kills(&RING_CALLS)?,
    };
    OWN.set(filters.map(|filters| (filters, kills)));
    Ok(kills)
}

/// Returns the result for the inherited filters. Other threads wait for the thread that is finding out.
fn of_process() -> io::Result<bool> {
    // A signal handler that came here as well would wait for its own thread.
    without_signals(|| {
        let me = getpid().as_raw_nonzero().get();
        loop {
            let now = RESULT.load(Ordering::Acquire);
            match now {
                SAFE | KILLS => return Ok(now == KILLS),
                busy if busy == me => thread::sleep(Duration::from_micros(50)),
                _ => {
                    let taken =
                        RESULT.compare_exchange(now, me, Ordering::Acquire, Ordering::Relaxed);
                    if taken.is_ok() {
                        break;
                    }
                }
            }
        }
        let killed = run(&RING_CALLS);
        let result = match killed {
            Ok(false) => SAFE,
            Ok(true) => KILLS,
            Err(_) => UNKNOWN,
        };
        RESULT.store(result, Ordering::Release);
        killed
    })
}

/// Returns whether a filter of the calling thread ends the process for one of `calls`, each made with arguments that
/// the kernel itself refuses.
///
/// # Errors
///
/// Fails if the kernel refuses a child: the process limit is reached, or memory is short.
pub(crate) fn kills(calls: &[c_long]) -> io::Result<bool> {
    if !is_filtered() {
        return Ok(false);
    }
    without_signals(|| run(calls))
}

/// Runs `action` with all signals blocked.
fn without_signals<T>(action: impl FnOnce() -> T) -> T {
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: Lent: both sets are of this stack.
    let masked = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr())
    };
    let result = action();
    if masked == 0 {
        // SAFETY: Lent: `before` was written above.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    }
    result
}

/// Lets a child make the calls. Signals are blocked: one to the process group would run a handler of the program in the
/// child.
fn run(calls: &[c_long]) -> io::Result<bool> {
    #[cfg(test)]
    tests::CHILDREN.fetch_add(1, Ordering::Relaxed);
    let child = match may_share_memory() {
        true => start_sharing_child(calls),
        false => start_copied_child(calls),
    };
    let started = c_int::try_from(child).ok().filter(|&child| child > 0);
    match started.and_then(Pid::from_raw) {
        Some(child) => was_killed(child),
        None => Err(io::Error::from_raw_os_error(
            c_int::try_from(-child).unwrap_or(libc::EAGAIN),
        )),
    }
}

/// Returns whether a child that is killed leaves a process alone that has the same memory, and writes no core dump with
/// that memory. Before Linux 5.16 a core dump ends every process that shares the memory. Without a right to raise the
/// limit of core dumps, a child cannot keep the kernel from starting the program in `core_pattern`.
fn may_share_memory() -> bool {
    let is_piped = || {
        probe::read_text("/proc/sys/kernel/core_pattern").is_none_or(|text| text.starts_with('|'))
    };
    cfg!(any(target_arch = "x86_64", target_arch = "aarch64"))
        && probe::kernel_version() >= (5, 16)
        && (getrlimit(Resource::Core).maximum != Some(0) || !is_piped())
}

/// Less than the smallest core file. To a program in `core_pattern`, 1 byte means none.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
static NO_CORE: libc::rlimit = libc::rlimit {
    rlim_cur: 1,
    rlim_max: 1,
};

/// Starts a child that shares memory and descriptors, makes the calls, and ends. Returns its identifier, or minus an
/// errno.
#[cfg(target_arch = "x86_64")]
fn start_sharing_child(calls: &[c_long]) -> c_long {
    let flags = c_long::from(libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_FILES);
    let calls = calls.as_ptr_range();
    let child;
    // SAFETY: Lent: the child reads `calls` and `NO_CORE`, which outlive it, as the caller waits for its end. It writes
    // no memory, and leaves the stack alone. In the parent this is one system call. Without an exit signal, the program
    // gets no SIGCHLD, and its `wait` does not see the child.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 4f",
            // For itself (0), with no memory for the old limit (r10). Filters of services refuse `setrlimit`, but not
            // this call, with which glibc reads the limit of the stack.
            "mov eax, {prlimit}",
            "xor edi, edi",
            "mov esi, {core}",
            "mov rdx, r14",
            "syscall",
            "2:",
            "cmp r12, r13",
            "je 3f",
            "mov rax, [r12]",
            "add r12, 8",
            "mov rdi, -1",
            "xor esi, esi",
            "xor edx, edx",
            "xor r10d, r10d",
            "xor r8d, r8d",
            "xor r9d, r9d",
            "syscall",
            "jmp 2b",
            "3:",
            "mov eax, {exit_group}",
            "xor edi, edi",
            "syscall",
            "jmp 3b",
            "4:",
            prlimit = const libc::SYS_prlimit64,
            core = const libc::RLIMIT_CORE,
            exit_group = const libc::SYS_exit_group,
            inlateout("rax") libc::SYS_clone => child,
            in("rdi") flags, in("rsi") 0_u64, in("rdx") 0_u64, in("r10") 0_u64, in("r8") 0_u64,
            in("r12") calls.start, in("r13") calls.end, in("r14") &NO_CORE,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    child
}

/// Starts the same child.
#[cfg(target_arch = "aarch64")]
fn start_sharing_child(calls: &[c_long]) -> c_long {
    let flags = c_long::from(libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_FILES);
    let calls = calls.as_ptr_range();
    let child;
    // SAFETY: Lent: as above.
    unsafe {
        std::arch::asm!(
            "svc #0",
            "cbnz x0, 4f",
            "mov x8, {prlimit}",
            "mov x0, #0",
            "mov x1, {core}",
            "mov x2, x11",
            "mov x3, #0",
            "svc #0",
            "2:",
            "cmp x9, x10",
            "b.eq 3f",
            "ldr x8, [x9], #8",
            "mov x0, #-1",
            "mov x1, #0",
            "mov x2, #0",
            "mov x3, #0",
            "mov x4, #0",
            "mov x5, #0",
            "svc #0",
            "b 2b",
            "3:",
            "mov x8, {exit_group}",
            "mov x0, #0",
            "svc #0",
            "b 3b",
            "4:",
            prlimit = const libc::SYS_prlimit64,
            core = const libc::RLIMIT_CORE,
            exit_group = const libc::SYS_exit_group,
            in("x8") libc::SYS_clone,
            inlateout("x0") flags => child,
            in("x1") 0_u64, in("x2") 0_u64, in("x3") 0_u64, in("x4") 0_u64,
            in("x9") calls.start, in("x10") calls.end, in("x11") &NO_CORE,
            options(nostack),
        );
    }
    child
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn start_sharing_child(calls: &[c_long]) -> c_long {
    start_copied_child(calls)
}

/// Starts a child with a copy of the memory. Returns its identifier, or minus an errno.
fn start_copied_child(calls: &[c_long]) -> c_long {
    // SAFETY: Lent: the child gets a copy of this stack, as no flag shares memory. Exit signal: as above.
    let child = unsafe { call(libc::SYS_clone, [0; 5]) };
    if child == 0 {
        run_child(calls);
    }
    child
}

fn is_filtered() -> bool {
    // Miri does not have the call.
    !cfg!(miri) && secure_computing_mode() == Ok(SecureComputingMode::Filter)
}

/// Makes the calls, and ends the child if none of them has ended it. Uses no lock and no allocator, which another
/// thread of the parent may have held.
fn run_child(calls: &[c_long]) -> ! {
    // Otherwise a kill writes a core dump with the memory of the program.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    for &number in calls {
        // SAFETY: Lent: no descriptor, no entries and no memory.
        unsafe { call(number, [-1, 0, 0, 0, 0]) };
    }
    loop {
        // SAFETY: Typed: a number. Handlers of the program do not run.
        unsafe { call(libc::SYS_exit_group, [0; 5]) };
    }
}

fn was_killed(child: Pid) -> io::Result<bool> {
    /// `__WALL`: also children without an exit signal.
    const ALL: u32 = 0x4000_0000;
    loop {
        match waitpid(Some(child), WaitOptions::from_bits_retain(ALL)) {
            Ok(ended) => return Ok(ended.is_some_and(|(_, status)| status.signaled())),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Makes a system call. Not by libc, whose `syscall` may be a hook of `annulus-preload` (Sealed), which would prepare
/// for a child. Returns the result, or minus an errno.
///
/// # Safety
///
/// Lent: the arguments satisfy the contract of the call.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
unsafe fn call(number: c_long, arguments: [c_long; 5]) -> c_long {
    let result;
    let [a, b, c, d, e] = arguments;
    // SAFETY: Lent: the caller upholds the contract of the call; the kernel changes no other registers.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") 0_u64,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    // SAFETY: Lent: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!(
            "svc #0",
            in("x8") number,
            inlateout("x0") a => result,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") 0_u64,
            options(nostack),
        );
    }
    result
}

/// Makes a system call, as above. The preload library is not for this architecture.
///
/// # Safety
///
/// Lent: the arguments satisfy the contract of the call.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe fn call(number: c_long, arguments: [c_long; 5]) -> c_long {
    let [a, b, c, d, e] = arguments;
    // SAFETY: Lent: the caller upholds the contract of the call.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, 0_u64) };
    if result < 0 {
        return -c_long::from(io::Error::last_os_error().raw_os_error().unwrap_or(0));
    }
    result
}

#[cfg(test)]
mod tests {
    // Codes of BPF have 16 bits, and numbers of calls 32.
    #![allow(clippy::cast_possible_truncation)]

    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use super::*;

    pub(super) static CHILDREN: AtomicU32 = AtomicU32::new(0);

    /// Runs the named test in a process that starts with a filter that allows everything.
    fn with_filter(name: &str, test: impl FnOnce()) {
        const MARK: &str = "ANNULUS_TEST_FILTERED";
        if std::env::var_os(MARK).is_some() {
            return test();
        }
        let name = format!("sys::filter_probe::tests::{name}");
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([&name, "--exact", "--nocapture", "--test-threads=1"]);
        command.env(MARK, "1");
        // SAFETY: Typed: two system calls.
        unsafe { command.pre_exec(allow_all) };
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{output:?}");
        assert!(text.contains("1 passed"), "{text}");
    }

    /// Adds a filter that allows everything to this thread.
    fn allow_all() -> io::Result<()> {
        let allow = libc::sock_filter {
            code: (libc::BPF_RET | libc::BPF_K) as u16,
            jt: 0,
            jf: 0,
            k: libc::SECCOMP_RET_ALLOW,
        };
        let program = libc::sock_fprog {
            len: 1,
            filter: (&raw const allow).cast_mut(),
        };
        // SAFETY: Lent: the kernel copies the program.
        let result = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            let mode = c_long::from(libc::SECCOMP_MODE_FILTER);
            libc::prctl(libc::PR_SET_SECCOMP, mode, &program)
        };
        match result {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Adds a filter that kills the process for a call to this thread.
    fn kill_on(number: c_long) {
        let load = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
        let jump = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
        let give = (libc::BPF_RET | libc::BPF_K) as u16;
        let step = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
        let filter = [
            step(load, 0, 0, 0),
            step(jump, u32::try_from(number).unwrap(), 0, 1),
            step(give, libc::SECCOMP_RET_KILL_PROCESS, 0, 0),
            step(give, libc::SECCOMP_RET_ALLOW, 0, 0),
        ];
        let program = libc::sock_fprog {
            len: 4,
            filter: filter.as_ptr().cast_mut(),
        };
        // SAFETY: Lent: the kernel copies the program.
        let set = unsafe {
            let mode = c_long::from(libc::SECCOMP_MODE_FILTER);
            libc::prctl(libc::PR_SET_SECCOMP, mode, &program)
        };
        assert_eq!(set, 0);
    }

    fn faults() -> i64 {
        let mut usage = MaybeUninit::<libc::rusage>::uninit();
        // SAFETY: Lent: the kernel fills the structure.
        unsafe {
            libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
            usage.assume_init().ru_minflt
        }
    }

    #[test]
    fn threads_with_the_filters_of_the_process_have_one_child() {
        with_filter(
            "threads_with_the_filters_of_the_process_have_one_child",
            || {
                thread::scope(|scope| {
                    for _ in 0..8 {
                        scope.spawn(|| check().unwrap());
                    }
                });
                assert_eq!(CHILDREN.load(Ordering::Relaxed), 1);
                // A thread that adds a filter has its own child.
                thread::scope(|scope| {
                    for _ in 0..2 {
                        scope.spawn(|| {
                            allow_all().unwrap();
                            check().unwrap();
                            check().unwrap();
                        });
                    }
                });
                assert_eq!(CHILDREN.load(Ordering::Relaxed), 3);
            },
        );
    }

    /// A copied process writes to each page again after a page fault.
    #[test]
    fn a_child_copies_no_memory() {
        with_filter("a_child_copies_no_memory", || {
            const PAGES: usize = 16_384;
            let mut memory = vec![0_u8; PAGES * 4096];
            let mut touch = || memory.iter_mut().step_by(4096).for_each(|byte| *byte += 1);
            touch();
            check().unwrap();
            assert_eq!(CHILDREN.load(Ordering::Relaxed), 1);
            let before = faults();
            touch();
            let more = faults() - before;
            let is_shared = may_share_memory();
            assert!(!is_shared || more < 16, "{more} page faults");
        });
    }

    #[test]
    fn a_killed_child_leaves_the_process_alone() {
        with_filter("a_killed_child_leaves_the_process_alone", || {
            kill_on(libc::SYS_io_uring_enter);
            assert!(kills(&RING_CALLS).unwrap());
            assert!(!kills(&[libc::SYS_io_uring_setup]).unwrap());
            check().unwrap_err();
        });
    }

    /// The filter of Debian's redis-server.service does so (`SystemCallFilter=~@resources`).
    #[test]
    fn a_filter_that_kills_for_setrlimit_leaves_io_uring_alone() {
        with_filter(
            "a_filter_that_kills_for_setrlimit_leaves_io_uring_alone",
            || {
                kill_on(libc::SYS_setrlimit);
                check().unwrap();
            },
        );
    }
}
