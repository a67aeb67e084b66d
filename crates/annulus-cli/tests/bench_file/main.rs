//! `annulus bench file` as a command: refused input, the JSON, and the files that it leaves.

mod command;
mod json;
mod loads;
mod runs;
mod wrong;
