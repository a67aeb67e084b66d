//! Limits of what one address, name or user may do at a time.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::StatusCode;

use crate::pages::Failure;

/// The time after which attempts are forgotten.
const WINDOW: Duration = Duration::from_secs(60);
/// The number of keys that are remembered.
const KEYS_MAX: usize = 10_000;
/// Failed or running attempts within the window.
const PER_ADDRESS: u32 = 20;
const PER_NAME: u32 = 60;

/// A source or a target of attempts.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Key {
    Address(IpAddr),
    Name(String),
}

/// The failed and running logins and registrations.
#[derive(Default)]
pub(crate) struct Attempts(Mutex<HashMap<Key, (u32, Instant)>>);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Attempts {
    /// Begins an attempt, which counts until [`Attempts::succeeded`]. Fails if there were too many from this address,
    /// or with this name from any address.
    pub(crate) fn begin(&self, address: IpAddr, name: Option<&str>) -> Result<(), Failure> {
        let mut counts = locked(&self.0);
        let now = Instant::now();
        let is_recent = |since: &Instant| now.duration_since(*since) < WINDOW;
        for (key, most) in keys(address, name) {
            let entry = counts.get(&key).filter(|(_, since)| is_recent(since));
            if entry.is_some_and(|(count, _)| *count >= most) {
                const MESSAGE: &str = "There were too many attempts. Try again in a minute.";
                return Err(Failure(StatusCode::TOO_MANY_REQUESTS, MESSAGE));
            }
        }
        for (key, _) in keys(address, name) {
            if counts.len() >= KEYS_MAX {
                counts.retain(|_, (_, since)| is_recent(since));
            }
            if counts.len() >= KEYS_MAX {
                let oldest = counts.iter().min_by_key(|(_, (_, since))| *since);
                let oldest = oldest.map(|(key, _)| key.clone());
                oldest.map(|key| counts.remove(&key));
            }
            let entry = counts.entry(key).or_insert((0, now));
            if !is_recent(&entry.1) {
                *entry = (0, now);
            }
            entry.0 += 1;
        }
        Ok(())
    }

    /// Forgets an attempt that has succeeded.
    pub(crate) fn succeeded(&self, address: IpAddr, name: Option<&str>) {
        let mut counts = locked(&self.0);
        for (key, _) in keys(address, name) {
            if let Some((count, _)) = counts.get_mut(&key) {
                *count = count.saturating_sub(1);
            }
        }
    }
}

fn keys(address: IpAddr, name: Option<&str>) -> impl Iterator<Item = (Key, u32)> {
    // One customer usually has a whole network of this length.
    let address = match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address => address,
    };
    let name = name.map(|name| (Key::Name(name.to_owned()), PER_NAME));
    std::iter::once((Key::Address(address), PER_ADDRESS)).chain(name)
}

/// Counts what each user has open, and all users together.
pub(crate) struct PerUser {
    per_user: usize,
    total: usize,
    open: Mutex<HashMap<String, usize>>,
}

impl PerUser {
    pub(crate) fn new(per_user: usize, total: usize) -> PerUser {
        let open = Mutex::default();
        PerUser {
            per_user,
            total,
            open,
        }
    }

    pub(crate) fn count(&self) -> usize {
        locked(&self.open).values().sum()
    }

    /// Opens one more for `user`. It counts until the guard is dropped.
    pub(crate) fn open(self: &Arc<PerUser>, user: &str) -> Result<OpenOfUser, Failure> {
        let mut open = locked(&self.open);
        if open.get(user).is_some_and(|count| *count >= self.per_user) {
            const MESSAGE: &str = "You have too many of these pages open. Close one.";
            return Err(Failure(StatusCode::TOO_MANY_REQUESTS, MESSAGE));
        }
        if open.values().sum::<usize>() >= self.total {
            const MESSAGE: &str = "Too many visitors have this page open. Try again later.";
            return Err(Failure(StatusCode::SERVICE_UNAVAILABLE, MESSAGE));
        }
        *open.entry(user.to_owned()).or_default() += 1;
        Ok(OpenOfUser(Arc::clone(self), user.to_owned()))
    }
}

/// One that a user has open.
pub(crate) struct OpenOfUser(Arc<PerUser>, String);

impl Drop for OpenOfUser {
    fn drop(&mut self) {
        let mut open = locked(&self.0.open);
        if let Some(count) = open.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_are_limited_per_address_and_per_name() {
        let attempts = Attempts::default();
        let status = |address: [u8; 4], name| {
            let begun = attempts.begin(address.into(), Some(name));
            begun.map_or_else(|failure| failure.0.as_u16(), |()| 200)
        };
        for _ in 0..PER_ADDRESS {
            assert_eq!(status([1, 1, 1, 1], "a"), 200);
        }
        assert_eq!(status([1, 1, 1, 1], "b"), 429);
        assert_eq!(status([1, 1, 1, 2], "a"), 200);
        attempts.succeeded([1, 1, 1, 1].into(), Some("a"));
        assert_eq!(status([1, 1, 1, 1], "b"), 200);
        for address in 0..PER_NAME - PER_ADDRESS {
            assert_eq!(status([1, 1, 2, address as u8], "a"), 200);
        }
        assert_eq!(status([1, 1, 3, 1], "a"), 429);
        assert_eq!(status([1, 1, 3, 1], "c"), 200);
        for number in 0..KEYS_MAX as u32 + 100 {
            let _ = attempts.begin(IpAddr::V4(number.into()), None);
        }
        assert!(locked(&attempts.0).len() <= KEYS_MAX);
    }

    #[test]
    fn a_user_has_a_share_of_the_total() {
        let open = Arc::new(PerUser::new(2, 3));
        let status =
            |opened: Result<OpenOfUser, Failure>| opened.err().map(|failure| failure.0.as_u16());
        let mut kept = vec![open.open("a"), open.open("a")];
        assert_eq!(status(open.open("a")), Some(429));
        kept.push(open.open("b"));
        assert_eq!(status(open.open("b")), Some(503));
        assert_eq!(open.count(), 3);
        drop(kept);
        assert_eq!(open.count(), 0);
        assert_eq!(status(open.open("a")), None);
    }
}
