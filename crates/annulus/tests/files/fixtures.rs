//! All backends, including the simulated one, each with a directory for its files.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

#[cfg(not(annulus_portable))]
use annulus::engine::{SetupMode, SqPoll};
#[cfg(not(annulus_portable))]
use annulus::fs::Advice;
#[cfg(not(annulus_portable))]
use annulus::metrics::Metrics;
#[cfg(feature = "test-util")]
use annulus::sim::{Sim, SimConfig};
use annulus::{Backend, Engine, EngineBuilder, File, OpenOptions};
use annulus_testing::skip::skip;
use tempfile::TempDir;

/// A backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    #[cfg(not(annulus_portable))]
    Uring(SetupMode),
    /// A kernel thread polls the submission queue, and a ring polls devices.
    #[cfg(not(annulus_portable))]
    Polling,
    /// A ring of the test's thread.
    #[cfg(not(annulus_portable))]
    Own,
    Blocking,
    #[cfg(feature = "test-util")]
    Sim,
}

#[cfg(annulus_portable)]
const WAYS: &[Way] = &[Way::Blocking];

#[cfg(not(annulus_portable))]
const WAYS: &[Way] = &[
    Way::Uring(SetupMode::Cooperative),
    Way::Uring(SetupMode::Deferred),
    Way::Uring(SetupMode::Plain),
    Way::Polling,
    Way::Own,
    Way::Blocking,
    #[cfg(feature = "test-util")]
    Way::Sim,
];

impl Way {
    fn has_own_ring(self) -> bool {
        #[cfg(not(annulus_portable))]
        return self == Way::Own;
        #[cfg(annulus_portable)]
        return false;
    }
}

/// An engine, with a directory for the test.
pub(crate) struct Fixture {
    pub(crate) engine: Engine,
    /// The test's thread has a ring.
    pub(crate) has_own_ring: bool,
    backing: Backing,
}

enum Backing {
    Disk(TempDir),
    #[cfg(feature = "test-util")]
    Sim(Sim),
}

impl Fixture {
    /// Creates a fixture. Returns `None` after a skip if this backend cannot run here.
    fn new(way: Way, change: impl FnOnce(EngineBuilder) -> EngineBuilder) -> Option<Fixture> {
        let builder = Engine::builder();
        let has_own_ring = way.has_own_ring();
        let builder = match way {
            #[cfg(not(annulus_portable))]
            Way::Uring(setup_mode) => builder.backend(Backend::Uring).setup_mode(setup_mode),
            #[cfg(not(annulus_portable))]
            Way::Own => builder.backend(Backend::Uring),
            #[cfg(not(annulus_portable))]
            Way::Polling => {
                let poll = SqPoll::new().idle(Duration::from_millis(1));
                builder.backend(Backend::Uring).sqpoll(poll).iopoll(true)
            }
            Way::Blocking => builder.backend(Backend::Fallback),
            #[cfg(feature = "test-util")]
            Way::Sim => {
                let sim = Sim::new(SimConfig::new(1));
                let engine = sim.engine(&change(builder)).unwrap();
                let backing = Backing::Sim(sim);
                return Some(Fixture {
                    engine,
                    has_own_ring,
                    backing,
                });
            }
        };
        match change(builder).build() {
            Ok(engine) => Some(Fixture {
                engine,
                has_own_ring,
                backing: Backing::Disk(tempfile::tempdir().unwrap()),
            }),
            Err(error) if error.allows_fallback() => {
                skip(format_args!("{way:?}: {error}"));
                None
            }
            Err(error) => panic!("{way:?}: {error}"),
        }
    }

    /// Returns by how much the counts of the engine grow while `work` runs, and its output.
    #[cfg(not(annulus_portable))]
    pub(crate) async fn counts<T>(&self, work: impl Future<Output = T>) -> (Metrics, T) {
        let before = self.engine.metrics();
        let output = work.await;
        let mut grown = self.engine.metrics();
        for (grown, before) in [
            (&mut grown.submitted, before.submitted),
            (&mut grown.completed, before.completed),
            (&mut grown.resubmitted, before.resubmitted),
            (&mut grown.enters, before.enters),
            (&mut grown.blocking, before.blocking),
            (&mut grown.fast_path, before.fast_path),
            (&mut grown.fast_path_missed, before.fast_path_missed),
        ] {
            *grown -= before;
        }
        (grown, output)
    }

    /// Returns whether this is a real machine, for a test of a property that a simulated kernel
    /// lacks.
    ///
    /// This is not a skip, because no installation or permission would make the test run.
    pub(crate) fn machine_has(&self, what: &str) -> bool {
        let real = self.is_real();
        if !real {
            println!("not for the simulated kernel, which has no {what}");
        }
        real
    }

