//! The baselines of `annulus bench`: the other ways to read and write a file on Linux.
//!
//! Each variant is one file and implements [`Variant`]. It keeps a given number of operations in flight, takes each
//! from a [`Worker`] and passes its result back. The worker chooses the operations, checks the results and measures the
//! latencies, so all variants are measured in the same way.
//!
//! Most variants need unsafe code, which the tool itself forbids. Each `unsafe` block has a note on why it is sound.

mod call;
mod failure;
mod forbidden;
mod inherited;
mod job;
mod libaio;
mod memory;
mod mmap;
pub mod net;
mod nop;
mod pread;
mod residency;
mod ring;
mod ring_files;
pub mod slices;
mod threads;
mod tokio_blocking;
mod tokio_fs;
mod tokio_ring;

pub use call::copy_whole;
pub use failure::Failure;
pub use forbidden::forbid_rings;
pub use inherited::restore_inherited;
pub use job::{Bench, Completed, Finished, Job, Op, Variant, Worker};
pub use libaio::LinuxAio;
pub use memory::Memory;
pub use mmap::{MappedFile, MappedInTasks, MappedPages};
pub use nop::NopRing;
pub use pread::{Pread, Pread512};
pub use residency::resident_bytes;
pub use ring::{Registered, Ring, Setup, SubmitPolicy};
pub use threads::on_owning_threads;
pub use tokio_blocking::{TokioBlocking, WORKERS, run_tasks};
pub use tokio_fs::TokioFs;
pub use tokio_ring::TokioRing;

/// Returns all variants of this crate, in the order of the tool's list.
pub fn variants<B: Bench>() -> Vec<std::sync::Arc<dyn Variant<B>>> {
    let mut list: Vec<std::sync::Arc<dyn Variant<B>>> = Vec::new();
    for ring in Ring::variants() {
        list.push(std::sync::Arc::new(ring));
    }
    list.push(std::sync::Arc::new(Pread));
    list.push(std::sync::Arc::new(Pread512));
    for map in MappedFile::variants() {
        list.push(std::sync::Arc::new(map));
    }
    list.push(std::sync::Arc::new(MappedInTasks));
    list.push(std::sync::Arc::new(LinuxAio::default()));
    list.push(std::sync::Arc::new(TokioFs));
    list.push(std::sync::Arc::new(TokioBlocking));
    list.push(std::sync::Arc::new(TokioRing));
    list
}
