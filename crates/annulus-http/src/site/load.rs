//! Opens and reads files.
//!
//! A path is opened from the kernel's memory if possible, and otherwise on a blocking thread. Reads go through the
//! engine, which serves them from the page cache or waits for the disk on the ring.

use std::cell::Cell;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use annulus::net::Descriptor;
use annulus::{File, runtime};
use http::StatusCode;
use http::header::{self, HeaderValue};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use super::beneath::{FileState, Reach, Root};
use super::conditional::{Validators, whole_seconds};
use super::encoding::Encoding;
use super::response::{Fields, Ready};

/// The number of reads of a small file that changes while it is read.
const READS_MAX: u32 = 4;
/// The resolution of file times: two changes within a tick of the kernel's clock (at most 10 ms; finer since Linux
/// 6.13) can have the same time. A tag created so soon after a change is weak.
const TICK: Duration = Duration::from_millis(20);
/// `Last-Modified` has a resolution of one second, and some file systems of two. A file that changed more recently may
/// change again within the same second.
const SETTLED: Duration = Duration::from_secs(2);

/// The time for which a range is assumed to stay in the page cache. The range is being sent meanwhile, so the kernel
/// tends to keep it.
const CACHED_FOR: Duration = Duration::from_secs(1);

/// A file that is open for sending. Its responses share it.
#[derive(Debug)]
pub struct OpenFile {
    file: File,
    /// The length of the start of the file that was in the page cache, and the time of the check.
    length_checked: Cell<Option<(u64, Instant)>>,
}

impl OpenFile {
    fn new(std: std::fs::File) -> Result<OpenFile, Errno> {
        let file = File::from_std(std, &runtime::engine());
        let file = file.map_err(|error| errno_of(&error))?;
        let length_checked = Cell::new(None);
        Ok(OpenFile {
            file,
            length_checked,
        })
    }

    /// Returns the file for [`read_exact_at`](File::read_exact_at). If a read fails with `UnexpectedEof`, the file was
    /// truncated. The response cannot have its announced length, so the connection must end.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Opens the file again with a separate position, for [`annulus::net::splice`] into a pipe. If 0 bytes are spliced
    /// before the end of the response, the file was truncated.
    ///
    /// # Errors
    ///
    /// Fails outside a runtime, without `/proc`, and if no descriptor is free. Read the file instead then.
    pub fn descriptor_at(&self, offset: u64) -> io::Result<Descriptor> {
        use io::Seek;
        // A duplicate would share the position.
        let path = format!("/proc/self/fd/{}", self.as_fd().as_raw_fd());
        let mut again = std::fs::File::open(path)?;
        again.seek(io::SeekFrom::Start(offset))?;
        Descriptor::new(again)
    }

    pub(crate) fn state(&self) -> Result<FileState, Errno> {
        FileState::of(self.as_fd())
    }

    /// Checks whether a non-empty range is in the page cache, by its first and last byte. If so, sending it does not
    /// wait for a disk.
    pub(crate) fn cached(&self, range: &Range<u64>, now: Instant) -> Cached {
        if let Some((bytes, when)) = self.length_checked.get()
            && range.end <= bytes
            && now.saturating_duration_since(when) < CACHED_FOR
        {
            return Cached::Yes;
        }
        for at in [range.end - 1, range.start] {
            let mut byte = [0];
            let read = preadv2(
                self,
                &mut [IoSliceMut::new(&mut byte)],
                at,
                ReadWriteFlags::NOWAIT,
            );
            match read {
                Ok(1) => {}
                Err(Errno::OPNOTSUPP) => return Cached::Unknown,
                _ => return Cached::No,
            }
        }
        self.note_cached(range, now);
        Cached::Yes
    }

    /// Notes that a range is in the page cache.
    pub(crate) fn note_cached(&self, range: &Range<u64>, now: Instant) {
        if range.start == 0 {
            self.length_checked.set(Some((range.end, now)));
        }
    }
}

/// The descriptor, for [`annulus::net::TcpStream::send_file`]. If fewer bytes are sent than the head announced, the
/// file was truncated.
impl AsFd for OpenFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The presence of a file range in the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cached {
    Yes,
    No,
    /// The file system does not report it: tmpfs, FUSE, or a network file system.
    Unknown,
}

/// The head of a response for one version of a file.
#[derive(Debug)]
pub(crate) struct Head {
    /// All fields except `Content-Length` and those about ranges.
    pub(crate) fields: Fields,
    pub(crate) etag: HeaderValue,
    pub(crate) modified: Option<SystemTime>,
    pub(crate) content_type: HeaderValue,
    /// `false` if the file may change without a visible change of its times. It is read again soon then.
    pub(crate) settled: bool,
}

impl Head {
    pub(crate) fn new(
        state: &FileState,
        content_type: &HeaderValue,
        encoding: Encoding,
        varies: bool,
        now: SystemTime,
    ) -> Head {
        let age = |time| now.duration_since(time_of(time)).unwrap_or_default();
        let settled = age(state.changed) >= SETTLED;
        let weak = if age(state.changed) < TICK { "W/" } else { "" };
        let (inode, bytes) = (state.inode, state.bytes);
        let nanoseconds = i128::from(state.changed.0) * 1_000_000_000 + i128::from(state.changed.1);
        let suffix = encoding.suffix();
        let etag = format!("{weak}\"{inode:x}-{bytes:x}-{nanoseconds:x}{suffix}\"");
        let etag = HeaderValue::try_from(etag).unwrap_or(HeaderValue::from_static("W/\"\""));
        let modified = (settled && age(state.modified) >= SETTLED)
            .then(|| whole_seconds(time_of(state.modified)))
            .flatten();
        let mut fields = Fields::with_capacity(8);
        fields.push((header::CONTENT_TYPE, content_type.clone()));
        fields.extend(
            encoding
                .field()
                .map(|name| (header::CONTENT_ENCODING, name)),
        );
        if varies {
            fields.push((header::VARY, HeaderValue::from_static("accept-encoding")));
        }
        let date = modified.and_then(date_field);
        fields.extend(date.map(|date| (header::LAST_MODIFIED, date)));
        fields.push((header::ETAG, etag.clone()));
        Head {
            fields,
            etag,
            modified,
            content_type: content_type.clone(),
            settled,
        }
    }

