//! What the preload library counts: calls of an unmodified program that its rings answer, and those that it leaves to
//! the kernel, by reason. For `annulus-preload` alone, and of no lasting shape.
//!
//! The names are the layout's (`record.rs`): a name added at an end changes nothing for older readers, which leave it
//! out; all else changes `VERSION`.

use std::sync::atomic::Ordering;

use crate::metrics::counters::Record;
use crate::metrics::record::{self, Number};
use crate::metrics::{Counters, SourceKind, registry};

/// Things by number, each with its name.
macro_rules! named {
    ($(#[$about:meta])* $kind:ident { $($(#[$each:meta])* $variant:ident = $name:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum $kind {
            $(#[doc = concat!("`", $name, "`")] $(#[$each])* $variant,)*
        }

        impl $kind {
            /// All of them, in order.
            pub const ALL: &'static [$kind] = &[$($kind::$variant),*];

            /// As it is called where it is shown.
            pub const fn name(self) -> &'static str {
                match self {
                    $($kind::$variant => $name,)*
                }
            }
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
        /// It has become a stream of stdio, which libc reads and closes by itself.
        Stdio = "stdio",
        /// The kernel has an answer to the ring that it should not have.
        Kernel = "kernel",
        /// The program is about to set a filter of system calls.
        Filtered = "filtered",
        /// It changes its user or group, and a kernel thread polls for it.
        ChangedRights = "changed_rights",
        /// A signal handler called in the middle of a call.
        InHandler = "in_handler",
        /// The operator said so, for the whole process.
        Disabled = "disabled",
        /// The operator had everything handed back while it ran.
        Released = "released",
    }
}

/// What a ring is counted by besides calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Event {
    /// Calls of `io_uring_enter`.
    Enters,
    /// Those of them that might sleep.
    Waits,
    /// Entries that the kernel took in them.
    Entries,
    /// Times the kernel's polling thread (SQPOLL) had to be woken.
    SqWakeups,
    /// Cancels asked of the kernel.
    Cancels,
    /// Sends whose rest was submitted again.
    Resubmitted,
    /// Receives that found no buffer free (ENOBUFS).
    NoBuffers,
    /// Times completions did not fit into the completion queue.
    CqOverflows,
    /// Rings that were made.
    Rings,
    /// Completions that rings reaped.
    Completions,
}

impl Event {
    const ALL: [Event; 10] = [
        Event::Enters,
        Event::Waits,
        Event::Entries,
        Event::SqWakeups,
        Event::Cancels,
        Event::Resubmitted,
        Event::NoBuffers,
        Event::CqOverflows,
        Event::Rings,
        Event::Completions,
    ];

    #[inline]
    const fn word_index(self) -> usize {
        let number = match self {
            Event::Enters => Number::enters,
            Event::Waits => Number::waits,
            Event::Entries => Number::entries,
            Event::SqWakeups => Number::sq_wakeups,
            Event::Cancels => Number::cancels,
            Event::Resubmitted => Number::resubmitted,
            Event::NoBuffers => Number::no_buffers,
            Event::CqOverflows => Number::cq_overflows,
            Event::Completions => Number::cqes,
            Event::Rings => return record::RINGS_MADE,
        };
        record::COUNTERS + number as usize
    }
}

/// What a ring has right now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gauge {
    /// Rings.
    Rings,
    /// Operations with the kernel.
    InFlight,
    /// Connections that the ring serves.
    Connections,
    /// Buffers that receives are given.
    Buffers,
    /// Those of them that hold nothing.
    BuffersFree,
}

/// What one ring of the preload library counts by, or all of it together. Dropped, what it has counted is that of the
/// ended ones.
///
/// To make one allocates and takes a lock; to count does neither, and may be done in a signal handler.
#[derive(Debug)]
pub struct Served(Counters);

impl Served {
    /// For the `index`th ring of this process, from 0.
    pub fn ring(index: u32) -> Served {
        Served::new(SourceKind::Preload, index)
    }

    /// For what is no ring's: calls that are left to the kernel.
    pub fn process() -> Served {
        Served::new(SourceKind::Passed, 0)
    }

    fn new(kind: SourceKind, index: u32) -> Served {
        let counters = Counters::new(kind);
        counters.belong(1, index as usize);
        Served(counters)
    }

