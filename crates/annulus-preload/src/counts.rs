//! What is counted: calls that were served, those that passed through and why, descriptors that were handed back.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! named {
    ($(#[$about:meta])* $type:ident { $($(#[$each:meta])* $variant:ident = $name:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum $type {
            $($(#[$each])* $variant,)*
        }

        impl $type {
            pub(crate) const NAMES: &[&str] = &[$($name),*];
        }
    };
}

named! {
    /// A hooked call, as the C library names it; the other spellings of one are counted as one.
    Call {
        Read = "read",
        Readv = "readv",
        Recv = "recv",
        Recvmsg = "recvmsg",
        Write = "write",
        Writev = "writev",
        Send = "send",
        Sendmsg = "sendmsg",
        Sendfile = "sendfile",
        Close = "close",
        Shutdown = "shutdown",
        Getsockopt = "getsockopt",
        EpollCtl = "epoll_ctl",
        EpollWait = "epoll_wait",
    }
}

named! {
    /// Why a call passed through, or a descriptor was handed back to the kernel.
    Why {
        /// The operator said so, for the whole process.
        Disabled = "disabled",
        /// io_uring is missing or refused.
        Refused = "refused",
        NotAStream = "not_a_stream",
        NotConnected = "not_connected",
        /// It was put into a set that nobody has waited on.
        NotWaitedFor = "not_waited_for",
        Blocking = "blocking",
        SeveralSets = "several_sets",
        SeveralThreads = "several_threads",
        OtherThread = "other_thread",
        Duplicated = "duplicated",
        PassedOn = "passed_on",
        UnknownOption = "unknown_option",
        UnknownFlags = "unknown_flags",
        /// A parent of this process served it.
        Forked = "forked",
        /// The listener's port is one that the operator excluded.
        Port = "port",
        /// Somebody waits for it otherwise than by its epoll set.
        PolledOtherwise = "polled_otherwise",
        /// The kernel has an answer to the ring that it should not have.
        Kernel = "kernel",
        /// The program is about to set a filter of system calls.
        Filtered = "filtered",
        /// It changes its user or group, and a kernel thread polls for it.
        ChangedRights = "changed_rights",
        /// A signal handler called in the middle of a call.
        InHandler = "in_handler",
    }
}

const CALLS: usize = Call::NAMES.len();
const WHYS: usize = Why::NAMES.len();

/// Where the numbers stand.
pub(crate) struct Counts {
    pub(crate) served: [AtomicU64; CALLS],
    pub(crate) failed: [AtomicU64; CALLS],
    pub(crate) passed: [AtomicU64; WHYS],
    pub(crate) handed_back: [AtomicU64; WHYS],
    pub(crate) rings: AtomicU64,
    pub(crate) enters: AtomicU64,
    pub(crate) waits: AtomicU64,
    pub(crate) entries: AtomicU64,
    pub(crate) answers: AtomicU64,
    pub(crate) no_buffers: AtomicU64,
    /// Connections that are served now.
    pub(crate) serving: AtomicU64,
}

pub(crate) static COUNTS: Counts = Counts {
    served: [const { AtomicU64::new(0) }; CALLS],
    failed: [const { AtomicU64::new(0) }; CALLS],
    passed: [const { AtomicU64::new(0) }; WHYS],
    handed_back: [const { AtomicU64::new(0) }; WHYS],
    rings: AtomicU64::new(0),
    enters: AtomicU64::new(0),
    waits: AtomicU64::new(0),
    entries: AtomicU64::new(0),
    answers: AtomicU64::new(0),
    no_buffers: AtomicU64::new(0),
    serving: AtomicU64::new(0),
};

/// In a child of a fork: it counts for itself.
pub(crate) fn reset() {
    let lists = [
        &COUNTS.served[..],
        &COUNTS.failed,
        &COUNTS.passed,
        &COUNTS.handed_back,
    ];
    let single = [
        &COUNTS.rings,
        &COUNTS.enters,
        &COUNTS.waits,
        &COUNTS.entries,
        &COUNTS.answers,
        &COUNTS.no_buffers,
        &COUNTS.serving,
    ];
    for counter in lists.into_iter().flatten().chain(single) {
        counter.store(0, Ordering::Relaxed);
    }
}

/// Whether there is anything to say.
pub(crate) fn any() -> bool {
    let lists = [&COUNTS.served[..], &COUNTS.passed];
    (lists.into_iter().flatten()).any(|counter| counter.load(Ordering::Relaxed) > 0)
}

/// One more. Threads of several sets may lose one against each other, which is cheaper than a locked instruction.
#[inline]
fn bump(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// A call was answered from what the ring has brought, or queued for it.
#[inline]
pub(crate) fn served(call: Call) {
    bump(&COUNTS.served[call as usize]);
}

/// A served call had an error for an answer, other than EAGAIN.
pub(crate) fn failed(call: Call) {
    bump(&COUNTS.failed[call as usize]);
}

/// A call went to the kernel as it is.
pub(crate) fn passed(why: Why) {
    bump(&COUNTS.passed[why as usize]);
}

/// A descriptor was served, and is not any more.
pub(crate) fn handed_back(why: Why) {
    bump(&COUNTS.handed_back[why as usize]);
}

pub(crate) fn add(counter: &AtomicU64, count: u64) {
    counter.store(
        counter.load(Ordering::Relaxed).wrapping_add(count),
        Ordering::Relaxed,
    );
}
