//! Access to the counters of another process, and the errors if that is impossible.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use annulus::fs::CachedReads;
use annulus::metrics::{self, Snapshot, snapshot};
use annulus::{Backend, Engine, OpenOptions};
use annulus_observe::snapshot_of;
use annulus_testing::child_process::{become_own_user, in_child};
use annulus_testing::skip::root_or_skip;

use crate::{count, since};

/// Indices of the header's words.
const VERSION: u64 = 1;
const NAMES: u64 = 7;

/// A process under the test's control: this test binary, started again for `the_observed_process`.
struct ObservedProcess {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// The environment variable of such a process: whether it shares its counters.
const ROLE: &str = "ANNULUS_TEST_LOOKED_AT";

impl ObservedProcess {
    fn new(shares: bool) -> ObservedProcess {
        let test = "sharing::the_observed_process";
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .env(ROLE, if shares { "shares" } else { "does not" })
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut observed = ObservedProcess {
            child,
            input,
            output,
        };
        observed.wait_for("ready");
        observed
    }

    fn wait_for(&mut self, word: &str) {
        let mut line = String::new();
        while line.trim() != word {
            line.clear();
            assert!(
                self.output.read_line(&mut line).unwrap() > 0,
                "the process has ended"
            );
        }
    }

    fn id(&self) -> u32 {
        self.child.id()
    }

    /// Makes the process read `reads` times.
    fn read(&mut self, reads: u64) {
        writeln!(self.input, "{reads}").unwrap();
        self.wait_for("done");
    }

    fn look(&self) -> Snapshot {
        snapshot_of(self.id()).unwrap()
    }

    /// Opens its memory file.
    fn file(&self) -> File {
        let [path] = &shared_files(self.id())[..] else {
            panic!("the process does not have exactly one memory file");
        };
        File::options().read(true).write(true).open(path).unwrap()
    }
}

impl Drop for ObservedProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the descriptors of a process that refer to files of counters.
pub(crate) fn shared_files(process: u32) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let named = |path: &PathBuf| {
        let target = std::fs::read_link(path).unwrap_or_default();
        target.to_string_lossy().contains("annulus-metrics")
    };
    paths.filter(named).collect()
}

/// Not a test, but the process that a test observes.
#[test]
fn the_observed_process() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    if role == "shares" {
        metrics::share().unwrap();
        metrics::share().unwrap();
    }
    let engine = Engine::new().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    std::fs::write(&path, vec![3; 4096]).unwrap();
    // The process is killed, and must leave nothing behind.
    let file = pollster::block_on(open(&engine, &path));
    drop(dir);
    println!("\nready");
    for line in std::io::stdin().lines() {
        for _ in 0..line.unwrap().parse().unwrap() {
            pollster::block_on(file.read_at(vec![0; 4096], 0)).unwrap();
        }
        println!("\ndone");
    }
}

async fn open(engine: &Engine, path: &Path) -> annulus::File {
    let mut options = OpenOptions::new();
    options.read(true).cached_reads(CachedReads::Never);
    engine.open_with(&options, path).await.unwrap()
}

#[test]
fn counters_of_another_process_are_read_and_its_operations_are_timed_from_then_on() {
    let mut observed = ObservedProcess::new(true);
    observed.read(10);
    let first = observed.look();
    assert_eq!(
        (first.process, count(&first.total(), "read_at")),
        (observed.id(), (10, 0))
    );
    let untimed = first.total();
    assert_eq!(untimed.operation("read_at").unwrap().latency.count(), 0);
    observed.read(20);
    let second = observed.look();
    let between = second.since(&first).total();
    let reads = between.operation("read_at").unwrap();
    assert_eq!((reads.completed, reads.latency.count()), (20, 20));
    assert_eq!(
        reads.queue.sum_ns() + reads.device.sum_ns(),
        reads.latency.sum_ns()
    );
    assert!(second.at_ns > first.at_ns);
    assert!(
        second
            .sources
            .iter()
            .all(|source| !source.backend.is_empty() || source.owner == 0)
    );
    assert_eq!(between.counters.in_flight, 0);
}

#[test]
fn mapped_counters_cannot_be_truncated_and_writes_to_them_do_no_harm() {
    let mut observed = ObservedProcess::new(true);
    let file = observed.file();
    let bytes = file.metadata().unwrap().len();
    assert!(file.set_len(4096).is_err());
    assert!(file.set_len(bytes + 4096).is_err());
    // Garbage in all words that have been written so far.
    let nonsense = vec![0xff; 64 << 10];
    for from in (64 << 10..2 << 20).step_by(64 << 10) {
        file.write_all_at(&nonsense, from).unwrap();
    }
    observed.read(5);
    let _ = observed.look();
}

