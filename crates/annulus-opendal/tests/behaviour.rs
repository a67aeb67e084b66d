//! Each case runs on OpenDAL's `services-fs` and on this service, with io_uring and with the fallback. The results, the
//! kinds of errors and the files are compared.

use std::collections::BTreeMap;
use std::fmt::{Debug, Write as _};
use std::path::Path;

use annulus::{Backend, Engine};
use futures_util::TryStreamExt;
use opendal::{ErrorKind, Metadata, Operator, Result};

/// More than two of OpenDAL's reads.
const LARGE_BYTES: usize = 5 << 20;

/// The results of a case, a line for each.
struct Report {
    operator: Operator,
    lines: String,
}

impl Report {
    /// Adds a result, an error as its kind.
    fn note<T: Debug>(&mut self, what: &str, result: Result<T>) {
        let result: std::result::Result<T, ErrorKind> = result.map_err(|error| error.kind());
        writeln!(self.lines, "{what}: {result:?}").unwrap();
    }

    async fn stat(&mut self, path: &str) {
        let described = self
            .operator
            .stat(path)
            .await
            .map(|metadata| describe(&metadata));
        self.note(&format!("stat {path}"), described);
    }

    async fn read(&mut self, path: &str) {
        let read = self
            .operator
            .read(path)
            .await
            .map(|buffer| digest(&buffer.to_vec()));
        self.note(&format!("read {path}"), read);
    }

    async fn list(&mut self, path: &str, recursive: bool) {
        let listed = self.operator.list_with(path).recursive(recursive).await;
        let listed = listed.map(|entries| {
            let describe =
                |entry: &opendal::Entry| (entry.path().to_owned(), describe(entry.metadata()));
            // The order is that of the file system.
            entries.iter().map(describe).collect::<BTreeMap<_, _>>()
        });
        self.note(&format!("list {path:?}, recursive {recursive}"), listed);
    }
}

fn describe(metadata: &Metadata) -> String {
    let user = metadata
        .user_metadata()
        .map(|user| user.into_iter().collect::<Vec<_>>());
    let (mode, has_time) = (metadata.mode(), metadata.last_modified().is_some());
    // The length of a folder is not the same in each.
    let bytes = metadata.is_file().then(|| metadata.content_length());
    format!("{mode:?}, {bytes:?} bytes, time {has_time}, user {user:?}")
}

/// Returns the length and a sum that depends on the order of the bytes.
fn digest(bytes: &[u8]) -> (usize, u64) {
    let add = |sum: u64, &byte: &u8| sum.wrapping_mul(31).wrapping_add(u64::from(byte));
    (bytes.len(), bytes.iter().fold(0, add))
}

fn bytes(count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    fastrand::Rng::with_seed(count as u64).fill(&mut bytes);
    bytes
}

async fn reads(seen: &mut Report) {
    let operator = seen.operator.clone();
    for (name, count) in [("empty", 0), ("small", 100), ("large", LARGE_BYTES)] {
        seen.note(
            "write",
            operator
                .write(name, bytes(count))
                .await
                .map(|metadata| describe(&metadata)),
        );
        seen.read(name).await;
        for range in [
            0..0,
            0..1,
            10..100,
            4095..8200,
            99..101,
            100..200,
            1_000_000..4_000_001,
        ] {
            let read = operator.read_with(name).range(range.clone()).await;
            seen.note(
                &format!("{name} {range:?}"),
                read.map(|buffer| digest(&buffer.to_vec())),
            );
        }
        seen.note(
            "from",
            operator
                .read_with(name)
                .range(50..)
                .await
                .map(|buffer| buffer.len()),
        );
        let reader = operator.reader(name).await.unwrap();
        let ranges = vec![0..10, 20..30, 60..90];
        let fetched = reader.fetch(ranges).await;
        seen.note(
            "fetch",
            fetched.map(|parts| {
                parts
                    .iter()
                    .map(|part| digest(&part.to_vec()))
                    .collect::<Vec<_>>()
            }),
        );
        let parallel = operator.read_with(name).concurrent(4).chunk(700_001).await;
        seen.note(
            "concurrent",
            parallel.map(|buffer| digest(&buffer.to_vec())),
        );
        let stream = operator
            .reader(name)
            .await
            .unwrap()
            .into_bytes_stream(..)
            .await
            .unwrap();
        let parts = stream.try_fold(Vec::new(), async |mut all, part| {
            all.extend_from_slice(&part);
            Ok(all)
        });
        seen.lines += &format!("stream {:?}\n", parts.await.map(|all| digest(&all)).ok());
    }
    seen.read("missing").await;
    seen.read("small/below").await;
    operator.create_dir("folder/").await.unwrap();
    seen.read("folder/").await;
    seen.read("folder").await;
}

