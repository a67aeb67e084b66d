//! Every operation on every host with every end. A new operation, host or end is a line in its table.
#![cfg(all(
    feature = "futures",
    feature = "net",
    feature = "tokio",
    feature = "tokio-io"
))]

mod ends;
mod hosts;
mod on_core;
mod operations;
mod tokio_runtimes;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use annulus::fs::CachedReads;
use annulus::metrics::{Snapshot, SourceKind, snapshot};
use annulus::{Backend, Engine, OpenOptions};
use annulus_testing::skip::skip;
use ends::{Counts, ENDS, End};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use hosts::{Host, Task};
use on_core::OnCore;
use operations::{ENGINES, FILES, Fixture, Fs, On, Operation, SOCKETS, Start, TOKIO_FS, Work};

macro_rules! hosts {
    ($($name:ident: $ring:ident, $spawn:ident;)*) => {
        $(#[test]
        fn $name() {
            check(Host {
                name: stringify!($name),
                ring: SourceKind::$ring,
                run: hosts::$name,
                spawn: hosts::$spawn,
            });
        })*
    };
}

// Where the operations run if there are rings, and the tasks that run some together.
hosts! {
    driver_thread: Driver, in_place;
    current_thread_driver: OwnRing, in_place;
    tokio_multi_thread: OwnRing, tokio_task;
    tokio_one_worker: OwnRing, tokio_task;
    tokio_current_thread: OwnRing, tokio_task;
    tokio_local_set: OwnRing, tokio_task;
    tokio_block_on: OwnRing, in_place;
    tokio_blocking_thread: OwnRing, in_place;
    tokio_without_io: Driver, tokio_task;
    core: CoreFiles, core_task;
    core_that_has_used_tokio: CoreFiles, core_task;
    task_of_tokio_on_a_core: CoreFiles, tokio_task;
}

/// An operation on a host.
#[derive(Clone)]
struct Cell {
    operation: &'static Operation,
    host: Host,
    backend: Backend,
    end: End,
    fixture: Fixture,
    /// Futures that outlive the host.
    left: Arc<Mutex<Vec<(String, Work)>>>,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (operation, host) = (self.operation.name, self.host.name);
        write!(
            f,
            "{operation} on {host}, {:?}, {:?}",
            self.backend, self.end
        )
    }
}

impl Cell {
    fn start(&self) -> Work {
        match self.operation.start {
            Start::File(start) => start(self.fixture.clone()),
            Start::Socket(start) => Box::pin(OnCore::new(start(self.fixture.clone()))),
        }
    }

    /// Returns whether only the host's thread may poll it.
    fn is_bound(&self) -> bool {
        self.host.has_sockets()
    }

    /// Returns the value of an operation, which must not fail.
    fn check<T>(&self, result: std::io::Result<T>) -> T {
        result.unwrap_or_else(|error| panic!("{self}: {error}"))
    }

    /// Leaves a future in flight when its host ends. One that is bound to a core ends with it.
    fn leave(&self, work: Work) {
        match self.is_bound() {
            true => drop((self.host.spawn)(Box::pin(async { drop(work.await) }))),
            false => self.left.lock().unwrap().push((self.to_string(), work)),
        }
    }

    /// Returns whether the operation must be pending, or be polled by its waker.
    fn must_be_used(&self) -> bool {
        let has_ring = self.backend == Backend::Uring;
        match self.operation.on {
            On::Caller | On::Batch | On::Timer => false,
            On::Process => !(self.end == End::Inline && self.is_bound()),
            // Without a ring, a socket that is ready is not waited for.
            On::Ring if matches!(self.operation.start, Start::Socket(_)) => has_ring,
            // Blocking threads wake, and can't poll what is bound to a core.
            On::Ring | On::Threads => {
                let by_thread = self.operation.on == On::Threads || !has_ring;
                !(by_thread && self.end == End::Inline && self.is_bound())
            }
        }
    }

    /// Runs the operation, and again if it had to be pending and was not: a blocking thread may be done before its
    /// result is looked at.
    async fn run_until_used(self) -> Counts {
        // Of those in other functions, one of all must be.
        let is_needed = self.operation.on != On::Process && self.must_be_used();
        let mut counts = self.clone().run().await;
        for _ in 1..ATTEMPTS_MAX {
            if !is_needed || counts.times(self.end) > 0 {
                break;
            }
            counts = self.clone().run().await;
        }
        counts
    }

