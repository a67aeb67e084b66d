//! Workers whose rings are refused submit to the engine's drivers, and the reason can be read. In a separate process,
//! because the test lowers a limit of the whole process.

use annulus::{Backend, Engine};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::runtime::Builder;

#[test]
fn a_worker_whose_ring_is_refused_uses_the_engines_drivers_and_reports_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    std::fs::write(&path, vec![7; 8192]).unwrap();
    let engine = Engine::builder().backend(Backend::Uring).build().unwrap();
    let file = pollster::block_on(engine.open(&path)).unwrap();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    // Without a free descriptor, the library could not find out.
    annulus::tokio::adopt(runtime.handle()).unwrap();
    let limit = getrlimit(Resource::Nofile);
    let none_left = Rlimit {
        current: Some(3),
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, none_left).unwrap();
    let result = runtime.block_on(async {
        // Metadata of a path goes through a ring; a cached read would not.
        let metadata = engine.metadata(&path).await;
        let read = file.read_exact_at(vec![0; 4096], 4096).await;
        (metadata, read)
    });
    setrlimit(Resource::Nofile, limit).unwrap();
    assert_eq!(result.0.unwrap().len(), 8192);
    assert_eq!(result.1.unwrap(), vec![7; 4096]);
    let reason = engine.thread_ring_refusal().unwrap().to_string();
    assert!(reason.contains("RLIMIT_NOFILE"), "{reason}");
}
