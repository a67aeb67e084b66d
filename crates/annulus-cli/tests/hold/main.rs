//! What the commands do when the world around them fails: signals, full disks, and paths of every kind.

mod command;
mod disks;
mod paths;
mod signals;
mod slow;
