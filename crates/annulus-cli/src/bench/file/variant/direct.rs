//! A variant that reads with `O_DIRECT` in a comparison through the page cache.

use std::sync::Arc;

use annulus_baselines::{Failure, Finished, Job, Variant};

use crate::bench::file::run::{AnyVariant, Harness};

/// Another variant, on handles that bypass the page cache.
pub(crate) struct Direct {
    name: String,
    about: String,
    inner: AnyVariant,
}

impl Direct {
    /// Returns the direct form of `inner`.
    pub(crate) fn of(inner: AnyVariant) -> Direct {
        Direct {
            name: format!("{}-direct", inner.name()),
            about: format!(
                "{} with O_DIRECT, whatever the page cache holds",
                inner.name()
            ),
            inner,
        }
    }

    fn job(&self, job: &Job) -> Option<Job> {
        let files = job.direct_files.as_ref()?;
        Some(Job {
            files: Arc::clone(files),
            direct: true,
            ..job.clone()
        })
    }
}

impl Variant<Harness> for Direct {
    fn name(&self) -> &str {
        &self.name
    }

    fn about(&self) -> &str {
        &self.about
    }

    fn unfit(&self, job: &Job) -> Option<String> {
        if job.direct {
            return Some("all variants are direct here".into());
        }
        match self.job(job) {
            Some(job) => self.inner.unfit(&job),
            None => Some("no direct I/O with this file system and block size".into()),
        }
    }

    fn run(&self, job: &Job, bench: &Harness) -> Result<Finished, Failure> {
        match self.job(job) {
            Some(job) => self.inner.run(&job, bench),
            None => Err(Failure::Unavailable(
                "the file is not open for direct I/O".into(),
            )),
        }
    }
}
