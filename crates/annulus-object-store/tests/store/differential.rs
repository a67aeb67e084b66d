//! Random sequences of calls on this store and on `LocalFileSystem`, in two folders: the same answers, the same kinds
//! of error, and the same files.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::symlink;
use std::path::Path as FilePath;

use annulus::Engine;
use annulus::fs::FileKind;

/// Stands for the contents of a folder.
const FOLDER: &[u8] = b"a folder";

/// The contents of files and the targets of links, by path.
fn tree(folder: &FilePath) -> BTreeMap<std::path::PathBuf, Vec<u8>> {
    let entries = walkdir::WalkDir::new(folder).min_depth(1).into_iter();
    let file = |entry: walkdir::Result<walkdir::DirEntry>| {
        let entry = entry.unwrap();
        let (kind, path) = (entry.file_type(), entry.path());
        let contents = match kind.is_file() {
            true => std::fs::read(path).unwrap(),
            false if kind.is_dir() => FOLDER.to_vec(),
            false => std::fs::read_link(path)
                .unwrap()
                .into_os_string()
                .into_vec(),
        };
        (
            entry.path().strip_prefix(folder).unwrap().to_owned(),
            contents,
        )
    };
    entries.map(file).collect()
}

/// Copies a folder to a simulated kernel, to the same path.
async fn copy_tree(folder: &FilePath, engine: &Engine) {
    for entry in walkdir::WalkDir::new(folder) {
        let entry = entry.unwrap();
        let path = entry.path();
        let kind = entry.file_type();
        if kind.is_dir() {
            engine.create_dir_all(path).await.unwrap();
        } else if kind.is_symlink() {
            let target = std::fs::read_link(path).unwrap();
            engine.symlink(target, path).await.unwrap();
        } else {
            let contents = std::fs::read(path).unwrap();
            engine.write(path, contents).await.unwrap();
        }
    }
}

/// Returns the same as `tree`, on a simulated kernel.
async fn simulated_tree(
    folder: &FilePath,
    engine: &Engine,
) -> BTreeMap<std::path::PathBuf, Vec<u8>> {
    let (mut tree, mut folders) = (BTreeMap::new(), vec![folder.to_owned()]);
    while let Some(within) = folders.pop() {
        for entry in engine.read_dir(&within).await.unwrap() {
            let path = within.join(entry.name());
            let contents = match entry.kind() {
                FileKind::File => engine.read(&path).await.unwrap(),
                FileKind::Dir => {
                    folders.push(path.clone());
                    FOLDER.to_vec()
                }
                _ => engine
                    .read_link(&path)
                    .await
                    .unwrap()
                    .into_os_string()
                    .into_vec(),
            };
            tree.insert(path.strip_prefix(folder).unwrap().to_owned(), contents);
        }
    }
    tree
}

/// Returns whether a name ends in `#` and digits after the first `#`, as no name of an object does.
fn is_staged(name: &str) -> bool {
    let digits = |suffix: &str| !suffix.is_empty() && suffix.bytes().all(|b| b.is_ascii_digit());
    name.split_once('#')
        .is_some_and(|(_, suffix)| digits(suffix))
}

