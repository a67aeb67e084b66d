//! The results of a batch of reads, on every platform.

use std::future::{Future, IntoFuture, poll_fn};
use std::pin::Pin;

use super::ReadMany;
use crate::buf::IoBufMut;
use crate::error::BufResult;
use crate::item_stream::item_stream;

/// One completed read of a batch.
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// # let dir = tempfile::tempdir()?;
/// # let engine = annulus::Engine::new()?;
/// # let path = dir.path().join("data"); std::fs::write(&path, "0123")?;
/// let file = engine.open(&path).await?;
/// let mut batch = file.read_many_at([(vec![0; 2], 0), (vec![0; 2], 100)]);
/// while let Some(completed) = batch.next().await {
///     let (bytes, _) = completed.result?; // one failed read does not end the others
///     // Results are in order of completion: `index` says which read it was.
///     assert_eq!(bytes, if completed.index == 0 { 2 } else { 0 }); // 0 beyond the end of the file
/// }
/// # Ok(()) }) }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Completed<B> {
    /// The position of the read among the requests, starting at 0.
    pub index: usize,
    /// The offset of the read.
    pub offset: u64,
    /// The result, like that of [`File::read_at`](crate::File::read_at).
    pub result: BufResult<usize, B>,
}

impl<B: IoBufMut, I: Iterator<Item = (B, u64)>> ReadMany<'_, B, I> {
    /// Returns the next result, in order of completion; `None` when every read has completed.
    ///
    /// Cancel safe: dropping the future loses no result. Results are lost only with the `ReadMany`.
    ///
    /// A batch and other work in one task. A dropped `next` loses no result:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let path = dir.path().join("data"); std::fs::write(&path, vec![7; 4096])?;
    /// let file = engine.open(&path).await?;
    /// let mut batch = file.read_many_at([(vec![0; 4096], 0)]);
    /// let first = futures_lite::future::poll_once(batch.next()).await; // or a `select`
    /// let completed = match first {
    ///     Some(completed) => completed, // the data was in the page cache
    ///     None => batch.next().await,
    /// };
    /// assert_eq!(completed.expect("one read").result?.0, 4096);
    /// assert!(batch.next().await.is_none());
    /// # Ok(()) }) }
    /// ```
    pub async fn next(&mut self) -> Option<Completed<B>> {
        poll_fn(|context| self.poll_next(context)).await
    }
}

item_stream!(['a, B: IoBufMut, I: Iterator<Item = (B, u64)>] ReadMany<'a, B, I>, Completed<B>);

impl<'a, B, I> IntoFuture for ReadMany<'a, B, I>
where
    B: IoBufMut,
    I: Iterator<Item = (B, u64)> + Send + 'a,
{
    type Output = Vec<BufResult<usize, B>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(mut self) -> Self::IntoFuture {
        Box::pin(async move {
            let mut results: Vec<Option<BufResult<usize, B>>> = Vec::new();
            while let Some(Completed { index, result, .. }) = self.next().await {
                if results.len() <= index {
                    results.resize_with(index + 1, || None);
                }
                if let Some(entry) = results.get_mut(index) {
                    *entry = Some(result);
                }
            }
            results.into_iter().flatten().collect()
        })
    }
}
