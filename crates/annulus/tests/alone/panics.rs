//! A panic of a waker is counted. Alone, because panics are counted for the whole process.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};
use std::thread::{Thread, current, park_timeout};
use std::time::Duration;

use annulus::fs::CachedReads;
use annulus::{Backend, Engine, OpenOptions};
use annulus_testing::child_process::in_child;
use annulus_testing::skip::skip;

const BLOCK_BYTES: usize = 4096;

#[test]
fn a_waker_that_panics_is_counted_and_ends_nothing_else() {
    in_child(
        "panics::a_waker_that_panics_is_counted_and_ends_nothing_else",
        || {
            struct Panics(AtomicBool, Thread);
            impl Wake for Panics {
                fn wake(self: Arc<Self>) {
                    self.0.store(true, Ordering::SeqCst);
                    self.1.unpark();
                    panic!("a panic of the test's waker");
                }
            }
            for backend in [Backend::Uring, Backend::Fallback] {
                let engine = match Engine::builder().backend(backend).build() {
                    Ok(engine) => engine,
                    Err(error) => return skip(error),
                };
                let data = tempfile::NamedTempFile::new().unwrap();
                data.as_file().set_len(BLOCK_BYTES as u64).unwrap();
                let mut options = OpenOptions::new();
                options.read(true).cached_reads(CachedReads::Never);
                let before = engine.metrics().panics;
                let counted = annulus::metrics::snapshot().total().counters.panics;
                let file = pollster::block_on(engine.open_with(&options, data.path())).unwrap();
                let panics = Arc::new(Panics(AtomicBool::new(false), current()));
                let waker = Waker::from(Arc::clone(&panics));
                let mut read = Box::pin(file.read_at(vec![0; BLOCK_BYTES], 0));
                assert!(
                    read.as_mut()
                        .poll(&mut Context::from_waker(&waker))
                        .is_pending()
                );
                while !panics.0.load(Ordering::SeqCst) {
                    park_timeout(Duration::from_secs(1));
                }
                assert_eq!(pollster::block_on(read).unwrap().0, BLOCK_BYTES);
                while engine.metrics().panics == before {
                    std::thread::yield_now();
                }
                assert!(annulus::metrics::snapshot().total().counters.panics > counted);
            }
        },
    );
}
