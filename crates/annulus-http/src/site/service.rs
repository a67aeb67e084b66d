//! The site: options in, requests in, answers out. One per core.

use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::StatusCode;

use super::answer::{Answer, Ready};

/// The fields that make a request more than "all of it, please": [`Site::ready`] is not for requests with one
/// of them.
pub const CONDITIONAL: [&str; 6] = [
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "range",
];

/// What is served, and how.
#[derive(Clone, Debug)]
pub struct SiteOptions {
    /// The directory. Nothing outside it is served, whatever links say.
    pub root: PathBuf,
    /// The names that stand for their directory, the first one that is there.
    pub index: Vec<String>,
    /// Whether a directory without an index is listed.
    pub listing: bool,
    /// Whether `name.br`, `name.zst` and `name.gz` are sent for `name` to clients that take them.
    pub precompressed: bool,
    /// Whether names that begin with a dot are served. `/.well-known` is always.
    pub hidden: bool,
    /// How much memory this core keeps small files in.
    pub cache_bytes: usize,
    /// Up to what length a file counts as small: read whole, kept in memory.
    pub cache_file_bytes: u32,
    /// How many larger files this core keeps open.
    pub open_files: usize,
    /// For how long what was found under a path is believed.
    pub recheck: Duration,
    /// An answer to every GET and HEAD, whatever the path; no file is touched, `root` may be missing.
    pub respond: Option<(StatusCode, Bytes)>,
}

impl Default for SiteOptions {
    fn default() -> SiteOptions {
        SiteOptions {
            root: PathBuf::new(),
            index: vec!["index.html".to_owned()],
            listing: false,
            precompressed: true,
            hidden: false,
            cache_bytes: 64 << 20,
            cache_file_bytes: 64 << 10,
            open_files: 256,
            recheck: Duration::from_secs(1),
            respond: None,
        }
    }
}

/// A request's method, as far as files care.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// GET.
    Get,
    /// HEAD.
    Head,
    /// OPTIONS.
    Options,
    /// Any other: 405.
    Other,
}

/// A request's field lines, however its connection keeps them.
pub trait FieldLines {
    /// Calls `each` with the value of every line of a name (in small letters), in order.
    fn each<'a>(&'a self, name: &str, each: &mut dyn FnMut(&'a [u8]));
}

/// A request.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    /// Its method.
    pub method: Method,
    /// Path and query as in the request line or in `:path`; `*` with OPTIONS. Of an absolute form, what follows the
    /// authority.
    pub target: &'a [u8],
    /// Its field lines.
    pub fields: &'a dyn FieldLines,
}

/// Files below a directory, as one core serves them. It stays on its core, inside a runtime.
#[derive(Debug)]
pub struct Site {}

impl Site {
    /// Opens the root.
    ///
    /// # Errors
    ///
    /// The kernel's, errno kept, if the root can't be opened or is no directory.
    pub fn open(options: &SiteOptions) -> io::Result<Site> {
        let _ = options;
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The short cut: a GET or HEAD without a field of [`CONDITIONAL`], and with at most one line of
    /// `Accept-Encoding`. `now` may be as old as the chunk that the request came in.
    ///
    /// `None`: ask [`answer`](Site::answer).
    pub fn ready(
        &self,
        now: Instant,
        target: &[u8],
        accept_encoding: Option<&[u8]>,
    ) -> Option<Rc<Ready>> {
        let _ = (now, target, accept_encoding);
        None
    }

    /// What a request is answered. Never fails: an error is an answer.
    pub async fn answer(&self, asked: &Asked<'_>) -> Answer {
        let _ = asked;
        Answer::of(StatusCode::NOT_FOUND)
    }

    /// Closes files that nobody has asked for lately. To be called every second or so.
    pub fn sweep(&self, now: Instant) {
        let _ = now;
    }
}
