//! The memory of an arena as its engine's rings see it: a list of such regions, which every driver
//! looks at when its version has changed, and what each ring said about registering them.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::error::SetupError;
use crate::sys::mapping::Mapping;

/// How often a wait for answers looks whether anybody is left to give them.
const LOOK: Duration = Duration::from_millis(20);

/// A driver, as the list of the arenas that it registers sees it.
pub(crate) trait Follow: Send + Sync {
    /// The list has changed. The driver looks at it soon, though it may have nothing else to do.
    fn follow(&self);
}

/// The arenas of one engine.
#[derive(Default)]
pub(crate) struct Arenas {
    /// Grows with each change of the list.
    version: AtomicU64,
    list: Mutex<Vec<Arc<RegisteredRegion>>>,
    /// Those with rings; an engine never has fewer of them than it had.
    followers: Mutex<Vec<Weak<dyn Follow>>>,
}

impl Arenas {
    /// Which list it is; 0 as long as there never was an arena.
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The arenas there are, and which list that is.
    pub(crate) fn list(&self) -> (u64, Vec<Arc<RegisteredRegion>>) {
        let list = lock(&self.list);
        (self.version.load(Ordering::Relaxed), list.clone())
    }

    pub(super) fn add(&self, region: &Arc<RegisteredRegion>) {
        let mut list = lock(&self.list);
        list.push(Arc::clone(region));
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Has every ring let go of it. The rings of busy drivers do so at their next poll; no idle one keeps
    /// the memory pinned until then.
    pub(super) fn remove(&self, region: &Arc<RegisteredRegion>) {
        let mut list = lock(&self.list);
        list.retain(|one| !Arc::ptr_eq(one, region));
        self.version.fetch_add(1, Ordering::Release);
        drop(list);
        // Called without the lock, because they look at the list.
        let followers = lock(&self.followers).clone();
        for follower in followers.iter().filter_map(Weak::upgrade) {
            follower.follow();
        }
    }

    /// Adds a driver that is told of arenas that have gone.
    pub(crate) fn add_follower(&self, follower: Weak<dyn Follow>) {
        lock(&self.followers).push(follower);
    }
}

impl fmt::Debug for Arenas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arenas")
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// The memory of one arena.
#[derive(Debug)]
pub(crate) struct RegisteredRegion {
    pub(crate) memory: Arc<Mapping>,
    /// From one buffer to the next, bytes.
    pub(crate) stride: usize,
    /// Of all buffers together.
    pub(crate) bytes: usize,
    registrations: Mutex<Vec<Registration>>,
    changed: Condvar,
}

/// What one ring said.
#[derive(Clone, Debug)]
struct Registration {
    bytes: usize,
    because: Option<Arc<SetupError>>,
}

impl RegisteredRegion {
    pub(super) fn new(memory: Arc<Mapping>, stride: usize, bytes: usize) -> RegisteredRegion {
        RegisteredRegion {
            memory,
            stride,
            bytes,
            registrations: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// A ring has registered `bytes` from the start; if that is not all, because of the error.
    pub(crate) fn note_registration(&self, bytes: usize, because: Option<SetupError>) {
        let because = because.map(Arc::new);
        lock(&self.registrations).push(Registration { bytes, because });
        self.changed.notify_all();
    }

    /// Waits until `rings` have reported, as long as `alive`, at most `time`.
    pub(crate) fn wait(&self, rings: usize, alive: impl Fn() -> bool, time: Duration) {
        let until = Instant::now() + time;
        let mut registrations = lock(&self.registrations);
        while registrations.len() < rings && alive() && Instant::now() < until {
            let waited = self.changed.wait_timeout(registrations, LOOK);
            registrations = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub(super) fn registered(&self) -> Registered {
        let registrations = lock(&self.registrations);
        let full = registrations
            .iter()
            .filter(|one| one.bytes >= self.bytes)
            .count();
        let bytes = registrations.iter().map(|one| one.bytes).min().unwrap_or(0);
        Registered {
            rings: registrations.len(),
            full,
            bytes: bytes as u64,
            of_bytes: self.bytes as u64,
            because: registrations.iter().find_map(|one| one.because.clone()),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it is held; if it did, the list would still be whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How far the rings of an engine have registered an arena. `Display` is a phrase for people.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Registered {
    /// Rings that have tried. 0 on blocking threads, which use the arena's memory as any other.
    pub rings: usize,
    /// Rings that have registered all of it.
    pub full: usize,
    /// Bytes that each ring has registered, from the first buffer on: the least of all rings.
    pub bytes: u64,
    /// Bytes of the arena.
    pub of_bytes: u64,
    /// Why a ring has less than all.
    pub because: Option<Arc<SetupError>>,
}

impl Registered {
    /// Every ring has registered the whole arena.
    pub fn is_whole(&self) -> bool {
        self.rings > 0 && self.full == self.rings
    }
}

impl fmt::Display for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.rings == 0 {
            return f.write_str("not registered: there is no ring");
        }
        if self.is_whole() {
            return f.write_str("registered");
        }
        if self.bytes == 0 && self.full == 0 {
            f.write_str("not registered")?;
        } else {
            write!(
                f,
                "{} of {} registered",
                Bytes(self.bytes),
                Bytes(self.of_bytes)
            )?;
        }
        if self.full > 0 {
            write!(
                f,
                " with every ring, all of it with {} of {}",
                self.full, self.rings
            )?;
        }
        match &self.because {
            Some(because) => write!(f, ": {because}"),
            None => Ok(()),
        }
    }
}

/// A size, for people.
pub(super) struct Bytes(pub(super) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        match units
            .iter()
            .find(|(unit, _)| self.0 >= *unit && self.0.is_multiple_of(*unit))
        {
            Some((unit, name)) => write!(f, "{} {name}", self.0 / unit),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::mapping::HugePages;

    #[test]
    fn a_report_says_how_much_of_an_arena_each_ring_has_and_why_not_all() {
        let region = || {
            let memory = Mapping::new(1 << 20, HugePages::SystemDefault).unwrap();
            RegisteredRegion::new(Arc::new(memory), 4096, 1 << 20)
        };
        let refusal = || Some(SetupError::Config("too much".to_owned()));
        let says = |region: &RegisteredRegion| region.registered().to_string();
        assert_eq!(says(&region()), "not registered: there is no ring");

        let whole = region();
        whole.note_registration(1 << 20, None);
        assert_eq!(says(&whole), "registered");
        assert!(whole.registered().is_whole());
        whole.note_registration(0, refusal());
        let expected = "not registered with every ring, all of it with 1 of 2: too much";
        assert_eq!(says(&whole).replace("0 bytes of 1 MiB", "not"), expected);

        let part = region();
        part.note_registration(1 << 19, refusal());
        assert_eq!(says(&part), "512 KiB of 1 MiB registered: too much");
        let none = region();
        none.note_registration(0, refusal());
        assert_eq!(says(&none), "not registered: too much");
        assert_eq!(Bytes(4097).to_string(), "4097 bytes");
        assert_eq!(Bytes(3 << 30).to_string(), "3 GiB");
    }
}