async fn writes(seen: &mut Report) {
    let operator = seen.operator.clone();
    seen.note(
        "in folders",
        operator.write("a/b/c", "contents").await.map(drop),
    );
    seen.note("shorter", operator.write("a/b/c", "cont").await.map(drop));
    seen.read("a/b/c").await;
    seen.note(
        "below a file",
        operator.write("a/b/c/d", "x").await.map(drop),
    );
    seen.note("on a folder", operator.write("a/b/", "x").await.map(drop));
    let new = async |name: &str| {
        operator
            .write_with(name, "new")
            .if_not_exists(true)
            .await
            .map(drop)
    };
    seen.note("new", new("new").await);
    seen.note("not new", new("new").await);
    for text in ["one ", "two ", "three"] {
        seen.note(
            "append",
            operator
                .write_with("log", text)
                .append(true)
                .await
                .map(drop),
        );
    }
    seen.read("log").await;
    for (name, concurrent) in [("parts", 1), ("parallel", 4)] {
        let mut writer = operator
            .writer_with(name)
            .concurrent(concurrent)
            .chunk(300_000)
            .await
            .unwrap();
        for count in [1, 700_000, 0, 1_300_000] {
            seen.note("part", writer.write(bytes(count)).await);
        }
        seen.note(
            "close",
            writer.close().await.map(|metadata| describe(&metadata)),
        );
        seen.read(name).await;
    }
    let mut aborted = operator.writer("aborted").await.unwrap();
    seen.note("part", aborted.write("abc").await);
    seen.note("abort", aborted.abort().await);
    seen.stat("aborted").await;
    let pairs = [
        ("key".to_owned(), "value".to_owned()),
        ("b".to_owned(), String::new()),
    ];
    seen.note(
        "user",
        operator
            .write_with("user", "x")
            .user_metadata(pairs)
            .await
            .map(drop),
    );
    seen.stat("user").await;
    seen.list("/", true).await;
}

async fn names(seen: &mut Report) {
    let operator = seen.operator.clone();
    for name in [
        "../outside",
        "a/../b",
        "a/../../b",
        "./c",
        "d/./e",
        "ü/ö ä",
        " trimmed ",
        "//slashes//x",
        "back\\slash",
        "new\nline",
    ] {
        seen.note(name, operator.write(name, "x").await.map(drop));
        seen.stat(name).await;
        seen.read(name).await;
    }
    let long = "x".repeat(300);
    seen.note("long", operator.write(&long, "x").await.map(drop));
    seen.stat(&long).await;
    seen.stat("/").await;
    seen.stat("").await;
    seen.list("/", true).await;
}

async fn folders(seen: &mut Report) {
    let operator = seen.operator.clone();
    for path in ["f/", "f/", "x/y/z/"] {
        seen.note("create", operator.create_dir(path).await);
        seen.stat(path).await;
    }
    for name in ["f/a", "f/b", "f/g/c", "fa", "top"] {
        operator.write(name, name.to_owned()).await.unwrap();
    }
    seen.note("on a file", operator.create_dir("top/").await);
    seen.note("below a file", operator.create_dir("top/below/").await);
    for path in [
        "/", "", "f/", "f", "f/g/", "x/", "top", "top/", "missing/", "f/a/",
    ] {
        for recursive in [false, true] {
            seen.list(path, recursive).await;
        }
    }
    for path in ["f", "f/", "top/", "top", "missing", "missing/"] {
        seen.stat(path).await;
        seen.note("exists", operator.exists(path).await);
    }
}

