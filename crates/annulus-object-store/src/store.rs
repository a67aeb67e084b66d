//! A store without the types of a version of `object_store`.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use annulus::Engine;
use tokio::runtime::Handle;

use crate::calls::Calls;
use crate::error::Failure;
use crate::group::Group;
use crate::names::Root;
use crate::open_files::{OPEN_FILES, OpenFiles, Opened};
use crate::read::Memory;

/// The engine that stores of a process share. A forked child has a new one, because it cannot use the rings of its parent.
#[derive(Debug)]
struct Shared {
    process: u32,
    engine: OnceLock<Engine>,
    /// The engine of a child of that process. It is set in the child only. A lock that another thread holds during a fork
    /// would never be free in the child, so there is none.
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
    pub(crate) group: Arc<Group>,
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
            group: Arc::default(),
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
        self.group = Arc::default();
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
        let engine = Engine::new().map_err(|error| {
            let what = "start an engine for the object store";
            Failure::new(what, std::io::Error::other(error))
        })?;
        Ok(shared.get_or_init(|| engine))
    }

    /// Returns the store for changes of few calls. As operations of a ring, these cost half of what they cost on a blocking
    /// thread. Not with `fsync`, and not on file systems where calls may take long: a ring has few kernel workers.
    pub(crate) fn for_few_calls(&self) -> Result<Store, Failure> {
        let mut store = self.clone();
        let is_brief = !self.fsync && self.root.is_local();
        if is_brief && matches!(self.calls, Calls::System) && Handle::try_current().is_ok() {
            store.calls = Calls::of_ring(self.engine()?);
        }
        Ok(store)
    }

    /// Runs a change.
    pub(crate) async fn change<T, F>(
        self,
        work: impl FnOnce(Store) -> F + Send + 'static,
    ) -> Result<T, Failure>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        let calls = self.calls.clone();
        calls.run(move || work(self)).await
    }

    /// Opens the file of an object.
    pub(crate) async fn open(&self, path: &Path) -> Result<Opened, Failure> {
        self.files.open(self.engine()?, path).await
    }

    /// Opens the file of an object, which is not a folder.
    pub(crate) async fn open_object(&self, path: &Path) -> Result<Opened, Failure> {
        let opened = self.open(path).await?;
        if opened.stat.is_dir {
            let path: PathBuf = path.to_owned();
            let source = std::io::Error::new(std::io::ErrorKind::NotFound, "it is a folder");
            return Err(Failure::NotFound { path, source });
        }
        Ok(opened)
    }
}
