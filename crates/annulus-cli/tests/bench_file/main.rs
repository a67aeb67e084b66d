//! `annulus bench file` from outside: what it refuses, what it leaves behind, what it writes down.

mod command;
mod json;
mod loads;
mod runs;
mod wrong;
