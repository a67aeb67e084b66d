//! The removal of a directory while another task replaces a part of it by a symbolic link.

use annulus::sim::{Sim, SimConfig};
use futures_lite::future::poll_once;

/// More than the removal has steps.
const STEPS: u32 = 60;

#[test]
fn a_directory_that_becomes_a_symbolic_link_does_not_lead_the_removal_elsewhere() {
    let mut removed_completely = false;
    let mut swapped_meanwhile = 0;
    for steps in 0..STEPS {
        let sim = Sim::new(SimConfig::new(u64::from(steps)));
        sim.put("/top/sub/deep/file", "x").unwrap();
        sim.put("/top/sub/other", "x").unwrap();
        sim.put("/outside/precious", "x").unwrap();
        sim.put("/outside/deep/precious", "x").unwrap();
        sim.run(async |engine| {
            let mut removal = Box::pin(engine.remove_dir_all("/top"));
            let mut ended = None;
            for _ in 0..steps {
                ended = ended.or(poll_once(&mut removal).await);
                if ended.is_some() {
                    break;
                }
                engine.nop().await.unwrap();
            }
            let swaps = ended.is_none();
            if swaps && engine.rename("/top/sub", "/aside").await.is_ok() {
                swapped_meanwhile +=
                    u32::from(engine.symlink("/outside", "/top/sub").await.is_ok());
            }
            match ended {
                Some(result) => result.unwrap(),
                // It may find the link after it has listed the directory.
                None => drop(removal.await),
            }
            removed_completely |= !engine.try_exists("/top").await.unwrap();
        });
        for path in ["/outside/precious", "/outside/deep/precious"] {
            assert_eq!(
                sim.contents(path).unwrap(),
                b"x",
                "swapped after {steps} steps"
            );
        }
        assert_eq!(sim.open_descriptors(), 0);
    }
    assert!(removed_completely);
    assert!(swapped_meanwhile > 3, "the removal has several steps");
}
