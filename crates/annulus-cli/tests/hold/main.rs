//! What the commands do when the world around them fails: signals, full disks, and paths of every kind.

mod command;
mod disks;
#[path = "../../../annulus/tests/child/fuse.rs"]
mod fuse;
mod paths;
mod signals;
#[path = "../../../annulus/tests/child/skip.rs"]
#[allow(dead_code, reason = "not every test needs all of it")]
mod skip;
mod slow;
