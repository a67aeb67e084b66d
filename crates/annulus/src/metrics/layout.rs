//! The layout of the counters that a process shares. For `annulus-observe` alone; it has no stable interface.

/// The names of all operations, as docs/KERNELS.md lists them.
pub const OPERATION_NAMES: &[&str] = crate::op::NAMES;
