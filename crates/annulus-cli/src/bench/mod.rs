//! `annulus bench`: a folder or file for each of its commands, and what they share.

use annulus::support::{ProbeKind, Support, Verdict};
use annulus_baselines::forbid_rings;

use crate::args::BenchTarget;

pub(crate) mod all;
mod columns;
pub(crate) mod disturbance;
mod early;
pub(crate) mod file;
mod layout;
pub(crate) mod machine;
pub(crate) mod multiget;
pub(crate) mod net;
pub(crate) mod numbers;
pub(crate) mod output;
mod progress;
pub(crate) mod spread;
pub(crate) mod timeline;

/// Prepares this process for a benchmark. Only the library tests whether a seccomp filter ends the process for a call
/// of io_uring, so the hand-written rings get its result.
pub(crate) fn begin(target: BenchTarget) -> BenchTarget {
    let support = Support::detect();
    if let Err(error) = support.ring()
        && support
            .probes(ProbeKind::SystemCall)
            .any(|call| matches!(call.verdict, Verdict::Kills))
    {
        forbid_rings(error.to_string());
    }
    target
}
