//! Tests of both versions of the store, beside `LocalFileSystem` of the same version.
#![cfg(all(feature = "v0_13", feature = "v0_14"))]

mod cancellation;
mod concurrency;
mod conformance;
mod crash;
mod differential;
mod errors;
mod executors;
mod open_files;
mod power;
mod reads;
mod staged;

use annulus::sim::SimConfig;
use annulus::{Backend, Engine};

/// Returns an engine that runs system calls on blocking threads.
fn fallback() -> Engine {
    Engine::builder()
        .backend(Backend::Fallback)
        .build()
        .expect("an engine without a ring")
}

/// Returns an engine on a simulated kernel, whose disk is empty.
fn simulated() -> Engine {
    let config = SimConfig::new(7).short_transfers(100);
    Engine::builder()
        .backend(Backend::Sim(config))
        .build()
        .expect("an engine on a simulated kernel")
}

/// Defines each test once for each version. `$store` is the module of the store, and `$object_store` the crate of its
/// traits.
macro_rules! for_each_version {
    ($tests:ident) => {
        mod v0_13 {
            $tests!(v0_13, object_store_0_13);
        }
        mod v0_14 {
            $tests!(v0_14, object_store);
        }
    };
}
use for_each_version;
