//! Tests of the command `annulus run`: the environment of the program, and the messages before it starts.

mod command;
mod explained;
mod inherited;
mod remarks;
mod switched;
mod wrong;
