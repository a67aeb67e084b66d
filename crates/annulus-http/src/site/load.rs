//! Open files, one per large file that is being sent or was lately; and small ones read whole.
//!
//! Opening asks the kernel's memory first and goes to a blocking thread where that is not enough; reading is the
//! engine's, which has the page cache answer on the spot and the ring wait for the disk.

use std::cell::Cell;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
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

/// How often a small file is read again that was changed while it was read.
const READS_MAX: u32 = 4;
/// Two changes within a tick of the kernel's clock (10 ms at the coarsest, since Linux 6.13 none where somebody
/// looks) have one time: a tag made so soon after a change is weak.
const TICK: Duration = Duration::from_millis(20);
/// `Last-Modified` counts in seconds, some file systems in twos: what was changed that lately may change again
/// within the same one.
const SETTLED: Duration = Duration::from_secs(2);

/// For how long a file that was seen in the page cache is taken to be there still. It is sent meanwhile, so the kernel
/// has reason to keep it.
const SEEN: Duration = Duration::from_secs(1);

/// A file that is open for sending; shared by the responses that send it.
#[derive(Debug)]
pub struct OpenFile {
    file: File,
    /// How much of it, from its beginning on, was seen in the page cache, and when.
    length_checked: Cell<Option<(u64, Instant)>>,
}

impl OpenFile {
    fn new(std: std::fs::File) -> Result<OpenFile, Errno> {
        let file = runtime::fs::from_std(std).map_err(|error| errno_of(&error))?;
        let length_checked = Cell::new(None);
        Ok(OpenFile {
            file,
            length_checked,
        })
    }

    /// For [`read_exact_at`](File::read_exact_at), whose `UnexpectedEof` says that the file has been cut: the
    /// length that the response's head gave can't be kept, so the connection must end there.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The file once more, at a position of its own, for [`annulus::net::splice`] into a pipe. 0 bytes spliced
    /// before the response's end mean that the file has been cut.
    ///
    /// # Errors
    ///
    /// Outside a runtime, without `/proc`, or if no descriptor is left; reading is the way then.
    pub fn descriptor_at(&self, offset: u64) -> io::Result<Descriptor> {
        use io::Seek;
        let descriptor = self.file.descriptor().ok_or(io::ErrorKind::Unsupported)?;
        // Opened anew: of a duplicate the position is shared.
        let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
        let mut again = std::fs::File::open(path)?;
        again.seek(io::SeekFrom::Start(offset))?;
        Descriptor::new(again)
    }

    /// For [`annulus::net::TcpStream::send_file`]. Fewer bytes sent than the response's head says mean that the file
    /// has been cut.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.file.descriptor()
    }

    pub(crate) fn state(&self) -> Result<FileState, Errno> {
        FileState::of(self.file.descriptor().ok_or(Errno::BADF)?)
    }

    /// Whether a range that is not empty is in the page cache, as far as its first byte and its last one show: sending
    /// it waits for no disk then.
    pub(crate) fn cached(&self, range: &Range<u64>, now: Instant) -> Cached {
        if let Some((bytes, when)) = self.length_checked.get()
            && range.end <= bytes
            && now.saturating_duration_since(when) < SEEN
        {
            return Cached::Yes;
        }
        let Some(file) = self.file.descriptor() else {
            return Cached::No;
        };
        for at in [range.end - 1, range.start] {
            let mut byte = [0];
            let read = preadv2(
                file,
                &mut [IoSliceMut::new(&mut byte)],
                at,
                ReadWriteFlags::NOWAIT,
            );
            match read {
                Ok(1) => {}
                Err(Errno::OPNOTSUPP) => return Cached::Unsaid,
                _ => return Cached::No,
            }
        }
        self.note_cached(range, now);
        Cached::Yes
    }

    /// A range has been seen in the page cache.
    pub(crate) fn note_cached(&self, range: &Range<u64>, now: Instant) {
        if range.start == 0 {
            self.length_checked.set(Some((range.end, now)));
        }
    }
}

/// Whether a range of a file is in the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cached {
    Yes,
    No,
    /// The file system does not say: tmpfs, whose files are memory, or one that another process or machine answers for.
    Unsaid,
}

/// The head of a page's answer: what describes a version of a file.
#[derive(Debug)]
pub(crate) struct Head {
    /// All but `Content-Length` and what is about ranges.
    pub(crate) fields: Fields,
    pub(crate) etag: HeaderValue,
    pub(crate) modified: Option<SystemTime>,
    pub(crate) content_type: HeaderValue,
    /// Whether the file may change without a trace, and is to be read again soon.
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
        let nanoseconds =
            i128::from(state.modified.0) * 1_000_000_000 + i128::from(state.modified.1);
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

    /// The fields of a response with what was read of a file that changed meanwhile: it is no version of it.
    pub(crate) fn without_validators(&self, bytes: usize) -> Fields {
        let validators = [header::ETAG, header::LAST_MODIFIED];
        let fields = self
            .fields
            .iter()
            .filter(|(name, _)| !validators.contains(name));
        let length = (header::CONTENT_LENGTH, HeaderValue::from(bytes));
        fields.cloned().chain([length]).collect()
    }

    /// The fields of a response with all of it.
    pub(crate) fn whole(&self, bytes: u64) -> Fields {
        let mut fields = self.fields.clone();
        fields.push((header::ACCEPT_RANGES, HeaderValue::from_static("bytes")));
        fields.push((header::CONTENT_LENGTH, HeaderValue::from(bytes)));
        fields
    }
}

/// A date as fields have it; `None` after the year 9999, which they do not have.
pub(crate) fn date_field(time: SystemTime) -> Option<HeaderValue> {
    /// The first second of the year 10000.
    const END: Duration = Duration::from_secs(253_402_300_800);
    let since = time.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    if since >= END {
        return None;
    }
    HeaderValue::try_from(httpdate::fmt_http_date(time)).ok()
}

/// A file's time; 1970 for what is before that.
pub(crate) fn time_of((seconds, nanoseconds): (i64, u32)) -> SystemTime {
    let since = Duration::new(u64::try_from(seconds).unwrap_or(0), nanoseconds);
    SystemTime::UNIX_EPOCH
        .checked_add(since)
        .unwrap_or(SystemTime::UNIX_EPOCH)
}

/// A file in one of its states as a response: a small one in memory, of a large one all but the body.
#[derive(Debug)]
pub(crate) struct CachedFile {
    state: FileState,
    pub(crate) head: Head,
    pub(crate) ready: Rc<Ready>,
}

impl CachedFile {
    /// `body`: all of it, or nothing.
    pub(crate) fn new(state: FileState, head: Head, body: &[u8]) -> CachedFile {
        let ready = Ready::new(StatusCode::OK, head.whole(state.bytes), body);
        CachedFile {
            state,
            head,
            ready: Rc::new(ready),
        }
    }

    /// Whether it is what a file in that state has in it, for certain.
    pub(crate) fn is_still(&self, state: &FileState) -> bool {
        self.head.settled && self.state == *state
    }
}

/// A file's content.
#[derive(Debug)]
pub(crate) enum Loaded {
    /// Small, and read whole. `steady`: nothing changed it meanwhile, so that it is one version of it.
    Whole {
        state: FileState,
        body: Vec<u8>,
        steady: bool,
    },
    /// Too large for that.
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
            // There is nothing to read, and a read of nothing is refused.
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
            // Cut each time that it was read: another request's problem.
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

/// Runs what may wait for a disk on a blocking thread.
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
