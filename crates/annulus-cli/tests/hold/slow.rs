//! Files on a file system that fails in the middle, shrinks, or does not answer.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use annulus_testing::faulty_fs::{Call, Fault, FaultyFs};
use annulus_testing::skip::skip;
use rustix::io::Errno;
use rustix::process::Signal;

use crate::command::{Running, command, folder, run, until, with_own_mounts};

const BYTES: usize = 1 << 20;
/// Blocks may be read for checks before and after a run; from the so-many-th call on it is a run's.
const CALLS: u64 = 300;

/// A file system at `fuse` with a file `data`, or a skip.
fn mounted(
    folder: &Path,
    plan: impl Fn(Call) -> Fault + Send + Sync + 'static,
) -> Option<FaultyFs> {
    let mount_point = folder.join("fuse");
    fs::create_dir_all(&mount_point).unwrap();
    match FaultyFs::mount(&mount_point, "data", vec![1; BYTES], plan) {
        Ok(mounted) => Some(mounted),
        Err(error) => {
            skip(format_args!("no FUSE file system: {error}"));
            None
        }
    }
}

fn file<'a>(args: &[&'a str]) -> Vec<&'a str> {
    let short = ["--runtime", "0.1", "--repeat", "1", "--depth", "4"];
    [&["bench", "file"], args, &short].concat()
}

#[test]
fn a_file_system_of_somebodys_own_is_measured() {
    with_own_mounts(
        "slow::a_file_system_of_somebodys_own_is_measured",
        |folder| {
            let Some(_mounted) = mounted(folder, |_| Fault::None) else {
                return;
            };
            for line in [["fuse/data", "--direct"], ["--dir=fuse", "--size=1M"]] {
                let line = file(&[line[0], line[1], "--variants", "annulus,pread,mmap"]);
                let done = run(folder, &line);
                assert_eq!(done.code, Some(0), "{line:?}: {}{}", done.out, done.err);
            }
            // A file that nobody may map.
            let line = file(&["fuse/data", "--buffered", "--variants", "pread"]);
            run(folder, &line).ends(1, "this file system does not allow mapping the file");
        },
    );
}

#[test]
fn errors_in_the_middle_are_counted_and_fail_the_run() {
    with_own_mounts(
        "slow::errors_in_the_middle_are_counted_and_fail_the_run",
        |folder| {
            let calls = AtomicU64::new(0);
            let fails = move |call| match (call, calls.fetch_add(1, SeqCst)) {
                (Call::Read { .. }, count) if count > CALLS => {
                    Fault::Error(Errno::IO.raw_os_error())
                }
                (Call::Write { .. }, count) if count > CALLS => {
                    Fault::Error(Errno::NOSPC.raw_os_error())
                }
                _ => Fault::None,
            };
            let Some(_mounted) = mounted(folder, fails) else {
                return;
            };
            let read = run(folder, &file(&["fuse/data", "--variants", "pread"]));
            read.ends(1, "results are wrong or errors; first: read at offset");
            read.ends(1, "Input/output error");
        },
    );
}

#[test]
fn a_disk_that_fills_up_while_it_is_written_to_fails_the_run() {
    with_own_mounts(
        "slow::a_disk_that_fills_up_while_it_is_written_to_fails_the_run",
        |folder| {
            let filled = AtomicU64::new(0);
            // Filling the file is one write of its length, or the few that the kernel makes of it.
            let full = move |call| match call {
                Call::Write { len, .. } if filled.fetch_add(len as u64, SeqCst) >= BYTES as u64 => {
                    Fault::Error(Errno::NOSPC.raw_os_error())
                }
                _ => Fault::None,
            };
            let Some(_mounted) = mounted(folder, full) else {
                return;
            };
            let line = file(&[
                "fuse/data",
                "--rw",
                "randwrite",
                "--overwrite",
                "--variants",
                "pread,annulus",
            ]);
            run(folder, &line).ends(1, "No space left on device");
        },
    );
}

#[test]
fn a_file_that_shrinks_fails_the_run() {
    let dir = folder();
    let path = dir.path().join("data");
    fs::write(&path, vec![1; 8 << 20]).unwrap();
    let line = [
        "bench",
        "file",
        "data",
        "--runtime",
        "1",
        "--repeat",
        "1",
        "--depth",
        "2",
        "--variants",
        "pread",
    ];
    let running = Running::start(command(dir.path(), &line));
    until("a run began", || running.has_thread("run"));
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.set_len(4096).unwrap();
    let output = running.end();
    output.ends(1, "FAILED: ");
    output.ends(1, "bytes instead of 4096");
}

/// Holds every read from [`PausedReads::from_now_on`] on until it is dropped, which a test that fails does, too: a
/// process does not end, not even killed, as long as one of its reads is with the file system.
struct PausedReads<'a>(&'a Reads);

#[derive(Default)]
struct Reads {
    calls: AtomicU64,
    paused: AtomicU64,
    hold: AtomicBool,
}

impl Reads {
    fn one(&self) {
        self.calls.fetch_add(1, SeqCst);
        if self.hold.load(SeqCst) {
            self.paused.fetch_add(1, SeqCst);
        }
        while self.hold.load(SeqCst) {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl PausedReads<'_> {
    fn from_now_on(reads: &Reads) -> PausedReads<'_> {
        reads.hold.store(true, SeqCst);
        PausedReads(reads)
    }
}

impl Drop for PausedReads<'_> {
    fn drop(&mut self) {
        self.0.hold.store(false, SeqCst);
    }
}

#[test]
fn a_variant_that_does_not_come_back_is_given_up_after_a_signal() {
    let test = "slow::a_variant_that_does_not_come_back_is_given_up_after_a_signal";
    with_own_mounts(test, |folder| {
        let reads = Arc::new(Reads::default());
        let plan = {
            let reads = Arc::clone(&reads);
            move |_| {
                reads.one();
                Fault::None
            }
        };
        let Some(_mounted) = mounted(folder, plan) else {
            return;
        };
        let line = [
            "bench",
            "file",
            "fuse/data",
            "--runtime",
            "3600",
            // With this one, the first run that counts is that of `pread`.
            "--seed",
            "2",
            "--repeat",
            "1",
            "--depth",
            "2",
            "--variants",
            "pread",
        ];
        let mut running = Running::start(command(folder, &line));
        until("a run began", || running.has_thread("run pread"));
        let before = reads.calls.load(SeqCst);
        until("reads arrive", || reads.calls.load(SeqCst) > before + CALLS);
        let paused = PausedReads::from_now_on(&reads);
        // Without one the run could still end in order.
        until("a read is held", || reads.paused.load(SeqCst) > 0);
        running.send(Signal::INT);
        running.says("abandoned: it took more than 5 s");
        drop(paused);
        assert_eq!(running.end().code, Some(130));
    });
}