#[test]
fn each_reason_why_a_process_cannot_be_read_has_its_own_error() {
    let fails = |process: u32| {
        let error = snapshot_of(process).unwrap_err();
        (error.kind(), error.to_string())
    };
    let mut gone = ObservedProcess::new(true);
    gone.child.kill().unwrap();
    gone.child.wait().unwrap();
    let (kind, says) = fails(gone.id());
    assert_eq!(kind, ErrorKind::NotFound);
    assert!(
        says.contains(&format!("no process {}", gone.id())),
        "{says}"
    );

    let private = ObservedProcess::new(false);
    let (kind, says) = fails(private.id());
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(says.contains("annulus::metrics::share()"), "{says}");

    for (word, expected) in [(VERSION, "layout 99"), (NAMES, "other operations")] {
        let other = ObservedProcess::new(true);
        let file = other.file();
        file.write_all_at(&99_u64.to_ne_bytes(), word * 8).unwrap();
        let (kind, says) = fails(other.id());
        assert_eq!(kind, ErrorKind::InvalidData);
        assert!(says.contains("another version of Annulus"), "{says}");
        assert!(says.contains(expected), "{says}");
    }
}

#[test]
fn the_error_for_a_process_of_another_user_names_the_permitted_users() {
    if !root_or_skip("becoming another user") {
        return;
    }
    in_child(
        "sharing::the_error_for_a_process_of_another_user_names_the_permitted_users",
        || {
            let observed = ObservedProcess::new(true);
            become_own_user();
            let error = snapshot_of(observed.id()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
            assert!(error.to_string().contains("root"), "{error}");
            // This user may not kill it either. It ends with its input, when this process ends.
            std::mem::forget(observed);
        },
    );
}

#[test]
fn a_process_that_is_killed_leaves_nothing_behind() {
    let all = || {
        let names = ["/dev/shm", "/tmp", "/run"].map(|folder| {
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
            let names = entries.map(|entry| entry.path().to_string_lossy().into_owned());
            names
                .filter(|name| name.contains("annulus-metrics"))
                .count()
        });
        names.iter().sum::<usize>()
    };
    let before = all();
    let mut observed = ObservedProcess::new(true);
    observed.read(1);
    let _ = observed.look();
    assert_eq!(all(), before, "it is a file of memory, and nowhere else");
    observed.child.kill().unwrap();
    observed.child.wait().unwrap();
    assert_eq!(all(), before);
    assert!(snapshot_of(observed.id()).is_err());
}

/// Runs `body` in a forked child, which ends without running anything else.
pub(crate) fn forked(body: impl FnOnce()) -> libc::pid_t {
    // SAFETY: only the calling thread matters to the child, which ends without running anything else.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        body();
        // SAFETY: ends the child without running any code of the parent.
        unsafe { libc::_exit(0) };
    }
    assert!(pid > 0, "{}", std::io::Error::last_os_error());
    pid
}

#[test]
fn a_forked_child_counts_for_itself_and_an_executed_program_inherits_nothing() {
    in_child(
        "sharing::a_forked_child_counts_for_itself_and_an_executed_program_inherits_nothing",
        || {
            metrics::share().unwrap();
            let engine = Engine::builder()
                .backend(Backend::Fallback)
                .build()
                .unwrap();
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("data");
            std::fs::write(&path, vec![3; 4096]).unwrap();
            let file = pollster::block_on(engine.open(&path)).unwrap();
            let before = snapshot();
            pollster::block_on(file.read_at(vec![0; 16], 0)).unwrap();
            // Read from the page cache, in both processes.
            let pid = forked(|| {
                for _ in 0..50 {
                    let _ = pollster::block_on(file.read_at(vec![0; 16], 0));
                }
                // SAFETY: waits for a signal.
                unsafe { libc::pause() };
            });
            std::thread::sleep(std::time::Duration::from_millis(100));
            assert_eq!(count(&since(&before).total(), "read_at").0, 1);
            let error = snapshot_of(pid as u32).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            // SAFETY: a child of this process, not waited for yet.
            unsafe {
                libc::kill(pid, libc::SIGKILL);
                libc::waitpid(pid, std::ptr::null_mut(), 0);
            }
            let mut executed = Command::new("sleep").arg("60").spawn().unwrap();
            assert_eq!(shared_files(executed.id()), [] as [PathBuf; 0]);
            executed.kill().unwrap();
            executed.wait().unwrap();
            assert_eq!(shared_files(std::process::id()).len(), 1);
        },
    );
}

#[test]
fn a_process_that_never_shares_has_no_descriptor_for_it() {
    // A reader of another process has its file open for a moment, as other tests do.
    in_child(
        "sharing::a_process_that_never_shares_has_no_descriptor_for_it",
        || {
            let _engine = Engine::new().unwrap();
            let _watch = metrics::watch();
            let _ = snapshot();
            assert_eq!(shared_files(std::process::id()), [] as [PathBuf; 0]);
        },
    );
}
