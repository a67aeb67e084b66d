//! Polling instead of interrupts: the request, and its result.

use super::EngineBuilder;

impl EngineBuilder {
    /// Adds a driver whose ring polls devices (IOPOLL). This saves the interrupt of each completion, and occupies a
    /// processor while operations are in flight. io_uring only. Linux only.
    ///
    /// Reads and writes use this ring if their file was opened with [`direct`](crate::OpenOptions::direct) and its
    /// device has poll queues. All other operations use the ordinary drivers.
    /// [`File::poll_support`](crate::File::poll_support) reports which ring a file uses, and what to change. A polled
    /// transfer cannot be cancelled: if it is dropped or times out, its memory is kept until the device has completed
    /// it.
    ///
    /// Needs Linux 5.17, because a polled write might hang on earlier kernels. If the kernel refuses,
    /// [`Backend::Auto`](crate::Backend::Auto) continues without it and reports the reason;
    /// [`Backend::Uring`](crate::Backend::Uring) fails.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let path = dir.path().join("data"); std::fs::write(&path, vec![7; 4096])?;
    /// use annulus::{Engine, OpenOptions};
    ///
    /// let engine = Engine::builder().iopoll(true).build()?;
    /// let file = engine.open(&path).await?;
    /// if let Err(reason) = file.poll_support() {
    ///     println!("{reason}"); // here: a file of the page cache is not polled; open it with `direct`
    /// }
    /// # let _ = OpenOptions::new(); assert_eq!(file.read_exact_at(vec![0; 1], 0).await?, [7]);
    /// # Ok(()) }) }
    /// ```
    pub fn iopoll(mut self, poll: bool) -> Self {
        self.iopoll = poll;
        self
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::backend::Backend;
    use crate::engine::Engine;
    use crate::fd::Fd;
    use crate::fs::File;
    use crate::op::OpenedFd;
    use crate::sys::poll_queue::NotPolled;

    /// The kernel refuses to poll if a device has lost its poll queues, or never had any.
    #[test]
    fn a_transfer_that_the_kernel_will_not_poll_for_is_done_by_a_system_call_and_the_next_go_elsewhere()
     {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = dir.path().join("data");
        let contents: Vec<u8> = (0..8192_u32).map(|at| (at % 251) as u8).collect();
        std::fs::write(&path, &contents).unwrap();
        let engine = match Engine::builder()
            .backend(Backend::Uring)
            .iopoll(true)
            .build()
        {
            Ok(engine) => engine,
            Err(error) => return println!("skip: {error}"),
        };
        let opened = std::fs::File::options()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        let fd = Fd::adopt(opened);
        let opened = OpenedFd {
            fd: fd.clone(),
            flags: 0,
            mount: None,
        };
        let file = File::new(opened, Arc::clone(&engine.submitter)).unwrap();
        assert_eq!(file.poll_support(), Err(NotPolled::Buffered));
        // Untrue: buffered files cannot be polled.
        fd.set_polled(true);
        let write = file.write_all_at(vec![1; 100], 8192);
        pollster::block_on(write).unwrap();
        assert!(!fd.is_polled());
        assert_eq!(
            (engine.metrics().polled, engine.metrics().poll_refused),
            (1, 1)
        );
        fd.set_polled(true);
        let reads = (0..64).map(|n| (vec![0; 128], n * 128));
        let past_the_cache = pollster::block_on(file.read_vectored_at(vec![vec![0; 100]; 2], 8000));
        assert_eq!(past_the_cache.unwrap().0, 200);
        assert_eq!(
            (engine.metrics().polled, engine.metrics().poll_refused),
            (2, 2)
        );
        for (n, result) in pollster::block_on(file.read_many_at(reads))
            .into_iter()
            .enumerate()
        {
            assert_eq!(result.unwrap().1, contents[n * 128..][..128]);
        }
        assert_eq!(engine.metrics().polled, 2, "later reads are not polled");
    }
}
