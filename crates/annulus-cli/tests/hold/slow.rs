//! Files on a file system that fails during a run or does not respond, and a file that shrinks.

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
/// The number of calls after which calls belong to a run: earlier ones may be checks before it.
const CALLS: u64 = 300;

/// Mounts a file system at `fuse` with a file `data`. Returns `None` if that is not possible here.
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
fn a_fuse_file_system_is_measured() {
    with_own_mounts("slow::a_fuse_file_system_is_measured", |folder| {
        let Some(_mounted) = mounted(folder, |_| Fault::None) else {
            return;
        };
        for line in [["fuse/data", "--direct"], ["--dir=fuse", "--size=1M"]] {
            let line = file(&[line[0], line[1], "--variants", "annulus,pread,mmap"]);
            let done = run(folder, &line);
            assert_eq!(done.code, Some(0), "{line:?}: {}{}", done.out, done.err);
        }
        // A file that cannot be mapped.
        let line = file(&["fuse/data", "--buffered", "--variants", "pread"]);
        run(folder, &line).ends(1, "this file system does not allow mapping the file");
    });
}

#[test]
fn errors_during_a_run_are_counted_and_fail_it() {
    with_own_mounts(
        "slow::errors_during_a_run_are_counted_and_fail_it",
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
fn a_disk_that_fills_up_during_a_run_fails_it() {
    with_own_mounts(
        "slow::a_disk_that_fills_up_during_a_run_fails_it",
        |folder| {
            let filled = AtomicU64::new(0);
            // The file is filled by one write of its length, which the kernel may split.
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

/// Pauses all reads until it is dropped, also by a failing test: a process does not end, even when killed, while one of
/// its reads is in the file system.
struct PausedReads<'a>(&'a Reads);

#[derive(Default)]
struct Reads {
    calls: AtomicU64,
    paused: AtomicU64,
    pause: AtomicBool,
}

impl Reads {
    fn count(&self) {
        self.calls.fetch_add(1, SeqCst);
        if self.pause.load(SeqCst) {
            self.paused.fetch_add(1, SeqCst);
        }
        while self.pause.load(SeqCst) {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl PausedReads<'_> {
    fn from_now_on(reads: &Reads) -> PausedReads<'_> {
        reads.pause.store(true, SeqCst);
        PausedReads(reads)
    }
}

impl Drop for PausedReads<'_> {
    fn drop(&mut self) {
        self.0.pause.store(false, SeqCst);
    }
}

#[test]
fn a_variant_that_does_not_return_is_abandoned_after_a_signal() {
    let test = "slow::a_variant_that_does_not_return_is_abandoned_after_a_signal";
    with_own_mounts(test, |folder| {
        let reads = Arc::new(Reads::default());
        let plan = {
            let reads = Arc::clone(&reads);
            move |_| {
                reads.count();
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
            // With this seed, the first measured run is of `pread`.
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
        // Without a paused read the run could end normally.
        until("a read is paused", || reads.paused.load(SeqCst) > 0);
        running.send(Signal::INT);
        running.wait_for_output("abandoned: it took more than 5 s");
        drop(paused);
        assert_eq!(running.end().code, Some(130));
    });
}
