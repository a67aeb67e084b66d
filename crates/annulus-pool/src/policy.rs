//! Which page goes: S3-FIFO (Yang et al., SOSP 2023). New pages enter a small queue, and leave memory from there unless
//! they were used again; pages that were used again, or that come back soon, are in the main queue, where each use
//! saves a page for one round. A scan passes through the small queue only.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, Ordering};

/// Uses are counted up to this one.
const USES_MAX: u8 = 3;
/// The share of the frames that the small queue has.
const SMALL_SHARE: usize = 10;

/// The uses of each frame since it was filled or last spared. Counted without a change in one step, so uses at the same
/// time may count once.
#[derive(Debug)]
pub(crate) struct Uses(Box<[AtomicU8]>);

impl Uses {
    pub(crate) fn new(frames: usize) -> Uses {
        Uses((0..frames).map(|_| AtomicU8::new(0)).collect())
    }

    #[inline]
    pub(crate) fn count(&self, frame: u32) {
        if let Some(uses) = self.0.get(frame as usize) {
            let before = uses.load(Ordering::Relaxed);
            if before < USES_MAX {
                uses.store(before + 1, Ordering::Relaxed);
            }
        }
    }

    fn get(&self, frame: u32) -> u8 {
        self.0[frame as usize].load(Ordering::Relaxed)
    }

    fn set(&self, frame: u32, uses: u8) {
        self.0[frame as usize].store(uses, Ordering::Relaxed);
    }
}

/// The frames with pages, in the order in which they are considered.
#[derive(Debug)]
pub(crate) struct Queues {
    small: VecDeque<Ticket>,
    main: VecDeque<Ticket>,
    /// Each frame's current ticket; an older one in a queue means nothing.
    current: Box<[u32]>,
    /// The number of frames on the queues.
    queued: usize,
    evictions: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ticket {
    frame: u32,
    number: u32,
}

impl Queues {
    pub(crate) fn new(frames: usize) -> Queues {
        Queues {
            small: VecDeque::new(),
            main: VecDeque::new(),
            current: vec![0; frames].into(),
            queued: 0,
            evictions: 0,
        }
    }

    /// Adds a frame with a new page. `evicted`: when the page was last in memory.
    pub(crate) fn insert(&mut self, frame: u32, evicted: Option<u32>, uses: &Uses) {
        uses.set(frame, 0);
        let ticket = self.ticket(frame);
        // As many as the main queue has.
        let soon = (self.current.len() - self.small_frames()) as u32;
        match evicted {
            Some(at) if self.now().wrapping_sub(at) & NOW_MASK <= soon => {
                self.main.push_back(ticket);
            }
            _ => self.small.push_back(ticket),
        }
    }

    /// Puts a frame back that was chosen, and cannot go.
    pub(crate) fn keep(&mut self, frame: u32) {
        let ticket = self.ticket(frame);
        self.main.push_back(ticket);
    }

    /// Removes a frame; it may be on no queue.
    pub(crate) fn remove(&mut self, frame: u32) {
        let current = &mut self.current[frame as usize];
        self.queued -= (*current % 2) as usize;
        // To an even number: on no queue.
        *current = current.wrapping_add(1 + *current % 2) & !1;
    }

    /// Chooses the frame that goes next, and removes it; `None` if there is none.
    pub(crate) fn next(&mut self, uses: &Uses) -> Option<u32> {
        // Each round takes a use from a frame, or chooses one.
        while self.queued > 0 {
            let of_small = self.small.len() > self.small_frames() || self.main.is_empty();
            let queue = if of_small {
                &mut self.small
            } else {
                &mut self.main
            };
            let ticket = queue.pop_front()?;
            if self.current[ticket.frame as usize] != ticket.number {
                continue;
            }
            let used = uses.get(ticket.frame);
            if used == 0 {
                self.remove(ticket.frame);
                return Some(ticket.frame);
            }
            uses.set(ticket.frame, if of_small { 0 } else { used - 1 });
            self.main.push_back(ticket);
        }
        None
    }

    /// Returns the number of frames on the queues.
    pub(crate) fn queued(&self) -> usize {
        self.queued
    }

    /// Counts an eviction, and returns when that was.
    pub(crate) fn evicted(&mut self) -> u32 {
        self.evictions = self.evictions.wrapping_add(1);
        self.now()
    }

    fn now(&self) -> u32 {
        self.evictions & NOW_MASK
    }

    fn small_frames(&self) -> usize {
        self.current.len() / SMALL_SHARE
    }

    fn ticket(&mut self, frame: u32) -> Ticket {
        self.remove(frame);
        let current = &mut self.current[frame as usize];
        *current = current.wrapping_add(1);
        self.queued += 1;
        let number = *current;
        let (most, current) = (2 * self.current.len(), &self.current);
        for queue in [&mut self.small, &mut self.main] {
            if queue.len() > most {
                queue.retain(|ticket| current[ticket.frame as usize] == ticket.number);
            }
        }
        Ticket { frame, number }
    }
}

/// Times have 31 bits.
const NOW_MASK: u32 = 0x7fff_ffff;
