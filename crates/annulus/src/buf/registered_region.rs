//! The arenas of an engine, as its rings see them. Every driver re-reads the list when its version has changed, and
//! each ring reports how much of an arena it has registered.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::error::SetupError;
use crate::sys::mapping::Mapping;

/// The interval at which a wait for reports checks whether drivers remain.
const LOOK: Duration = Duration::from_millis(20);

/// A driver that follows the list of arenas.
pub(crate) trait Follow: Send + Sync {
    /// Reports a change of the list. The driver re-reads it soon, even if it has no other work.
    fn follow(&self);
}

/// The arenas of one engine.
#[derive(Default)]
pub(crate) struct Arenas {
    /// Incremented with each change of the list.
    version: AtomicU64,
    list: Mutex<Vec<Arc<RegisteredRegion>>>,
    /// The drivers with rings. Their number never decreases.
    followers: Mutex<Vec<Weak<dyn Follow>>>,
}

impl Arenas {
    /// Returns the version of the list; 0 if there has never been an arena.
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Returns the version of the list, and the arenas.
    pub(crate) fn list(&self) -> (u64, Vec<Arc<RegisteredRegion>>) {
        let list = lock(&self.list);
        (self.version.load(Ordering::Relaxed), list.clone())
    }

    pub(super) fn add(&self, region: &Arc<RegisteredRegion>) {
        let mut list = lock(&self.list);
        list.push(Arc::clone(region));
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Removes an arena, and makes every ring release it. Busy drivers release it at their next poll; idle drivers are
    /// notified, so that they do not keep the memory pinned.
    pub(super) fn remove(&self, region: &Arc<RegisteredRegion>) {
        let mut list = lock(&self.list);
        list.retain(|one| !Arc::ptr_eq(one, region));
        self.version.fetch_add(1, Ordering::Release);
        drop(list);
        // Outside the lock, because followers read the list.
        let followers = lock(&self.followers).clone();
        for follower in followers.iter().filter_map(Weak::upgrade) {
            follower.follow();
        }
    }

    /// Adds a driver that is notified of removed arenas.
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
    /// The distance from one buffer to the next, in bytes.
    pub(crate) stride: usize,
    /// The total size of all buffers, in bytes.
    pub(crate) bytes: usize,
    registrations: Mutex<Vec<Registration>>,
    changed: Condvar,
}

/// The report of one ring.
#[derive(Clone, Debug)]
struct Registration {
    bytes: usize,
    reason: Option<Arc<SetupError>>,
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

    /// Records that a ring has registered `bytes` bytes from the start; if that is not all, `because` has the reason.
    pub(crate) fn note_registration(&self, bytes: usize, reason: Option<SetupError>) {
        let reason = reason.map(Arc::new);
        lock(&self.registrations).push(Registration { bytes, reason });
        self.changed.notify_all();
    }

    /// Waits until `rings` rings have reported, while `alive` returns true, for at most `time`.
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
            reason: registrations.iter().find_map(|one| one.reason.clone()),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while the lock is held; if it did, the list would still be consistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The extent to which the rings of an engine have registered an arena. `Display` writes it as a phrase.
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// use annulus::buf::BufferLayout;
///
/// let engine = annulus::Engine::new()?;
/// let arena = engine.register_buffers(BufferLayout::new(16, 65_536))?;
/// let registered = arena.registered();
/// assert_eq!(registered.of_bytes, 1 << 20);
/// match &registered.reason {
///     None => assert_eq!(registered.full, registered.rings), // 0 of 0 without io_uring
///     Some(reason) => eprintln!("only {} bytes are registered: {reason}", registered.bytes),
/// }
/// # Ok(()) }) }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Registered {
    /// The number of rings that have tried. 0 without rings, where the arena is ordinary memory.
    pub rings: usize,
    /// The number of rings that have registered all of it.
    pub full: usize,
    /// The number of bytes, from the first buffer on, that every ring has registered.
    pub bytes: u64,
    /// The size of the arena in bytes.
    pub of_bytes: u64,
    /// The reason why a ring has registered only a part.
    pub reason: Option<Arc<SetupError>>,
}

impl Registered {
    /// Returns whether every ring has registered the whole arena.
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
                " on every ring, all of it on {} of {} rings",
                self.full, self.rings
            )?;
        }
        match &self.reason {
            Some(reason) => write!(f, ": {reason}"),
            None => Ok(()),
        }
    }
}

/// A size in readable units.
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

    // The model checker has no child processes.
    #[cfg(not(annulus_loom))]
    #[test]
    fn a_forked_child_drops_an_arena_without_a_lock_that_a_thread_of_its_parent_holds() {
        use crate::buf::{Arena, BufferLayout};
        use annulus_testing::child_process::{in_child, in_fork};

        let name = "buf::registered_region::tests::a_forked_child_drops_an_arena_without_a_lock_that_a_thread_of_its_parent_holds";
        in_child(name, || {
            let arenas = Arc::new(Arenas::default());
            let mut arena = Some(Arena::new(BufferLayout::new(2, 4096), &arenas).unwrap());
            let (list, followers) = (lock(&arenas.list), lock(&arenas.followers));
            // This process has its own, which it drops without the locks.
            in_fork(|| drop(arena.take()));
            drop((list, followers));
        });
    }

    #[test]
    fn a_report_has_the_registered_size_and_the_reason_for_a_missing_part() {
        let region = || {
            let memory = Mapping::new(1 << 20, HugePages::SystemDefault).unwrap();
            RegisteredRegion::new(Arc::new(memory), 4096, 1 << 20)
        };
        let refusal = || Some(SetupError::Config("too much".to_owned()));
        let report = |region: &RegisteredRegion| region.registered().to_string();
        assert_eq!(report(&region()), "not registered: there is no ring");

        let whole = region();
        whole.note_registration(1 << 20, None);
        assert_eq!(report(&whole), "registered");
        assert!(whole.registered().is_whole());
        whole.note_registration(0, refusal());
        let expected =
            "0 bytes of 1 MiB registered on every ring, all of it on 1 of 2 rings: too much";
        assert_eq!(report(&whole), expected);

        let part = region();
        part.note_registration(1 << 19, refusal());
        assert_eq!(report(&part), "512 KiB of 1 MiB registered: too much");
        let none = region();
        none.note_registration(0, refusal());
        assert_eq!(report(&none), "not registered: too much");
        assert_eq!(Bytes(4097).to_string(), "4097 bytes");
        assert_eq!(Bytes(3 << 30).to_string(), "3 GiB");
    }
}
