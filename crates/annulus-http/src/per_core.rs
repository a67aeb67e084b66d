//! The state that the connections of a core share.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use annulus::runtime;

use crate::clock::Clock;
use crate::log::Log;
use crate::options::{Limits, Options};
use crate::site::Site;
use crate::stall::READ_RATE;
use crate::transport::{Buffers, Scratch};
use crate::watch::Watches;

/// The time that a client has to notice the end of a connection before it is closed.
const LINGER: Duration = Duration::from_secs(2);
/// The number of checks of a client within the send timeout. The timeout fires late by one of them at most.
const SEND_CHECKS: u64 = 8;
/// The number of idle connections that are closed when no descriptor is free for a new one. Attempts to accept are 10
/// ms apart, so closing one at a time would admit a crowd only slowly.
const CLOSED_TOGETHER: usize = 8;
/// The number of connections and streams that leave some MiB of free memory behind, worth returning to the system.
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
    /// HTTP/2 requests whose responses have not been written.
    pub(crate) streams: Cell<usize>,
    /// The largest number of connections and streams since memory was last returned.
    crowd: Cell<usize>,
    /// Bytes of files that all HTTP/2 connections have read and not yet written.
    pub(crate) read_ahead: Cell<usize>,
}

/// The time limits, in ticks of [`Watches`].
pub(crate) struct Ticks {
    pub(crate) head: u64,
    pub(crate) body: u64,
    pub(crate) idle: u64,
    pub(crate) send: u64,
    /// The time between two checks of a client that receives a response.
    pub(crate) send_check: u64,
    /// The number of bytes that a client reads in a tick, at least.
    pub(crate) read_bytes: u64,
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
            send_check: (watches.ticks(limits.send_timeout) / SEND_CHECKS).max(1),
            read_bytes: (READ_RATE * watches.tick().as_millis() as u64 / 1000).max(1),
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

    /// Frees descriptors when none is left: closes cached files, and the connections that have waited longest for a
    /// request.
    pub(crate) fn free_descriptors(&self) {
        self.site.close_kept();
        for _ in 0..CLOSED_TOGETHER {
            if !self.watches.close_longest_idle() {
                return;
            }
        }
    }

    /// Notes a new connection or stream. Ticks cannot measure a crowd that connects and leaves between two of them.
    #[inline]
    pub(crate) fn note_crowd(&self) {
        let now = self.watches.connections() + self.streams.get();
        self.crowd.set(self.crowd.get().max(now));
    }

    /// Returns free memory to the system when a crowd has left. The allocator does not do so itself while higher
    /// addresses are in use.
    pub(crate) fn trim(&self) {
        let now = self.watches.connections() + self.streams.get();
        let crowd = self.crowd.get();
        if crowd >= CROWD && now <= crowd / 4 {
            self.crowd.set(now);
            // This may take some milliseconds, and its result is not needed.
            drop(runtime::spawn_blocking(runtime::trim_heap));
        }
    }

    /// Does the periodic work.
    pub(crate) fn tick(&self) {
        self.clock.refresh();
        self.watches.advance();
        self.site.sweep(self.clock.now());
        if let Some(log) = &self.log {
            log.pass_to_writer();
        }
    }
}
