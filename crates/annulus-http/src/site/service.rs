//! The site of a core: its options, and the way from a request to a response.

use std::cell::RefCell;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use async_lock::Semaphore;
use bytes::Bytes;
use http::StatusCode;
use http::header::{self, HeaderValue};
use rustix::io::Errno;

use super::beneath::{FileState, Reach, Root};
use super::cache::{Cache, Entry, Lookup, OpenFiles};
use super::deliver::{Boundaries, Source, deliver};
use super::encoding::{Accepted, Encoding};
use super::load::{CachedFile, Head, Loaded, OpenFile, in_background, load};
use super::path::{self, Resolved};
use super::response::{ALLOW, Body, Ready, SiteResponse, forbids_body};
use super::survey::{Page, Rules, Surveyed, Variant, status_of, survey};

/// The fields that make a request conditional or partial. [`Site::ready`] does not accept requests with one of them.
pub const CONDITIONAL: [&str; 6] = [
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "range",
];

/// The options of a site.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SiteOptions {
    /// The root directory. Nothing outside it is served, not even through links.
    pub root: PathBuf,
    /// The names of index files. The first that exists is served for its directory.
    pub index: Vec<String>,
    /// Enables listings of directories without an index.
    pub listing: bool,
    /// Enables sending `name.br`, `name.zst` and `name.gz` for `name` to clients that accept them.
    pub precompressed: bool,
    /// Enables serving names that begin with a dot. `/.well-known` is always served.
    pub hidden: bool,
    /// The memory in bytes in which this core caches small files.
    pub cache_bytes: usize,
    /// The largest size in bytes of a small file. Small files are read completely and cached.
    pub cache_file_bytes: u32,
    /// The number of larger files that this core keeps open.
    pub open_files: usize,
    /// The time for which the result of a path lookup is cached.
    pub recheck: Duration,
    /// A fixed response to every GET and HEAD. With status 204, 205 or 304 it has no body. No file is used then, and
    /// `root` need not exist.
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
            cache_file_bytes: 32 << 10,
            open_files: 256,
            recheck: Duration::from_secs(1),
            respond: None,
        }
    }
}

/// The method of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// GET.
    Get,
    /// HEAD.
    Head,
    /// OPTIONS.
    Options,
    /// Any other method; the response is 405.
    Other,
}

/// The header fields of a request.
pub trait FieldLines {
    /// Calls `each` with the value of each field line of `name` (in lower case), in order.
    fn each<'a>(&'a self, name: &str, each: &mut dyn FnMut(&'a [u8]));
}

/// A request.
#[derive(Clone, Copy)]
pub struct SiteRequest<'a> {
    /// The method.
    pub method: Method,
    /// Path and query as in the request line or in `:path`, or `*` with OPTIONS. For the absolute form, the part after
    /// the authority.
    pub target: &'a [u8],
    /// The header fields.
    pub fields: &'a dyn FieldLines,
}

/// The number of responses of a core that may wait for a disk, or read a small file, concurrently. Others queue, and
/// often find the result cached. It bounds the memory of a core when many clients request files that are not in memory.
const LOADS_MAX: usize = 64;

/// The files below a directory, served by one core. It stays on its core and needs a runtime.
#[derive(Debug)]
pub struct Site {
    root: Option<Arc<Root>>,
    rules: Arc<Rules>,
    cache_file_bytes: u32,
    recheck: Duration,
    /// The fixed response, if there is one.
    respond: Option<Rc<Ready>>,
    cache: Cache,
    open: OpenFiles,
    loads: Semaphore,
    /// The last `Accept-Encoding` and its meaning, because most clients send the same value.
    accepted: RefCell<(Vec<u8>, Accepted)>,
    boundaries: Boundaries,
}

/// A prepared response of [`Site::ready`].
#[derive(Debug)]
pub enum Prompt {
    /// The complete response.
    Whole(Rc<Ready>),
    /// A response whose body is a file. If the file was truncated since, the connection must end before the announced
    /// length.
    Opened {
        /// The head. Its body is empty, although `Content-Length` is the length of the file.
        ready: Rc<Ready>,
        /// The file. It stays open until its last response is dropped.
        file: Rc<OpenFile>,
        /// The length of the file in bytes.
        bytes: u64,
    },
}

/// The content of a page, chosen for a request.
enum Content {
    CachedFile(Rc<CachedFile>),
    Open(Rc<OpenFile>, FileState),
    /// The content of a file that is being written to, as read at some moment.
    Unsteady(Bytes),
}