    async fn run(self) -> Counts {
        let _running = Running::new(self.to_string());
        self.end.run(&self).await
    }

    /// Returns an error unless the operation was counted where it should run, and nowhere else.
    fn check_source(&self, since: &Snapshot) -> Option<String> {
        let name = self.operation.counted;
        let counted = since.sources.iter().flat_map(|source| {
            let operations = source.operations.iter();
            let completed = operations.filter(|operation| operation.completed > 0);
            completed.map(|operation| (source.kind, operation.name))
        });
        let counted: Vec<_> = counted.collect();
        // A read of a whole file is first attempted on the caller's thread.
        let is_attempt = |kind| self.operation.on == On::Threads && kind == SourceKind::FastPath;
        let kinds: BTreeSet<_> = (counted.iter())
            .filter(|&&(kind, operation)| operation == name && !is_attempt(kind))
            .map(|(kind, _)| kind.name())
            .collect();
        let is_right = match self.operation.on {
            On::Caller | On::Process | On::Timer => true,
            On::Ring | On::Batch | On::Threads => kinds == BTreeSet::from([self.source().name()]),
        };
        (!is_right).then(|| {
            format!(
                "{self}: {name} is not only in {:?}: {counted:?}",
                self.source()
            )
        })
    }

    fn source(&self) -> SourceKind {
        match (self.operation.start, self.host.ring) {
            (Start::Socket(_), _) if self.operation.on == On::Ring => SourceKind::Core,
            (_, ring) if self.backend == Backend::Uring && self.operation.on != On::Threads => ring,
            _ => SourceKind::Threads,
        }
    }
}

/// The attempts after which an operation counts as never pending.
const ATTEMPTS_MAX: u32 = 200;

/// Longer than any cell takes.
const PATIENCE: Duration = Duration::from_secs(60);

static RUNNING: Mutex<BTreeMap<(Instant, String), ()>> = Mutex::new(BTreeMap::new());

/// A cell that runs, which the hang detector names if it does not end.
struct Running((Instant, String));

fn running() -> MutexGuard<'static, BTreeMap<(Instant, String), ()>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Running {
    fn new(name: String) -> Running {
        let key = (Instant::now(), name);
        running().insert(key.clone(), ());
        Running(key)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        running().remove(&self.0);
    }
}

fn start_hang_detector() {
    std::thread::spawn(|| {
        loop {
            std::thread::sleep(Duration::from_secs(1));
            let running = running();
            if running
                .first_key_value()
                .is_some_and(|((since, _), ())| since.elapsed() > PATIENCE)
            {
                eprintln!(
                    "these hang: {:#?}",
                    running.keys().map(|(_, name)| name).collect::<Vec<_>>()
                );
                std::process::abort();
            }
        }
    });
}

fn check(host: Host) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    start_hang_detector();
    for backend in [Backend::Uring, Backend::Fallback] {
        if let Err(error) = Engine::builder().backend(backend).build() {
            skip(format_args!("{backend:?}: {error}"));
            continue;
        }
        for end in ENDS {
            let begun = Instant::now();
            check_end(host, backend, end);
            println!("{backend:?} {end:?}: {:?}", begun.elapsed());
        }
    }
}

fn check_end(host: Host, backend: Backend, end: End) {
    let folder = tempfile::tempdir().unwrap();
    // Through another mount, so that no lookup is tried on the caller's thread.
    let path = PathBuf::from("/proc/self/root").join(folder.path().strip_prefix("/").unwrap());
    let left = Arc::new(Mutex::new(Vec::new()));
    let result = Arc::new(Mutex::new(BTreeMap::new()));
    let (cells_left, counts) = (Arc::clone(&left), Arc::clone(&result));
    (host.run)(
        backend,
        Box::new(move |fs| -> Task {
            Box::pin(async move {
                let cells = cells(host, backend, end, &fs, path, &cells_left).await;
                let all = run(host, cells).await;
                *counts.lock().unwrap() = all;
            })
        }),
    );
    let _running = Running::new(format!("the end of {} with {end:?}", host.name));
    for (name, work) in left.lock().unwrap().drain(..) {
        let _running = Running::new(name.clone());
        let ended = pollster::block_on(work);
        // An engine that has ended refuses the next steps. A Tokio runtime that has ended does not matter, except to a
        // function that waits for one of its blocking threads.
        let may_fail = host.name == "driver_thread";
        let not_begun = |error: &std::io::Error| error.to_string().contains("was not begun");
        assert!(
            may_fail || ended.as_ref().map_err(not_begun) != Err(false),
            "{name}: {ended:?}"
        );
    }
    let result = result.lock().unwrap();
    let unused = result
        .iter()
        .filter(|(_, (must_be_used, counts))| *must_be_used && counts.times(end) == 0);
    let unused: Vec<_> = unused.map(|(name, (_, counts))| (name, counts)).collect();
    assert!(
        unused.is_empty(),
        "{}, {backend:?}, {end:?}: never pending: {unused:?}",
        host.name
    );
}

