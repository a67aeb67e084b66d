#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

#[doc = include_str!("../../../../docs/guide/cluster.md")]
#[cfg(doctest)]
mod guide {}
