//! `annulus bench file --job` as a command: job files, reports, and refused input.

mod command;
mod runs;
mod wrong;