    /// Returns whether the files are on the real machine.
    pub(crate) fn is_real(&self) -> bool {
        matches!(self.backing, Backing::Disk(_))
    }

    /// Returns a path in the directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        match &self.backing {
            Backing::Disk(dir) => dir.path().join(name),
            #[cfg(feature = "test-util")]
            Backing::Sim(_) => PathBuf::from("/").join(name),
        }
    }

    /// Creates a file, and its parent directories, without the engine.
    pub(crate) fn put(&self, name: &str, contents: &[u8]) {
        match &self.backing {
            Backing::Disk(_) => {
                let path = self.path(name);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, contents).unwrap();
            }
            #[cfg(feature = "test-util")]
            Backing::Sim(sim) => sim.put(self.path(name), contents).unwrap(),
        }
    }

    /// Returns the contents of a file, read without the engine.
    pub(crate) fn contents(&self, name: &str) -> io::Result<Vec<u8>> {
        match &self.backing {
            Backing::Disk(_) => std::fs::read(self.path(name)),
            #[cfg(feature = "test-util")]
            Backing::Sim(sim) => sim.contents(self.path(name)),
        }
    }

    /// Returns the sorted names in a directory, read without the engine.
    pub(crate) fn names(&self, dir: &str) -> Vec<String> {
        let names: Vec<std::ffi::OsString> = match &self.backing {
            Backing::Disk(_) => std::fs::read_dir(self.path(dir))
                .unwrap()
                .map(|entry| entry.unwrap().file_name())
                .collect(),
            #[cfg(feature = "test-util")]
            Backing::Sim(sim) => sim.names(self.path(dir)).unwrap(),
        };
        let mut names: Vec<String> = names
            .into_iter()
            .map(|name| name.into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// Returns the number of open descriptors of this file.
    pub(crate) fn descriptors(&self, name: &str) -> usize {
        match &self.backing {
            Backing::Disk(_) => {
                let path = self.path(name);
                std::fs::read_dir("/proc/self/fd")
                    .unwrap()
                    .filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok())
                    .filter(|target| *target == path)
                    .count()
            }
            #[cfg(feature = "test-util")]
            Backing::Sim(sim) => sim.open_descriptors(),
        }
    }

    /// Creates a file with these contents, open for reading and writing.
    pub(crate) async fn file(&self, name: &str, contents: &[u8]) -> File {
        self.put(name, contents);
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        self.engine
            .open_with(&options, self.path(name))
            .await
            .unwrap()
    }
}

/// Runs a test on every backend.
pub(crate) fn for_each_backend(test: impl AsyncFn(&Fixture)) {
    for_each_backend_with(|builder| builder, test);
}

/// Runs a test on every backend with a changed configuration.
pub(crate) fn for_each_backend_with(
    change: impl Fn(EngineBuilder) -> EngineBuilder,
    test: impl AsyncFn(&Fixture),
) {
    for &way in WAYS {
        on_fixture(way, &change, |fixture| match way {
            #[cfg(not(annulus_portable))]
            Way::Own => fixture
                .engine
                .current_thread_driver()
                .unwrap()
                .block_on(test(fixture)),
            _ => pollster::block_on(test(fixture)),
        });
    }
}

/// Runs a test that uses its own executor on every backend.
pub(crate) fn for_each_fixture(
    change: impl Fn(EngineBuilder) -> EngineBuilder,
    test: impl Fn(&Fixture),
) {
    for &way in WAYS.iter().filter(|way| !way.has_own_ring()) {
        on_fixture(way, &change, &test);
    }
}

fn on_fixture(
    way: Way,
    change: impl Fn(EngineBuilder) -> EngineBuilder,
    test: impl FnOnce(&Fixture),
) {
    let Some(fixture) = Fixture::new(way, change) else {
        return;
    };
    println!("on {}", fixture.engine.backend());
    test(&fixture);
    #[cfg(not(annulus_portable))]
    assert_eq!(
        fixture.engine.metrics().stale,
        0,
        "{way:?}: a CQE named no operation"
    );
}

/// Drops a file from the page cache. Dirty pages would stay, so the file is written first.
pub(crate) async fn uncache(file: &File) {
    file.sync_all().await.unwrap();
    #[cfg(not(annulus_portable))]
    file.advise(0, 0, Advice::DontNeed).await.unwrap();
}

/// Returns bytes that depend on their position, and on `seed`, which distinguishes files.
pub(crate) fn bytes(seed: u64, count: usize) -> Vec<u8> {
    annulus_testing::pattern::bytes(seed, 0, count)
}
