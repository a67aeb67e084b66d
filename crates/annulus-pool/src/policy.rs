//! Which page goes: S3-FIFO (Yang et al., SOSP 2023). New pages enter a small queue, and leave memory from there unless
//! they were used again; pages that were used again, or that come back soon after they left the small queue, are in the
//! main queue, where each use saves a page for one round. A scan passes through the small queue only. A page that
//! leaves the main queue is forgotten: in a loop over more pages than fit, such pages would replace each other there.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::page;

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

    #[inline(always)]
    pub(crate) fn count(&self, frame: u32) {
        if let Some(uses) = self.0.get(frame as usize) {
            let before = uses.load(Ordering::Relaxed);
            if before < USES_MAX {
                uses.store(before + 1, Ordering::Relaxed);
            }
        }
    }

    /// Asks the processor for the uses of a frame.
    #[inline(always)]
    pub(crate) fn ask(&self, frame: u32) {
        if let Some(uses) = self.0.get(frame as usize) {
            page::prefetch(uses.as_ptr().cast());
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
    /// The number of frames that were chosen from the small queue.
    small_gone: u32,
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
            small_gone: 0,
        }
    }

    /// Adds a frame with a new page. `evicted`: what `next` returned when the page was last in memory.
    pub(crate) fn insert(&mut self, frame: u32, evicted: Option<u32>, uses: &Uses) {
        uses.set(frame, 0);
        let ticket = self.ticket(frame);
        // As many as the main queue has.
        let soon = (self.current.len() - self.small_frames()) as u32;
        match evicted {
            Some(at) if self.small_gone.wrapping_sub(at) & TIME_MASK <= soon => {
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

    /// Chooses the frame that goes next, and removes it; `None` if there is none. The second value is the time, counted
    /// in frames from the small queue, if it goes from there.
    pub(crate) fn next(&mut self, uses: &Uses) -> Option<(u32, Option<u32>)> {
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
                self.small_gone = self.small_gone.wrapping_add(u32::from(of_small));
                return Some((ticket.frame, of_small.then_some(self.small_gone)));
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

/// The bits of a time that an entry of the table keeps.
const TIME_MASK: u32 = 0x7fff_ffff;

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, VecDeque};

    use super::*;

    const FRAMES: usize = 1000;
    const PAGES: u64 = 4000;
    const STEPS: usize = 40_000;

    /// Pages in memory, with the frames of a pool.
    struct Pool {
        queues: Queues,
        uses: Uses,
        frames: HashMap<u64, u32>,
        pages: Vec<u64>,
        evicted: HashMap<u64, Option<u32>>,
    }

    impl Pool {
        fn new() -> Pool {
            Pool {
                queues: Queues::new(FRAMES),
                uses: Uses::new(FRAMES),
                frames: HashMap::new(),
                pages: Vec::new(),
                evicted: HashMap::new(),
            }
        }

        /// Reads a page. Returns whether it was in memory.
        fn read(&mut self, page: u64) -> bool {
            if let Some(frame) = self.frames.get(&page) {
                self.uses.count(*frame);
                return true;
            }
            let frame = if self.pages.len() < FRAMES {
                self.pages.push(page);
                self.pages.len() as u32 - 1
            } else {
                let (frame, at) = self.queues.next(&self.uses).unwrap();
                let old = std::mem::replace(&mut self.pages[frame as usize], page);
                self.frames.remove(&old);
                self.evicted.insert(old, at);
                frame
            };
            let evicted = self.evicted.get(&page).copied().flatten();
            self.queues.insert(frame, evicted, &self.uses);
            self.frames.insert(page, frame);
            assert_eq!(self.queues.queued(), self.pages.len());
            false
        }
    }

    /// The algorithm of most buffer pools, for comparison.
    #[derive(Default)]
    struct Clock {
        used: HashMap<u64, bool>,
        hand: VecDeque<u64>,
    }

    impl Clock {
        fn read(&mut self, page: u64) -> bool {
            if let Some(used) = self.used.get_mut(&page) {
                *used = true;
                return true;
            }
            while self.hand.len() >= FRAMES {
                let old = self.hand.pop_front().unwrap();
                if self.used.insert(old, false) == Some(true) {
                    self.hand.push_back(old);
                } else {
                    self.used.remove(&old);
                }
            }
            self.hand.push_back(page);
            self.used.insert(page, false);
            false
        }
    }

    /// Returns the share of hits in the second half of a trace: of the pool, and of `Clock`.
    fn hits(mut trace: impl FnMut(usize) -> (u64, bool)) -> (f64, f64) {
        let (mut pool, mut clock) = (Pool::new(), Clock::default());
        let (mut counted, mut of_pool, mut of_clock) = (0, 0, 0);
        for step in 0..STEPS {
            let (page, counts) = trace(step);
            let counts = usize::from(counts && step >= STEPS / 2);
            counted += counts;
            of_pool += usize::from(pool.read(page)) * counts;
            of_clock += usize::from(clock.read(page)) * counts;
        }
        let share = |hits: usize| hits as f64 / counted as f64;
        (share(of_pool), share(of_clock))
    }

    /// Returns numbers by Zipf's law with exponent 0.99.
    fn zipf(seed: u64) -> impl FnMut() -> u64 {
        let mut rng = fastrand::Rng::with_seed(seed);
        annulus_testing::zipf::zipf(PAGES, 0.99, move || rng.f64())
    }

    #[test]
    fn on_four_traces_as_many_hits_as_a_clock_or_more() {
        let mut rng = fastrand::Rng::with_seed(1);
        let uniform = hits(|_| (rng.u64(..PAGES), true));
        let mut ranks = zipf(2);
        let skewed = hits(|_| (ranks(), true));
        // Points by Zipf's law, and a scan of all pages beside them.
        let mut ranks = zipf(3);
        let beside_a_scan = hits(|step| match step % 2 {
            0 => (ranks(), true),
            _ => (PAGES + step as u64 % (4 * PAGES), false),
        });
        let in_a_loop = hits(|step| (step as u64 % (FRAMES as u64 * 5 / 4), true));
        let all = [uniform, skewed, beside_a_scan, in_a_loop];
        println!("uniform, Zipf, beside a scan, loop: {all:.3?}");
        assert!((uniform.0 - 0.25).abs() < 0.01, "{uniform:?}");
        for (pool, clock) in all {
            assert!(pool > clock - 0.005, "{all:.3?}");
        }
        // Of at most 0.8.
        assert!(in_a_loop.0 > 0.6, "{all:.3?}");
        // The same points, alone.
        assert!(beside_a_scan.0 > 0.9 * skewed.0, "{all:.3?}");
    }

    #[test]
    fn a_removed_frame_is_not_chosen_and_queues_do_not_grow() {
        let (mut queues, uses) = (Queues::new(4), Uses::new(4));
        for _ in 0..1000 {
            for frame in 0..4 {
                queues.insert(frame, None, &uses);
            }
            queues.remove(2);
            queues.remove(2);
        }
        assert!(queues.small.len() <= 9, "{}", queues.small.len());
        assert_eq!(queues.queued(), 3);
        let chosen: Vec<_> = std::iter::from_fn(|| queues.next(&uses))
            .map(|(frame, _)| frame)
            .collect();
        assert_eq!(chosen, [0, 1, 3]);
    }
}
