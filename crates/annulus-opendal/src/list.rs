//! A listing: the folder itself, then its entries.

use std::io::{self, ErrorKind as IoKind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use annulus::fs::{DirEntry, ReadDir};
use opendal_core::raw::{new_std_io_error, normalize_path, oio};
use opendal_core::{MetadataBuilder, Result};

use crate::files::{Files, builder};

pub(crate) struct Lister {
    files: Arc<Files>,
    /// The path of the folder for OpenDAL.
    path: String,
    state: State,
}

enum State {
    New,
    Listing {
        folder: PathBuf,
        /// Never locked: OpenDAL requires `Sync`.
        entries: Mutex<ReadDir>,
        /// The entry that was read to find out whether there is a folder.
        first: Option<io::Result<DirEntry>>,
    },
    End,
}

impl Lister {
    pub(crate) fn new(files: Arc<Files>, path: &str) -> Lister {
        let (path, state) = (path.to_owned(), State::New);
        Lister { files, path, state }
    }

    /// Starts the listing. Returns the folder itself, or nothing if there is no folder of this name.
    async fn start(&mut self) -> Result<Option<oio::Entry>> {
        let folder = self.files.path(&self.path)?;
        let mut entries = self.files.engine.read_dir(&folder);
        let first = entries.next().await;
        if first.as_ref().is_some_and(is_missing) {
            self.state = State::End;
            return Ok(None);
        }
        self.state = State::Listing {
            folder,
            entries: Mutex::new(entries),
            first,
        };
        let metadata = MetadataBuilder::dir().build();
        Ok(Some(oio::Entry::new(&self.path, metadata)))
    }
}

fn is_missing(entry: &io::Result<DirEntry>) -> bool {
    let kind = entry.as_ref().err().map(io::Error::kind);
    matches!(kind, Some(IoKind::NotFound | IoKind::NotADirectory))
}

impl oio::List for Lister {
    async fn next(&mut self) -> Result<Option<oio::Entry>> {
        if let State::New = self.state {
            return self.start().await;
        }
        let State::Listing {
            folder,
            entries,
            first,
        } = &mut self.state
        else {
            return Ok(None);
        };
        let entries = entries.get_mut().unwrap_or_else(PoisonError::into_inner);
        loop {
            let next = match first.take() {
                Some(first) => Some(first),
                None => entries.next().await,
            };
            let Some(entry) = next.filter(|entry| !is_missing(entry)) else {
                self.state = State::End;
                return Ok(None);
            };
            let entry = entry.map_err(new_std_io_error)?;
            // The link itself, not what it points to.
            let metadata = self
                .files
                .engine
                .symlink_metadata(folder.join(entry.name()));
            let metadata = match metadata.await {
                // Removed since it was listed.
                Err(error) if error.kind() == IoKind::NotFound => continue,
                metadata => builder(&metadata.map_err(new_std_io_error)?)?.build(),
            };
            let end = if metadata.is_dir() { "/" } else { "" };
            let (parent, name) = (&self.path, entry.name().to_string_lossy());
            let path = normalize_path(&format!("{parent}/{name}{end}"));
            return Ok(Some(oio::Entry::with(path, metadata)));
        }
    }
}
