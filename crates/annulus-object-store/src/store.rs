//! A store without the types of a version of `object_store`.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use annulus::Engine;
use tokio::runtime::Handle;
use tokio::sync::SemaphorePermit;

use crate::blocking::{self, Detached};
use crate::calls::{Calls, without_waiting};
use crate::error::Failure;
use crate::file_systems::{FileSystem, FileSystems};
use crate::group::Groups;
use crate::names::Root;
use crate::open_files::{OPEN_FILES, OpenFiles, Opened};
use crate::read::Memory;
use crate::stat::Stat;

/// The state that the stores of a process share. A forked child has a new one, because it cannot use the rings of its
/// parent.
#[derive(Debug)]
struct Shared {
    process: u32,
    engine: OnceLock<Engine>,
    systems: FileSystems,
    /// The engine of a child of that process. It is set in the child only. A lock that another thread holds during a
    /// fork would never be free in the child, so there is none.
    child: OnceLock<Box<Shared>>,
}

impl Shared {
    fn of_process() -> &'static Shared {
        static FIRST: OnceLock<Box<Shared>> = OnceLock::new();
        let process = std::process::id();
        let new = || {
            Box::new(Shared {
                process,
                engine: OnceLock::new(),
                systems: FileSystems::new(),
                child: OnceLock::new(),
            })
        };
        let mut shared = FIRST.get_or_init(new);
        // The number of an earlier process may be that of this one.
        while shared.process != process || shared.child.get().is_some() {
            shared = shared.child.get_or_init(new);
        }
        shared
    }
}

/// A folder, and the settings of its store.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    pub(crate) root: Arc<Root>,
    pub(crate) files: Arc<OpenFiles>,
    pub(crate) memory: Arc<Memory>,
    /// `None`: the shared one.
    engine: Option<Engine>,
    shared: &'static Shared,
    pub(crate) calls: Calls,
    pub(crate) groups: Arc<Groups>,
    pub(crate) automatic_cleanup: bool,
    pub(crate) fsync: bool,
}

impl Store {
    pub(crate) fn new(root: Root) -> Store {
        Store {
            root: Arc::new(root),
            files: Arc::new(OpenFiles::new(OPEN_FILES, Duration::ZERO)),
            memory: Arc::default(),
            engine: None,
            shared: Shared::of_process(),
            calls: Calls::System,
            groups: Arc::default(),
            automatic_cleanup: false,
            fsync: false,
        }
    }

    /// Sets the engine. Open files belong to the engine before, so they are closed.
    pub(crate) fn set_engine(&mut self, engine: Engine) {
        self.calls = Calls::of(&engine);
        self.engine = Some(engine);
        self.set_open_files(self.files.max(), self.files.trusted());
        // A leader uses the engine of its store.
        self.groups = Arc::default();
    }

    pub(crate) fn set_open_files(&mut self, max: usize, trusted: Duration) {
        self.files = Arc::new(self.files.with(max, trusted));
    }

    /// Returns the engine. The first use of the shared one creates it.
    pub(crate) fn engine(&self) -> Result<&Engine, Failure> {
        let shared = &self.shared.engine;
        if let Some(engine) = self.engine.as_ref().or_else(|| shared.get()) {
            return Ok(engine);
        }
        let engine = Engine::new().map_err(Failure::no_engine)?;
        Ok(shared.get_or_init(|| engine))
    }

