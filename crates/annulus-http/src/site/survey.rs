//! Looks up a path in the file system: a file with its encodings, a directory, or nothing. Runs on a core or on a
//! blocking thread.

use std::cell::RefCell;
use std::rc::Rc;

use http::{HeaderValue, StatusCode};
use rustix::io::Errno;

use super::beneath::{FileId, FileState, Kind, Reach, Root};
use super::content_type;
use super::encoding::{ENCODINGS, Encoding};
use super::listing::Listing;
use super::load::CachedFile;

/// The options for lookups, shared with blocking threads.
#[derive(Debug)]
pub(crate) struct Rules {
    pub(crate) index: Vec<String>,
    pub(crate) listing: bool,
    pub(crate) precompressed: bool,
    pub(crate) hidden: bool,
}

/// The metadata of a file's encodings; `None` for those that do not exist.
pub(crate) type States = [Option<FileState>; ENCODINGS];

/// The result of a lookup.
#[derive(Debug)]
pub(crate) enum Surveyed {
    /// A file. `path` differs from the requested path if the file is an index.
    Page { path: Vec<u8>, states: Box<States> },
    /// A directory that was requested without the trailing slash.
    Directory,
    /// The listing of a directory without an index.
    Listed(String),
    /// Nothing that is served, with the status of the response.
    Missing(StatusCode),
}

/// A file and its encodings.
#[derive(Debug)]
pub(crate) struct Page {
    path: Vec<u8>,
    pub(crate) content_type: HeaderValue,
    variants: [Option<Rc<Variant>>; ENCODINGS],
}

/// One encoding of a page, which is a separate file.
#[derive(Debug)]
pub(crate) struct Variant {
    pub(crate) path: Vec<u8>,
    pub(crate) encoding: Encoding,
    /// The metadata at the lookup.
    pub(crate) state: FileState,
    /// The content, if the file is small and was requested.
    pub(crate) cached: RefCell<Option<Rc<CachedFile>>>,
    /// The head, if the file is large and was requested, for the state that the open file had then.
    pub(crate) described: RefCell<Option<Rc<CachedFile>>>,
}

impl Page {
    /// Returns a page. Variants that have not changed are taken from the old page.
    pub(crate) fn new(path: Vec<u8>, states: &States, old: Option<&Page>) -> Page {
        let variants = Encoding::ALL.map(|encoding| {
            let state = states[encoding as usize]?;
            let path = with_suffix(&path, encoding);
            let before = old.and_then(|old| old.variant(encoding));
            if let Some(before) =
                before.filter(|before| before.path == path && before.is_still(&state))
            {
                return Some(Rc::clone(before));
            }
            Some(Rc::new(Variant {
                path,
                encoding,
                state,
                cached: RefCell::new(None),
                described: RefCell::new(None),
            }))
        });
        Page {
            content_type: content_type::of(&path),
            path,
            variants,
        }
    }

    pub(crate) fn variant(&self, encoding: Encoding) -> Option<&Rc<Variant>> {
        self.variants[encoding as usize].as_ref()
    }

    /// Returns whether a new lookup found the same files.
    pub(crate) fn is_still(&self, path: &[u8], states: &States) -> bool {
        let same =
            |(variant, state): (&Option<Rc<Variant>>, &Option<FileState>)| match (variant, state) {
                (Some(variant), Some(state)) => variant.is_still(state),
                (None, None) => true,
                _ => false,
            };
        self.path == path && self.variants.iter().zip(states).all(same)
    }

    /// Returns whether the response depends on `Accept-Encoding`.
    pub(crate) fn varies(&self) -> bool {
        self.variants.iter().flatten().count() > 1
    }

    /// Returns the approximate memory of the page.
    pub(crate) fn bytes(&self) -> usize {
        let variant = |variant: &Rc<Variant>| {
            let bytes = |cached: &RefCell<Option<Rc<CachedFile>>>| {
                let cached = cached.borrow();
                cached.as_ref().map_or(0, |cached| cached.ready.bytes())
            };
            let kept = bytes(&variant.cached) + bytes(&variant.described);
            size_of::<Variant>() + variant.path.len() + kept
        };
        self.path.len() + self.variants.iter().flatten().map(variant).sum::<usize>()
    }
}

impl Variant {
    /// Returns the identity of the file at the lookup.
    pub(crate) fn id(&self) -> FileId {
        self.state.id()
    }

    fn is_still(&self, state: &FileState) -> bool {
        let cached = self.cached.borrow();
        self.state == *state && cached.as_ref().is_none_or(|cached| cached.is_still(state))
    }
}

