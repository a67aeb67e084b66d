//! Listings. They walk folders on a blocking thread, with at most one `statx` for each file.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::stream::{self, BoxStream, StreamExt};
use tokio::runtime::Handle;

use crate::blocking;
use crate::calls::{self, Calls, Entry};
use crate::error::Failure;
use crate::file_systems::FileSystem;
use crate::names::{self, Name, Root};
use crate::stat::Stat;
use crate::store::Store;
use crate::walk::Walk;

/// The number of objects that a blocking thread lists before it hands them over.
const CHUNK: usize = 1024;

/// The location type of a version.
pub(crate) trait Location: AsRef<str> + Clone + Ord + Sized + Send + 'static {
    type Error: From<Failure> + Send + 'static;

    /// Parses the name of a file.
    fn parse(name: Name) -> Result<Self, Self::Error>;
}

/// A listed object.
pub(crate) type Object<L> = (L, Stat);

/// Returns all objects in `folder` and below. With `after`, only those with a larger location.
pub(crate) fn objects<L: Location, T: Send + 'static>(
    store: &Store,
    folder: PathBuf,
    after: Option<L>,
    finish: impl Fn(Object<L>) -> T + Send + Sync + Copy + 'static,
) -> BoxStream<'static, Result<T, L::Error>> {
    let (root, system) = (Arc::clone(&store.root), store.system(&folder));
    match store.calls.clone() {
        Calls::System => {
            let walk = Walk::new(Arc::clone(&store.files), folder).following();
            in_chunks(
                system,
                walk.filter_map(move |found| {
                    let found = match found.map_err(not_listed) {
                        Ok(found) => found,
                        Err(failure) => return Some(Err(failure.into())),
                    };
                    let (path, is_dir) = (found.path.clone(), found.kind().is_dir());
                    let stat = || Some(Stat::from(&found.metadata()?));
                    let object = object(&root, &path, is_dir, stat, after.as_ref());
                    object.map(|object| object.map(finish)).transpose()
                }),
            )
        }
        Calls::Ring(engine) | Calls::Simulated(engine) => {
            let all = async move {
                let found = calls::walk(&engine, &folder, true, usize::MAX).await;
                let found = match found.map_err(not_listed) {
                    Ok(found) => found,
                    Err(failure) => return stream::iter(vec![Err(failure.into())]),
                };
                let object = |Entry { path, stat }| {
                    let object = object(&root, &path, stat.is_dir, || Some(stat), after.as_ref());
                    object.map(|object| object.map(finish)).transpose()
                };
                stream::iter(found.into_iter().filter_map(object).collect::<Vec<_>>())
            };
            all.flatten_stream().boxed()
        }
    }
}

/// Returns the object at a path. `None` for folders, unfinished uploads, and files that are gone.
fn object<L: Location>(
    root: &Root,
    path: &Path,
    is_dir: bool,
    stat: impl FnOnce() -> Option<Stat>,
    after: Option<&L>,
) -> Result<Option<Object<L>>, L::Error> {
    if is_dir && after.is_none() {
        return Ok(None);
    }
    // With an offset, `LocalFileSystem` also fails on the name of a folder.
    let location = || L::parse(root.name(path)?);
    if let Some(after) = after {
        let location = location()?;
        if is_dir || location <= *after {
            return Ok(None);
        }
    }
    let Some(stat) = stat().filter(|stat| stat.is_file) else {
        return Ok(None);
    };
    let location = location()?;
    Ok(names::is_object(location.as_ref()).then_some((location, stat)))
}

fn not_listed(error: io::Error) -> Failure {
    Failure::new("list objects", error)
}

/// Runs an iterator on blocking threads, a chunk at a time. Ends after an error. Outside a Tokio runtime the polling
/// thread runs it.
pub(crate) fn in_chunks<T, E>(
    system: &'static FileSystem,
    items: impl Iterator<Item = Result<T, E>> + Send + 'static,
) -> BoxStream<'static, Result<T, E>>
where
    T: Send + 'static,
    E: From<Failure> + Send + 'static,
{
    if Handle::try_current().is_err() {
        return stream::iter(items).boxed();
    }
    let chunks = stream::try_unfold(Some(items), move |items| async move {
        let Some(mut items) = items else {
            return Ok(None);
        };
        let next = blocking::run(system, move || {
            let mut chunk = Vec::with_capacity(CHUNK);
            chunk.extend(items.by_ref().take(CHUNK));
            let ended = chunk.len() < CHUNK || chunk.iter().any(Result::is_err);
            Ok((chunk, (!ended).then_some(items)))
        });
        let (chunk, rest) = next.await?;
        Ok::<_, Failure>(Some((chunk, rest)))
    });
    let items = chunks.flat_map(|chunk| match chunk {
        Ok(chunk) => stream::iter(chunk).left_stream(),
        Err(failure) => stream::iter([Err(failure.into())]).right_stream(),
    });
    let until_error = items.scan(false, |has_failed, item| {
        let next = (!*has_failed).then_some(item);
        *has_failed |= matches!(next, Some(Err(_)));
        std::future::ready(next)
    });
    until_error.boxed()
}

/// The prefixes and the objects in one folder.
pub(crate) type Level<L> = (BTreeSet<L>, Vec<Object<L>>);

/// Lists one folder.
pub(crate) async fn level<L: Location>(
    store: &Store,
    folder: PathBuf,
) -> Result<Level<L>, L::Error> {
    let root = Arc::clone(&store.root);
    match &store.calls {
        Calls::System => {
            let system = store.system(&folder);
            let walk = Walk::new(Arc::clone(&store.files), folder);
            let walk = walk.following().one_level();
            blocking::run(system, move || Ok(level_of_entries(&root, walk))).await?
        }
        Calls::Ring(engine) | Calls::Simulated(engine) => {
            let mut level: Level<L> = (BTreeSet::new(), Vec::new());
            let found = calls::walk(engine, &folder, true, 1).await;
            let found = found.map_err(not_listed)?;
            for Entry { path, stat } in found {
                add(&mut level, &root, &path, stat.is_dir, || Some(stat))?;
            }
            Ok(level)
        }
    }
}

fn level_of_entries<L: Location>(root: &Root, walk: Walk) -> Result<Level<L>, L::Error> {
    let mut level: Level<L> = (BTreeSet::new(), Vec::new());
    for found in walk {
        let found = found.map_err(not_listed)?;
        let (path, is_dir) = (found.path.clone(), found.kind().is_dir());
        let stat = || Some(Stat::from(&found.metadata()?));
        add(&mut level, root, &path, is_dir, stat)?;
    }
    Ok(level)
}

fn add<L: Location>(
    (prefixes, objects): &mut Level<L>,
    root: &Root,
    path: &Path,
    is_dir: bool,
    stat: impl FnOnce() -> Option<Stat>,
) -> Result<(), L::Error> {
    let location = L::parse(root.name(path)?)?;
    if is_dir {
        prefixes.insert(location);
    } else if names::is_object(location.as_ref())
        && let Some(stat) = stat()
    {
        objects.push((location, stat));
    }
    Ok(())
}