    /// Says what does the work, and why it is not what would be best.
    pub fn describe(&self, backend: &str, fallback: Option<&str>) {
        self.0.describe(backend, fallback);
    }

    /// Counts calls that were answered without the kernel, or by a ring. By one thread at a time.
    #[inline]
    pub fn serve(&self, call: Call, calls: u64) {
        self.0.word(record::served(call)).add(calls);
    }

    /// The same; any thread may.
    #[inline]
    pub fn serve_shared(&self, call: Call, calls: u64) {
        self.0.word(record::served(call)).add_shared(calls);
    }

    /// Counts calls that were left to the kernel. Any thread may.
    #[inline]
    pub fn pass(&self, why: Why, calls: u64) {
        self.0.word(record::passed(why)).add_shared(calls);
    }

    /// Counts descriptors that were given back to the kernel. Any thread may.
    #[inline]
    pub fn hand_back(&self, why: Why, descriptors: u64) {
        let word = self.0.word(record::handed_back(why));
        word.add_shared(descriptors);
    }

    /// Of a call that has been counted as served: it was answered with an error. Any thread may.
    pub fn fail(&self, call: Call, errno: i32) {
        self.0.word(record::served_failed(call)).add_shared(1);
        self.0.error(errno);
    }

    /// Counts. By one thread at a time.
    #[inline]
    pub fn count(&self, event: Event, times: u64) {
        self.0.word(event.word_index()).add(times);
    }

    /// The same; any thread may.
    #[inline]
    pub fn count_shared(&self, event: Event, times: u64) {
        self.0.word(event.word_index()).add_shared(times);
    }

    /// The number changes by this much. For any thread.
    #[inline]
    pub fn change(&self, gauge: Gauge, by: i64) {
        let counter = match gauge {
            Gauge::Rings => self.0.word(record::RINGS),
            Gauge::InFlight => self.0.flying(),
            Gauge::Connections => self.0.word(record::CONNECTIONS),
            Gauge::Buffers => self.0.word(record::BUFFERS),
            Gauge::BuffersFree => self.0.word(record::BUFFERS_FREE),
        };
        // Wraps around to what it was, where it becomes less.
        counter.add_shared(by.cast_unsigned());
    }
}

/// All that this process has counted by [`Served`], of those that have ended, too.
#[derive(Clone, Debug)]
pub struct Totals {
    served: [u64; Call::ALL.len()],
    failed: [u64; Call::ALL.len()],
    passed: [u64; Why::ALL.len()],
    handed_back: [u64; Why::ALL.len()],
    events: [u64; Event::ALL.len()],
}

impl Totals {
    /// Up to now. Allocates nothing and waits for nothing; `None` where it would have to: in a signal handler that
    /// interrupted a thread that makes or ends a source.
    pub fn now() -> Option<Totals> {
        let mut totals = Totals {
            served: [0; _],
            failed: [0; _],
            passed: [0; _],
            handed_back: [0; _],
            events: [0; _],
        };
        registry::each(|record| totals.add(record)).then_some(totals)
    }

    fn add(&mut self, record: &Record) {
        let word = |word: usize| record[word].load(Ordering::Relaxed);
        for call in Call::ALL {
            self.served[*call as usize] += word(record::served(*call));
            self.failed[*call as usize] += word(record::served_failed(*call));
        }
        for why in Why::ALL {
            self.passed[*why as usize] += word(record::passed(*why));
            self.handed_back[*why as usize] += word(record::handed_back(*why));
        }
        for event in Event::ALL {
            self.events[event as usize] += word(event.word_index());
        }
    }

    /// Calls that were served.
    pub fn served(&self, call: Call) -> u64 {
        self.served[call as usize]
    }

    /// Of these, errors.
    pub fn failed(&self, call: Call) -> u64 {
        self.failed[call as usize]
    }

    /// Calls that were left to the kernel.
    pub fn passed(&self, why: Why) -> u64 {
        self.passed[why as usize]
    }

    /// Descriptors that were given back to the kernel.
    pub fn handed_back(&self, why: Why) -> u64 {
        self.handed_back[why as usize]
    }

    /// How often.
    pub fn event(&self, event: Event) -> u64 {
        self.events[event as usize]
    }
}