/// Removes the staged files that `LocalFileSystem` leaves. It has two known faults: it leaves one when it copies an
/// object over its copy, and one when the rename at the end of an upload fails.
///
/// For the object `x#` the name is `x##1`, which `LocalFileSystem` lists. `x#1#2` is an object, because `x#1` is none.
fn remove_staged(folder: &FilePath) {
    for entry in walkdir::WalkDir::new(folder) {
        let entry = entry.unwrap();
        let name = entry.file_name().to_string_lossy();
        let staged = name
            .rsplit_once('#')
            .filter(|(object, suffix)| !is_staged(object) && is_staged(&format!("#{suffix}")));
        if staged.is_some() {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
}

#[test]
fn staged_files_of_the_other_store_are_removed_and_no_objects() {
    let folder = tempfile::tempdir().unwrap();
    let objects = ["x", "x#", "x#y", "x#1#2", "x#1x"];
    let staged = ["x#1", "x##1", "x#y#23", "x#1#2#1"];
    for name in objects.into_iter().chain(staged) {
        std::fs::write(folder.path().join(name), name).unwrap();
    }
    remove_staged(folder.path());
    let left: Vec<_> = tree(folder.path()).into_keys().collect();
    assert_eq!(
        left,
        ["x", "x#", "x#1#2", "x#1x", "x#y"].map(std::path::PathBuf::from)
    );
}

/// Creates a folder with links, and a folder that a link leads to.
fn prepare(base: &FilePath) -> std::path::PathBuf {
    let (root, outside) = (base.join("root"), base.join("outside"));
    for folder in [&root, &outside] {
        std::fs::create_dir(folder).unwrap();
    }
    std::fs::write(outside.join("file"), "outside").unwrap();
    symlink("../outside", root.join("out")).unwrap();
    symlink("../outside/file", root.join("link")).unwrap();
    symlink("nowhere", root.join("broken")).unwrap();
    root
}

/// Returns the locations that the calls use. Without `a:`, for which `LocalFileSystem` never returns: its URL has a
/// slash at the end. Without names of 254 bytes and more, which have no room for the suffix of its staged files.
fn names() -> Vec<String> {
    let mut names: Vec<String> = [
        "a",
        "b",
        "c",
        "dir/a",
        "dir/b",
        "dir",
        "dir/a/x",
        "deep/er/a",
        "p%2Fq",
        "%2E%2E/a",
        "p q",
        "é/ü",
        "x#1",
        "x#",
        "x#y",
        "x#1#2",
        "",
        "c|d",
        "[~]{}",
        "..x",
        "out/file",
        "out/new",
        "link",
        "broken",
        "broken/a",
        "a/../b",
        "..",
        "/a",
        "a//b",
        "a/.",
        "\t",
    ]
    .map(str::to_owned)
    .into();
    names.extend([243, 252, 253].map(|bytes| "n".repeat(bytes)));
    names
}

macro_rules! tests {
    ($store:ident, $object_store:ident) => {
        use super::{copy_tree, names, prepare, remove_staged, simulated_tree, tree};
        use annulus_object_store::$store::LocalFileSystem;
        use bytes::Bytes;
        use futures_util::TryStreamExt;
        use $object_store::path::Path;
        use $object_store::{
            CopyMode, CopyOptions, Error, GetOptions, GetRange, ObjectMeta, ObjectStore,
            ObjectStoreExt, PutMode, PutOptions, PutPayload, RenameOptions, RenameTargetMode,
            local,
        };

        /// The result of a call, without what differs between folders.
        type Outcome = Result<String, &'static str>;

        fn kind(error: &Error) -> &'static str {
            match error {
                Error::NotFound { .. } => "not found",
                Error::AlreadyExists { .. } => "already exists",
                Error::Precondition { .. } => "precondition",
                Error::NotModified { .. } => "not modified",
                Error::NotImplemented { .. } => "not implemented",
                Error::InvalidPath { .. } => "invalid path",
                Error::Generic { .. } => "generic",
                _ => "another error",
            }
        }

        fn answer<T: std::fmt::Debug>(result: Result<T, Error>) -> Outcome {
            result
                .map(|value| format!("{value:?}"))
                .map_err(|error| kind(&error))
        }

        fn listed(mut objects: Vec<ObjectMeta>) -> Vec<(String, u64)> {
            objects.sort_by(|one, other| one.location.cmp(&other.location));
            objects
                .into_iter()
                .map(|meta| (meta.location.into(), meta.size))
                .collect()
        }

        /// A call, which is made on both stores.
        #[derive(Clone, Debug)]
        enum Call {
            Put(Path, Vec<u8>, bool),
            Upload(Path, Vec<Vec<u8>>, bool),
            Get(Path, Option<GetRange>, u8),
            Ranges(Path, Vec<std::ops::Range<u64>>),
            Delete(Vec<Path>),
            Copy(Path, Path, bool),
            Rename(Path, Path, bool),
            List(Option<Path>, Option<Path>),
            Level(Option<Path>),
        }

        async fn get(
            store: &dyn ObjectStore,
            at: &Path,
            range: Option<GetRange>,
            condition: u8,
        ) -> Result<String, Error> {
            let mut options = GetOptions {
                range,
                ..GetOptions::default()
            };
            if condition > 2 {
                let tag = store.head(at).await?;
                match condition {
                    3 => options.if_match = tag.e_tag,
                    4 => options.if_none_match = tag.e_tag,
                    5 => options.if_match = Some("another".into()),
                    6 => options.if_none_match = Some("another".into()),
                    7 => options.if_modified_since = Some(tag.last_modified),
                    8 => options.if_unmodified_since = Some(tag.last_modified),
                    _ => options.head = true,
                }
            }
            let got = store.get_opts(at, options).await?;
            let (size, range) = (got.meta.size, got.range.clone());
            Ok(format!("{size} {range:?} {:?}", got.bytes().await?))
        }

        async fn make(store: &dyn ObjectStore, call: Call) -> Outcome {
            match call {
                Call::Put(at, bytes, create) => {
                    let mode = if create {
                        PutMode::Create
                    } else {
                        PutMode::Overwrite
                    };
                    let put = store
                        .put_opts(&at, PutPayload::from(bytes), PutOptions::from(mode))
                        .await;
                    answer(put.map(|_| ()))
                }
                Call::Upload(at, parts, abort) => {
                    let upload = async {
                        let mut upload = store.put_multipart(&at).await?;
                        for part in parts {
                            upload.put_part(part.into()).await?;
                        }
                        if abort {
                            return upload.abort().await;
                        }
                        upload.complete().await?;
                        assert!(upload.complete().await.is_err());
                        Ok(())
                    };
                    answer(upload.await)
                }
                Call::Delete(locations) => {
                    let locations = futures_util::stream::iter(locations.into_iter().map(Ok));
                    let deleted: Vec<_> =
                        futures_util::StreamExt::collect(store.delete_stream(Box::pin(locations)))
                            .await;
                    Ok(format!(
                        "{:?}",
                        deleted.into_iter().map(answer).collect::<Vec<_>>()
                    ))
                }
                Call::Copy(from, to, create) => {
                    let mode = if create {
                        CopyMode::Create
                    } else {
                        CopyMode::Overwrite
                    };
                    answer(
                        store
                            .copy_opts(&from, &to, CopyOptions::new().with_mode(mode))
                            .await,
                    )
                }
                Call::Rename(from, to, create) => {
                    let mode = if create {
                        RenameTargetMode::Create
                    } else {
                        RenameTargetMode::Overwrite
                    };
                    answer(
                        store
                            .rename_opts(&from, &to, RenameOptions::new().with_target_mode(mode))
                            .await,
                    )
                }
                call => read(store, call).await,
            }
        }

        async fn read(store: &dyn ObjectStore, call: Call) -> Outcome {
            match call {
                Call::Get(at, range, condition) => answer(get(store, &at, range, condition).await),
                Call::Ranges(at, ranges) => {
                    answer::<Vec<Bytes>>(store.get_ranges(&at, &ranges).await)
                }
                Call::List(prefix, None) => {
                    answer(store.list(prefix.as_ref()).try_collect().await.map(listed))
                }
                Call::List(prefix, Some(offset)) => {
                    let list = store.list_with_offset(prefix.as_ref(), &offset);
                    answer(list.try_collect().await.map(listed))
                }
                Call::Level(prefix) => answer(
                    store
                        .list_with_delimiter(prefix.as_ref())
                        .await
                        .map(|mut level| {
                            level.common_prefixes.sort();
                            (level.common_prefixes, listed(level.objects))
                        }),
                ),
                call => panic!("{call:?} is not a read"),
            }
        }

        fn locations() -> Vec<Path> {
            let parsed = names()
                .into_iter()
                .flat_map(|name| [Path::parse(&name).ok(), Some(Path::from(name))]);
            let mut locations: Vec<_> = parsed.flatten().collect();
            locations.sort();
            locations.dedup();
            locations
        }

        fn bytes(random: &mut fastrand::Rng) -> Vec<u8> {
            let bytes = [0, 1, 10, 100, 5000, 70_000][random.usize(0..6)];
            std::iter::repeat_with(|| random.u8(..))
                .take(bytes)
                .collect()
        }

        fn call(random: &mut fastrand::Rng, locations: &[Path]) -> Call {
            // Mostly a few locations, so that objects exist.
            fn pick(random: &mut fastrand::Rng, locations: &[Path]) -> Path {
                let common = ["a", "b", "c", "dir/a", "dir/b", "out/file", "deep/er/a"];
                match random.bool() {
                    true => Path::from(common[random.usize(0..common.len())]),
                    false => locations[random.usize(0..locations.len())].clone(),
                }
            }
            let at = pick(random, locations);
            let other = pick(random, locations);
            let limits = [0, 1, 9, 10, 11, 99, 4999, 5000, 5001, 70_000, 100_000];
            let count = random.usize(0..4);
            let mut limit = || limits[random.usize(0..limits.len())];
            let (one, two) = (limit(), limit());
            let range = one.min(two)..one.max(two);
            let ranges = (0..4)
                .map(|_| (limit(), limit()))
                .map(|(one, two)| one.min(two)..one.max(two));
            let ranges: Vec<_> = ranges.take(count).collect();
            match random.u8(0..18) {
                0..4 => Call::Put(at, bytes(random), random.u8(0..4) == 0),
                4 => {
                    let parts = (0..random.usize(0..4)).map(|_| bytes(random)).collect();
                    Call::Upload(at, parts, random.u8(0..4) == 0)
                }
                5..8 => {
                    let range = match random.u8(0..5) {
                        0 => Some(GetRange::Bounded(range)),
                        1 => Some(GetRange::Offset(one)),
                        2 => Some(GetRange::Suffix(one)),
                        _ => None,
                    };
                    Call::Get(at, range, random.u8(0..10))
                }
                8 => Call::Ranges(at, ranges),
                9 => Call::Delete(vec![at]),
                // `LocalFileSystem` deletes several at a time, so equal ones have no order, and one that empties the
                // folder of the other changes its kind of error.
                10 if !at.prefix_matches(&other) && !other.prefix_matches(&at) => {
                    Call::Delete(vec![at, other])
                }
                11 | 12 => Call::Copy(at, other, random.bool()),
                13 | 14 => Call::Rename(at, other, random.bool()),
                15 => Call::List(random.bool().then_some(at), random.bool().then_some(other)),
                16 => Call::Level(random.bool().then_some(at)),
                _ => Call::List(None, None),
            }
        }

        /// Makes random calls on both stores, and compares the answers. `clean` runs after each call.
        async fn compare_calls(
            seed: u64,
            random: &mut fastrand::Rng,
            ours: &LocalFileSystem,
            theirs: &local::LocalFileSystem,
            clean: impl AsyncFn(),
        ) {
            let locations = locations();
            for step in 0..250 {
                let call = call(random, &locations);
                let expected = make(theirs, call.clone()).await;
                let got = make(ours, call.clone()).await;
                assert_eq!(got, expected, "SEED={seed}, step {step}: {call:?}");
                clean().await;
            }
        }

        async fn compare(seed: u64, configure: impl Fn(LocalFileSystem) -> LocalFileSystem) {
            let mut random = fastrand::Rng::with_seed(seed);
            let folder = tempfile::tempdir().unwrap();
            let bases = ["ours", "theirs"].map(|name| folder.path().join(name));
            let roots = bases.each_ref().map(|base| {
                std::fs::create_dir(base).unwrap();
                prepare(base)
            });
            let cleanup = random.bool();
            let ours = LocalFileSystem::new_with_prefix(&roots[0])
                .unwrap()
                .with_automatic_cleanup(cleanup);
            let ours = configure(ours);
            let theirs = local::LocalFileSystem::new_with_prefix(&roots[1]).unwrap();
            let theirs = theirs.with_automatic_cleanup(cleanup);
            let clean = async || remove_staged(&bases[1]);
            compare_calls(seed, &mut random, &ours, &theirs, clean).await;
            assert_eq!(tree(&bases[0]), tree(&bases[1]), "SEED={seed}");
            // Another store for the same files: all metadata is equal. A renamed link may lead to itself, which both
            // refuse.
            let theirs = local::LocalFileSystem::new_with_prefix(&roots[0]).unwrap();
            let metadata = |mut objects: Vec<ObjectMeta>| {
                objects.sort_by(|one, other| one.location.cmp(&other.location));
                objects
            };
            let expected: Result<Vec<ObjectMeta>, Error> = theirs.list(None).try_collect().await;
            let got: Result<Vec<ObjectMeta>, Error> = ours.list(None).try_collect().await;
            let expected = expected.map(metadata).map_err(|error| kind(&error));
            let got = got.map(metadata).map_err(|error| kind(&error));
            assert_eq!(got, expected, "SEED={seed}");
            for object in expected.unwrap_or_default() {
                assert_eq!(
                    ours.head(&object.location).await.unwrap(),
                    object,
                    "SEED={seed}"
                );
            }
        }

        /// The files of our store are those of a simulated kernel.
        async fn compare_simulated(seed: u64, fsync: bool) {
            let mut random = fastrand::Rng::with_seed(seed);
            let folder = tempfile::tempdir().unwrap();
            let root = prepare(folder.path());
            let engine = crate::simulated();
            copy_tree(folder.path(), &engine).await;
            let ours = LocalFileSystem::new_with_prefix(&root)
                .unwrap()
                .with_fsync(fsync);
            let ours = ours.with_engine(engine.clone());
            let theirs = local::LocalFileSystem::new_with_prefix(&root).unwrap();
            let clean = async || remove_staged(folder.path());
            compare_calls(seed, &mut random, &ours, &theirs, clean).await;
            let simulated = simulated_tree(folder.path(), &engine).await;
            assert_eq!(simulated, tree(folder.path()), "SEED={seed}");
        }

        fn seed() -> u64 {
            let given = std::env::var("SEED")
                .ok()
                .and_then(|seed| seed.parse().ok());
            let seed = given.unwrap_or_else(|| fastrand::u64(..1 << 40));
            println!("SEED={seed}");
            seed
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn random_calls_have_the_answers_of_the_local_file_system() {
            let seed = seed();
            for sequence in 0..5 {
                compare(seed + sequence, |store| store).await;
            }
        }

        #[tokio::test]
        async fn random_calls_have_the_same_answers_with_other_settings() {
            let seed = seed();
            for sequence in 0..2 {
                compare(seed + sequence, |store| {
                    store.with_engine(crate::fallback())
                })
                .await;
                compare(seed + sequence, |store| store.with_open_files(2)).await;
                compare(seed + sequence, |store| {
                    store.with_revalidation(std::time::Duration::MAX)
                })
                .await;
            }
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn random_calls_have_the_same_answers_on_a_simulated_kernel() {
            let seed = seed();
            for fsync in [false, true] {
                compare_simulated(seed, fsync).await;
            }
        }

        #[tokio::test]
        async fn unusual_files_are_listed_as_by_the_local_file_system() {
            use std::ffi::OsStr;
            use std::os::unix::ffi::OsStrExt;

            type Add = fn(&std::path::Path);
            let cases: [Add; 5] = [
                |root| std::fs::write(root.join(OsStr::from_bytes(b"not\xffutf8")), "x").unwrap(),
                |root| std::fs::create_dir(root.join(OsStr::from_bytes(b"folder\xff"))).unwrap(),
                |root| std::os::unix::fs::symlink(".", root.join("loop")).unwrap(),
                |root| std::os::unix::fs::symlink("itself", root.join("itself")).unwrap(),
                |root| drop(std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap()),
            ];
            for (case, add) in cases.into_iter().enumerate() {
                let folder = tempfile::tempdir().unwrap();
                let root = prepare(folder.path());
                add(&root);
                std::fs::write(root.join("with\nnewline"), "x").unwrap();
                let ours = LocalFileSystem::new_with_prefix(&root).unwrap();
                let theirs = local::LocalFileSystem::new_with_prefix(&root).unwrap();
                let calls = [
                    Call::List(None, None),
                    Call::List(None, Some(Path::from("b"))),
                    Call::List(Some(Path::from("out")), None),
                    Call::Level(None),
                    Call::Level(Some(Path::from("socket"))),
                    Call::Get(Path::from("itself"), None, 0),
                ];
                for call in calls {
                    let expected = make(&theirs, call.clone()).await;
                    assert_eq!(
                        make(&ours, call.clone()).await,
                        expected,
                        "case {case}: {call:?}"
                    );
                }
            }
        }
    };
}
crate::for_each_version!(tests);