    pub(crate) fn validators(&self) -> Validators<'_> {
        Validators {
            etag: self.etag.as_bytes(),
            modified: self.modified,
        }
    }

    /// Returns the fields for content that was read while the file changed, and that therefore is no version of the
    /// file.
    pub(crate) fn without_validators(&self, bytes: usize) -> Fields {
        let validators = [header::ETAG, header::LAST_MODIFIED];
        let fields = self
            .fields
            .iter()
            .filter(|(name, _)| !validators.contains(name));
        let length = (header::CONTENT_LENGTH, HeaderValue::from(bytes));
        fields.cloned().chain([length]).collect()
    }

    /// Returns the fields of a response with the complete file.
    pub(crate) fn whole(&self, bytes: u64) -> Fields {
        let mut fields = self.fields.clone();
        fields.push((header::ACCEPT_RANGES, HeaderValue::from_static("bytes")));
        fields.push((header::CONTENT_LENGTH, HeaderValue::from(bytes)));
        fields
    }
}

/// Returns a date as a field value, or `None` after the year 9999.
pub(crate) fn date_field(time: SystemTime) -> Option<HeaderValue> {
    /// The first second of the year 10000.
    const END: Duration = Duration::from_secs(253_402_300_800);
    let since = time.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    if since >= END {
        return None;
    }
    HeaderValue::try_from(httpdate::fmt_http_date(time)).ok()
}

/// Converts a file time. Earlier times become 1970.
pub(crate) fn time_of((seconds, nanoseconds): (i64, u32)) -> SystemTime {
    let since = Duration::new(u64::try_from(seconds).unwrap_or(0), nanoseconds);
    SystemTime::UNIX_EPOCH
        .checked_add(since)
        .unwrap_or(SystemTime::UNIX_EPOCH)
}

/// The response for a version of a file. Small files include the body, large files do not.
#[derive(Debug)]
pub(crate) struct CachedFile {
    state: FileState,
    pub(crate) head: Head,
    pub(crate) ready: Rc<Ready>,
}

impl CachedFile {
    /// `body` is the complete body, or empty.
    pub(crate) fn new(state: FileState, head: Head, body: &[u8]) -> CachedFile {
        let ready = Ready::new(StatusCode::OK, head.whole(state.bytes), body);
        CachedFile {
            state,
            head,
            ready: Rc::new(ready),
        }
    }

    /// Returns whether a file in this state certainly has this content.
    pub(crate) fn is_still(&self, state: &FileState) -> bool {
        self.head.settled && self.state == *state
    }
}

/// The content of a file.
#[derive(Debug)]
pub(crate) enum Loaded {
    /// A small file that was read completely. `steady`: it did not change meanwhile, so the content is one version of
    /// it.
    Whole {
        state: FileState,
        body: Vec<u8>,
        steady: bool,
    },
    /// A file that is too large for that.
    Open(OpenFile),
}

/// Opens a file, and reads it if it has at most `whole_max` bytes.
pub(crate) async fn load(root: &Arc<Root>, path: &[u8], whole_max: u32) -> Result<Loaded, Errno> {
    let (std, mut state) = open(root, path).await?;
    let open = OpenFile::new(std)?;
    let mut tries = READS_MAX;
    loop {
        if state.bytes > u64::from(whole_max) {
            return Ok(Loaded::Open(open));
        }
        let read = match state.bytes {
            // There is nothing to read, and an empty read is refused.
            0 => Ok(Vec::new()),
            // At most `whole_max`.
            bytes => open.file.read_exact_at(vec![0; bytes as usize], 0).await,
        };
        let body = match read.map_err(io::Error::from) {
            Ok(body) => Some(body),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => None,
            Err(error) => return Err(errno_of(&error)),
        };
        let after = open.state()?;
        tries -= 1;
        match body {
            Some(body) if after == state => {
                return Ok(Loaded::Whole {
                    state,
                    body,
                    steady: true,
                });
            }
            Some(body) if tries == 0 => {
                return Ok(Loaded::Whole {
                    state,
                    body,
                    steady: false,
                });
            }
            // The file was truncated during each read.
            None if tries == 0 => return Err(Errno::AGAIN),
            _ => {}
        }
        state = after;
    }
}

async fn open(root: &Arc<Root>, path: &[u8]) -> Result<(std::fs::File, FileState), Errno> {
    match root.open_file(path, Reach::Now) {
        Err(Errno::AGAIN) => {
            let (root, path) = (Arc::clone(root), path.to_vec());
            in_background(move || root.open_file(&path, Reach::Wait)).await
        }
        other => other,
    }
}

/// Runs work that may wait for a disk on a blocking thread.
pub(crate) async fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Errno> + Send + 'static,
) -> Result<T, Errno> {
    match runtime::spawn_blocking(work).await {
        Ok(result) => result,
        // A panic, or the end of the runtime.
        Err(_not_run) => Err(Errno::IO),
    }
}

fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
