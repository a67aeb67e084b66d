//! Files on a failing file system: its errors are returned to the caller, once, on every backend.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::future::Future;
use std::io::{self, Write};
use std::path::Path;
use std::pin::Pin;
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex};
use std::task::Poll;
use std::time::Duration;

use annulus::engine::SetupMode;
use annulus::fs::FileKind;
use annulus::{Backend, Engine, File, OpenOptions};
use annulus_testing::child_process::in_child;
use annulus_testing::faulty_fs::{Call, Fault, FaultyFs};
use annulus_testing::skip::{root_or_skip, skip};

const NAME: &str = "file";
const BYTES: usize = 64 << 10;
/// Typical errors of a disk, a quota, a network or a file system.
const ERRNOS: [i32; 6] = [
    libc::EIO,
    libc::ENOSPC,
    libc::EDQUOT,
    libc::ETIMEDOUT,
    libc::EROFS,
    libc::ESTALE,
];
const BACKENDS: [(Backend, SetupMode); 4] = [
    (Backend::Uring, SetupMode::Deferred),
    (Backend::Uring, SetupMode::Cooperative),
    (Backend::Uring, SetupMode::Plain),
    (Backend::Fallback, SetupMode::Plain),
];

/// The next faults, and the calls so far.
#[derive(Clone, Default)]
struct Script(Arc<Mutex<Lines>>);

struct Lines {
    next: VecDeque<Fault>,
    then: Fault,
    calls: Vec<Call>,
}

impl Default for Lines {
    fn default() -> Lines {
        Lines {
            next: VecDeque::new(),
            then: Fault::None,
            calls: Vec::new(),
        }
    }
}

impl Script {
    fn fault(&self, call: Call) -> Fault {
        let mut lines = self.0.lock().unwrap();
        lines.calls.push(call);
        lines.next.pop_front().unwrap_or(lines.then)
    }

    /// Sets the faults of the next calls, one per call; later calls succeed.
    fn set(&self, faults: &[Fault]) {
        self.set_then(faults, Fault::None);
    }

    /// Sets the faults of the next calls, one per call, and the fault of all later ones.
    fn set_then(&self, faults: &[Fault], then: Fault) {
        *self.0.lock().unwrap() = Lines {
            next: faults.iter().copied().collect(),
            then,
            calls: Vec::new(),
        };
    }

    /// Returns the calls since the faults were set. Every fault must have been used.
    #[track_caller]
    fn calls(&self) -> Vec<Call> {
        let lines = self.0.lock().unwrap();
        assert!(
            lines.next.is_empty(),
            "faults that were not used: {:?}",
            lines.next
        );
        lines.calls.clone()
    }
}

fn pattern(at: usize) -> u8 {
    (at / 7 % 251) as u8
}

fn contents() -> Vec<u8> {
    (0..BYTES).map(pattern).collect()
}

/// Enters a mount namespace of this process. Mounts in it are invisible outside, and end with the process.
fn in_own_mounts() -> Result<(), String> {
    // SAFETY: only a number is passed; this thread and those it starts get separate mounts.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return Err(format!("unshare: {}", io::Error::last_os_error()));
    }
    let made = Command::new("mount")
        .args(["--make-rprivate", "/"])
        .status();
    match made {
        Ok(status) if status.success() => Ok(()),
        other => Err(format!("mount --make-rprivate /: {other:?}")),
    }
}

/// Runs `body` on every backend, each with a separate file system.
fn on_every_backend(test: &str, body: impl AsyncFn(&File, &Script)) {
    on(&BACKENDS, test, body);
}

fn on(backends: &[(Backend, SetupMode)], test: &str, body: impl AsyncFn(&File, &Script)) {
    if !root_or_skip("mounting a file system") {
        return;
    }
    in_child(test, || {
        if let Err(why) = in_own_mounts() {
            return skip(format_args!("no mounts of our own: {why}"));
        }
        let folder = tempfile::tempdir().unwrap();
        for &(backend, setup_mode) in backends {
            let engine = match Engine::builder()
                .backend(backend)
                .setup_mode(setup_mode)
                .build()
            {
                Ok(engine) => engine,
                Err(error) if error.allows_fallback() => {
                    skip(format_args!("{setup_mode:?}: {error}"));
                    continue;
                }
                Err(error) => panic!("{setup_mode:?}: {error}"),
            };
            println!("{}", engine.backend());
            let script = Script::default();
            let plan = script.clone();
            let mounted = FaultyFs::mount(folder.path(), NAME, contents(), move |call| {
                plan.fault(call)
            });
            let _mounted = match mounted {
                Ok(mounted) => mounted,
                Err(error) => return skip(format_args!("no FUSE file system: {error}")),
            };
            pollster::block_on(async {
                let file = open(&engine, folder.path()).await;
                body(&file, &script).await;
            });
        }
    });
}

