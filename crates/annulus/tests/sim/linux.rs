//! The simulated file system behaves like Linux: the same random script on both, compared step by
//! step.
//!
//! Differences between Linux's file systems are left out: the maximum length of a file, the order
//! of a listing, the sizes of directories.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use annulus::fs::{Advice, AllocateMode, SyncRangeMode};
use annulus::sim::{Sim, SimConfig};
use annulus::{Backend, Engine, File, OpenOptions};

use crate::buffers::Rng;
use crate::seeds::for_each_seed;

/// A step of a script. Numbers of files refer to those opened so far.
#[derive(Debug)]
enum Step {
    Open {
        name: &'static str,
        options: u64,
    },
    Close {
        file: u64,
    },
    Read {
        file: u64,
        at: u64,
        bytes: usize,
    },
    ReadExact {
        file: u64,
        at: u64,
        bytes: usize,
    },
    Write {
        file: u64,
        at: u64,
        bytes: usize,
        fill: u8,
    },
    SetLen {
        file: u64,
        bytes: u64,
    },
    Allocate {
        file: u64,
        mode: AllocateMode,
        at: u64,
        bytes: u64,
    },
    Sync {
        file: u64,
    },
    SyncRange {
        file: u64,
        at: u64,
        bytes: u64,
    },
    CopyRange {
        file: u64,
        at: u64,
        into: u64,
        into_at: u64,
        bytes: u64,
    },
    Advise {
        file: u64,
    },
    Stat {
        file: u64,
    },
    StatPath {
        name: &'static str,
    },
    ReadWhole {
        name: &'static str,
    },
    Rename {
        from: &'static str,
        to: &'static str,
    },
    RenameNew {
        from: &'static str,
        to: &'static str,
    },
    Exchange {
        one: &'static str,
        other: &'static str,
    },
    Link {
        file: &'static str,
        name: &'static str,
    },
    CreateUnnamed {
        dir: &'static str,
    },
    LinkTo {
        file: u64,
        name: &'static str,
    },
    Symlink {
        target: &'static str,
        name: &'static str,
    },
    ReadLink {
        name: &'static str,
    },
    StatLink {
        name: &'static str,
    },
    SetPermissions {
        name: &'static str,
        mode: u32,
    },
    SetMode {
        file: u64,
        mode: u32,
    },
    Remove {
        name: &'static str,
    },
    RemoveDir {
        name: &'static str,
    },
    MakeDir {
        name: &'static str,
    },
    List {
        name: &'static str,
    },
}

/// Few enough that they collide, with every way to spell a directory.
const NAMES: [&str; 18] = [
    "a",
    "b",
    "d",
    "e",
    "d/a",
    "d/b",
    "d/e",
    "e/a",
    "d/e/a",
    "a/",
    "d/",
    "d/.",
    "d/..",
    "d/../a",
    "./a",
    "a/x",
    "nowhere/x",
    "new/",
];

/// `NAME_MAX` and one more.
const LONG: &str = const {
    const BYTES: [u8; 256] = [b'n'; 256];
    match std::str::from_utf8(&BYTES) {
        Ok(name) => name,
        Err(_) => unreachable!(),
    }
};

fn name(rng: &mut Rng) -> &'static str {
    match rng.below(60) {
        0 => LONG,
        1 => ".",
        _ => NAMES[rng.below(NAMES.len() as u64) as usize],
    }
}

fn step(rng: &mut Rng) -> Step {
    let (file, at, bytes) = (rng.next(), rng.below(3000), rng.below(2000));
    let name = name(rng);
    match rng.below(42) {
        40 | 41 => Step::ReadWhole { name },
        0..5 => Step::Open {
            name,
            options: rng.next(),
        },
        5 => Step::Close { file },
        6 => Step::Read {
            file,
            at,
            bytes: bytes as usize,
        },
        7 => Step::ReadExact {
            file,
            at,
            bytes: bytes as usize,
        },
        8..11 => Step::Write {
            file,
            at,
            bytes: bytes as usize,
            fill: rng.next() as u8,
        },
        11 => Step::SetLen { file, bytes: at },
        12 => {
            let modes = [
                AllocateMode::Extend,
                AllocateMode::KeepLength,
                AllocateMode::PunchHole,
            ];
            Step::Allocate {
                file,
                mode: modes[rng.below(3) as usize],
                at,
                bytes,
            }
        }
        13 => Step::Sync { file },
        14 => Step::Advise { file },
        15 => Step::Stat { file },
        16 => Step::StatPath { name },
        17..19 => Step::Rename {
            from: name,
            to: self::name(rng),
        },
        19 => Step::Remove { name },
        20 => Step::RemoveDir { name },
        21 | 22 => Step::MakeDir { name },
        23 => Step::List { name },
        24 => Step::SyncRange { file, at, bytes },
        25..28 => Step::CopyRange {
            file,
            at,
            into: rng.next(),
            into_at: rng.below(3000),
            bytes,
        },
        _ => step_on_names(rng, file, name),
    }
}

