//! Reads and writes, as work of a blocking thread.

use std::io::{self, ErrorKind, Read, Write};
use std::sync::Arc;

use super::range::{check_range, check_read};
use super::{File, os};
use crate::buf::{IoBuf, IoBufMut, bytes_of, fill};
use crate::driver::Work;
use crate::error::{BufError, BufResult, WholeResult, ended, refused};

/// The end of a transfer: after its first part, or when it is whole.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    Once,
    Whole,
    /// Whole, and durable at the end.
    Durable,
}

/// A transfer, or its result if that needs no work.
type Prepared<A> = Result<Work<A>, A>;

/// Returns a transfer whose result is the buffer alone.
pub(super) fn whole<B: IoBuf>(transfer: Prepared<BufResult<usize, B>>) -> Prepared<WholeResult<B>> {
    let alone = |result: BufResult<usize, B>| result.map(|(_, buf)| buf);
    match transfer {
        Ok(work) => Ok(Box::new(move |start| alone(work(start)))),
        Err(result) => Err(alone(result)),
    }
}

/// Prepares a read; without an offset, of the next bytes.
pub(super) fn read<B: IoBufMut>(
    file: &File,
    mut buf: B,
    offset: Option<u64>,
    extent: Extent,
) -> Prepared<BufResult<usize, B>> {
    let want = match check_read(&mut buf, offset.unwrap_or(0)) {
        Ok(want) => want,
        Err(error) => return Err(Err(BufError::new(error, Some(buf)))),
    };
    let file = Arc::clone(&file.file);
    Ok(Box::new(move |start| {
        let read = |into: &mut [u8]| {
            repeat(want, extent, |done| {
                let rest = into.get_mut(done..).unwrap_or_default();
                match offset {
                    Some(offset) => os::read_at(&file, rest, offset + done as u64),
                    None => (&*file).read(rest),
                }
            })
        };
        match start.and_then(|()| fill(&mut buf, read)) {
            Ok(bytes) if extent != Extent::Once && bytes < want => Err(ended(bytes, want, buf)),
            Ok(bytes) => Ok((bytes, buf)),
            Err(error) => Err(BufError::new(error, Some(buf))),
        }
    }))
}

/// Prepares a write; without an offset, of the next bytes.
pub(super) fn write<B: IoBuf>(
    file: &File,
    buf: B,
    offset: Option<u64>,
    extent: Extent,
) -> Prepared<BufResult<usize, B>> {
    let want = buf.init_bytes();
    match check_range(offset.unwrap_or(0), want) {
        Err(error) => return Err(Err(BufError::new(error, Some(buf)))),
        Ok(()) if want == 0 => return Err(Ok((0, buf))),
        Ok(()) => {}
    }
    let offset = offset.filter(|_| !file.appends);
    let file = Arc::clone(&file.file);
    Ok(Box::new(move |start| {
        let written = start.and_then(|()| {
            let bytes = bytes_of(&buf);
            let written = repeat(want, extent, |done| {
                let rest = bytes.get(done..).unwrap_or_default();
                match offset {
                    Some(offset) => os::write_at(&file, rest, offset + done as u64),
                    None => (&*file).write(rest),
                }
            })?;
            if extent == Extent::Durable {
                file.sync_data()?;
            }
            Ok(written)
        });
        match written {
            Ok(bytes) if extent != Extent::Once && bytes < want => Err(refused(bytes, want, buf)),
            Ok(bytes) => Ok((bytes, buf)),
            Err(error) => Err(BufError::new(error, Some(buf))),
        }
    }))
}

/// Calls `part` with the number of bytes that are done, until it returns 0 or `want` bytes are done; for
/// [`Extent::Once`] until it returns any.
fn repeat(
    want: usize,
    extent: Extent,
    mut part: impl FnMut(usize) -> io::Result<usize>,
) -> io::Result<usize> {
    let mut done = 0;
    while done < want {
        match part(done) {
            Ok(0) => break,
            Ok(bytes) if extent == Extent::Once => return Ok(bytes),
            Ok(bytes) => done += bytes,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
