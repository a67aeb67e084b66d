//! The builder and the service.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use annulus::Engine;
use opendal_core::raw::*;
use opendal_core::{
    Builder, Capability, Configurator, Error, ErrorKind, OperationContext, OperatorUri, Result,
};
use serde::{Deserialize, Serialize};

use crate::files::Files;
use crate::list::Lister;
use crate::read::Reader;
use crate::write::Writer;

/// The name of the service.
const SCHEME: &str = "annulus";

/// Builds the service: local files below a folder.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?; let root = folder.path().to_str().unwrap();
/// use annulus::Engine;
/// use annulus_opendal::Fs;
/// use opendal::Operator;
///
/// let engine = Engine::builder().blocking_threads(8).build()?;
/// let operator = Operator::new(Fs::default().root(root).engine(engine))?;
/// operator.write("a", "contents").await?;
/// assert_eq!(operator.stat("a").await?.content_length(), 8);
/// # Ok(()) }
/// ```
#[derive(Debug, Default)]
pub struct Fs {
    config: FsConfig,
    engine: Option<Engine>,
}

/// The options as text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct FsConfig {
    /// The folder of all files.
    pub root: Option<String>,
    /// The folder in which files are written before they get their names.
    pub atomic_write_dir: Option<String>,
}

impl Fs {
    /// Sets the folder of all files. It is created if it does not exist. Required.
    pub fn root(mut self, root: &str) -> Self {
        self.config.root = (!root.is_empty()).then(|| root.to_owned());
        self
    }

    /// Makes writes atomic: a file is written in this folder, and renamed when it is complete. It must be on the
    /// file system of the root. Appends to a file that exists are made in place.
    pub fn atomic_write_dir(mut self, folder: &str) -> Self {
        if !folder.is_empty() {
            self.config.atomic_write_dir = Some(folder.to_owned());
        }
        self
    }

    /// Sets the engine. The default is that of the process: [`annulus::tokio::fs::engine`].
    pub fn engine(mut self, engine: Engine) -> Self {
        self.engine = Some(engine);
        self
    }
}

impl Configurator for FsConfig {
    type Builder = Fs;

    fn from_uri(uri: &OperatorUri) -> Result<FsConfig> {
        let mut options = uri.options().clone();
        if let Some(root) = uri.root().filter(|root| !root.is_empty()) {
            options
                .entry("root".to_owned())
                .or_insert_with(|| format!("/{root}"));
        }
        FsConfig::from_iter(options)
    }

    fn into_builder(self) -> Fs {
        Fs {
            config: self,
            engine: None,
        }
    }
}

impl Builder for Fs {
    type Config = FsConfig;

    fn build(self) -> Result<impl Service> {
        let missing = || Error::new(ErrorKind::ConfigInvalid, "no root: call Fs::root");
        let root = folder(&self.config.root.ok_or_else(missing)?)?;
        let atomic_write_dir = self
            .config
            .atomic_write_dir
            .as_deref()
            .map(folder)
            .transpose()?;
        Ok(LocalFiles {
            info: ServiceInfo::new(SCHEME, root.to_string_lossy(), ""),
            files: Arc::new(Files {
                engine: self.engine.unwrap_or_else(annulus::tokio::fs::engine),
                root,
                atomic_write_dir,
            }),
        })
    }
}

/// Creates a folder if it does not exist, and returns its path without links.
fn folder(path: &str) -> Result<PathBuf> {
    let path = Path::new(path);
    let made = std::fs::create_dir_all(path).and_then(|()| path.canonicalize());
    made.map_err(|error| {
        let error = Error::new(ErrorKind::Unexpected, "cannot use the folder").set_source(error);
        error.with_context("folder", path.to_string_lossy())
    })
}

#[derive(Clone, Debug)]
struct LocalFiles {
    info: ServiceInfo,
    files: Arc<Files>,
}

impl Service for LocalFiles {
    type Reader = oio::PositionReader<Reader>;
    type Writer = Writer;
    type Lister = Lister;
    type Deleter = oio::OneShotDeleter<Deleter>;
    type Copier = oio::OneShotCopier;
    type Composer = ();

    fn info(&self) -> ServiceInfo {
        self.info.clone()
    }

    fn capability(&self) -> Capability {
        Capability {
            stat: true,
            read: true,
            write: true,
            write_can_append: true,
            write_can_empty: true,
            write_can_multi: true,
            write_with_if_not_exists: true,
            write_with_user_metadata: true,
            create_dir: true,
            delete: true,
            delete_with_recursive: true,
            list: true,
            copy: true,
            rename: true,
            shared: true,
            ..Capability::default()
        }
    }

    async fn create_dir(
        &self,
        _: &OperationContext,
        path: &str,
        _: OpCreateDir,
    ) -> Result<RpCreateDir> {
        self.files.create_dir(path).await?;
        Ok(RpCreateDir::default())
    }

    async fn stat(&self, _: &OperationContext, path: &str, _: OpStat) -> Result<RpStat> {
        Ok(RpStat::new(self.files.stat(path).await?))
    }

    fn read(&self, _: &OperationContext, path: &str, _: OpRead) -> Result<Self::Reader> {
        let reader = Reader::new(Arc::clone(&self.files), path);
        Ok(oio::PositionReader::new(reader))
    }

    fn write(&self, context: &OperationContext, path: &str, args: OpWrite) -> Result<Writer> {
        let executor = context.executor().clone();
        Ok(Writer::new(Arc::clone(&self.files), executor, path, args))
    }

    fn delete(&self, _: &OperationContext) -> Result<Self::Deleter> {
        Ok(oio::OneShotDeleter::new(Deleter(Arc::clone(&self.files))))
    }

    fn list(&self, _: &OperationContext, path: &str, _: OpList) -> Result<Lister> {
        Ok(Lister::new(Arc::clone(&self.files), path))
    }

    fn copy(&self, _: &OperationContext, from: &str, to: &str, _: OpCopy) -> Result<Self::Copier> {
        let (files, from, to) = (Arc::clone(&self.files), from.to_owned(), to.to_owned());
        let copy = async move { files.copy(&from, &to).await };
        Ok(oio::OneShotCopier::new(copy))
    }

    async fn rename(
        &self,
        _: &OperationContext,
        from: &str,
        to: &str,
        _: OpRename,
    ) -> Result<RpRename> {
        self.files.rename(from, to).await?;
        Ok(RpRename::default())
    }

    async fn presign(&self, _: &OperationContext, _: &str, _: OpPresign) -> Result<RpPresign> {
        let what = "local files have no presigned requests";
        Err(Error::new(ErrorKind::Unsupported, what))
    }
}

struct Deleter(Arc<Files>);

impl oio::OneShotDelete for Deleter {
    async fn delete_once(&self, path: String, args: OpDelete) -> Result<()> {
        self.0.delete(&path, args.recursive()).await
    }
}
