//! Opening: every combination of options behaves as in std.

use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use annulus::{Engine, File, OpenOptions};

use crate::fixtures::for_each_backend;

const BEFORE: &[u8] = b"0123456789";

/// The six options that std has too.
#[derive(Clone, Copy, Debug)]
struct Switches {
    read: bool,
    write: bool,
    append: bool,
    truncate: bool,
    create: bool,
    create_new: bool,
}

impl Switches {
    fn all() -> impl Iterator<Item = Switches> {
        (0..64).map(|bits: u8| Switches {
            read: bits & 1 != 0,
            write: bits & 2 != 0,
            append: bits & 4 != 0,
            truncate: bits & 8 != 0,
            create: bits & 16 != 0,
            create_new: bits & 32 != 0,
        })
    }

    fn std(self) -> std::fs::OpenOptions {
        let mut options = std::fs::OpenOptions::new();
        options.read(self.read).write(self.write);
        options.append(self.append).truncate(self.truncate);
        options.create(self.create).create_new(self.create_new);
        options
    }

    fn ours(self) -> OpenOptions {
        let mut options = OpenOptions::new();
        options.read(self.read).write(self.write);
        options.append(self.append).truncate(self.truncate);
        options.create(self.create).create_new(self.create_new);
        options
    }
}

/// The results of an open, a read of three bytes and a write of two.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    opened: Result<(), io::ErrorKind>,
    read: Option<Result<Vec<u8>, Option<i32>>>,
    written: Option<Result<usize, Option<i32>>>,
    contents: Option<Vec<u8>>,
}

fn with_std(switches: Switches, path: &Path) -> Outcome {
    let opened = switches.std().open(path);
    let (mut read, mut written) = (None, None);
    if let Ok(file) = &opened {
        let mut buf = vec![0; 3];
        read = Some(file.read_at(&mut buf, 1).map(|n| buf[..n].to_vec()));
        written = Some(file.write_at(b"xy", 4));
    }
    Outcome {
        opened: opened.map(drop).map_err(|error| error.kind()),
        read: read.map(|read| read.map_err(|error| error.raw_os_error())),
        written: written.map(|written| written.map_err(|error| error.raw_os_error())),
        contents: std::fs::read(path).ok(),
    }
}

async fn with_ours(engine: &Engine, switches: Switches, path: &Path) -> Outcome {
    let opened = engine.open_with(&switches.ours(), path).await;
    let (mut read, mut written) = (None, None);
    if let Ok(file) = &opened {
        let result = file.read_at(vec![0; 3], 1).await;
        read = Some(result.map(|(n, buf)| buf[..n].to_vec()));
        written = Some(file.write_at(b"xy".to_vec(), 4).await.map(|(n, _)| n));
    }
    Outcome {
        opened: opened.map(drop).map_err(|error| error.kind()),
        read: read.map(|read| read.map_err(|error| error.error().raw_os_error())),
        written: written.map(|written| written.map_err(|error| error.error().raw_os_error())),
        contents: None,
    }
}

#[test]
fn every_combination_of_options_does_what_stds_does() {
    for_each_backend(async |fixture| {
        let std_dir = tempfile::tempdir().unwrap();
        for (number, switches) in Switches::all().enumerate() {
            for present in [false, true] {
                let name = format!("{number}-{present}");
                let std_path = std_dir.path().join(&name);
                if present {
                    std::fs::write(&std_path, BEFORE).unwrap();
                    fixture.put(&name, BEFORE);
                }
                let theirs = with_std(switches, &std_path);
                let mut ours = with_ours(&fixture.engine, switches, &fixture.path(&name)).await;
                ours.contents = fixture.contents(&name).ok();
                assert_eq!(ours, theirs, "{switches:?}, file there: {present}");
            }
        }
    });
}

#[cfg(not(annulus_portable))]
#[test]
fn refused_options_name_the_missing_one() {
    for_each_backend(async |fixture| {
        let open = async |options: &OpenOptions| {
            let error = fixture
                .engine
                .open_with(options, fixture.path("f"))
                .await
                .unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            error.to_string()
        };
        let nothing = open(&OpenOptions::default()).await;
        assert!(nothing.contains("set read, write or append"), "{nothing}");
        let create = open(OpenOptions::new().read(true).create(true)).await;
        assert!(create.contains("need write or append"), "{create}");
        let both = open(OpenOptions::new().append(true).truncate(true)).await;
        assert!(both.contains("append and truncate"), "{both}");
        assert!(fixture.contents("f").is_err(), "nothing was made");
    });
}

#[test]
fn create_creates_a_file_or_truncates_an_existing_one() {
    for_each_backend(async |fixture| {
        for _ in 0..2 {
            let file = fixture.engine.create(fixture.path("f")).await.unwrap();
            assert_eq!(file.metadata().await.unwrap().len(), 0);
            file.write_all_at("new", 0).await.unwrap();
            assert_eq!(fixture.contents("f").unwrap(), b"new");
            let error = file.read_at(vec![0; 1], 0).await.unwrap_err();
            assert_eq!(error.error().raw_os_error(), Some(libc::EBADF));
        }
    });
}

