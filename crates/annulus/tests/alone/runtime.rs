//! The effects of a runtime on its process and the machine: an idle runtime does nothing, one that has ended leaves
//! nothing behind, and one that gets no ring or thread reports that.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};
use std::{fs, thread};

use annulus::Backend;
use annulus::BackendInUse;
use annulus::OpenOptions;
use annulus::fs::CachedReads;
use annulus::net::TcpListener;
use annulus::runtime::{self, CoreInfo, Handle, Runtime, RuntimeBuilder};
use annulus_testing::child_process::{become_own_user, in_child};
use annulus_testing::skip::{root_or_skip, skip};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

/// The time for which an idle runtime is observed.
const LOOK: Duration = Duration::from_secs(2);
/// The time limit for a runtime to become idle.
const DEADLINE: Duration = Duration::from_secs(40);

fn each_way(test: impl Fn(RuntimeBuilder)) {
    for backend in [Backend::Uring, Backend::Fallback] {
        let builder = Runtime::builder().backend(backend).cores(2);
        match builder.clone().block_on(async {}) {
            Ok(()) => test(builder),
            Err(error) => skip(format_args!("{backend:?}: {error}")),
        }
    }
}

/// Runs a server on all cores, on a separate thread, while `act` runs with its handle and its address.
fn serving<T>(builder: RuntimeBuilder, act: impl FnOnce(&Handle, SocketAddr) -> T) -> T {
    let first = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = first.local_addr().unwrap();
    let first = Arc::new(Mutex::new(Some(first)));
    let (sender, receiver) = mpsc::channel();
    let server = thread::spawn(move || {
        builder.run(move |core| {
            if core.index() == 0 {
                sender.send(runtime::handle()).unwrap();
            }
            serve(core, Arc::clone(&first))
        })
    });
    let handle = receiver.recv().unwrap();
    let value = act(&handle, address);
    handle.shutdown();
    server.join().unwrap().unwrap();
    value
}

/// An echo server; core 0 has the listener, and does not share its connections.
async fn serve(core: CoreInfo, first: Arc<Mutex<Option<std::net::TcpListener>>>) -> io::Result<()> {
    let listener = match core.index() {
        0 => TcpListener::from_std(first.lock().unwrap().take().unwrap())?,
        _ => TcpListener::bind("127.0.0.1:0")?,
    };
    let mut incoming = listener.accept_multishot();
    while let Some(stream) = incoming.next().await {
        let stream = stream?;
        runtime::spawn(async move {
            let mut chunks = stream.recv_multishot();
            while let Some(Ok(chunk)) = chunks.next().await {
                stream.send_all(chunk).await.unwrap();
            }
        });
    }
    Ok(())
}

fn ask(stream: &mut TcpStream) {
    stream.write_all(b"hello").unwrap();
    let mut result = [0; 5];
    stream.read_exact(&mut result).unwrap();
    assert_eq!(&result, b"hello");
}

/// Returns the context switches and processor ticks of all other threads of this process.
fn others() -> BTreeMap<u32, (u64, u64)> {
    let me = fs::read_link("/proc/thread-self").unwrap();
    let me: u32 = me.file_name().unwrap().to_str().unwrap().parse().unwrap();
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let ids = tasks.map(|task| task.unwrap().file_name().to_str().unwrap().parse().unwrap());
    ids.filter(|&id| id != me)
        .filter_map(|id: u32| {
            let status = fs::read_to_string(format!("/proc/self/task/{id}/status")).ok()?;
            let switches = status.lines().filter(|line| line.contains("ctxt_switches"));
            let switches = switches.map(|line| line.rsplit('\t').next().unwrap());
            let switches = switches.map(|count| count.parse::<u64>().unwrap()).sum();
            let stat = fs::read_to_string(format!("/proc/self/task/{id}/stat")).ok()?;
            let (_, rest) = stat.rsplit_once(')')?;
            let ticks = rest.split_whitespace().skip(11).take(2);
            let ticks = ticks.map(|ticks| ticks.parse::<u64>().unwrap()).sum();
            Some((id, (switches, ticks)))
        })
        .collect()
}

/// Returns the minimum number of tasks of the whole machine that count as waiting for a disk, over many samples.
fn fewest_blocked(look: Duration) -> u64 {
    let until = Instant::now() + look;
    let mut fewest = u64::MAX;
    while Instant::now() < until {
        let stat = fs::read_to_string("/proc/stat").unwrap();
        let line = stat
            .lines()
            .find_map(|line| line.strip_prefix("procs_blocked "));
        fewest = fewest.min(line.unwrap().parse().unwrap());
        thread::sleep(Duration::from_millis(10));
    }
    fewest
}

