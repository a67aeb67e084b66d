//! Tests of the command `annulus doctor`: on this machine, and with filters, limits and file systems.

mod allowed;
mod below;
mod command;
mod paths;
mod postgres;
mod profile;
mod refused;
