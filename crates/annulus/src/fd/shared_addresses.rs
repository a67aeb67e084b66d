//! The addresses that the cores of a runtime share among themselves, and with no other process.
//!
//! Cores share an address by `SO_REUSEPORT`, which any process of the same user could join. Therefore the first core
//! binds the address without the option, which the kernel refuses if any other socket has the address. It then sets the
//! option, so that the other cores can join. At no moment could two runtimes both succeed.

use std::net::SocketAddr;
use std::sync::{Arc, PoisonError};

use crate::sync::Mutex;
use crate::sys::net::SocketKind;

/// The addresses that the cores of one runtime have bound.
#[derive(Debug)]
pub(crate) struct SharedAddresses {
    cores: usize,
    bound: Mutex<Vec<Bound>>,
}

/// An address that one core has bound, and the others may share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bound {
    kind: SocketKind,
    address: SocketAddr,
    core: usize,
}

/// The access of one core to the shared addresses.
#[derive(Clone, Debug)]
pub(crate) struct AddressShare {
    addresses: Arc<SharedAddresses>,
    core: usize,
}

/// The way in which a socket is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// Not shared: the runtime has one core.
    Alone,
    /// The first socket at its address: bound alone, then opened to the other cores.
    First,
    /// The address belongs to another core: shared from the start.
    Joins,
}

/// An address that a core has bound. Dropping the claim gives it up.
#[derive(Debug)]
pub(crate) struct Claim {
    seat: AddressShare,
    bound: Bound,
}

impl SharedAddresses {
    /// Creates an empty list for a runtime of `cores` cores.
    pub(crate) fn new(cores: usize) -> Arc<SharedAddresses> {
        Arc::new(SharedAddresses {
            cores,
            bound: Mutex::new(Vec::new()),
        })
    }

    fn with<T>(&self, act: impl FnOnce(&mut Vec<Bound>) -> T) -> T {
        act(&mut self.bound.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl AddressShare {
    pub(crate) fn new(addresses: Arc<SharedAddresses>, core: usize) -> AddressShare {
        AddressShare { addresses, core }
    }

    /// Calls `bind` to bind a socket to `address`; `bind` returns the actual address. Only one core binds at a time.
    pub(crate) fn claim<E>(
        &self,
        kind: SocketKind,
        address: SocketAddr,
        bind: impl FnOnce(Share) -> Result<SocketAddr, E>,
    ) -> Result<Option<Claim>, E> {
        if self.addresses.cores == 1 {
            return bind(Share::Alone).map(|_| None);
        }
        self.addresses.with(|all| {
            let same = |bound: &&Bound| bound.kind == kind && is_same(bound.address, address);
            let is_ours = all.iter().filter(same).any(|bound| bound.core == self.core);
            // A core that already has the address is refused, as by any other socket.
            let share = match all.iter().find(same) {
                Some(_) if !is_ours => Share::Joins,
                _ => Share::First,
            };
            let address = bind(share)?;
            let core = self.core;
            let bound = Bound {
                kind,
                address,
                core,
            };
            all.push(bound);
            Ok(Some(Claim {
                seat: self.clone(),
                bound,
            }))
        })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.seat.addresses.with(|all| {
            let index = all.iter().position(|bound| *bound == self.bound);
            index.map(|index| all.swap_remove(index))
        });
    }
}

/// Returns whether `bind(2)` treats the addresses as equal; the flow label does not matter.
fn is_same(one: SocketAddr, other: SocketAddr) -> bool {
    let scope = |address| match address {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(address) => address.scope_id(),
    };
    (one.ip(), one.port(), scope(one)) == (other.ip(), other.port(), scope(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: SocketKind = SocketKind::Stream;

    fn ask(seat: &AddressShare, address: &str) -> (Share, Option<Claim>) {
        let (mut share, address) = (Share::Alone, address.parse().unwrap());
        let claim = seat.claim(KIND, address, |how| {
            share = how;
            Ok::<_, ()>(address)
        });
        (share, claim.unwrap())
    }

    #[test]
    fn the_first_core_takes_an_address_alone_and_others_join_it() {
        let addresses = SharedAddresses::new(3);
        let [one, two, three] =
            [0, 1, 2].map(|core| AddressShare::new(Arc::clone(&addresses), core));
        let (share, first) = ask(&one, "127.0.0.1:80");
        assert_eq!(share, Share::First);
        let (share, second) = ask(&two, "127.0.0.1:80");
        assert_eq!(share, Share::Joins);
        assert_eq!(ask(&two, "127.0.0.2:80").0, Share::First);
        assert_eq!(ask(&two, "127.0.0.1:81").0, Share::First);
        assert_eq!(ask(&two, "[::1]:80").0, Share::First);
        // The core already has a socket there: the kernel has to refuse another one.
        assert_eq!(ask(&two, "127.0.0.1:80").0, Share::First);
        drop(first);
        assert_eq!(ask(&three, "127.0.0.1:80").0, Share::Joins);
        drop(second);
        assert_eq!(ask(&three, "127.0.0.1:80").0, Share::First);
    }

    #[test]
    fn an_address_that_could_not_be_bound_has_no_owner() {
        let addresses = SharedAddresses::new(2);
        let [one, two] = [0, 1].map(|core| AddressShare::new(Arc::clone(&addresses), core));
        let address = "127.0.0.1:80".parse().unwrap();
        assert!(one.claim(KIND, address, |_| Err(())).is_err());
        assert_eq!(ask(&two, "127.0.0.1:80").0, Share::First);
    }

    #[test]
    fn a_single_core_shares_nothing() {
        let alone = AddressShare::new(SharedAddresses::new(1), 0);
        let (share, claim) = ask(&alone, "127.0.0.1:80");
        assert_eq!(share, Share::Alone);
        assert!(claim.is_none());
    }
}
