//! Directory entries.

use std::ffi::{OsStr, OsString};

use super::FileKind;
use crate::op::Listed;

/// An entry of a directory.
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

    /// Returns the name, without the directory.
    pub fn name(&self) -> &OsStr {
        &self.name
    }

    /// Returns the inode number.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// Returns the kind of file, without following links. [`FileKind::Other`] if the file system does not include it in
    /// the listing.
    pub fn kind(&self) -> FileKind {
        self.kind
    }
}