impl Site {
    /// Opens the root directory.
    ///
    /// # Errors
    ///
    /// Fails with any error of `openat(2)` if the root cannot be opened or is not a directory, unchanged.
    pub fn open(options: &SiteOptions) -> io::Result<Site> {
        let respond = options
            .respond
            .as_ref()
            .map(|(status, body)| fixed(*status, body));
        let root = match &respond {
            Some(_) => None,
            None => Some(Arc::new(Root::open(&options.root)?)),
        };
        Ok(Site {
            root,
            rules: Arc::new(Rules {
                index: options.index.clone(),
                listing: options.listing,
                precompressed: options.precompressed,
                hidden: options.hidden,
            }),
            cache_file_bytes: options.cache_file_bytes,
            recheck: options.recheck,
            respond,
            cache: Cache::new(options.cache_bytes),
            open: OpenFiles::new(options.open_files),
            loads: Semaphore::new(LOADS_MAX),
            accepted: RefCell::new((Vec::new(), Accepted::parse(b""))),
            boundaries: Boundaries::default(),
        })
    }

    /// Returns a prepared response to a GET or HEAD request, or `None` if [`response`](Site::response) is needed.
    ///
    /// The request must have no field of [`CONDITIONAL`] and at most one line of `Accept-Encoding`. `now` may be as old
    /// as the received data of the request.
    #[inline]
    pub fn ready(
        &self,
        now: Instant,
        target: &[u8],
        accept_encoding: Option<&[u8]>,
    ) -> Option<Prompt> {
        if let Some(respond) = &self.respond {
            return Some(Prompt::Whole(Rc::clone(respond)));
        }
        self.cache
            .with_entry(path::plain(target)?, |entry| match &entry.lookup {
                _ if !self.is_fresh(entry, now) => None,
                Lookup::Fixed(ready) => Some(Prompt::Whole(Rc::clone(ready))),
                Lookup::Page(page) => {
                    let variant = self.choose(page, accept_encoding)?;
                    match &*variant.cached.borrow() {
                        Some(cached) => Some(Prompt::Whole(Rc::clone(&cached.ready))),
                        None => self.opened(variant, now),
                    }
                }
                Lookup::Directory => None,
            })
    }

    /// Returns an open large file if it has not changed since its head was built.
    fn opened(&self, variant: &Variant, now: Instant) -> Option<Prompt> {
        let described = variant.described.borrow();
        let described = described.as_ref()?;
        let file = self.open.get(variant.id(), now)?;
        let state = file.state().ok()?;
        described.is_still(&state).then(|| Prompt::Opened {
            ready: Rc::clone(&described.ready),
            file,
            bytes: state.bytes,
        })
    }

    /// Returns the response to a request. Errors are responses, too.
    pub async fn response(&self, request: &SiteRequest<'_>) -> SiteResponse {
        match request.method {
            Method::Other => return SiteResponse::of(StatusCode::METHOD_NOT_ALLOWED),
            Method::Options => return self.options(request.target),
            Method::Get | Method::Head => {}
        }
        if let Some(respond) = &self.respond {
            return respond.response();
        }
        let resolved = match path::resolve(request.target, self.rules.hidden) {
            Ok(resolved) => resolved,
            Err(status) => return SiteResponse::of(status),
        };
        self.sweep(Instant::now());
        let response = match self.look_up(request, &resolved).await {
            // Close the cached files that no response uses, and try again.
            Err(Errno::MFILE | Errno::NFILE) => {
                self.close_kept();
                self.look_up(request, &resolved).await
            }
            other => other,
        };
        response.unwrap_or_else(|error| SiteResponse::of(status_of(error)))
    }

    /// Closes files that have not been requested recently. Each response does so as well. Call it every few seconds if
    /// there may be no requests.
    pub fn sweep(&self, now: Instant) {
        self.open.sweep(now);
    }

    /// Closes all cached files, to free descriptors.
    pub(crate) fn close_kept(&self) {
        self.open.clear();
    }

    fn options(&self, target: &[u8]) -> SiteResponse {
        if target != b"*"
            && self.respond.is_none()
            && let Err(status) = path::resolve(target, self.rules.hidden)
        {
            return SiteResponse::of(status);
        }
        let mut response = SiteResponse::of(StatusCode::NO_CONTENT);
        response.fields.push((header::ALLOW, ALLOW));
        response
    }

    fn is_fresh(&self, entry: &Entry, now: Instant) -> bool {
        // Also correct for a `now` that is slightly older than the check.
        now.saturating_duration_since(entry.checked.get()) < self.recheck
    }