    /// Returns the file system of a path.
    pub(crate) fn system(&self, path: &Path) -> &'static FileSystem {
        self.shared.systems.of(path)
    }

    /// Runs a change of the objects at `paths`.
    ///
    /// If it takes few calls, these are operations of a ring, where they cost half of what they cost on a blocking
    /// thread. If rings make enough changes already, a few threads make it. Neither with `fsync`, nor on file systems
    /// where calls may take long. Other changes are system calls on a blocking thread; outside a Tokio runtime, on the
    /// calling thread.
    ///
    /// On a Tokio runtime, the change runs to its end although the future is dropped.
    pub(crate) async fn change<T, F>(
        &self,
        paths: &[&Path],
        few_calls: bool,
        work: impl FnOnce(Store) -> F + Send + 'static,
    ) -> Result<T, Failure>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        let mut store = self.clone();
        let (Calls::System, Ok(runtime)) = (&self.calls, Handle::try_current()) else {
            return work(store).await;
        };
        // One that may hang decides.
        let systems = paths.iter().map(|path| self.system(path));
        let Some(system) = systems.min_by_key(|system| system.is_local) else {
            return work(store).await;
        };
        let ring = match few_calls && !self.fsync && system.is_local {
            true => Calls::of_ring(self.engine()?),
            false => None,
        };
        let work = async move {
            let Some(ring) = ring else {
                return blocking::run(system, move || without_waiting(work(store))).await;
            };
            match store.shared.systems.ring_changes.try_acquire() {
                Ok(_permit) => {
                    store.calls = ring;
                    work(store).await
                }
                Err(_) => {
                    (system.changes)
                        .run(move || without_waiting(work(store)))
                        .await
                }
            }
        };
        Detached::new(work, runtime).await
    }

    /// Returns the way to open a path.
    pub(crate) fn way_to(&self, path: &Path) -> Result<Way<'_>, Failure> {
        let (mut way, system) = match &self.calls {
            Calls::Simulated(_) => return Ok(Way::of(self.engine()?)),
            _ => (Way::of(self.engine()?), self.system(path)),
        };
        if !system.is_local {
            return Ok(Way::of(system.engine()?));
        }
        match self.shared.systems.ring_opens.try_acquire() {
            Ok(permit) => way.permit = Some(permit),
            Err(_) => way.beyond = Some(system),
        }
        Ok(way)
    }

    /// Opens the file of an object.
    pub(crate) async fn open(&self, path: &Path) -> Result<Opened, Failure> {
        self.files.open(self, path).await
    }

    /// Opens the file of an object, which is not a folder.
    pub(crate) async fn open_object(&self, path: &Path) -> Result<Opened, Failure> {
        let opened = self.open(path).await?;
        if opened.stat.is_dir {
            let path: PathBuf = path.to_owned();
            let source = io::Error::new(io::ErrorKind::NotFound, "it is a folder");
            return Err(Failure::NotFound { path, source });
        }
        Ok(opened)
    }
}

/// A way to open files. Each file system that may hang has its own engine.
pub(crate) struct Way<'a> {
    engine: &'a Engine,
    permit: Option<SemaphorePermit<'a>>,
    /// The file system, if the rings have no place.
    beyond: Option<&'static FileSystem>,
}

impl<'a> Way<'a> {
    fn of(engine: &'a Engine) -> Way<'a> {
        Way {
            engine,
            permit: None,
            beyond: None,
        }
    }

    /// Opens a file.
    pub(crate) async fn open(&self, path: &Path) -> io::Result<annulus::File> {
        let Some(system) = self.beyond else {
            return self.engine.open(path).await;
        };
        let at = path.to_owned();
        let opened = blocking::run(system, move || Ok(std::fs::File::open(at))).await;
        let opened = opened.unwrap_or_else(|_| Err(shuts_down()))?;
        annulus::File::from_std(opened, self.engine)
    }

    /// Returns the metadata of the file at a path.
    pub(crate) async fn stat(&self, path: &Path) -> io::Result<Stat> {
        let Some(system) = self.beyond else {
            return Ok(Stat::from(&self.engine.metadata(path).await?));
        };
        let at = path.to_owned();
        let metadata = blocking::run(system, move || Ok(std::fs::metadata(at))).await;
        let metadata = metadata.unwrap_or_else(|_| Err(shuts_down()));
        Ok(Stat::from(&metadata?))
    }
}

fn shuts_down() -> io::Error {
    io::Error::other("the Tokio runtime shuts down")
}
