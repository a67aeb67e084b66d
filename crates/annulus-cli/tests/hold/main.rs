//! What the commands do when the world around them fails: signals, full disks, and paths of every kind.

mod command;
mod disks;
#[path = "../../../annulus/tests/child/fuse.rs"]
mod fuse;
mod places;
mod signals;
mod slow;
