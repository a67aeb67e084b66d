//! # Safety
//!
//! A value that stays on the core that made it. `Rc` alone keeps it there as well, but the compiler would then report
//! one error for each private type inside, and none of them would say what to do.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// A value of one core: a socket, or the future of an operation on one.
pub(crate) struct OnCore<T, C = SocketOfOneCore> {
    value: T,
    core: PhantomData<C>,
}

/// Names the problem in the compiler's message.
pub(crate) struct SocketOfOneCore;

/// Implemented by no type.
#[diagnostic::on_unimplemented(
    message = "sockets of Annulus stay on the core that opened them",
    label = "this uses a socket on another thread",
    note = "sockets of Annulus, and futures that hold one, stay on the core that opened them",
    note = "start the task with `annulus::runtime::spawn` instead, or open the socket within \
            `annulus::runtime::Handle::spawn_on`",
    note = "on Tokio's threads use `tokio::net`, or `annulus_hyper` for an HTTP server"
)]
pub(crate) trait MayLeaveItsCore {}

// SAFETY: Held: no type implements the trait, so no value ever leaves its thread.
unsafe impl<T, C: MayLeaveItsCore> Send for OnCore<T, C> {}
// SAFETY: Held: as above, no value is ever shared.
unsafe impl<T, C: MayLeaveItsCore> Sync for OnCore<T, C> {}

impl<T> From<T> for OnCore<T> {
    fn from(value: T) -> OnCore<T> {
        OnCore {
            value,
            core: PhantomData,
        }
    }
}

impl<T> Deref for OnCore<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for OnCore<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T: std::fmt::Debug> std::fmt::Debug for OnCore<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.value.fmt(f)
    }
}
