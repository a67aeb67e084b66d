//! # Safety
//!
//! The attempts of the probes of features (`probe_table.rs`). Each set-up flag is tried on a ring that is closed
//! immediately, each registration by a transfer that uses it. Nothing is in flight when a probe ends (Drained). If the
//! kernel does not complete the transfer, the memory that it may still access is leaked (Lent).
#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::os::fd::RawFd;
use std::thread;
use std::time::Duration;

use rustix::io_uring::{IoringSetupFlags, io_uring_params, io_uring_setup};

use super::call::IoVec;
use super::errno::check;
use super::kernel::Kernel;
use super::polling::RingPoll;
use super::probe::{A_RING, explain_enomem, processors};
use super::probe_table::{self, Probe};
use super::register::{Pages, explain};
use super::ring::{Ring, RingConfig, SetupMode};
use super::sqe::{BUFFER_SELECT, Cqe, FIXED_FILE, Sqe, opcode};
use super::wake::EventFd;
use crate::error::SetupError;
use crate::narrow::to_u32;

/// The number of entries of the smallest ring that the engine accepts.
const ENTRIES: u32 = 8;
/// Pauses before retries while locked memory is short. The kernel gives back the locked memory of a closed ring, of
/// this or another process of the user, 13 to 24 ms after the close (measured on Linux 6.18).
const MEMLOCK_PAUSES_MS: [u64; 4] = [1, 4, 10, 30];

/// Retries `attempt` while locked memory is short and may still be given back.
pub(super) fn patiently<T>(
    mut attempt: impl FnMut() -> Result<T, SetupError>,
) -> Result<T, SetupError> {
    for pause_ms in MEMLOCK_PAUSES_MS {
        match attempt() {
            Err(SetupError::Memlock { .. }) => thread::sleep(Duration::from_millis(pause_ms)),
            result => return result,
        }
    }
    attempt()
}

/// The smallest page size of all architectures.
const PAGE_BYTES: usize = 4096;

/// The results of probing a new ring.
#[derive(Debug)]
pub(crate) struct ProbedRing {
    /// The set-up mode that the engine would use.
    pub(crate) setup_mode: SetupMode,
    /// The support for each of `OPCODES`.
    pub(crate) opcodes: Vec<bool>,
    pub(crate) registrations: Vec<Probe>,
}

/// Creates a ring and tries each kind of registration on it. Some registrations belong to the calling thread until it
/// ends, so call this on a short-lived thread.
pub(crate) fn try_ring() -> Result<ProbedRing, SetupError> {
    let config = RingConfig {
        sq_entries: ENTRIES,
        cq_entries: 2 * ENTRIES,
        setup_mode: SetupMode::Deferred,
        workers: [0, 0],
        poll: RingPoll::Nothing,
    };
    let ring = Ring::new(config)?;
    let opcodes = (0..OPCODES.len())
        .map(|opcode| u8::try_from(opcode).is_ok_and(|opcode| ring.supports(opcode)))
        .collect();
    Ok(ProbedRing {
        setup_mode: ring.setup_mode(),
        opcodes,
        registrations: probe_table::registrations(Bench::new(ring)?),
    })
}

/// Returns the feature bits that every ring reports; `None` if not even a plain ring can be set up.
pub(crate) fn features() -> Option<u32> {
    patiently(|| set_up(0, A_RING, "5.1")).ok()
}

/// Sets up a ring and closes it. Returns its feature bits.
pub(super) fn set_up(
    flags: u32,
    name: &'static str,
    since: &'static str,
) -> Result<u32, SetupError> {
    let mut params = io_uring_params::default();
    params.flags = IoringSetupFlags::from_bits_retain(flags);
    params.cq_entries = 2 * ENTRIES;
    params.sq_thread_cpu = processors().first().map_or(0, |&first| to_u32(first));
    // SAFETY: Lent: `params` outlives the call. Nothing is mapped or submitted before the ring is closed (Drained).
    match unsafe { io_uring_setup(ENTRIES, &mut params) } {
        Ok(_ring) => Ok(params.features.bits()),
        Err(rustix::io::Errno::NOMEM) => Err(explain_enomem(A_RING)),
        Err(errno) => Err(explain(errno.into(), name, since)),
    }
}

/// The ring for the registration probes, an eventfd to read the number 1 from, and a page to read it into.
pub(super) struct Bench {
    ring: Ring,
    event: EventFd,
    page: Pages,
}

impl Bench {
    fn new(ring: Ring) -> Result<Bench, SetupError> {
        let event = EventFd::new().map_err(|error| SetupError::Os {
            what: "eventfd",
            error,
        })?;
        let page = Pages::new(PAGE_BYTES).map_err(|error| SetupError::Os {
            what: "mmap",
            error,
        })?;
        Ok(Bench { ring, event, page })
    }