#[test]
fn an_idle_runtime_with_a_hundred_connections_does_nothing_at_all() {
    in_child(
        "runtime::an_idle_runtime_with_a_hundred_connections_does_nothing_at_all",
        || {
            let blocked_before = fewest_blocked(Duration::from_millis(500));
            each_way(|builder| {
                serving(builder, |handle, address| {
                    let mut streams: Vec<_> = (0..100)
                        .map(|_| TcpStream::connect(address).unwrap())
                        .collect();
                    streams.iter_mut().for_each(ask);
                    let until = Instant::now() + DEADLINE;
                    loop {
                        let before = (others(), handle.metrics(0), handle.metrics(1));
                        let blocked = fewest_blocked(LOOK);
                        let after = (others(), handle.metrics(0), handle.metrics(1));
                        // Two cores that sleep as if for a disk would be visible in every sample. Other programs may
                        // wait for the disk in some.
                        let for_disk = kernel_at_least(6, 15) && blocked >= blocked_before + 2;
                        if before == after && !for_disk {
                            println!("asleep for {LOOK:?}: {after:?}");
                            break;
                        }
                        assert!(
                            Instant::now() < until,
                            "{before:?}, then {after:?}; {blocked} tasks in iowait"
                        );
                    }
                    // The connections still work.
                    streams.iter_mut().for_each(ask);
                });
            });
        },
    );
}

fn kernel_at_least(major: u32, minor: u32) -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut parts = release
        .split(['.', '-'])
        .map(|part| part.trim().parse::<u32>());
    let have = (
        parts.next().unwrap().unwrap(),
        parts.next().unwrap().unwrap(),
    );
    have >= (major, minor)
}

/// Returns the numbers of descriptors, threads and mapped rings of this process.
fn holdings() -> (usize, usize, usize) {
    // A kernel worker stays until the thread that its ring belongs to ends.
    let threads = fs::read_dir("/proc/self/task").unwrap().filter(|task| {
        let comm = task.as_ref().unwrap().path().join("comm");
        fs::read_to_string(comm).is_ok_and(|name| !name.starts_with("iou-wrk"))
    });
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let rings = maps
        .lines()
        .filter(|line| line.contains("io_uring"))
        .count();
    let descriptors = fs::read_dir("/proc/self/fd").unwrap().count();
    (descriptors, threads.count(), rings)
}

/// Connections, files, blocking work and timers that are all in progress when the runtime ends.
async fn busy(core: CoreInfo, path: std::path::PathBuf) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let mut options = OpenOptions::new();
    options.read(true).cached_reads(CachedReads::Never);
    let file = runtime::engine().open_with(&options, &path).await?;
    for _ in 0..20 {
        let client = annulus::net::TcpStream::connect(address).await?;
        let server = listener.accept().await?;
        for stream in [client, server] {
            let file = file.clone();
            runtime::spawn(async move {
                let mut chunks = stream.recv_multishot();
                let both = annulus::time::timeout(Duration::from_micros(100), chunks.next());
                let _ = both.await;
                loop {
                    stream.send_all(vec![1; 1 << 20]).await.unwrap();
                    file.read_at(vec![0; 1 << 16], 0).await.unwrap();
                }
            });
        }
        runtime::spawn_blocking(|| thread::sleep(Duration::from_millis(1)));
        runtime::spawn(annulus::time::sleep(Duration::from_secs(3600)));
    }
    let (seconds, other) = (Duration::from_millis(5), (core.index() + 1) % core.cores());
    runtime::handle().spawn_on(other, std::future::pending::<()>);
    annulus::time::sleep(seconds).await;
    Ok(())
}

#[test]
fn a_runtime_that_ends_in_the_middle_of_everything_leaves_nothing_behind() {
    in_child(
        "runtime::a_runtime_that_ends_in_the_middle_of_everything_leaves_nothing_behind",
        || {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("data");
            fs::write(&path, vec![1; 1 << 20]).unwrap();
            each_way(|builder| {
                let run = || {
                    let path = path.clone();
                    let run = builder.clone().run(move |core| busy(core, path.clone()));
                    run.unwrap();
                };
                // This thread keeps its small ring for cached opens, which it uses when the mount is known.
                run();
                run();
                // A socket may be released a little later than its descriptor.
                let samples = (0..200).map(|_| {
                    thread::sleep(Duration::from_millis(1));
                    holdings()
                });
                let before = samples.min().unwrap();
                for _ in 0..10 {
                    run();
                    let until = Instant::now() + DEADLINE;
                    while holdings() > before {
                        assert!(Instant::now() < until, "{before:?}, then {:?}", holdings());
                        thread::sleep(Duration::from_millis(1));
                    }
                }
            });
        },
    );
}

/// Refuses a system call to this thread and to those it starts.
fn refuse(call: libc::c_long, errno: i32) {
    let rules = [(call, Vec::new())].into_iter().collect();
    let result = SeccompAction::Errno(errno as u32);
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, result, arch).unwrap();
    seccompiler::apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
}