#[test]
fn create_new_has_one_winner() {
    for_each_backend(async |fixture| {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        let path = fixture.path("f");
        let first = fixture.engine.open_with(&options, &path).await.unwrap();
        first.write_all_at("mine", 0).await.unwrap();
        let error = fixture.engine.open_with(&options, &path).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EEXIST));
        assert_eq!(fixture.contents("f").unwrap(), b"mine");
    });
}

#[cfg(not(annulus_portable))]
#[test]
fn appended_writes_go_to_the_end_whatever_their_offset() {
    for_each_backend(async |fixture| {
        fixture.put("f", b"0123");
        let mut options = OpenOptions::new();
        options.append(true).read(true);
        let file = fixture
            .engine
            .open_with(&options, fixture.path("f"))
            .await
            .unwrap();
        file.write_all_at("45", 0).await.unwrap();
        file.write_all_at("67", 1 << 30).await.unwrap();
        file.write_vectored_all_at(vec!["8", "9"], 0).await.unwrap();
        assert_eq!(fixture.contents("f").unwrap(), b"0123456789");
        let (n, _) = file.read_at(vec![0; 20], 0).await.unwrap();
        assert_eq!(n, 10);
    });
}

#[test]
fn the_mode_is_given_to_a_new_file_less_the_umask_and_to_no_old_one() {
    for_each_backend(async |fixture| {
        for mode in [0o600, 0o640, 0o755, 0o777, 0o200] {
            let name = format!("{mode:o}");
            let mut options = OpenOptions::new();
            options.write(true).create(true).mode(mode);
            let file = fixture
                .engine
                .open_with(&options, fixture.path(&name))
                .await
                .unwrap();
            let got = file.metadata().await.unwrap().mode();
            if fixture.is_real() {
                let std_path = fixture.path(&format!("{name}-std"));
                let mut options = std::fs::OpenOptions::new();
                let theirs = options.write(true).create(true).mode(mode).open(std_path);
                let theirs = theirs.unwrap().metadata().unwrap().permissions().mode() & 0o7777;
                assert_eq!(got, theirs, "{mode:o}");
            } else {
                assert_eq!(got, mode & !0o022, "{mode:o}");
            }
            let again = fixture
                .engine
                .open_with(options.mode(0o444), fixture.path(&name));
            assert_eq!(again.await.unwrap().metadata().await.unwrap().mode(), got);
        }
    });
}

#[test]
fn custom_flags_are_passed_on_except_the_access_mode() {
    for_each_backend(async |fixture| {
        fixture.put("f", BEFORE);
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(libc::O_RDWR);
        let file = fixture
            .engine
            .open_with(&options, fixture.path("f"))
            .await
            .unwrap();
        let error = file.write_at("x", 0).await.unwrap_err();
        assert_eq!(error.error().raw_os_error(), Some(libc::EBADF));
        options.custom_flags(libc::O_DIRECTORY);
        let error = fixture
            .engine
            .open_with(&options, fixture.path("f"))
            .await
            .unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTDIR));
        if !fixture.machine_has("symbolic links") {
            return;
        }
        std::os::unix::fs::symlink("f", fixture.path("link")).unwrap();
        let file = fixture.engine.open(fixture.path("link")).await.unwrap();
        assert_eq!(file.read_at(vec![0; 10], 0).await.unwrap().1, BEFORE);
        options.custom_flags(libc::O_NOFOLLOW);
        let error = fixture
            .engine
            .open_with(&options, fixture.path("link"))
            .await
            .unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ELOOP));
    });
}

#[test]
fn a_file_that_std_opened_can_be_taken_over() {
    for_each_backend(async |fixture| {
        fixture.put("f", BEFORE);
        if !fixture.is_real() {
            let dir = tempfile::tempdir().unwrap();
            let file = std::fs::File::create(dir.path().join("f")).unwrap();
            let error = File::from_std(file, &fixture.engine).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::Unsupported);
            return;
        }
        let file = std::fs::File::open(fixture.path("f")).unwrap();
        let file = File::from_std(file, &fixture.engine).unwrap();
        let (n, buf) = file.read_at(vec![0; 4], 2).await.unwrap();
        assert_eq!((n, buf.as_slice()), (4, &b"2345"[..]));
        assert_eq!(file.close().await.unwrap(), annulus::fs::Closed::Now);
        assert_eq!(fixture.descriptors("f"), 0);
    });
}

#[test]
fn an_unnamed_file_has_a_mode_too() {
    for_each_backend(async |fixture| {
        if !fixture.machine_has("unnamed files") {
            return;
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o600);
        options.custom_flags(libc::O_TMPFILE);
        match fixture.engine.open_with(&options, fixture.path("")).await {
            Ok(file) => assert_eq!(file.metadata().await.unwrap().mode(), 0o600),
            // Not every file system has unnamed files.
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP)),
        }
    });
}
