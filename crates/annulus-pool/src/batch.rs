//! Several pages at once, of one file or of many.
//!
//! Batches that hold pages and wait for frames could wait for each other indefinitely. So a batch that finds no free
//! frame, or a read that waits for one, drops all its pages, and continues when it is its turn: only one batch at a
//! time holds pages while it waits.

use std::io;

use crate::budget;
use crate::file::PoolFile;
use crate::page::Page;
use crate::table::Waiting;

enum Request<'a> {
    Here(Page),
    Read(Waiting<'a>),
}

/// Returns the pages, in the order in which they are asked for.
pub(crate) async fn pages<'a>(
    asked: impl ExactSizeIterator<Item = (&'a PoolFile, u64)> + Clone,
) -> io::Result<Vec<Page>> {
    let Some((first, _)) = asked.clone().next() else {
        return Ok(Vec::new());
    };
    let pool = &first.core().pool;
    if asked.len() > pool.frame_count() {
        let what = format!(
            "{} pages at once, and the pool has {} frames: ask for fewer, or give the pool more memory",
            asked.len(),
            pool.frame_count()
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    let here = in_memory(asked.clone());
    if here.len() == asked.len() {
        budget::spend().await;
        return Ok(here);
    }
    if let Some(wanted) = begin(here, asked.clone())? {
        let mut pages = Vec::with_capacity(wanted.len());
        for one in wanted {
            pages.push(match one {
                Request::Here(page) => page,
                Request::Read(waiting) => waiting.await?,
            });
        }
        return Ok(pages);
    }
    let turn = pool.turn.lock().await;
    let mut pages = Vec::with_capacity(asked.len());
    for (file, number) in asked {
        pages.push(file.page(number).await?);
    }
    drop(turn);
    Ok(pages)
}

/// Takes the first pages, as far as they are in memory. The first bytes of all are on their way to the processor before
/// the caller reads the first page.
fn in_memory<'a>(asked: impl ExactSizeIterator<Item = (&'a PoolFile, u64)> + Clone) -> Vec<Page> {
    (asked.clone()).for_each(|(file, number)| file.core().ask(number));
    let mut here = Vec::with_capacity(asked.len());
    for (file, number) in asked {
        let Some(page) = file.core().hit(number) else {
            break;
        };
        here.push(page);
    }
    here
}

/// Takes the other pages that are in memory, and begins to read those that are not. Returns `None` if there are not
/// enough frames.
fn begin<'a>(
    here: Vec<Page>,
    asked: impl ExactSizeIterator<Item = (&'a PoolFile, u64)>,
) -> io::Result<Option<Vec<Request<'a>>>> {
    let mut wanted = Vec::with_capacity(asked.len());
    wanted.extend(here.into_iter().map(Request::Here));
    for (file, number) in asked.skip(wanted.len()) {
        let core = file.core();
        core.pool.check_process()?;
        let page = core.number(number)?;
        let one = loop {
            if let Some(guard) = core.hit(number) {
                break Request::Here(guard);
            }
            let Some(frame) = core.pool.try_frame() else {
                return Ok(None);
            };
            if let Some(mut waiting) = core.join(page, Some(frame)) {
                if !waiting.begin() {
                    return Ok(None);
                }
                break Request::Read(waiting);
            }
        };
        wanted.push(one);
    }
    Ok(Some(wanted))
}
