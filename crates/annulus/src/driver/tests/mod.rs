//! Tests of the drivers, and their models for the model checker.

mod drivers;
#[cfg(all(annulus_loom, feature = "net"))]
mod loom_lists;
#[cfg(all(annulus_loom, feature = "net"))]
mod loom_models;
#[cfg(all(annulus_loom, feature = "net"))]
mod loom_mutations;
#[cfg(all(annulus_loom, feature = "net"))]
mod loom_threadless;
mod threadless;
