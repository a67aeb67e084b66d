//! The simulated file system behaves like Linux: the same random script on both, compared step by
//! step.
//!
//! Differences between Linux's file systems are left out: the maximum length of a file, the order
//! of a listing, the sizes of directories.

use std::ffi::OsString;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use annulus::fs::{Advice, AllocateMode, Dir, FileTimes, OpPath, PathIn, SyncRangeMode};
use annulus::sim::{Sim, SimConfig};
use annulus::support::{KernelVersion, Support};
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
    SetTimes {
        name: &'static str,
        accessed: Option<u64>,
        modified: Option<u64>,
    },
    SetFileTimes {
        file: u64,
        modified: u64,
    },
    GetXattr {
        name: &'static str,
        attribute: &'static str,
    },
    SetXattr {
        name: &'static str,
        attribute: &'static str,
        bytes: usize,
    },
    ListXattrs {
        name: &'static str,
    },
    RemoveXattr {
        name: &'static str,
        attribute: &'static str,
    },
    Canonicalize {
        name: &'static str,
    },
    RemoveAll {
        name: &'static str,
    },
    OpenDir {
        name: &'static str,
    },
    CloseDir {
        dir: u64,
    },
    /// An operation on a path in an open directory.
    In {
        dir: u64,
        name: &'static str,
        other: &'static str,
        action: u64,
        bits: u64,
    },
    Copy {
        from: &'static str,
        to: &'static str,
    },
    FileXattrs {
        file: u64,
        attribute: &'static str,
        bytes: usize,
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
    match rng.below(60) {
        58 | 59 => Step::ReadWhole { name },
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
        choice => further_step(rng, choice, file, (at, bytes), name),
    }
}

fn further_step(
    rng: &mut Rng,
    choice: u64,
    file: u64,
    (at, bytes): (u64, u64),
    name: &'static str,
) -> Step {
    match choice {
        24 => Step::SyncRange { file, at, bytes },
        25..28 => Step::CopyRange {
            file,
            at,
            into: rng.next(),
            into_at: rng.below(3000),
            bytes,
        },
        34 | 35 => Step::Copy {
            from: name,
            to: self::name(rng),
        },
        36 => Step::OpenDir { name },
        43 => Step::Canonicalize { name },
        // Names that are below the root, whatever links there are.
        44 => Step::RemoveAll {
            name: ["a", "b", "d", "e"][rng.below(4) as usize],
        },
        37 if rng.below(2) == 0 => Step::CloseDir { dir: file },
        37..43 => Step::In {
            dir: file,
            name,
            other: self::name(rng),
            action: rng.below(12),
            bits: rng.next(),
        },
        28..34 => step_on_attributes(rng, file, name),
        _ => step_on_names(rng, file, name),
    }
}

/// The last two are refused.
const ATTRIBUTES: [&str; 5] = ["user.a", "user.b", "user.c", "user.", ""];

/// The names of extended attributes, and some that the kernel refuses.
fn attribute(rng: &mut Rng) -> &'static str {
    ATTRIBUTES[rng.below(ATTRIBUTES.len() as u64) as usize]
}

impl Step {
    fn has_empty_attribute(&self) -> bool {
        let (Step::GetXattr { attribute, .. }
        | Step::SetXattr { attribute, .. }
        | Step::RemoveXattr { attribute, .. }) = self
        else {
            return false;
        };
        attribute.is_empty()
    }
}

