//! A thread whose ring is refused submits to the engine's drivers, the reason can be read, and the ring is created once
//! there are descriptors. Alone, because the test lowers a limit of the whole process.

use std::path::Path;

use annulus::{Backend, Engine};
use annulus_testing::child_process::in_child;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::runtime::Builder;

/// Returns the number of rings of this process.
fn rings() -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap();
    let kinds = links.filter_map(|link| std::fs::read_link(link.unwrap().path()).ok());
    kinds
        .filter(|kind| kind.to_str() == Some("anon_inode:[io_uring]"))
        .count()
}

#[test]
fn a_thread_without_descriptors_uses_the_drivers_and_gets_a_ring_when_there_are_descriptors_again()
{
    in_child(
        "tokio_refused::a_thread_without_descriptors_uses_the_drivers_and_gets_a_ring_when_there_are_descriptors_again",
        || {
            let dir = tempfile::tempdir().unwrap();
            // Another mount, so the lookup is not tried on the calling thread.
            let dir_there = dir.path().strip_prefix("/").unwrap();
            let path = Path::new("/proc/self/root").join(dir_there).join("data");
            std::fs::write(&path, vec![7; 8192]).unwrap();
            for is_adopted in [true, false] {
                let engine = Engine::builder().backend(Backend::Uring).build().unwrap();
                let file = pollster::block_on(engine.open(&path)).unwrap();
                let runtime = Builder::new_current_thread().enable_all().build().unwrap();
                if is_adopted {
                    annulus::tokio::adopt(runtime.handle()).unwrap();
                }
                let limit = getrlimit(Resource::Nofile);
                let none_left = Rlimit {
                    current: Some(3),
                    maximum: limit.maximum,
                };
                setrlimit(Resource::Nofile, none_left).unwrap();
                let result = runtime.block_on(async {
                    // This query goes through a ring; a cached read would not.
                    let metadata = engine.metadata(&path).await;
                    let read = file.read_exact_at(vec![0; 4096], 4096).await;
                    (metadata, read)
                });
                setrlimit(Resource::Nofile, limit).unwrap();
                assert_eq!(result.0.unwrap().len(), 8192);
                assert_eq!(result.1.unwrap(), vec![7; 4096]);
                let reason = engine.thread_ring_refusal().unwrap().to_string();
                // Without a descriptor, it is not known whether a runtime that is not adopted has I/O.
                let expected = if is_adopted { "RLIMIT_NOFILE" } else { "adopt" };
                assert!(reason.contains(expected), "{reason}");
                let of_drivers = rings();
                runtime.block_on(async {
                    for _ in 0..3000 {
                        engine.metadata(&path).await.unwrap();
                    }
                });
                assert!(rings() > of_drivers, "adopted: {is_adopted}");
            }
        },
    );
}