    pub(super) fn buffers(&mut self) -> Result<(), SetupError> {
        let page = self.vector();
        // SAFETY: Lent, Still: the page stays mapped; it is unregistered below, or leaked by `read`.
        unsafe { self.ring.register_buffers(&[page]) }?;
        let read = self.read(self.fixed_read(0));
        self.ring.unregister_buffers()?;
        read.map(drop)
    }

    pub(super) fn replaced_buffers(&mut self) -> Result<(), SetupError> {
        let pages = [self.vector(), self.vector()];
        // SAFETY: Lent, Still: the page stays mapped; it is unregistered below, or leaked by `read`.
        unsafe { self.ring.register_buffers(&pages) }?;
        // SAFETY: Lent, Still: the page stays mapped; it is unregistered below, or leaked by `read`.
        let replaced = unsafe { self.ring.update_buffers(1, &pages[..1]) };
        let read = replaced.and_then(|()| self.read(self.fixed_read(1)));
        self.ring.unregister_buffers()?;
        read.map(drop)
    }

    pub(super) fn files(&mut self) -> Result<(), SetupError> {
        self.ring.register_files(&[self.event.raw()])?;
        let read = self.read(self.direct_read(0));
        self.ring.unregister_files()?;
        read.map(drop)
    }

    pub(super) fn replaced_files(&mut self) -> Result<(), SetupError> {
        self.ring.register_files(&[-1, -1])?;
        self.fill_last_slot()
    }

    pub(super) fn sparse_files(&mut self) -> Result<(), SetupError> {
        self.ring.register_files_sparse(2)?;
        self.fill_last_slot()
    }

    fn fill_last_slot(&mut self) -> Result<(), SetupError> {
        let filled = self.ring.update_files(1, &[self.event.raw()]);
        let read = filled.and_then(|()| self.read(self.direct_read(1)));
        self.ring.unregister_files()?;
        read.map(drop)
    }

    pub(super) fn buffer_group(&mut self) -> Result<(), SetupError> {
        const ID: u16 = 5;
        let mut group = self.ring.register_buf_ring(2, 1)?;
        let IoVec { base, bytes } = self.vector();
        // SAFETY: Lent, Still: the page stays mapped, or is leaked by `read`. Once: the only buffer.
        unsafe { group.add(base, to_u32(bytes), ID) };
        group.publish();
        let select = Sqe {
            flags: BUFFER_SELECT,
            buf_index: group.group(),
            ..Sqe::new(opcode::READ, self.event.raw())
        };
        let read = self.read(select);
        self.ring.unregister_buf_ring(group)?;
        match read?.buffer_id() {
            Some(ID) => Ok(()),
            _ => Err(wrong_result()),
        }
    }

    pub(super) fn ring_descriptor(&mut self) -> Result<(), SetupError> {
        // A second index beside the one in use. Both are given back when this thread ends.
        self.ring.register_ring_fd().map(drop)
    }

    pub(super) fn worker_limit(&mut self) -> Result<(), SetupError> {
        self.ring.limit_workers([1, 1])
    }

    pub(super) fn pin_workers(&mut self) -> Result<(), SetupError> {
        self.ring.pin_workers(&processors())?;
        self.ring.unpin_workers()
    }

    /// Returns the page as an `IoVec`.
    fn vector(&self) -> IoVec {
        IoVec {
            base: self.page.base().cast(),
            bytes: PAGE_BYTES,
        }
    }

    fn fixed_read(&self, index: u16) -> Sqe {
        let addr = self.page.base().expose_provenance() as u64;
        Sqe {
            addr,
            buf_index: index,
            ..Sqe::new(opcode::READ_FIXED, self.event.raw())
        }
    }

    fn direct_read(&self, index: RawFd) -> Sqe {
        let addr = self.page.base().expose_provenance() as u64;
        Sqe {
            addr,
            flags: FIXED_FILE,
            ..Sqe::new(opcode::READ, index)
        }
    }

    /// Reads the eventfd with `sqe`, and checks that its number has arrived in the page.
    fn read(&mut self, sqe: Sqe) -> Result<Cqe, SetupError> {
        const COUNT: usize = size_of::<u64>();
        let page: *mut u64 = self.page.base().cast();
        // SAFETY: Owned: the page belongs to this `Bench`, and nothing is in flight.
        unsafe { page.write_volatile(0) };
        self.event.wake();
        // Trap 14: exactly 8 bytes.
        let result = self.ring.execute(Sqe {
            len: to_u32(COUNT),
            ..sqe
        });
        let Ok(cqe) = result else {
            // Leaked, because the kernel may still write to it.
            if let Ok(page) = Pages::new(PAGE_BYTES) {
                mem::forget(mem::replace(&mut self.page, page));
            }
            return result;
        };
        let bytes = check(cqe.res).map_err(|error| explain(error, TEST_READ, "5.1"))?;
        // SAFETY: Owned: the page belongs to this `Bench`, and nothing is in flight any more.
        let number = unsafe { page.read_volatile() };
        if (bytes, number) == (COUNT, 1) {
            Ok(cqe)
        } else {
            Err(wrong_result())
        }
    }
}