fn step_on_attributes(rng: &mut Rng, file: u64, name: &'static str) -> Step {
    let attribute = attribute(rng);
    // The attributes of a file fit into a block of ext4, and some do not fit into the library's first buffer.
    let bytes = rng.below(600) as usize;
    let mut time = || (rng.below(3) > 0).then(|| rng.below(2_000_000_000));
    match (time(), time()) {
        (accessed, modified) if rng.below(4) == 0 => Step::SetTimes {
            name,
            accessed,
            modified,
        },
        (_, Some(modified)) if rng.below(4) == 0 => Step::SetFileTimes { file, modified },
        _ => match rng.below(6) {
            0 => Step::GetXattr { name, attribute },
            1 => Step::ListXattrs { name },
            2 => Step::RemoveXattr { name, attribute },
            3 => Step::FileXattrs {
                file,
                attribute,
                bytes,
            },
            _ => Step::SetXattr {
                name,
                attribute,
                bytes,
            },
        },
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
    /// The root directory as far as the test is concerned.
    top: PathBuf,
    /// The directory of the script, below others, because links may lead above it.
    root: PathBuf,
    files: Vec<File>,
    dirs: Vec<Dir>,
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

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::new(seconds, (seconds % 1_000_000_000) as u32)
}

/// Returns the attributes of users, sorted: a security module may add others.
fn of_users(names: Vec<OsString>) -> Vec<OsString> {
    let mut names = names;
    names.retain(|name| name.to_string_lossy().starts_with("user."));
    names.sort();
    names
}

impl Fixture {
    async fn new(engine: Engine, top: &Path) -> Fixture {
        let root = top.join("above/it/root");
        engine.create_dir_all(&root).await.unwrap();
        Fixture {
            engine,
            top: top.to_owned(),
            root,
            files: Vec::new(),
            dirs: Vec::new(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn file(&self, number: u64) -> Option<&File> {
        let place = number.checked_rem(self.files.len() as u64)?;
        self.files.get(place as usize)
    }

    fn dir(&self, number: u64) -> Option<&Dir> {
        let place = number.checked_rem(self.dirs.len() as u64)?;
        self.dirs.get(place as usize)
    }

    async fn stat(&self, path: impl OpPath) -> String {
        let stat = self.engine.metadata(path).await;
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
            Step::StatPath { name } => self.stat(self.path(name)).await,
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
            Step::List { name } => self.list(self.path(name)).await,
            Step::Copy { .. }
            | Step::Canonicalize { .. }
            | Step::RemoveAll { .. }
            | Step::OpenDir { .. }
            | Step::CloseDir { .. }
            | Step::In { .. } => self.run_on_trees(step).await,
            Step::SetTimes { .. }
            | Step::GetXattr { .. }
            | Step::SetXattr { .. }
            | Step::ListXattrs { .. }
            | Step::RemoveXattr { .. } => self.run_on_attributes(step).await,
            _ => self.run_on_file(step).await.unwrap_or_default(),
        }
    }

    async fn run_on_trees(&mut self, step: &Step) -> String {
        match *step {
            Step::Copy { from, to } => {
                let copied = self.engine.copy(self.path(from), self.path(to)).await;
                // Messages of the library name the path.
                let is_os = |error: &std::io::Error| error.raw_os_error().is_some();
                match copied {
                    Err(error) if !is_os(&error) => format!("{:?}", error.kind()),
                    copied => describe(copied),
                }
            }
            Step::Canonicalize { name } => {
                let found = self.engine.canonicalize(self.path(name)).await;
                describe(found.map(|found| found.strip_prefix(&self.top).map(Path::to_owned)))
            }
            Step::RemoveAll { name } => describe(self.engine.remove_dir_all(self.path(name)).await),
            Step::OpenDir { name } => {
                let opened = self.engine.open_dir(self.path(name)).await;
                describe(opened.map(|dir| self.dirs.push(dir)))
            }
            Step::CloseDir { dir } => {
                if !self.dirs.is_empty() {
                    self.dirs.remove((dir % self.dirs.len() as u64) as usize);
                }
                String::new()
            }
            Step::In {
                dir,
                name,
                other,
                action,
                bits,
            } => {
                let Some(dir) = self.dir(dir).cloned() else {
                    return String::new();
                };
                self.run_in(dir.at(name), other, action, bits).await
            }
            _ => unreachable!("not on trees"),
        }
    }

    async fn list(&self, path: impl OpPath) -> String {
        let listed = self.engine.read_dir(path).await;
        describe(listed.map(|entries| {
            let mut names: Vec<_> = entries
                .iter()
                .map(|entry| (entry.name().to_owned(), entry.kind()))
                .collect();
            names.sort_by(|one, other| one.0.cmp(&other.0));
            names
        }))
    }

    async fn run_in(&mut self, path: PathIn<'_>, other: &str, action: u64, bits: u64) -> String {
        let engine = self.engine.clone();
        match action {
            0 => self.stat(path).await,
            1 => describe(engine.create_dir(path).await),
            2 => describe(engine.remove_file(path).await),
            3 => describe(engine.remove_dir(path).await),
            4 => describe(engine.rename(path, self.path(other)).await),
            5 => describe(engine.rename(self.path(other), path).await),
            6 => describe(engine.hard_link(path, self.path(other)).await),
            7 => describe(engine.symlink(other, path).await),
            8 => describe(engine.read_link(path).await),
            9 => self.list(path).await,
            10 => {
                let permissions = Permissions::from_mode(0o700 | bits as u32 & 0o77);
                describe(engine.set_permissions(path, permissions).await)
            }
            _ => {
                let mut options = options(bits);
                let opened = engine.open_with(options.beneath(bits & 0x300 != 0), path);
                describe(opened.await.map(|file| self.files.push(file)))
            }
        }
    }

    async fn run_on_attributes(&self, step: &Step) -> String {
        let engine = &self.engine;
        match *step {
            Step::SetTimes {
                name,
                accessed,
                modified,
            } => {
                let mut times = FileTimes::new();
                times = accessed.map_or(times, |time| times.set_accessed(at(time)));
                times = modified.map_or(times, |time| times.set_modified(at(time)));
                let set = engine.set_times(self.path(name), times).await;
                let stat = engine.metadata(self.path(name)).await.ok();
                let accessed = accessed.and(stat.as_ref()).map(|stat| stat.accessed());
                let modified = modified.and(stat.as_ref()).map(|stat| stat.modified());
                format!("{} {accessed:?} {modified:?}", describe(set))
            }
            Step::GetXattr { name, attribute } => {
                describe(engine.get_xattr(self.path(name), attribute).await)
            }
            Step::SetXattr {
                name,
                attribute,
                bytes,
            } => {
                let value = vec![b'v'; bytes];
                describe(engine.set_xattr(self.path(name), attribute, value).await)
            }
            Step::RemoveXattr { name, attribute } => {
                describe(engine.remove_xattr(self.path(name), attribute).await)
            }
            Step::ListXattrs { name } => {
                describe(engine.list_xattrs(self.path(name)).await.map(of_users))
            }
            _ => unreachable!("not on attributes"),
        }
    }

    async fn run_on_file_attributes(&self, step: &Step) -> Option<String> {
        Some(match *step {
            Step::SetFileTimes { file, modified } => {
                let (file, times) = (self.file(file)?, FileTimes::new());
                let set = file.set_times(times.set_modified(at(modified))).await;
                let stat = file.metadata().await;
                format!(
                    "{} {}",
                    describe(set),
                    describe(stat.map(|stat| stat.modified()))
                )
            }
            Step::FileXattrs {
                file,
                attribute,
                bytes,
            } => {
                let file = self.file(file)?;
                let removed = file.remove_xattr(attribute).await;
                let set = file.set_xattr(attribute, vec![b'f'; bytes]).await;
                let value = file.get_xattr(attribute).await;
                let listed = file.list_xattrs().await.map(of_users);
                [
                    describe(removed),
                    describe(set),
                    describe(value),
                    describe(listed),
                ]
                .join(", ")
            }
            _ => return None,
        })
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
            } => describe(self.file(file)?.allocate(at, bytes, mode).await),
            Step::Sync { file } => describe(self.file(file)?.sync_all().await),
            Step::SyncRange { file, at, bytes } => {
                let mode = SyncRangeMode::StartAndWait;
                describe(self.file(file)?.sync_range(at, bytes, mode).await)
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
                describe(self.file(file)?.set_permissions(permissions).await)
            }
            Step::SetFileTimes { .. } | Step::FileXattrs { .. } => {
                self.run_on_file_attributes(step).await?
            }
            Step::Advise { file } => {
                describe(self.file(file)?.advise(0, 0, Advice::WillNeed).await)
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
    // Before Linux 6.13 the lookup of the path came before the name of the attribute.
    let looks_up_first = Support::detect().kernel_version() < KernelVersion::new(6, 13);
    for_each_seed(20, |seed| {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        let sim = Sim::new(SimConfig::new(seed));
        sim.run(async |engine| {
            let mut linux = pollster::block_on(Fixture::new(real.clone(), &top));
            let mut simulated = Fixture::new(engine, Path::new("/")).await;
            let mut rng = Rng::new(seed);
            for number in 0..300 {
                let step = step(&mut rng);
                let expected = pollster::block_on(linux.run(&step));
                let found = simulated.run(&step).await;
                let other_error = expected.starts_with("errno ") && found == "errno 34";
                if looks_up_first && other_error && step.has_empty_attribute() {
                    continue;
                }
                assert_eq!(
                    found, expected,
                    "step {number}, {step:?}: simulated, and Linux's"
                );
            }
        });
        assert_eq!(sim.open_descriptors(), 0);
    });
}
