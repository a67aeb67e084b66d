//! `annulus run` from outside: what the program that it becomes is given, and what is reported before.

mod command;
mod explained;
mod inherited;
mod remarks;
mod switched;
mod wrong;