async fn removals(seen: &mut Report) {
    let operator = seen.operator.clone();
    for name in ["a", "f/a", "f/g/b", "g/a"] {
        operator.write(name, "x").await.unwrap();
    }
    operator.create_dir("empty/").await.unwrap();
    for path in ["a", "a", "missing/", "empty/", "f/", "f/a/", "../x"] {
        seen.note(&format!("delete {path}"), operator.delete(path).await);
    }
    for path in ["f/", "g/", "missing/"] {
        seen.note(
            &format!("recursive {path}"),
            operator.delete_with(path).recursive(true).await,
        );
    }
    seen.list("/", true).await;
}

async fn copies(seen: &mut Report) {
    let operator = seen.operator.clone();
    let pairs = [("key".to_owned(), "value".to_owned())];
    operator
        .write_with("a", bytes(100_000))
        .user_metadata(pairs)
        .await
        .unwrap();
    operator.write("old", "old").await.unwrap();
    operator.create_dir("folder/").await.unwrap();
    for (from, to) in [
        ("a", "b"),
        ("a", "old"),
        ("a", "c/d/e"),
        ("a", "a"),
        ("missing", "x/y"),
        ("a", "folder/"),
        ("folder/", "x"),
        ("a", "b/below"),
        ("a", "../x"),
    ] {
        seen.note(
            &format!("copy {from} {to}"),
            operator.copy(from, to).await.map(drop),
        );
        seen.stat(to).await;
    }
    for (from, to) in [
        ("b", "moved"),
        ("old", "c/moved"),
        ("missing", "z/y"),
        ("a", "a"),
        ("a", "folder/"),
        ("moved", "c/d/e"),
        ("c/d/e", "a/below"),
        ("a", "../x"),
    ] {
        seen.note(
            &format!("rename {from} {to}"),
            operator.rename(from, to).await,
        );
        seen.stat(to).await;
        seen.stat(from).await;
    }
    seen.read("c/d/e").await;
    seen.list("/", true).await;
}

/// Files that OpenDAL cannot make. The folder with a link to a folder is not listed: OpenDAL's own code above both
/// services has an assertion against such an entry.
async fn links(seen: &mut Report, root: &Path) {
    use std::os::unix::fs::symlink;
    std::fs::create_dir_all(root.join("folder/inner")).unwrap();
    std::fs::write(root.join("folder/file"), "contents").unwrap();
    let [folder, file, nothing] = ["folder/inner/to-folder", "to-file", "to-nothing"];
    for (to, name) in [("..", folder), ("folder/file", file), ("missing", nothing)] {
        symlink(to, root.join(name)).unwrap();
    }
    for path in [
        folder,
        "folder/inner/to-folder/",
        file,
        nothing,
        "folder/inner/to-folder/file",
    ] {
        seen.stat(path).await;
        seen.read(path).await;
    }
    seen.list("/", false).await;
    seen.list("folder/inner/to-folder/", false).await;
    for path in [file, nothing, "folder/inner/to-folder/"] {
        seen.note("delete", seen.operator.clone().delete(path).await);
        let is_left = root
            .join(path.trim_end_matches('/'))
            .symlink_metadata()
            .is_ok();
        writeln!(seen.lines, "{path} is left: {is_left}").unwrap();
    }
}

/// Runs a case. Returns what it has seen, and the files that it left.
async fn run(case: &str, operator: Operator, root: &Path) -> String {
    let mut seen = Report {
        operator,
        lines: String::new(),
    };
    match case {
        "reads" => reads(&mut seen).await,
        "writes" => writes(&mut seen).await,
        "names" => names(&mut seen).await,
        "folders" => folders(&mut seen).await,
        "removals" => removals(&mut seen).await,
        "copies" => copies(&mut seen).await,
        _ => links(&mut seen, root).await,
    }
    let mut left = Vec::new();
    files(root, root, &mut left);
    left.sort();
    seen.lines + &left.join("\n")
}

fn files(root: &Path, folder: &Path, left: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.strip_prefix(root).unwrap().display().to_string();
        if path.symlink_metadata().unwrap().is_dir() {
            left.push(format!("{name}/"));
            files(root, &path, left);
        } else {
            left.push(format!(
                "{name}: {:?}",
                std::fs::read(&path).ok().map(|bytes| digest(&bytes))
            ));
        }
    }
}