async fn open(engine: &Engine, folder: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    engine.open_with(&options, folder.join(NAME)).await.unwrap()
}

#[test]
fn every_error_of_the_file_system_is_returned_once() {
    let test = "fuse::every_error_of_the_file_system_is_returned_once";
    on_every_backend(test, async |file, script| {
        for errno in ERRNOS {
            let fails = [Fault::Error(errno)];
            let is = |error: &io::Error| error.raw_os_error() == Some(errno);
            let read = |len| Call::Read { offset: 4096, len };
            let write = |len| Call::Write { offset: 8192, len };

            script.set(&fails);
            let error = file.read_at(vec![1; 4096], 4096).await.unwrap_err();
            assert!(is(error.error()), "{errno}: {error}");
            assert_eq!(error.into_buf().unwrap().len(), 4096);
            let (n, _) = file.read_at(vec![0; 4096], 4096).await.unwrap();
            assert_eq!((n, script.calls()), (4096, vec![read(4096); 2]));

            script.set(&fails);
            let error = file.read_exact_at(vec![1; 512], 4096).await.unwrap_err();
            assert!(is(error.error()), "{errno}: {error}");
            assert_eq!(script.calls(), [read(512)]);

            script.set(&fails);
            let bytes: Vec<u8> = (8192..12288).map(pattern).collect();
            let error = file.write_at(bytes, 8192).await.unwrap_err();
            assert!(is(error.error()), "{errno}: {error}");
            let bytes = error.into_buf().unwrap();
            let (n, bytes) = file.write_at(bytes, 8192).await.unwrap();
            assert_eq!((n, script.calls()), (4096, vec![write(4096); 2]));

            script.set(&fails);
            let error = file.write_all_at(bytes, 8192).await.unwrap_err();
            assert!(is(error.error()), "{errno}: {error}");
            assert_eq!(script.calls(), [write(4096)]);

            for data in [false, true] {
                script.set(&fails);
                let sync = async || match data {
                    true => file.sync_data().await,
                    false => file.sync_all().await,
                };
                let error = sync().await.unwrap_err();
                assert!(is(&error), "{errno}: {error}");
                sync().await.unwrap();
                assert_eq!(script.calls(), [Call::Fsync; 2]);
            }
        }
    });
}

// `read(2)` does not report an error that follows some bytes; the next call reports it if it still holds. So the file
// system in this test continues to fail.
#[test]
fn an_error_after_a_short_transfer_is_not_lost() {
    let test = "fuse::an_error_after_a_short_transfer_is_not_lost";
    on_every_backend(test, async |file, script| {
        script.set_then(&[Fault::Short(1000)], Fault::Error(libc::EIO));
        let error = file.read_exact_at(vec![0; 4096], 0).await.unwrap_err();
        assert_eq!(error.error().raw_os_error(), Some(libc::EIO));
        assert!(error.into_buf().unwrap()[..1000] == contents()[..1000]);

        script.set_then(&[Fault::Short(1000)], Fault::Error(libc::ENOSPC));
        let bytes = contents()[..4096].to_vec();
        let error = file.write_all_at(bytes, 0).await.unwrap_err();
        assert_eq!(error.error().raw_os_error(), Some(libc::ENOSPC));

        script.set(&[]);
        let bytes = error.into_buf().unwrap();
        file.write_all_at(bytes, 0).await.unwrap();
        let read = file.read_exact_at(vec![0; 4096], 0).await.unwrap();
        assert!(read == contents()[..4096]);
    });
}

