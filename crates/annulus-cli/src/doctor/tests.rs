//! Tests of the rules on simulated machines, and of the causes on broken machines.

mod broken;
mod cases;
pub(super) mod machines;
mod rules;
