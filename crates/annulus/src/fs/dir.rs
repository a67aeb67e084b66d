//! Listing a directory.

use std::ffi::{OsStr, OsString};

use super::FileKind;
use crate::op::Listed;

/// One name in a directory.
#[derive(Clone, Debug)]
pub struct DirEntry {
    name: OsString,
    inode: u64,
    kind: FileKind,
}

impl DirEntry {
    pub(crate) fn new(listed: Listed) -> DirEntry {
        DirEntry {
            name: listed.name,
            inode: listed.inode,
            kind: FileKind::of_entry(listed.kind),
        }
    }

    /// The name, without the directory.
    pub fn name(&self) -> &OsStr {
        &self.name
    }

    /// Number within the file system.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// What the name stands for; links are not followed. [`FileKind::Other`] where the file system
    /// does not say in its listing.
    pub fn kind(&self) -> FileKind {
        self.kind
    }
}