// A ring's own short transfers are tested on the simulated kernel, because files of FUSE are not sent to rings.
#[test]
fn short_transfers_are_completed_if_the_whole_range_is_requested() {
    let test = "fuse::short_transfers_are_completed_if_the_whole_range_is_requested";
    on_every_backend(test, async |file, script| {
        let short = [Fault::Short(1000), Fault::Short(1), Fault::Short(4096)];
        script.set(&short[..1]);
        let (n, read) = file.read_at(vec![0; 4096], 100).await.unwrap();
        assert_eq!((n, script.calls().len()), (1000, 1));
        assert!(read[..n] == contents()[100..1100]);

        script.set(&short);
        let read = file.read_exact_at(vec![0; 8192], 100).await.unwrap();
        assert!(read == contents()[100..8292]);
        let rest = |offset, len| Call::Read { offset, len };
        let expected = [
            rest(100, 8192),
            rest(1100, 7192),
            rest(1101, 7191),
            rest(5197, 3095),
        ];
        assert_eq!(script.calls(), expected);

        script.set(&short[..1]);
        let (n, _) = file.write_at(vec![7; 4096], 20_000).await.unwrap();
        assert_eq!((n, script.calls().len()), (1000, 1));

        script.set(&short);
        file.write_all_at(vec![9; 8192], 20_000).await.unwrap();
        assert_eq!(script.calls().len(), 4);
        script.set(&short);
        let parts = vec![vec![3; 1500], vec![4; 2500]];
        file.write_vectored_all_at(parts, 30_000).await.unwrap();
        script.set(&short[..2]);
        let parts = vec![vec![0; 1500], vec![0; 2500]];
        let parts = file.read_vectored_exact_at(parts, 30_000).await.unwrap();
        assert!(parts == [vec![3; 1500], vec![4; 2500]]);
        script.calls();
        let written = file.read_exact_at(vec![0; 8192], 20_000).await.unwrap();
        assert!(written == [9; 8192]);
    });
}

#[test]
fn an_interrupted_call_is_made_again() {
    let test = "fuse::an_interrupted_call_is_made_again";
    on_every_backend(test, async |file, script| {
        let interrupted = [Fault::Error(libc::EINTR); 3];
        script.set(&interrupted);
        let (n, read) = file.read_at(vec![0; 4096], 0).await.unwrap();
        assert!(n == 4096 && read == contents()[..4096]);
        assert_eq!(script.calls().len(), 4);
        script.set(&interrupted);
        file.write_all_at(read, 0).await.unwrap();
        assert_eq!(script.calls().len(), 4);
        script.set(&interrupted);
        file.sync_all().await.unwrap();
        assert_eq!(script.calls().len(), 4);
    });
}

#[test]
fn a_slow_call_is_waited_for() {
    let test = "fuse::a_slow_call_is_waited_for";
    on_every_backend(test, async |file, script| {
        script.set(&[Fault::Slow(Duration::from_millis(100))]);
        let slow = file.read_at(vec![0; 4096], 0).await.unwrap();
        assert!(slow == (4096, contents()[..4096].to_vec()));
        script.set(&[]);
        let next = file.read_exact_at(vec![0; 4096], 4096).await.unwrap();
        assert!(next == contents()[4096..8192]);
    });
}

/// In a ring, the kernel would read the rest at the offset of the first part, and the end would read as a full read.
#[test]
fn the_end_of_a_file_past_the_page_cache_is_a_short_read_of_the_right_bytes() {
    let test = "fuse::the_end_of_a_file_past_the_page_cache_is_a_short_read_of_the_right_bytes";
    on_every_backend(test, async |file, _script| {
        let (n, read) = file
            .read_at(vec![0; 4096], BYTES as u64 - 1000)
            .await
            .unwrap();
        assert_eq!(n, 1000);
        assert!(read[..n] == contents()[BYTES - 1000..]);
        let (n, _) = file.read_at(vec![0; 4096], BYTES as u64).await.unwrap();
        assert_eq!(n, 0);
    });
}

/// A gate that holds calls of the file system while it is closed.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<HeldCalls>, Condvar)>);

#[derive(Default)]
struct HeldCalls {
    /// The call that is held, if the gate is closed.
    call: Option<Call>,
    /// The calls that wait, or waited.
    waited: usize,
    /// The gate opened itself, because the test did not.
    late: bool,
}

impl Gate {
    fn pass(&self, call: Call) -> Fault {
        let mut held = self.0.0.lock().unwrap();
        if held.call == Some(call) {
            held.waited += 1;
            self.0.1.notify_all();
        }
        while held.call == Some(call) {
            held = self.0.1.wait(held).unwrap();
        }
        Fault::None
    }