fn with_suffix(path: &[u8], encoding: Encoding) -> Vec<u8> {
    let suffix = encoding.suffix();
    let mut path = path.to_vec();
    if !suffix.is_empty() {
        path.push(b'.');
        path.extend_from_slice(suffix.as_bytes());
    }
    path
}

/// Returns the path for `beneath`, without leading and trailing slash.
pub(crate) fn below_root(path: &[u8]) -> &[u8] {
    let path = path.strip_prefix(b"/").unwrap_or(path);
    path.strip_suffix(b"/").unwrap_or(path)
}

/// Looks up a path that `path::resolve` returned.
///
/// # Errors
///
/// With [`Reach::Now`], fails with `EAGAIN` if the lookup has to run on a blocking thread. Other errors are problems of
/// the machine, not of the path; [`status_of`] returns their response.
pub(crate) fn survey(
    root: &Root,
    rules: &Rules,
    path: &[u8],
    reach: Reach,
) -> Result<Surveyed, Errno> {
    let surveyed = if path.ends_with(b"/") {
        directory(root, rules, path, reach)
    } else {
        match root.look(below_root(path), reach) {
            Ok(state) => match state.kind {
                Kind::File => page(root, rules, below_root(path).to_vec(), state, reach),
                Kind::Directory => Ok(Surveyed::Directory),
                Kind::Special => Ok(Surveyed::Missing(StatusCode::NOT_FOUND)),
            },
            Err(error) => Err(error),
        }
    };
    match surveyed {
        Err(error) if concerns_path(error) => Ok(Surveyed::Missing(status_of(error))),
        other => other,
    }
}

fn directory(root: &Root, rules: &Rules, path: &[u8], reach: Reach) -> Result<Surveyed, Errno> {
    for name in &rules.index {
        let mut index = below_root(path).to_vec();
        if !index.is_empty() {
            index.push(b'/');
        }
        index.extend_from_slice(name.as_bytes());
        match root.look(&index, reach) {
            Ok(state) if state.kind == Kind::File => return page(root, rules, index, state, reach),
            Ok(_) => {}
            // A link that leads out is not an index.
            Err(error) if status_of(error) == StatusCode::NOT_FOUND => {}
            Err(error) => return Err(error),
        }
    }
    match root.look(below_root(path), reach)?.kind {
        Kind::Directory if rules.listing => match reach {
            // Reading many names is too slow for a core.
            Reach::Now => Err(Errno::AGAIN),
            Reach::Wait => {
                let listing = Listing::read(root, below_root(path), rules.hidden)?;
                Ok(Surveyed::Listed(listing.page(path)))
            }
        },
        Kind::Directory => Ok(Surveyed::Missing(StatusCode::FORBIDDEN)),
        // The path of a file has a trailing slash.
        _ => Ok(Surveyed::Missing(StatusCode::NOT_FOUND)),
    }
}

fn page(
    root: &Root,
    rules: &Rules,
    path: Vec<u8>,
    state: FileState,
    reach: Reach,
) -> Result<Surveyed, Errno> {
    let mut states = Box::new([None; ENCODINGS]);
    states[Encoding::Identity as usize] = Some(state);
    if rules.precompressed {
        for encoding in Encoding::ALL
            .into_iter()
            .filter(|encoding| *encoding != Encoding::Identity)
        {
            match root.look(&with_suffix(&path, encoding), reach) {
                // An encoded file that is older than the file does not match it.
                Ok(encoded) if encoded.kind == Kind::File && encoded.modified >= state.modified => {
                    states[encoding as usize] = Some(encoded);
                }
                Err(error) if !concerns_path(error) => return Err(error),
                Ok(_) | Err(_) => {}
            }
        }
    }
    Ok(Surveyed::Page { path, states })
}

/// Returns whether an error concerns the path, so that it would occur again.
fn concerns_path(error: Errno) -> bool {
    status_of(error).is_client_error()
}

/// Returns the response to a file system error. A link that leads out is reported as missing.
pub(crate) fn status_of(error: Errno) -> StatusCode {
    match error {
        Errno::NOENT
        | Errno::NOTDIR
        | Errno::LOOP
        | Errno::XDEV
        | Errno::NAMETOOLONG
        | Errno::ILSEQ
        | Errno::INVAL
        | Errno::NODEV
        | Errno::NXIO => StatusCode::NOT_FOUND,
        Errno::ACCESS | Errno::PERM => StatusCode::FORBIDDEN,
        Errno::AGAIN | Errno::MFILE | Errno::NFILE | Errno::NOMEM => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
