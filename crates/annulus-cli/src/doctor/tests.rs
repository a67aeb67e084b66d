//! Rules on simulated machines: each where it speaks and where it is silent; broken machines by their cause.

mod broken;
mod cases;
pub(super) mod machines;
mod rules;