    async fn look_up(
        &self,
        request: &SiteRequest<'_>,
        resolved: &Resolved<'_>,
    ) -> Result<SiteResponse, Errno> {
        let entry = self.entry(&resolved.path).await?;
        let page = match &entry.lookup {
            Lookup::Fixed(ready) => return Ok(ready.response()),
            Lookup::Directory => return Ok(redirect(resolved)),
            Lookup::Page(page) => page,
        };
        let Some(variant) = self.choose(page, request.joined("accept-encoding").as_deref()) else {
            return Err(Errno::NOENT);
        };
        let content = self.content(&resolved.path, &entry, page, variant).await?;
        Ok(match content {
            Content::CachedFile(cached) => {
                let source = Source::Memory(cached.ready.body());
                deliver(request, &cached.head, &source, &self.boundaries)
            }
            Content::Open(file, state) => {
                let source = Source::File {
                    file,
                    bytes: state.bytes,
                };
                let described = self.describe(&resolved.path, &entry, page, variant, &state);
                deliver(request, &described.head, &source, &self.boundaries)
            }
            Content::Unsteady(body) => SiteResponse {
                status: StatusCode::OK,
                fields: head(page, variant, &variant.state).without_validators(body.len()),
                body: Body::Bytes(body),
            },
        })
    }

    /// Returns the head of a large file in a given state.
    fn describe(
        &self,
        path: &[u8],
        entry: &Rc<Entry>,
        page: &Page,
        variant: &Variant,
        state: &FileState,
    ) -> Rc<CachedFile> {
        let mut kept = variant.described.borrow_mut();
        if let Some(described) = kept.as_ref().filter(|described| described.is_still(state)) {
            return Rc::clone(described);
        }
        let described = Rc::new(CachedFile::new(*state, head(page, variant, state), b""));
        *kept = Some(Rc::clone(&described));
        drop(kept);
        self.cache.grown(path, entry);
        described
    }

    /// Returns the variant to send to a client.
    fn choose<'a>(
        &self,
        page: &'a Page,
        accept_encoding: Option<&[u8]>,
    ) -> Option<&'a Rc<Variant>> {
        if !page.varies() {
            return page.variant(Encoding::Identity);
        }
        let accepted = match accept_encoding {
            None => Accepted::UNSPECIFIED,
            Some(value) => {
                let mut last = self.accepted.borrow_mut();
                if last.0 != value {
                    *last = (value.to_vec(), Accepted::parse(value));
                }
                last.1
            }
        };
        page.variant(accepted.choose(|encoding| page.variant(encoding).is_some()))
    }

    /// Returns the cache entry of a path, unless it is too old.
    fn fresh(&self, path: &[u8], now: Instant) -> Option<Rc<Entry>> {
        self.cache
            .get(path)
            .filter(|entry| self.is_fresh(entry, now))
    }

    /// Returns the cached or new result for a path, at most `recheck` old.
    async fn entry(&self, path: &[u8]) -> Result<Rc<Entry>, Errno> {
        let Some(root) = &self.root else {
            return Err(Errno::NOENT);
        };
        let now = Instant::now();
        if let Some(entry) = self.fresh(path, now) {
            return Ok(entry);
        }
        match survey(root, &self.rules, path, Reach::Now) {
            Err(Errno::AGAIN) => {}
            surveyed => return Ok(self.cache_lookup(path, surveyed?, now)),
        }
        let _turn = self.loads.acquire().await;
        let now = Instant::now();
        if let Some(entry) = self.fresh(path, now) {
            return Ok(entry);
        }
        let (root, rules, below) = (Arc::clone(root), Arc::clone(&self.rules), path.to_vec());
        let surveyed = in_background(move || survey(&root, &rules, &below, Reach::Wait)).await?;
        Ok(self.cache_lookup(path, surveyed, now))
    }

    /// Caches the result of a lookup. If nothing has changed, the old entry stays.
    fn cache_lookup(&self, path: &[u8], surveyed: Surveyed, now: Instant) -> Rc<Entry> {
        let lookup = match surveyed {
            Surveyed::Page {
                path: resolved_path,
                states,
            } => {
                let old = self.cache.get(path);
                let before = old.as_ref().and_then(|entry| match &entry.lookup {
                    Lookup::Page(page) => Some((entry, page)),
                    _ => None,
                });
                if let Some((entry, page)) = before
                    && page.is_still(&resolved_path, &states)
                {
                    entry.checked.set(now);
                    return Rc::clone(entry);
                }
                Lookup::Page(Page::new(
                    resolved_path,
                    &states,
                    before.map(|(_, page)| page),
                ))
            }
            Surveyed::Directory => Lookup::Directory,
            Surveyed::Missing(status) => Lookup::Fixed(Rc::new(fixed_error(status))),
            Surveyed::Listed(page) => Lookup::Fixed(Rc::new(listing(&page))),
        };
        let entry = Entry::new(lookup, now);
        self.cache.put(path, &entry);
        entry
    }

    /// Returns the content of a variant: in memory if it is small, open otherwise.
    async fn content(
        &self,
        path: &[u8],
        entry: &Rc<Entry>,
        page: &Page,
        variant: &Rc<Variant>,
    ) -> Result<Content, Errno> {
        let Some(root) = &self.root else {
            return Err(Errno::NOENT);
        };
        let cached = || {
            variant
                .cached
                .borrow()
                .as_ref()
                .map(|cached| Content::CachedFile(Rc::clone(cached)))
        };
        if let Some(content) = cached() {
            return Ok(content);
        }
        if variant.state.bytes > u64::from(self.cache_file_bytes)
            && let Some(file) = self.open.get(variant.id(), Instant::now())
        {
            // The state may differ from the surveyed one.
            let state = file.state()?;
            return Ok(Content::Open(file, state));
        }
        let _turn = self.loads.acquire().await;
        if let Some(content) = cached() {
            return Ok(content);
        }
        Ok(
            match load(root, &variant.path, self.cache_file_bytes).await? {
                Loaded::Open(file) => {
                    let (state, file) = (file.state()?, Rc::new(file));
                    self.open.put(state.id(), &file, Instant::now());
                    Content::Open(file, state)
                }
                Loaded::Whole {
                    body,
                    steady: false,
                    ..
                } => Content::Unsteady(Bytes::from(body)),
                Loaded::Whole { state, body, .. } => {
                    let cached =
                        Rc::new(CachedFile::new(state, head(page, variant, &state), &body));
                    variant.cached.replace(Some(Rc::clone(&cached)));
                    self.cache.grown(path, entry);
                    Content::CachedFile(cached)
                }
            },
        )
    }
}