fn step_on_names(rng: &mut Rng, file: u64, name: &'static str) -> Step {
    match rng.below(14) {
        0 => Step::RenameNew {
            from: name,
            to: self::name(rng),
        },
        1 | 2 => Step::Exchange {
            one: name,
            other: self::name(rng),
        },
        3..6 => Step::Link {
            file: name,
            name: self::name(rng),
        },
        6 | 7 => Step::Symlink {
            target: self::name(rng),
            name,
        },
        11 => Step::CreateUnnamed { dir: name },
        12 | 13 => Step::LinkTo { file, name },
        8 => Step::ReadLink { name },
        9 => Step::StatLink { name },
        // The owner keeps all rights, because only the superuser could go on without them.
        _ => match rng.below(2) {
            0 => Step::SetPermissions {
                name,
                mode: 0o700 | rng.below(0o100) as u32,
            },
            _ => Step::SetMode {
                file,
                mode: 0o700 | rng.below(0o100) as u32,
            },
        },
    }
}

fn options(bits: u64) -> OpenOptions {
    let bit = |n: u64| bits >> n & 1 == 1;
    let mut options = OpenOptions::new();
    options
        .read(bit(0) || !bit(1))
        .write(bit(1))
        .create(bit(1) && bit(2))
        .truncate(bit(1) && bit(3));
    options.create_new(bit(1) && bit(4) && bit(5));
    if bit(6) && bit(7) {
        options.append(true).truncate(false);
    }
    options
}

/// The real or the simulated file system for a script.
struct Fixture {
    engine: Engine,
    root: PathBuf,
    files: Vec<File>,
}

fn describe<T: std::fmt::Debug>(result: std::io::Result<T>) -> String {
    match result {
        Ok(value) => format!("{value:?}"),
        Err(error) => match error.raw_os_error() {
            Some(errno) => format!("errno {errno}"),
            None => format!("{error}"),
        },
    }
}

impl Fixture {
    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn file(&self, number: u64) -> Option<&File> {
        let place = number.checked_rem(self.files.len() as u64)?;
        self.files.get(place as usize)
    }

    async fn stat(&self, name: &str) -> String {
        let stat = self.engine.metadata(self.path(name)).await;
        describe(stat.map(|stat| {
            (
                stat.kind(),
                stat.mode(),
                stat.links(),
                stat.is_file().then_some(stat.len()),
            )
        }))
    }

    async fn run(&mut self, step: &Step) -> String {
        match *step {
            Step::Open {
                name,
                options: bits,
            } => {
                let opened = self.engine.open_with(&options(bits), self.path(name)).await;
                describe(opened.map(|file| self.files.push(file)))
            }
            Step::Close { file } => {
                if self.files.is_empty() {
                    return String::new();
                }
                let file = self.files.remove((file % self.files.len() as u64) as usize);
                describe(file.close().await)
            }
            Step::StatPath { name } => self.stat(name).await,
            Step::ReadWhole { name } => describe(self.engine.read(self.path(name)).await),
            Step::Rename { from, to } => {
                describe(self.engine.rename(self.path(from), self.path(to)).await)
            }
            Step::RenameNew { from, to } => {
                let renamed = self.engine.rename_new(self.path(from), self.path(to));
                describe(renamed.await)
            }
            Step::Exchange { one, other } => {
                describe(self.engine.exchange(self.path(one), self.path(other)).await)
            }
            Step::Link { file, name } => {
                let linked = self.engine.hard_link(self.path(file), self.path(name));
                describe(linked.await)
            }
            Step::CreateUnnamed { dir } => {
                let created = self.engine.create_unnamed(self.path(dir)).await;
                describe(created.map(|file| self.files.push(file)))
            }
            Step::Symlink { target, name } => {
                describe(self.engine.symlink(target, self.path(name)).await)
            }
            Step::ReadLink { name } => describe(self.engine.read_link(self.path(name)).await),
            Step::StatLink { name } => {
                let stat = self.engine.symlink_metadata(self.path(name)).await;
                describe(stat.map(|stat| (stat.kind(), stat.mode(), stat.links())))
            }
            Step::SetPermissions { name, mode } => {
                let permissions = Permissions::from_mode(mode);
                let set = self.engine.set_permissions(self.path(name), permissions);
                describe(set.await)
            }
            Step::Remove { name } => describe(self.engine.remove_file(self.path(name)).await),
            Step::RemoveDir { name } => describe(self.engine.remove_dir(self.path(name)).await),
            Step::MakeDir { name } => describe(self.engine.create_dir(self.path(name)).await),
            Step::List { name } => {
                let listed = self.engine.read_dir(self.path(name)).await;
                describe(listed.map(|entries| {
                    let mut names: Vec<_> = entries
                        .iter()
                        .map(|entry| (entry.name().to_owned(), entry.kind()))
                        .collect();
                    names.sort_by(|one, other| one.0.cmp(&other.0));
                    names
                }))
            }
            _ => self.run_on_file(step).await.unwrap_or_default(),
        }
    }

