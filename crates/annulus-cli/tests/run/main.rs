//! `annulus run` from outside: what the program that it becomes is given, and what is reported before.

mod command;
mod explained;
mod inherited;
#[path = "../../../annulus/tests/child/once.rs"]
mod once;
mod remarks;
#[path = "../../../annulus/tests/child/skip.rs"]
mod skip;
mod switched;
mod wrong;