impl SiteRequest<'_> {
    /// Returns the values of all lines of a list field, joined.
    pub(crate) fn joined(&self, name: &str) -> Option<Vec<u8>> {
        let mut joined: Option<Vec<u8>> = None;
        self.fields.each(name, &mut |value| match &mut joined {
            None => joined = Some(value.to_vec()),
            Some(before) => {
                before.extend_from_slice(b", ");
                before.extend_from_slice(value);
            }
        });
        joined
    }

    /// Returns the value of the only line of a field, or `None` if there are several.
    pub(crate) fn only(&self, name: &str) -> Option<&[u8]> {
        let (mut first, mut lines) = (None, 0);
        self.fields.each(name, &mut |value| {
            first = Some(value);
            lines += 1;
        });
        first.filter(|_| lines == 1)
    }
}

fn fixed(status: StatusCode, body: &Bytes) -> Rc<Ready> {
    if forbids_body(status) {
        return Rc::new(fixed_error(status));
    }
    let body = match status {
        StatusCode::RESET_CONTENT => Bytes::new(),
        _ => body.clone(),
    };
    let content_type = HeaderValue::from_static("text/plain; charset=utf-8");
    let response = SiteResponse::with_body(status, Vec::new(), content_type, body.clone());
    Rc::new(Ready::new(status, response.fields, &body))
}

fn fixed_error(status: StatusCode) -> Ready {
    let SiteResponse { fields, body, .. } = SiteResponse::of(status);
    match body {
        Body::Bytes(body) => Ready::new(status, fields, &body),
        _ => Ready::new(status, fields, b""),
    }
}

/// Returns the head of a variant in a given state.
fn head(page: &Page, variant: &Variant, state: &FileState) -> Head {
    Head::new(
        state,
        &page.content_type,
        variant.encoding,
        page.varies(),
        SystemTime::now(),
    )
}

fn listing(page: &str) -> Ready {
    let fields = vec![
        (
            header::CONTENT_TYPE,
            HeaderValue::from_static("text/html; charset=utf-8"),
        ),
        (
            header::X_CONTENT_TYPE_OPTIONS,
            HeaderValue::from_static("nosniff"),
        ),
        (
            header::CONTENT_SECURITY_POLICY,
            HeaderValue::from_static("default-src 'none'"),
        ),
        (header::CONTENT_LENGTH, HeaderValue::from(page.len())),
    ];
    Ready::new(StatusCode::OK, fields, page.as_bytes())
}

/// Returns a redirect to the same path with a slash.
fn redirect(resolved: &Resolved<'_>) -> SiteResponse {
    let location = HeaderValue::try_from(path::with_slash(resolved));
    let Ok(location) = location else {
        return SiteResponse::of(StatusCode::NOT_FOUND);
    };
    let mut response = SiteResponse::of(StatusCode::MOVED_PERMANENTLY);
    response.fields.push((header::LOCATION, location));
    response
}