async fn cells(
    host: Host,
    backend: Backend,
    end: End,
    fs: &Fs,
    folder: PathBuf,
    left: &Arc<Mutex<Vec<(String, Work)>>>,
) -> Vec<Cell> {
    let tables: &[&'static [Operation]] = match host.has_sockets() {
        true => &[FILES, TOKIO_FS, SOCKETS],
        false => &[FILES, TOKIO_FS, ENGINES],
    };
    let _running = Running::new(format!("opening the files on {}, {backend:?}", host.name));
    let engine = fs.engine();
    let mut cells = Vec::new();
    let written = Arc::default();
    for operation in tables.iter().flat_map(|table| table.iter()) {
        let path = folder.join(operation.name);
        std::fs::write(&path, operations::contents()).unwrap();
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .cached_reads(CachedReads::Never);
        let file = engine.open_with(&options, path.clone()).await.unwrap();
        let direct = engine.open_with(options.direct(true), path).await;
        let fixture = Fixture {
            engine: engine.clone(),
            direct: direct.unwrap_or_else(|_| file.clone()),
            file,
            folder: Arc::new(folder.clone()),
            written: Arc::clone(&written),
        };
        cells.push(Cell {
            operation,
            host,
            backend,
            end,
            fixture,
            left: Arc::clone(left),
        });
    }
    cells
}

/// Runs the cells one at a time, and then together.
async fn run(host: Host, cells: Vec<Cell>) -> BTreeMap<&'static str, (bool, Counts)> {
    let mut all = BTreeMap::new();
    let mut wrong = Vec::new();
    for cell in &cells {
        let before = snapshot();
        let counts = cell.clone().run_until_used().await;
        if cell.end == End::Awaited {
            wrong.extend(cell.check_source(&snapshot().since(&before)));
        }
        // A blocking thread may be done before its result is awaited, so each of these may never be pending.
        let name = match cell.operation.on {
            On::Process => "tokio_fs, all together",
            _ => cell.operation.name,
        };
        let (must_be_used, sum) = all.entry(name).or_insert((false, Counts::default()));
        *must_be_used |= cell.must_be_used();
        sum.pending += counts.pending;
        sum.inline += counts.inline;
    }
    assert_eq!(wrong, [""; 0]);
    let written = cells.first().map(|cell| Arc::clone(&cell.fixture.written));
    let tasks = cells.into_iter().map(|cell| {
        (host.spawn)(Box::pin(async move {
            cell.run().await;
        }))
    });
    let together: FuturesUnordered<Task> = tasks.collect();
    together.collect::<()>().await;
    let _running = Running::new(format!("the operations without futures on {}", host.name));
    let is_written =
        |(path, bytes): &(PathBuf, u64)| std::fs::metadata(path).unwrap().len() == *bytes;
    let counts = loop {
        let counts = snapshot().total().counters;
        let are_written = written
            .iter()
            .all(|written| written.lock().unwrap().iter().all(is_written));
        if counts.in_flight == 0 && are_written {
            break counts;
        }
        ends::yield_once().await;
    };
    assert_eq!((counts.panics, counts.leaked), (0, 0));
    all
}

#[test]
fn every_operation_of_the_library_is_in_the_table() {
    let tables = [FILES, ENGINES, SOCKETS];
    let counted = tables
        .iter()
        .flat_map(|table| table.iter().map(|operation| operation.counted));
    let counted: BTreeSet<_> = counted.filter(|name| !name.is_empty()).collect();
    let names = annulus::metrics::layout::OPERATION_NAMES.iter().copied();
    assert_eq!(counted, names.collect());
}
