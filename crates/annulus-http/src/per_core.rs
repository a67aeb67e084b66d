//! What the connections of a core have in core; one per core.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use crate::clock::Clock;
use crate::log::Log;
use crate::options::{Limits, Options};
use crate::site::Site;
use crate::transport::{Buffers, Scratch};
use crate::watch::Watches;

/// How long a client may take to see that a connection ends before it is closed.
const LINGER: Duration = Duration::from_secs(2);

pub(crate) struct PerCore {
    pub(crate) site: Site,
    pub(crate) limits: Limits,
    pub(crate) ticks: Ticks,
    pub(crate) watches: Rc<Watches>,
    pub(crate) clock: Clock,
    pub(crate) log: Option<Log>,
    pub(crate) scratch: Rc<Scratch>,
    pub(crate) buffers: Rc<Buffers>,
}

/// The limits in time, as looks of [`Watches`].
pub(crate) struct Ticks {
    pub(crate) head: u64,
    pub(crate) body: u64,
    pub(crate) idle: u64,
    pub(crate) send: u64,
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
        }))
    }

    /// What is done at each look.
    pub(crate) fn look(&self) {
        self.clock.look();
        self.watches.look();
        self.site.sweep(self.clock.now());
        if let Some(log) = &self.log {
            log.hand_over();
        }
    }
}
