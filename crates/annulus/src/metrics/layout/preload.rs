//! The counters of the preload library: calls of an unmodified program that its rings serve, and calls passed to the
//! kernel, by reason. Only for `annulus-preload`; has no stable interface.
//!
//! The names are part of the layout (`record.rs`). Older readers omit names that are added at an end; every other
//! change changes `VERSION`.

use std::sync::atomic::Ordering;

use crate::metrics::counters::Record;
use crate::metrics::record::{self, Number};
use crate::metrics::{Counters, SourceKind, registry};

/// Defines an enum whose variants have names.
macro_rules! named {
    ($(#[$about:meta])* $kind:ident { $($(#[$each:meta])* $variant:ident = $name:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum $kind {
            $(#[doc = concat!("`", $name, "`")] $(#[$each])* $variant,)*
        }

        impl $kind {
            /// All variants, in order.
            pub const ALL: &'static [$kind] = &[$($kind::$variant),*];

            /// Returns the name for output.
            pub const fn name(self) -> &'static str {
                match self {
                    $($kind::$variant => $name,)*
                }
            }
        }
    };
}

named! {
    /// A hooked call, by its name in the C library. Variants of a call count as the same call.
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
    /// The reason why a call passed through, or why a descriptor was handed back to the kernel.
    Why {
        /// io_uring is missing or refused.
        Refused = "refused",
        NotAStream = "not_a_stream",
        NotConnected = "not_connected",
        /// Added to a set that no thread has waited on.
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
        /// The listener's port is excluded by the operator.
        Port = "port",
        /// A thread waits for it by other means than its epoll set.
        PolledOtherwise = "polled_otherwise",
        /// A stream of stdio by now, which libc reads and closes itself.
        Stdio = "stdio",
        /// The kernel returned an unexpected result to the ring.
        Kernel = "kernel",
        /// The program is about to install a filter of system calls.
        Filtered = "filtered",
        /// The program changes its user or group while a kernel thread polls for it.
        ChangedRights = "changed_rights",
        /// A signal handler called in the middle of another call.
        InHandler = "in_handler",
        /// The operator disabled serving for the whole process.
        Disabled = "disabled",
        /// The operator requested at run time that everything is handed back.
        Released = "released",
        /// The process has few descriptors left, so the library has released its own.
        Descriptors = "descriptors",
        /// The set has fewer connections than a ring is worth.
        FewConnections = "few_connections",
    }
}

/// A ring event, besides calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Event {
    /// Calls of `io_uring_enter`.
    Enters,
    /// The part of `Enters` that might sleep.
    Waits,
    /// Entries that the kernel took in these calls.
    Entries,
    /// Times that the kernel's polling thread (SQPOLL) had to be woken.
    SqWakeups,
    /// Cancels requested from the kernel.
    Cancels,
    /// Sends whose remainder was submitted again.
    Resubmitted,
    /// Receives that found no free buffer (`ENOBUFS`).
    NoBuffers,
    /// Times that completions did not fit into the completion queue.
    CqOverflows,
    /// Rings that were created.
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

/// A current value of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gauge {
    /// Rings.
    Rings,
    /// Operations in the kernel.
    InFlight,
    /// Connections that the ring serves.
    Connections,
    /// Receive buffers.
    Buffers,
    /// Receive buffers that are empty.
    BuffersFree,
}

/// The counters of one ring of the preload library, or of the whole process. On drop, its counts move to the ended
/// source.
///
/// Creating one allocates and takes a lock. Counting does neither, and is allowed in a signal handler.
#[derive(Debug)]
pub struct Served(Counters);

impl Served {
    /// Creates the counters of ring `index` of this process, starting at 0.
    pub fn ring(index: u32) -> Served {
        Served::new(SourceKind::Preload, index)
    }

    /// Creates the counters outside of rings: of calls that are passed to the kernel.
    pub fn process() -> Served {
        Served::new(SourceKind::Passed, 0)
    }

    fn new(kind: SourceKind, index: u32) -> Served {
        let counters = Counters::new(kind);
        counters.set_owner(1, index as usize);
        Served(counters)
    }

