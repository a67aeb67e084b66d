//! What a path names, asked of the file system: one file with its encodings, a directory, or nothing. Used by
//! `service`, on its core or on a blocking thread.

use std::cell::RefCell;
use std::rc::Rc;

use http::{HeaderValue, StatusCode};
use rustix::io::Errno;

use super::beneath::{FileState, Kind, Reach, Root};
use super::cache::FileId;
use super::content_type;
use super::encoding::{ENCODINGS, Encoding};
use super::listing::Listing;
use super::load::CachedFile;

/// What of the options matters here; shared with blocking threads.
#[derive(Debug)]
pub(crate) struct Rules {
    pub(crate) index: Vec<String>,
    pub(crate) listing: bool,
    pub(crate) precompressed: bool,
    pub(crate) hidden: bool,
}

/// The states of a file's encodings, of those that there are.
pub(crate) type States = [Option<FileState>; ENCODINGS];

/// What a path names at the moment.
#[derive(Debug)]
pub(crate) enum Surveyed {
    /// A file, with the path it was found under (an index is not under the path that was asked).
    Page { path: Vec<u8>, states: Box<States> },
    /// A directory, asked without its slash.
    Directory,
    /// A directory without an index, as a page.
    Listed(String),
    /// Nothing that is served.
    Missing(StatusCode),
}

/// A file and its encodings.
#[derive(Debug)]
pub(crate) struct Page {
    path: Vec<u8>,
    pub(crate) content_type: HeaderValue,
    variants: [Option<Rc<Variant>>; ENCODINGS],
}

/// One of a page's encodings, a file of its own.
#[derive(Debug)]
pub(crate) struct Variant {
    pub(crate) path: Vec<u8>,
    pub(crate) encoding: Encoding,
    /// When it was surveyed.
    pub(crate) state: FileState,
    /// Its content, if it is small and has been asked for.
    pub(crate) cached: RefCell<Option<Rc<CachedFile>>>,
    /// What precedes its content, if it is large and has been asked for: as its open file was then.
    pub(crate) described: RefCell<Option<Rc<CachedFile>>>,
}

impl Page {
    /// Of what is the same as it was the old page's content is kept.
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

    /// Whether it has been found again as it is here.
    pub(crate) fn is_still(&self, path: &[u8], states: &States) -> bool {
        let same =
            |(variant, state): (&Option<Rc<Variant>>, &Option<FileState>)| match (variant, state) {
                (Some(variant), Some(state)) => variant.is_still(state),
                (None, None) => true,
                _ => false,
            };
        self.path == path && self.variants.iter().zip(states).all(same)
    }

    /// Whether there is a choice, so that a response depends on `Accept-Encoding`.
    pub(crate) fn varies(&self) -> bool {
        self.variants.iter().flatten().count() > 1
    }

    /// The memory that it takes, about.
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
    /// Which file it was when it was surveyed.
    pub(crate) fn id(&self) -> FileId {
        (self.state.device, self.state.inode)
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

/// The path as `beneath` has it: without a slash at either end.
pub(crate) fn below_root(path: &[u8]) -> &[u8] {
    let path = path.strip_prefix(b"/").unwrap_or(path);
    path.strip_suffix(b"/").unwrap_or(path)
}

/// Looks at what a path (of `path::resolve`) names.
///
/// # Errors
///
/// `EAGAIN` with [`Reach::Now`]: ask on a blocking thread. Otherwise what is wrong with this machine rather than
/// with the path; [`status_of`] has the response.
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
        Err(error) if is_of_the_path(error) => Ok(Surveyed::Missing(status_of(error))),
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
            // A link that leads out is no index, either.
            Err(error) if status_of(error) == StatusCode::NOT_FOUND => {}
            Err(error) => return Err(error),
        }
    }
    match root.look(below_root(path), reach)?.kind {
        Kind::Directory if rules.listing => match reach {
            // Many names: nothing for a core.
            Reach::Now => Err(Errno::AGAIN),
            Reach::Wait => {
                let listing = Listing::read(root, below_root(path), rules.hidden)?;
                Ok(Surveyed::Listed(listing.page(path)))
            }
        },
        Kind::Directory => Ok(Surveyed::Missing(StatusCode::FORBIDDEN)),
        // A file has nothing below it.
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
                // One that is older than the file is of an older file.
                Ok(encoded) if encoded.kind == Kind::File && encoded.modified >= state.modified => {
                    states[encoding as usize] = Some(encoded);
                }
                Err(error) if !is_of_the_path(error) => return Err(error),
                Ok(_) | Err(_) => {}
            }
        }
    }
    Ok(Surveyed::Page { path, states })
}

/// Whether an error says something of the path, and will be the same the next time.
fn is_of_the_path(error: Errno) -> bool {
    status_of(error).is_client_error()
}

/// The response to an error of the file system. A link that leads out is answered as if nothing were there.
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
