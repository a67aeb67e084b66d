//! `annulus serve`: small servers on the library's runtime.

mod echo;

pub(crate) use echo::echo;