    /// Sets the backend, and the reason why it is a fallback.
    pub fn set_backend(&self, backend: &str, fallback: Option<&str>) {
        self.0.set_backend(backend, fallback);
    }

    /// Counts calls that were served without the kernel or by a ring. Only one thread at a time may call this.
    #[inline]
    pub fn serve(&self, call: Call, calls: u64) {
        self.0.word(record::served(call)).add(calls);
    }

    /// Counts served calls. Any thread may call this.
    #[inline]
    pub fn serve_shared(&self, call: Call, calls: u64) {
        self.0.word(record::served(call)).add_shared(calls);
    }

    /// Counts calls that were passed to the kernel. Any thread may call this.
    #[inline]
    pub fn pass(&self, why: Why, calls: u64) {
        self.0.word(record::passed(why)).add_shared(calls);
    }

    /// Counts descriptors that were handed back to the kernel. Any thread may call this.
    #[inline]
    pub fn hand_back(&self, why: Why, descriptors: u64) {
        let word = self.0.word(record::handed_back(why));
        word.add_shared(descriptors);
    }

    /// Counts listeners whose connections are left to the kernel. Any thread may call this.
    pub fn leave_listener(&self, why: Why, listeners: u64) {
        self.0
            .word(record::listeners_left(why))
            .add_shared(listeners);
    }

    /// Marks a served call as failed. Any thread may call this.
    pub fn fail(&self, call: Call, errno: i32) {
        self.0.word(record::served_failed(call)).add_shared(1);
        self.0.error(errno);
    }

    /// Counts events. Only one thread at a time may call this.
    #[inline]
    pub fn count(&self, event: Event, times: u64) {
        self.0.word(event.word_index()).add(times);
    }

    /// Counts events. Any thread may call this.
    #[inline]
    pub fn count_shared(&self, event: Event, times: u64) {
        self.0.word(event.word_index()).add_shared(times);
    }

    /// Changes a gauge by `by`. Any thread may call this.
    #[inline]
    pub fn change(&self, gauge: Gauge, by: i64) {
        let counter = match gauge {
            Gauge::Rings => self.0.word(record::RINGS),
            Gauge::InFlight => self.0.flying(),
            Gauge::Connections => self.0.word(record::CONNECTIONS),
            Gauge::Buffers => self.0.word(record::BUFFERS),
            Gauge::BuffersFree => self.0.word(record::BUFFERS_FREE),
        };
        // A negative change wraps around to the right value.
        counter.add_shared(by.cast_unsigned());
    }
}

/// The sums of all [`Served`] of this process, including those that have ended.
#[derive(Clone, Debug)]
pub struct Totals {
    served: [u64; Call::ALL.len()],
    failed: [u64; Call::ALL.len()],
    passed: [u64; Why::ALL.len()],
    handed_back: [u64; Why::ALL.len()],
    events: [u64; Event::ALL.len()],
}

impl Totals {
    /// Returns the current sums. Allocates nothing and does not wait. Returns `None` if it would have to: in a signal
    /// handler that interrupted a thread while it adds or removes a source.
    pub fn now() -> Option<Totals> {
        let mut totals = Totals {
            served: [0; Call::ALL.len()],
            failed: [0; Call::ALL.len()],
            passed: [0; Why::ALL.len()],
            handed_back: [0; Why::ALL.len()],
            events: [0; Event::ALL.len()],
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

    /// Returns the number of served calls.
    pub fn served(&self, call: Call) -> u64 {
        self.served[call as usize]
    }

    /// Returns how many served calls failed.
    pub fn failed(&self, call: Call) -> u64 {
        self.failed[call as usize]
    }

    /// Returns the number of calls that were passed to the kernel.
    pub fn passed(&self, why: Why) -> u64 {
        self.passed[why as usize]
    }

    /// Returns the number of descriptors that were handed back to the kernel.
    pub fn handed_back(&self, why: Why) -> u64 {
        self.handed_back[why as usize]
    }

    /// Returns the number of events.
    pub fn event(&self, event: Event) -> u64 {
        self.events[event as usize]
    }
}
