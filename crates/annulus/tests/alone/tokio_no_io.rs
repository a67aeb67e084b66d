//! A Tokio runtime without I/O uses the engine's driver, without a message. Alone, because the test
//! checks the panic hook and stderr of the whole process.

use std::io::{Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::panic;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use annulus::{Backend, Engine};
use annulus_testing::child_process::in_child;
use tokio::runtime::{Builder, Runtime};

static HOOK_CALLS: AtomicUsize = AtomicUsize::new(0);

#[test]
fn a_runtime_without_io_uses_the_driver_and_reports_the_reason_and_prints_nothing() {
    in_child(
        "tokio_no_io::a_runtime_without_io_uses_the_driver_and_reports_the_reason_and_prints_nothing",
        || {
            let engine = match Engine::builder().backend(Backend::Uring).build() {
                Ok(engine) => engine,
                Err(error) => return annulus_testing::skip::skip(error),
            };
            let dir = tempfile::tempdir().unwrap();
            // Another mount, so the lookup is not tried on the calling thread.
            let dir_there = dir.path().strip_prefix("/").unwrap();
            let path = Path::new("/proc/self/root").join(dir_there).join("data");
            std::fs::write(&path, vec![7; 8192]).unwrap();
            panic::set_hook(Box::new(|_| {
                HOOK_CALLS.fetch_add(1, Ordering::SeqCst);
            }));
            let mut stderr = tempfile::tempfile().unwrap();
            let saved = rustix::io::dup(std::io::stderr()).unwrap();
            rustix::stdio::dup2_stderr(stderr.as_fd()).unwrap();
            for mut builder in [Builder::new_multi_thread(), Builder::new_current_thread()] {
                for _ in 0..2 {
                    // Timers alone are not enough.
                    let runtime = builder.enable_time().build().unwrap();
                    let length = runtime.block_on(async {
                        let length = engine.metadata(&path).await.unwrap().len();
                        let engine = engine.clone();
                        let path = path.clone();
                        tokio::spawn(async move { engine.metadata(&path).await.unwrap().len() })
                            .await
                            .unwrap()
                            + length
                    });
                    assert_eq!(length, 2 * 8192);
                }
            }
            let caught = panic::catch_unwind(|| panic!("a panic of the program"));
            rustix::stdio::dup2_stderr(saved.as_fd()).unwrap();
            let mut printed = String::new();
            stderr.seek(SeekFrom::Start(0)).unwrap();
            stderr.read_to_string(&mut printed).unwrap();
            assert_eq!(printed, "");
            assert!(caught.is_err());
            assert_eq!(
                HOOK_CALLS.load(Ordering::SeqCst),
                1,
                "the program's hook gets the program's panics, and no others"
            );
            let reason = engine.thread_ring_refusal().unwrap().to_string();
            assert!(reason.contains("enable_io"), "{reason}");
            assert!(engine.metrics().wakeups > 0);
            let without = || Builder::new_current_thread().build().unwrap();
            let adopted = annulus::tokio::adopt(without().handle());
            assert_eq!(adopted.unwrap_err().kind(), std::io::ErrorKind::Unsupported);
            let length = |runtime: &Runtime| {
                let metadata = runtime.block_on(async { engine.metadata(&path).await });
                assert_eq!(metadata.unwrap().len(), 8192);
                HOOK_CALLS.load(Ordering::SeqCst)
            };
            // Beside a runtime with I/O, only a declaration tells that another one has none.
            let with = Builder::new_current_thread().enable_io().build().unwrap();
            assert_eq!(length(&with), 1);
            let declared = without();
            annulus::tokio::use_drivers(declared.handle());
            assert_eq!(length(&declared), 1);
            let undeclared = without();
            assert_eq!((length(&undeclared), length(&undeclared)), (2, 2));
        },
    );
}
