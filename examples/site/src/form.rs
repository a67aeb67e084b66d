//! A limit on what a multipart form may keep in memory.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use http_body::{Frame, SizeHint};

/// The bytes that may arrive without a field or a piece of one: what is before the first field, and headers of fields.
/// A piece of a body is shorter.
const UNUSED_MAX: usize = 1 << 20;

/// Reports that a form has a new field, or a piece of one.
pub(crate) struct Progress(Arc<AtomicUsize>);

impl Progress {
    pub(crate) fn made(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// Returns the request with a body for `Multipart`. That takes from a body as long as it has bytes, and keeps them
/// until it finds a field. This body ends with an error if too much arrives without progress, and yields after each
/// piece, so that the piece is used before the next one is taken.
pub(crate) fn bounded(request: Request) -> (Request, Progress) {
    let unused = Arc::new(AtomicUsize::new(0));
    let progress = Progress(Arc::clone(&unused));
    let form = |body| Form {
        body,
        unused,
        yields: false,
    };
    (request.map(|body| Body::new(form(body))), progress)
}

struct Form {
    body: Body,
    unused: Arc<AtomicUsize>,
    /// `true` if the last poll returned a piece.
    yields: bool,
}

impl HttpBody for Form {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Form>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if std::mem::take(&mut self.yields) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let data = frame
            .as_ref()
            .and_then(|frame| frame.as_ref().ok()?.data_ref());
        let length = data.map_or(0, Bytes::len);
        self.yields = length > 0;
        if self.unused.fetch_add(length, Ordering::Relaxed) + length > UNUSED_MAX {
            let error = axum::Error::new(std::io::Error::other("the form has too long a header"));
            return Poll::Ready(Some(Err(error)));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
