//! `annulus doctor` from outside, on this machine and on what can be made of it: filters, limits, file systems.

mod allowed;
mod below;
mod command;
mod paths;
mod refused;