/// Compares a case on both services, with files written in place and atomically.
async fn compare(case: &str) {
    for atomic in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let temporary = if atomic {
            path("temporary")
        } else {
            String::new()
        };
        let fs = opendal::services::Fs::default()
            .root(&path("fs"))
            .atomic_write_dir(&temporary);
        let expected = run(case, Operator::new(fs).unwrap(), &folder.path().join("fs")).await;
        for backend in [Backend::Auto, Backend::Fallback] {
            let engine = Engine::builder().backend(backend).build().unwrap();
            println!("{case}, atomic {atomic}: {}", engine.backend());
            let name = format!("{backend:?}");
            let ours = annulus_opendal::Fs::default()
                .root(&path(&name))
                .atomic_write_dir(&temporary);
            let operator = Operator::new(ours.engine(engine)).unwrap();
            let seen = run(case, operator, &folder.path().join(&name)).await;
            for (seen, expected) in seen.lines().zip(expected.lines()) {
                assert_eq!(seen, expected, "{case}, atomic {atomic}, {backend:?}");
            }
            assert_eq!(seen.len(), expected.len(), "{case}");
        }
        // Nothing is left of files that got their names, or were aborted.
        let temporary = folder.path().join("temporary");
        let mut left = Vec::new();
        if temporary.exists() {
            files(&temporary, &temporary, &mut left);
        }
        left.retain(|name| !name.ends_with('/'));
        assert!(left.is_empty(), "{left:?}");
    }
}

/// Calls `test` with an operator for each backend and way to write, whose root and temporary folder are given, too.
async fn on_each(test: impl AsyncFn(Operator, &Path, &Path)) {
    for (backend, atomic) in [
        (Backend::Auto, false),
        (Backend::Auto, true),
        (Backend::Fallback, false),
        (Backend::Fallback, true),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let [root, temporary] = ["root", "temporary"].map(|name| folder.path().join(name));
        std::fs::create_dir(&temporary).unwrap();
        let engine = Engine::builder().backend(backend).build().unwrap();
        println!("atomic {atomic}: {}", engine.backend());
        let mut service = annulus_opendal::Fs::default().engine(engine);
        service = service.root(root.to_str().unwrap());
        if atomic {
            service = service.atomic_write_dir(temporary.to_str().unwrap());
        }
        test(Operator::new(service).unwrap(), &root, &temporary).await;
    }
}

/// `services-fs` with a temporary folder lets the last one win.
#[tokio::test]
async fn of_several_writers_of_a_new_file_one_wins() {
    on_each(async |operator, _, temporary| {
        let mut results = Vec::new();
        let mut writers = Vec::new();
        for text in ["first", "second"] {
            let mut writer = operator
                .writer_with("new")
                .if_not_exists(true)
                .await
                .unwrap();
            match writer.write(text).await {
                Ok(()) => writers.push(writer),
                Err(error) => results.push(Err(error.kind())),
            }
        }
        for mut writer in writers {
            results.push(writer.close().await.map(drop).map_err(|error| error.kind()));
        }
        results.sort_by_key(Result::is_err);
        assert_eq!(results, [Ok(()), Err(ErrorKind::ConditionNotMatch)]);
        assert_eq!(operator.read("new").await.unwrap().to_vec(), b"first");
        assert_eq!(std::fs::read_dir(temporary).unwrap().count(), 0);
    })
    .await;
}

#[tokio::test]
async fn a_writer_that_is_aborted_before_it_writes_changes_nothing() {
    on_each(async |operator, root, _| {
        operator.write("old", "contents").await.unwrap();
        for name in ["old", "new"] {
            let mut writer = operator.writer(name).await.unwrap();
            writer.abort().await.unwrap();
        }
        assert_eq!(operator.read("old").await.unwrap().to_vec(), b"contents");
        assert!(!root.join("new").exists());
    })
    .await;
}

macro_rules! cases {
    ($($name:ident)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            compare(stringify!($name)).await;
        }
    )*};
}

mod as_in_services_fs {
    use super::compare;

    cases! { reads writes names folders removals copies links }
}