const TEST_READ: &str = "a test read";

fn wrong_result() -> SetupError {
    let error = io::Error::new(io::ErrorKind::InvalidData, "it returned wrong bytes");
    SetupError::Os {
        what: TEST_READ,
        error,
    }
}

/// The feature bits by their kernel names (`IORING_FEAT_…`), from bit 0 on.
pub(crate) const FEATURES: [&str; 18] = [
    "SINGLE_MMAP",
    "NODROP",
    "SUBMIT_STABLE",
    "RW_CUR_POS",
    "CUR_PERSONALITY",
    "FAST_POLL",
    "POLL_32BITS",
    "SQPOLL_NONFIXED",
    "EXT_ARG",
    "NATIVE_WORKERS",
    "RSRC_TAGS",
    "CQE_SKIP",
    "LINKED_FILE",
    "REG_REG_RING",
    "RECVSEND_BUNDLE",
    "MIN_TIMEOUT",
    "RW_ATTR",
    "NO_IOWAIT",
];

/// The opcodes by their kernel names (`IORING_OP_…`), from 0 on; as of Linux 6.18.
pub(crate) const OPCODES: [&str; 63] = [
    "NOP",
    "READV",
    "WRITEV",
    "FSYNC",
    "READ_FIXED",
    "WRITE_FIXED",
    "POLL_ADD",
    "POLL_REMOVE",
    "SYNC_FILE_RANGE",
    "SENDMSG",
    "RECVMSG",
    "TIMEOUT",
    "TIMEOUT_REMOVE",
    "ACCEPT",
    "ASYNC_CANCEL",
    "LINK_TIMEOUT",
    "CONNECT",
    "FALLOCATE",
    "OPENAT",
    "CLOSE",
    "FILES_UPDATE",
    "STATX",
    "READ",
    "WRITE",
    "FADVISE",
    "MADVISE",
    "SEND",
    "RECV",
    "OPENAT2",
    "EPOLL_CTL",
    "SPLICE",
    "PROVIDE_BUFFERS",
    "REMOVE_BUFFERS",
    "TEE",
    "SHUTDOWN",
    "RENAMEAT",
    "UNLINKAT",
    "MKDIRAT",
    "SYMLINKAT",
    "LINKAT",
    "MSG_RING",
    "FSETXATTR",
    "SETXATTR",
    "FGETXATTR",
    "GETXATTR",
    "SOCKET",
    "URING_CMD",
    "SEND_ZC",
    "SENDMSG_ZC",
    "READ_MULTISHOT",
    "WAITID",
    "FUTEX_WAIT",
    "FUTEX_WAKE",
    "FUTEX_WAITV",
    "FIXED_FD_INSTALL",
    "FTRUNCATE",
    "BIND",
    "LISTEN",
    "RECV_ZC",
    "EPOLL_WAIT",
    "READV_FIXED",
    "WRITEV_FIXED",
    "PIPE",
];

#[cfg(test)]
mod tests {
    use super::*;
    use io_uring::opcode as abi;

    #[test]
    fn opcodes_have_the_numbers_of_the_abi_crate() {
        for (name, code) in [
            ("NOP", abi::Nop::CODE),
            ("READ", abi::Read::CODE),
            ("SHUTDOWN", abi::Shutdown::CODE),
            ("MKDIRAT", abi::MkDirAt::CODE),
            ("SOCKET", abi::Socket::CODE),
            ("SEND_ZC", abi::SendZc::CODE),
            ("FTRUNCATE", abi::Ftruncate::CODE),
            ("PIPE", abi::Pipe::CODE),
        ] {
            assert_eq!(OPCODES[usize::from(code)], name);
        }
    }

    #[test]
    fn features_have_the_bits_that_a_ring_reports() {
        let Ok(ring) = io_uring::IoUring::new(1) else {
            return println!("skip: needs io_uring");
        };
        let has = |name: &str| {
            let bit = FEATURES
                .iter()
                .position(|&feature| feature == name)
                .unwrap();
            features().unwrap_or(0) & 1 << bit != 0
        };
        let params = ring.params();
        assert_eq!(has("NODROP"), params.is_feature_nodrop());
        assert_eq!(has("EXT_ARG"), params.is_feature_ext_arg());
        assert_eq!(has("CQE_SKIP"), params.is_feature_skip_cqe_on_success());
        assert_eq!(has("RECVSEND_BUNDLE"), params.is_feature_recvsend_bundle());
        assert_eq!(has("MIN_TIMEOUT"), params.is_feature_min_timeout());
        assert_eq!(has("NO_IOWAIT"), params.is_feature_no_iowait());
    }
}
