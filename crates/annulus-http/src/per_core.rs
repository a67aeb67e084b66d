//! What the connections of a core have in core; one per core.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use annulus::runtime;

use crate::clock::Clock;
use crate::log::Log;
use crate::options::{Limits, Options};
use crate::site::Site;
use crate::transport::{Buffers, Scratch};
use crate::watch::Watches;

/// How long a client may take to see that a connection ends before it is closed.
const LINGER: Duration = Duration::from_secs(2);
/// How many times a client is looked at within the send timeout, which passes late by one of these at most.
const SEND_LOOKS: u64 = 8;
/// Idle connections that are closed when a connection could not be accepted for want of descriptors: with one each time
/// a crowd would be let in slowly, as attempts are 10 ms apart.
const CLOSED_TOGETHER: usize = 8;
/// N connections and streams leave memory behind that is worth giving back: some MiB.
const CROWD: usize = 1000;

pub(crate) struct PerCore {
    pub(crate) site: Site,
    pub(crate) limits: Limits,
    pub(crate) ticks: Ticks,
    pub(crate) watches: Rc<Watches>,
    pub(crate) clock: Clock,
    pub(crate) log: Option<Log>,
    pub(crate) scratch: Rc<Scratch>,
    pub(crate) buffers: Rc<Buffers>,
    /// Requests of HTTP/2 whose responses have not been written.
    pub(crate) streams: Cell<usize>,
    /// The most connections and streams since memory was given back last.
    crowd: Cell<usize>,
    /// Bytes of files that all connections of HTTP/2 have read and not yet written.
    pub(crate) read_ahead: Cell<usize>,
}

/// The limits in time, as looks of [`Watches`].
pub(crate) struct Ticks {
    pub(crate) head: u64,
    pub(crate) body: u64,
    pub(crate) idle: u64,
    pub(crate) send: u64,
    /// Between two looks at a client that is sent something.
    pub(crate) send_look: u64,
    pub(crate) handshake: u64,
    pub(crate) linger: u64,
}

impl PerCore {
    pub(crate) fn new(options: &Options) -> io::Result<Rc<PerCore>> {
        let limits = options.limits.clone();
        let times = [
            limits.head_timeout,
            limits.body_timeout,
            limits.idle_timeout,
            limits.send_timeout,
            limits.handshake_timeout,
        ];
        let shortest = times.into_iter().fold(LINGER, Duration::min);
        let watches = Watches::new(shortest);
        let ticks = Ticks {
            head: watches.ticks(limits.head_timeout),
            body: watches.ticks(limits.body_timeout),
            idle: watches.ticks(limits.idle_timeout),
            send: watches.ticks(limits.send_timeout),
            send_look: (watches.ticks(limits.send_timeout) / SEND_LOOKS).max(1),
            handshake: watches.ticks(limits.handshake_timeout),
            linger: watches.ticks(LINGER),
        };
        Ok(Rc::new(PerCore {
            site: Site::open(&options.site)?,
            limits,
            ticks,
            watches,
            clock: Clock::new(),
            log: options.log.clone().map(Log::new),
            scratch: Rc::default(),
            buffers: Rc::default(),
            streams: Cell::default(),
            crowd: Cell::default(),
            read_ahead: Cell::default(),
        }))
    }

    /// Frees descriptors when there is none left: files that are only kept to be sent again are closed, and so are
    /// the connections that have waited longest for a request.
    pub(crate) fn free_descriptors(&self) {
        self.site.close_kept();
        for _ in 0..CLOSED_TOGETHER {
            if !self.watches.close_longest_idle() {
                return;
            }
        }
    }

    /// A connection or a stream has begun. Counted here and not at the looks, between which a crowd may come and go.
    #[inline]
    pub(crate) fn note_crowd(&self) {
        let now = self.watches.connections() + self.streams.get();
        self.crowd.set(self.crowd.get().max(now));
    }

    /// Gives memory back to the system when a crowd has left: the allocator keeps what lies below anything in use.
    pub(crate) fn trim(&self) {
        let now = self.watches.connections() + self.streams.get();
        let crowd = self.crowd.get();
        if crowd >= CROWD && now <= crowd / 4 {
            self.crowd.set(now);
            // It may take some milliseconds. Its end is of no interest.
            drop(runtime::spawn_blocking(runtime::trim_heap));
        }
    }

    /// What is done at each look.
    pub(crate) fn look(&self) {
        self.clock.look();
        self.watches.look();
        self.site.sweep(self.clock.now());
        if let Some(log) = &self.log {
            log.pass_to_writer();
        }
    }
}