/// The runtime works without a ring, and its cores report the reason.
#[track_caller]
fn assert_fallen_back(says: &str) {
    let builder = Runtime::builder().backend(Backend::Auto).cores(2);
    let reasons: Arc<Mutex<Vec<String>>> = Arc::default();
    let receiver = Arc::clone(&reasons);
    let run = builder.clone().run(move |core| {
        let BackendInUse::Fallback {
            reason: Some(_), ..
        } = core.backend()
        else {
            panic!("it was to be refused: {}", core.backend());
        };
        receiver.lock().unwrap().push(core.backend().to_string());
        async { Ok(()) }
    });
    run.unwrap();
    let reasons = reasons.lock().unwrap();
    assert_eq!(reasons.len(), 2);
    for reason in &*reasons {
        assert!(reason.contains(says), "no {says:?} in: {reason}");
    }
    serving(builder, |handle, address| {
        ask(&mut TcpStream::connect(address).unwrap());
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        let written = path.clone();
        let wrote = handle.spawn_on(1, move || async move {
            let file = runtime::engine().create(&path).await?;
            file.write_all_at(b"there".to_vec(), 0).await?;
            io::Result::Ok(())
        });
        pollster::block_on(wrote).unwrap().unwrap();
        assert_eq!(fs::read(written).unwrap(), b"there");
    });
    let error = Runtime::builder()
        .backend(Backend::Uring)
        .block_on(async {});
    assert!(error.unwrap_err().to_string().contains(says));
}

#[test]
fn a_runtime_without_permission_for_rings_uses_epoll_and_reports_the_reason() {
    in_child(
        "runtime::a_runtime_without_permission_for_rings_uses_epoll_and_reports_the_reason",
        || {
            refuse(libc::SYS_io_uring_setup, libc::EPERM);
            assert_fallen_back("seccomp");
        },
    );
}

#[test]
fn a_runtime_without_locked_memory_serves() {
    in_child("runtime::a_runtime_without_locked_memory_serves", || {
        if !root_or_skip("becoming another user") {
            return;
        }
        let none = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: reads the given struct.
        let set = unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const none) };
        assert_eq!(set, 0);
        become_own_user();
        let builder = Runtime::builder().cores(2);
        let run = builder.clone().run(|core| {
            println!("core {}: {}", core.index(), core.backend());
            async { Ok(()) }
        });
        run.unwrap();
        serving(builder, |_, address| {
            ask(&mut TcpStream::connect(address).unwrap())
        });
    });
}

#[test]
fn a_core_whose_thread_cannot_be_started_is_an_error_with_a_hint() {
    in_child(
        "runtime::a_core_whose_thread_cannot_be_started_is_an_error_with_a_hint",
        || {
            let before = holdings();
            refuse(libc::SYS_clone3, libc::ENOSYS);
            refuse(libc::SYS_clone, libc::EAGAIN);
            let error = Runtime::builder().cores(3).run(|_| async { Ok(()) });
            let error = error.unwrap_err().to_string();
            assert!(error.contains("RLIMIT_NPROC"), "{error}");
            assert_eq!(holdings(), before);
            // A single core needs no thread, but blocking work does, and fails with the reason.
            let ended = Runtime::builder().block_on(async {
                runtime::spawn_blocking(|| ())
                    .await
                    .unwrap_err()
                    .to_string()
            });
            assert!(
                ended.as_ref().unwrap().contains("RLIMIT_NPROC"),
                "{ended:?}"
            );
        },
    );
}

/// Returns the processors of the calling thread, in the kernel's format.
fn allowed() -> String {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    line.unwrap().trim().to_owned()
}

#[test]
fn pinned_cores_keep_to_their_processors_and_other_threads_do_not() {
    in_child(
        "runtime::pinned_cores_keep_to_their_processors_and_other_threads_do_not",
        || {
            let before = allowed();
            each_way(|builder| {
                let seen: Arc<Mutex<Vec<(usize, String, String)>>> = Arc::default();
                let sees = Arc::clone(&seen);
                let run = builder.pin(true).run(move |core| {
                    let sees = Arc::clone(&sees);
                    async move {
                        let blocking = runtime::spawn_blocking(allowed).await.unwrap();
                        sees.lock()
                            .unwrap()
                            .push((core.index(), allowed(), blocking));
                        Ok(())
                    }
                });
                run.unwrap();
                let mut seen = seen.lock().unwrap().clone();
                seen.sort();
                let processors = thread::available_parallelism().unwrap().get();
                for (_, here, blocking) in &seen {
                    assert!(here.parse::<u32>().is_ok(), "one processor, not {here}");
                    assert_eq!(*blocking, before, "a blocking thread goes where it likes");
                }
                if processors > 1 {
                    assert_ne!(seen[0].1, seen[1].1);
                }
                assert_eq!(allowed(), before, "the caller's thread is as it was");
            });
        },
    );
}
