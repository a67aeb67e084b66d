//! Multipart uploads: parts are written to a staged file at their offsets, in parallel if the caller polls them so.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use annulus::File;
use bytes::Bytes;

use crate::calls::BUFFERS;
use crate::error::Failure;
use crate::stat::Stat;
use crate::store::Store;
use crate::write::{Existing, Staged};

/// An upload. Dropping it removes the staged file.
#[derive(Debug)]
pub(crate) struct Upload {
    store: Store,
    object: PathBuf,
    /// `None` after the upload was completed or aborted.
    staged: Option<(File, Staged)>,
    /// The offset of the next part.
    offset: u64,
    /// The number of parts that are not written.
    unwritten: Arc<AtomicUsize>,
}

impl Upload {
    pub(crate) async fn start(store: Store, object: PathBuf) -> Result<Upload, Failure> {
        let path = object.clone();
        let stage = |store: Store| async move { store.stage(&path).await };
        let (file, staged) = store.change(&[&object], false, stage).await?;
        // Writes to a frozen disk hang, too.
        let file = file.into_file(store.system(&object).engine()?);
        let file = file.map_err(|error| Failure::other("write", &object, error))?;
        Ok(Upload {
            store,
            object,
            staged: Some((file, staged)),
            offset: 0,
            unwritten: Arc::default(),
        })
    }

    /// Returns a future that writes the next part.
    pub(crate) fn part(
        &mut self,
        contents: Vec<Bytes>,
    ) -> impl Future<Output = Result<(), Failure>> + Send + use<> {
        let file = self.staged.as_ref().map(|(file, _)| file.clone());
        let mut offset = self.offset;
        self.offset += contents.iter().map(|part| part.len() as u64).sum::<u64>();
        self.unwritten.fetch_add(1, Ordering::SeqCst);
        let (unwritten, object) = (Arc::clone(&self.unwritten), self.object.clone());
        async move {
            let file = file.ok_or_else(|| has_ended(&object))?;
            for buffers in contents.chunks(BUFFERS) {
                let bytes: usize = buffers.iter().map(Bytes::len).sum();
                if bytes > 0 {
                    file.write_vectored_all_at(buffers.to_vec(), offset)
                        .await
                        .map_err(|error| Failure::other("write", &object, error.into()))?;
                }
                offset += bytes as u64;
            }
            unwritten.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        }
    }

    /// Publishes the object. Fails if a part is not written, so that no object has holes.
    pub(crate) async fn complete(&mut self) -> Result<Stat, Failure> {
        let Some((file, staged)) = self.staged.take() else {
            return Err(has_ended(&self.object));
        };
        let unwritten = self.unwritten.load(Ordering::SeqCst);
        if unwritten > 0 {
            let reason = format!("{unwritten} of its parts are not written; await each part first");
            return Err(Failure::invalid("complete", &self.object, reason));
        }
        let stat = self.finish(file).await;
        let stat = stat.map_err(|error| Failure::other("write", &self.object, error))?;
        let (object, path) = (self.object.clone(), &self.object);
        let publish = |store: Store| async move {
            store.publish(staged, &object, Existing::Replace).await?;
            store.sync_parent_of(&object).await
        };
        self.store.change(&[path], true, publish).await?;
        Ok(stat)
    }

    async fn finish(&self, file: File) -> io::Result<Stat> {
        if self.store.fsync {
            file.sync_all().await?;
        }
        let stat = Stat::from(&file.metadata().await?);
        // A network file system may report an error of a write only here.
        file.close().await?;
        Ok(stat)
    }

    /// Removes the staged file.
    pub(crate) async fn abort(&mut self) -> Result<(), Failure> {
        let Some((_, staged)) = self.staged.take() else {
            return Err(has_ended(&self.object));
        };
        let object = self.object.clone();
        let failed = move |error| Failure::other("remove the staged file of", &object, error);
        let remove =
            |store: Store| async move { staged.remove(&store.calls).await.map_err(failed) };
        self.store.change(&[&self.object], true, remove).await
    }
}

fn has_ended(object: &std::path::Path) -> Failure {
    Failure::invalid("write", object, "the upload was completed or aborted")
}
