//! The mapping between the locations of objects and the paths of files. Every answer equals that of `LocalFileSystem`,
//! which builds a URL for each path. Names of plain characters take a shorter way to the same answer.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use url::Url;

use crate::error::Failure;

/// The folder of a store.
#[derive(Debug)]
pub(crate) struct Root {
    url: Url,
    folder: PathBuf,
}

/// The name of a file, relative to the root, that becomes a location.
pub(crate) enum Name {
    /// A location as it is.
    Plain(String),
    /// The path of a URL, percent-encoded.
    Encoded(String),
}

impl Root {
    /// Returns the root of the file system.
    pub(crate) fn everything() -> Root {
        let folder = PathBuf::from("/");
        match Url::from_directory_path(&folder) {
            Ok(url) => Root { url, folder },
            Err(()) => unreachable!("`/` is absolute"),
        }
    }

    /// Returns an existing folder as the root.
    pub(crate) fn folder(prefix: &Path) -> Result<Root, Failure> {
        let action = "open the folder of an object store";
        let folder = std::fs::canonicalize(prefix)
            .map_err(|source| Failure::other(action, prefix, source))?;
        let url = Url::from_file_path(&folder)
            .map_err(|()| Failure::invalid(action, prefix, "it is not a path of a file URL"))?;
        Ok(Root { url, folder })
    }

    pub(crate) fn url(&self) -> &Url {
        &self.url
    }

    pub(crate) fn path(&self) -> &Path {
        &self.folder
    }

    /// Returns the path of an object.
    pub(crate) fn object(&self, location: &str) -> Result<PathBuf, Failure> {
        if !is_object(location) {
            let reason = "names must not be empty, and must not end in `#` and digits, which marks unfinished uploads";
            return Err(Failure::invalid(
                "use the object",
                Path::new(location),
                reason,
            ));
        }
        self.prefix(location)
    }

    /// Returns the path of a prefix, which is a folder.
    pub(crate) fn prefix(&self, location: &str) -> Result<PathBuf, Failure> {
        if location.is_empty() {
            return Ok(self.folder.clone());
        }
        if is_plain(location.as_bytes()) {
            return Ok(self.folder.join(location));
        }
        let mut url = self.url.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments
                .pop_if_empty()
                .extend(location.split_terminator('/'));
        }
        url.to_file_path().map_err(|()| {
            let reason = "it is not a path of a file URL";
            Failure::invalid("use the object", Path::new(location), reason)
        })
    }

    /// Returns the name of a file below the root.
    pub(crate) fn name(&self, path: &Path) -> Result<Name, Failure> {
        if let Some(name) = path.strip_prefix(&self.folder).ok().and_then(Path::to_str)
            && is_plain(name.as_bytes())
        {
            return Ok(Name::Plain(name.to_owned()));
        }
        let invalid = |reason: &str| Failure::invalid("list", path, reason);
        let url = Url::from_file_path(path).map_err(|()| invalid("the path is not absolute"))?;
        let name = url.path().strip_prefix(self.url.path());
        let name = name.ok_or_else(|| invalid("it is not below the folder of the store"))?;
        Ok(Name::Encoded(name.to_owned()))
    }
}

/// Returns whether `location` can be an object. `name#123` is an unfinished upload of `name`.
pub(crate) fn is_object(location: &str) -> bool {
    let name = location.rsplit('/').next().unwrap_or_default();
    !name.is_empty()
        && match name.split_once('#') {
            Some((_, suffix)) if !suffix.is_empty() => {
                !suffix.bytes().all(|byte| byte.is_ascii_digit())
            }
            _ => true,
        }
}

/// The start of the name of a staged file.
const STAGED: &str = ".annulus-staged#";
/// The digits in the name of a staged file: as many as the largest `u64` has.
const STAGED_DIGITS: usize = 20;

/// Returns the path of a staged file for `object`, beside it: `.annulus-staged#` and twenty digits.
///
/// Both stores hide names whose first `#` begins a suffix of digits. So the name does not have that of the object,
/// which may have a `#`, too, and may be as long as a name can be. Each path differs, also in forked processes.
pub(crate) fn staged(object: &Path) -> PathBuf {
    static NEXT: OnceLock<(RandomState, AtomicU64)> = OnceLock::new();
    let (hasher, count) = NEXT.get_or_init(Default::default);
    let count = count.fetch_add(1, Ordering::Relaxed);
    let number = hasher.hash_one((std::process::id(), count));
    object.with_file_name(format!("{STAGED}{number:0STAGED_DIGITS$}"))
}

/// Returns whether a file has the name of a staged one, which no program uses by accident.
pub(crate) fn is_staged(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let digits = name.and_then(|name| name.strip_prefix(STAGED));
    digits.is_some_and(|digits| {
        digits.len() == STAGED_DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit())
    })
}

/// Returns whether URLs and locations write these bytes as they are. A location has no empty segment, `.` or `..`.
fn is_plain(bytes: &[u8]) -> bool {
    bytes
        .iter()
        .all(|byte| byte.is_ascii_alphanumeric() || b"/._-=+,@".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The path that `LocalFileSystem` uses.
    fn by_url(root: &Root, location: &str) -> PathBuf {
        let mut url = root.url.clone();
        let mut segments = url.path_segments_mut().unwrap();
        segments
            .pop_if_empty()
            .extend(location.split_terminator('/'));
        drop(segments);
        url.to_file_path().unwrap()
    }

    #[test]
    fn a_plain_name_has_the_path_that_its_url_has() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::folder(folder.path()).unwrap();
        for root in [root, Root::everything()] {
            for location in ["", "a", "a/b.parquet", "year=2026/m+1,@-_/x"] {
                assert!(is_plain(location.as_bytes()), "{location}");
                assert_eq!(root.prefix(location).unwrap(), by_url(&root, location));
            }
        }
    }

    #[test]
    fn staged_files_are_no_objects_and_no_other_file_is_staged() {
        for object in ["/a", "/folder/a#b", "/folder/a#"] {
            let object = Path::new(object);
            let staged = staged(object);
            assert_eq!(staged.parent(), object.parent());
            assert!(is_staged(&staged) && !is_object(staged.to_str().unwrap()));
            assert_ne!(staged, super::staged(object));
        }
        for other in [
            "song #1",
            "a#12345678901234567890",
            ".annulus-staged#1",
            "#1",
        ] {
            assert!(!is_staged(Path::new(other)), "{other}");
        }
    }

    #[test]
    fn unfinished_uploads_are_no_objects() {
        for location in ["", "a#1", "b/a#123", "#1"] {
            assert!(!is_object(location), "{location}");
        }
        for location in ["a", "a#", "a#1x", "a#1#2", "a#1/b"] {
            assert!(is_object(location), "{location}");
        }
    }
}
