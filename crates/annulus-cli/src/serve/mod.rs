//! `annulus serve`: small servers on the library's runtime.

mod echo;
mod place;

pub(crate) use echo::echo;
