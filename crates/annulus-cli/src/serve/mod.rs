//! `annulus serve`: small servers on the library's runtime.

mod echo;
mod place;
mod signals;

pub(crate) use echo::echo;
