//! The commands under signals, on full and failing disks, and with paths of every kind.

mod command;
mod disks;
mod paths;
mod signals;
mod slow;
