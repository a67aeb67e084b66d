//! Pages of a file. An example of a library that depends on Annulus optionally: with the feature `annulus`, the pages
//! are read through an engine of the program; without it, by std. No code depends on the platform.

use std::io;
use std::path::Path;

/// The size of a page, bytes.
pub const PAGE_BYTES: usize = 4096;

/// A file of pages.
#[derive(Debug)]
pub struct Pages {
    file: imp::File,
}

impl Pages {
    /// Opens the file at `path`. The engine belongs to the program, which configures it.
    ///
    /// # Errors
    ///
    /// Fails with any error of the system.
    #[cfg(feature = "annulus")]
    pub async fn open(path: impl AsRef<Path>, engine: &annulus::Engine) -> io::Result<Pages> {
        let file = engine.open(path).await?;
        Ok(Pages { file })
    }

    /// Opens the file at `path`.
    ///
    /// # Errors
    ///
    /// Fails with any error of the system.
    #[cfg(not(feature = "annulus"))]
    pub async fn open(path: impl AsRef<Path>) -> io::Result<Pages> {
        let file = imp::open(path.as_ref())?;
        Ok(Pages { file })
    }

    /// Reads whole pages, given by number.
    ///
    /// # Errors
    ///
    /// Fails with `UnexpectedEof` if the file does not have all pages, and with any error of the system.
    pub async fn read(&self, numbers: &[u64]) -> io::Result<Vec<Vec<u8>>> {
        imp::read(&self.file, numbers).await
    }
}

#[cfg(feature = "annulus")]
mod imp {
    use std::io::{self, ErrorKind};

    use super::PAGE_BYTES;

    pub(crate) use annulus::File;

    pub(crate) async fn read(file: &File, numbers: &[u64]) -> io::Result<Vec<Vec<u8>>> {
        let reads = numbers
            .iter()
            .map(|number| (vec![0; PAGE_BYTES], number * PAGE_BYTES as u64));
        let mut pages = Vec::new();
        for read in file.read_many_at(reads).await {
            match read? {
                (PAGE_BYTES, page) => pages.push(page),
                _ => return Err(ErrorKind::UnexpectedEof.into()),
            }
        }
        Ok(pages)
    }
}

#[cfg(not(feature = "annulus"))]
mod imp {
    use std::io::{self, Read, Seek, SeekFrom};
    use std::path::Path;
    use std::sync::{Mutex, PoisonError};

    use super::PAGE_BYTES;

    pub(crate) type File = Mutex<std::fs::File>;

    pub(crate) fn open(path: &Path) -> io::Result<File> {
        std::fs::File::open(path).map(Mutex::new)
    }

    pub(crate) async fn read(file: &File, numbers: &[u64]) -> io::Result<Vec<Vec<u8>>> {
        let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
        let read = |number: &u64| {
            let mut page = vec![0; PAGE_BYTES];
            file.seek(SeekFrom::Start(number * PAGE_BYTES as u64))?;
            file.read_exact(&mut page).map(|()| page)
        };
        numbers.iter().map(read).collect()
    }
}