    async fn run_on_file(&self, step: &Step) -> Option<String> {
        Some(match *step {
            Step::Read { file, at, bytes } => {
                let read = self.file(file)?.read_at(vec![0; bytes], at).await;
                describe(read.map_err(Into::into))
            }
            Step::ReadExact { file, at, bytes } => {
                let read = self.file(file)?.read_exact_at(vec![0; bytes], at).await;
                describe(read.map_err(Into::into))
            }
            Step::Write {
                file,
                at,
                bytes,
                fill,
            } => {
                let write = self.file(file)?.write_all_at(vec![fill; bytes], at).await;
                describe(write.map(|buf| buf.len()).map_err(Into::into))
            }
            Step::SetLen { file, bytes } => describe(self.file(file)?.set_len(bytes).await),
            Step::Allocate {
                file,
                mode,
                at,
                bytes,
            } => describe(self.file(file)?.allocate(mode, at, bytes).await),
            Step::Sync { file } => describe(self.file(file)?.sync_all().await),
            Step::SyncRange { file, at, bytes } => {
                let mode = SyncRangeMode::StartAndWait;
                describe(self.file(file)?.sync_range(mode, at, bytes).await)
            }
            Step::CopyRange {
                file,
                at,
                into,
                into_at,
                bytes,
            } => {
                let (from, into) = (self.file(file)?, self.file(into)?);
                describe(from.copy_range_to(at, into, into_at, bytes).await)
            }
            Step::LinkTo { file, name } => {
                describe(self.file(file)?.link_to(self.path(name)).await)
            }
            Step::SetMode { file, mode } => {
                let permissions = Permissions::from_mode(mode);
                describe(self.file(file)?.set_permissions(&permissions).await)
            }
            Step::Advise { file } => {
                describe(self.file(file)?.advise(Advice::WillNeed, 0, 0).await)
            }
            Step::Stat { file } => {
                let stat = self.file(file)?.metadata().await;
                describe(stat.map(|stat| {
                    (
                        stat.kind(),
                        stat.mode(),
                        stat.is_file().then_some((stat.len(), stat.links())),
                    )
                }))
            }
            _ => return None,
        })
    }
}

#[test]
fn the_simulated_file_system_behaves_like_linux() {
    let real = Engine::builder()
        .backend(Backend::Fallback)
        .build()
        .unwrap();
    for_each_seed(20, |seed| {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        std::fs::create_dir(&root).unwrap();
        let sim = Sim::new(SimConfig::new(seed));
        let mut linux = Fixture {
            engine: real.clone(),
            root,
            files: Vec::new(),
        };
        sim.run(async |engine| {
            engine.create_dir("/root").await.unwrap();
            let mut simulated = Fixture {
                engine,
                root: Path::new("/root").to_owned(),
                files: Vec::new(),
            };
            let mut rng = Rng::new(seed);
            for number in 0..300 {
                let step = step(&mut rng);
                let expected = pollster::block_on(linux.run(&step));
                let found = simulated.run(&step).await;
                assert_eq!(
                    found, expected,
                    "step {number}, {step:?}: simulated, and Linux's"
                );
            }
        });
        assert_eq!(sim.open_descriptors(), 0);
    });
}