    /// Closes the gate for `call`. It opens itself after a long time, so that a blocked caller fails the test.
    fn close(&self, call: Call) {
        let gate = self.clone();
        let mut held = self.0.0.lock().unwrap();
        (held.call, held.waited) = (Some(call), 0);
        std::thread::spawn(move || {
            let held = gate.0.0.lock().unwrap();
            let is_held = |held: &mut HeldCalls| held.call.is_some();
            let waited = gate
                .0
                .1
                .wait_timeout_while(held, Duration::from_secs(20), is_held);
            let (mut held, waited) = waited.unwrap();
            if waited.timed_out() {
                (held.call, held.late) = (None, true);
                gate.0.1.notify_all();
            }
        });
    }

    /// Waits until a call is held, and opens the gate. No caller was blocked.
    #[track_caller]
    fn open(&self) {
        let held = self.0.0.lock().unwrap();
        let is_awaited = |held: &mut HeldCalls| held.waited == 0 && !held.late;
        let mut held = self.0.1.wait_while(held, is_awaited).unwrap();
        assert!(!held.late, "a caller was blocked");
        held.call = None;
        self.0.1.notify_all();
    }
}

/// Polls a future that must not complete yet, and then uses the engine meanwhile. A task may yield a few times before
/// it submits its operation.
async fn pends<F: Future + Unpin>(engine: &Engine, mut future: F) -> F {
    for _ in 0..10 {
        let polled = std::future::poll_fn(|context| {
            Poll::Ready(Pin::new(&mut future).poll(context).is_pending())
        });
        assert!(polled.await, "the file system has not answered");
        engine.nop().await.unwrap();
    }
    future
}

/// Reads a file that hangs, and local files beside it, which share the enters of the thread's ring. The local ones are
/// read to their end meanwhile.
async fn pends_beside_others<'a>(
    engine: &'a Engine,
    path: &'a Path,
) -> Pin<Box<dyn Future<Output = Vec<u8>> + 'a>> {
    let mut local = tempfile::NamedTempFile::new().unwrap();
    local.write_all(b"local").unwrap();
    let local = local.into_temp_path();
    let read = |times| {
        let local = &local;
        async move {
            for _ in 0..times {
                assert_eq!(engine.read(local).await.unwrap(), b"local");
            }
        }
    };
    let mut others: Vec<_> = (0..8).map(|_| Some(Box::pin(read(100)))).collect();
    let mut before = Some(Box::pin(read(50)));
    let mut hangs = Box::pin(async move { engine.read(path).await.unwrap() });
    std::future::poll_fn(|context| {
        for other in others.iter_mut().chain([&mut before]) {
            if other
                .as_mut()
                .is_some_and(|read| read.as_mut().poll(context).is_ready())
            {
                *other = None;
            }
        }
        if before.is_none() {
            assert!(hangs.as_mut().poll(context).is_pending());
        }
        match others.iter().all(Option::is_none) && before.is_none() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
    pends(engine, hangs).await
}

/// The kernel has the names of the file system in its cache, but must ask the file system for every open, query of
/// attributes, and close. It is mounted over a folder of a local file system, whose files the engine has used before.
async fn hanging_calls_block_no_caller(engine: &Engine, folder: &Path) {
    let path = folder.join(NAME);
    std::fs::write(&path, b"local").unwrap();
    for _ in 0..3 {
        let file = engine.open(&path).await.unwrap();
        assert_eq!(file.metadata().await.unwrap().len(), 5);
        file.close().await.unwrap();
    }
    let gate = Gate::default();
    let passed = gate.clone();
    let mounted = FaultyFs::mount_cached(folder, NAME, contents(), move |call| passed.pass(call));
    let _mounted = match mounted {
        Ok(mounted) => mounted,
        Err(error) => return skip(format_args!("no FUSE file system: {error}")),
    };
    // Twice: the mount is unknown, then known. Then the lookup starts on it.
    for path in [&path, &path, Path::new(NAME)] {
        // Looks the name up, and invalidates the attributes.
        std::fs::write(folder.join(NAME), contents()).unwrap();
        if path == Path::new(NAME) {
            std::env::set_current_dir(folder).unwrap();
        }
        gate.close(Call::Open);
        let opening = pends(engine, engine.open(path)).await;
        gate.open();
        let file = opening.await.unwrap();
        gate.close(Call::Open);
        let reading = pends(engine, Box::pin(engine.read(path))).await;
        gate.open();
        assert!(reading.await.unwrap() == contents());
        gate.close(Call::Open);
        let reading = pends_beside_others(engine, path).await;
        gate.open();
        assert!(reading.await == contents());
        gate.close(Call::Attributes);
        let metadata = pends(engine, file.metadata()).await;
        gate.open();
        assert_eq!(metadata.await.unwrap().len(), BYTES as u64);
        gate.close(Call::Flush);
        drop(file);
        engine.nop().await.unwrap();
        gate.open();
    }
    std::env::set_current_dir("/var").unwrap();
}

#[test]
fn an_open_query_or_close_that_hangs_blocks_no_caller_although_the_name_is_cached() {
    let test =
        "fuse::an_open_query_or_close_that_hangs_blocks_no_caller_although_the_name_is_cached";
    if !root_or_skip("mounting a file system") {
        return;
    }
    in_child(test, || {
        if let Err(why) = in_own_mounts() {
            return skip(format_args!("no mounts of our own: {why}"));
        }
        for (number, (backend, setup_mode)) in BACKENDS.into_iter().enumerate() {
            for own_ring in [false, true] {
                let builder = Engine::builder().backend(backend).setup_mode(setup_mode);
                let engine = match builder.build() {
                    Ok(engine) => engine,
                    Err(error) => {
                        skip(error);
                        continue;
                    }
                };
                // A relative path starts at the working directory, an absolute one at the root.
                let folder = tempfile::tempdir_in("/var/tmp").unwrap();
                std::env::set_current_dir("/var").unwrap();
                let relative = folder.path().strip_prefix("/var").unwrap();
                let folder = [folder.path(), relative][number % 2];
                match own_ring {
                    true => match engine.current_thread_driver() {
                        Ok(driver) => {
                            driver.block_on(hanging_calls_block_no_caller(&engine, folder))
                        }
                        Err(error) => println!("{setup_mode:?}: no ring of the thread: {error}"),
                    },
                    false => pollster::block_on(hanging_calls_block_no_caller(&engine, folder)),
                }
            }
        }
    });
}

/// Mounts an ext4 without `filetype`, whose listings have no kinds.
fn mount_without_kinds(image: &Path, folder: &Path) -> Result<(), String> {
    let run = |command: &mut Command| match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        other => Err(format!("{command:?}: {other:?}")),
    };
    let made = std::fs::File::create(image).and_then(|file| file.set_len(4 << 20));
    made.map_err(|error| error.to_string())?;
    let features = ["-q", "-F", "-O", "^filetype,^has_journal"];
    run(Command::new("mkfs.ext4").args(features).arg(image))?;
    run(Command::new("mount")
        .args(["-o", "loop"])
        .args([image, folder]))
}

#[test]
fn entries_of_a_file_system_without_kinds_in_its_listings_have_those_of_lstat() {
    let test = "fuse::entries_of_a_file_system_without_kinds_in_its_listings_have_those_of_lstat";
    if !root_or_skip("mounting a file system") {
        return;
    }
    in_child(test, || {
        let (images, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mounted = in_own_mounts()
            .and_then(|()| mount_without_kinds(&images.path().join("image"), folder.path()));
        if let Err(why) = mounted {
            return skip(format_args!("no file system without kinds: {why}"));
        }
        std::fs::create_dir(folder.path().join("dir")).unwrap();
        std::fs::write(folder.path().join("file"), "").unwrap();
        std::os::unix::fs::symlink("dir", folder.path().join("link")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(folder.path().join("socket")).unwrap();
        for backend in [Backend::Uring, Backend::Fallback] {
            let engine = match Engine::builder().backend(backend).build() {
                Ok(engine) => engine,
                Err(error) if error.allows_fallback() => {
                    skip(format_args!("{backend:?}: {error}"));
                    continue;
                }
                Err(error) => panic!("{backend:?}: {error}"),
            };
            let entries =
                pollster::block_on(async { engine.read_dir(folder.path()).await }).unwrap();
            let mut kinds: Vec<_> = entries
                .iter()
                .map(|entry| (entry.name().to_str().unwrap(), entry.kind()))
                .collect();
            kinds.sort_by_key(|(name, _)| *name);
            let expected = [
                ("dir", FileKind::Dir),
                ("file", FileKind::File),
                ("link", FileKind::Symlink),
                ("lost+found", FileKind::Dir),
                ("socket", FileKind::Other),
            ];
            assert_eq!(kinds, expected, "{backend:?}");
        }
    });
}
