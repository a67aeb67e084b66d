//! The end of a thread: destructors of its thread-locals may use files, in any order with the thread's other
//! destructors.

use std::cell::RefCell;
use std::io;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use annulus::{Engine, File};

use crate::executors::on_this_thread;
use crate::fixtures::{bytes, for_each_fixture};

const READS: u64 = 40;

/// Reads when it is dropped, and sends the results.
struct Reads {
    engine: Engine,
    file: File,
    sender: Sender<io::Result<Vec<u8>>>,
}

impl Reads {
    async fn read(&self) -> io::Result<Vec<u8>> {
        let (count, mut all) = self.file.read_at(vec![0; 10], 0).await?;
        all.truncate(count);
        let reads = (0..READS).map(|n| (vec![0; 10], n * 10));
        for result in self.file.read_many_at(reads).await {
            all.extend(result?.1);
        }
        self.engine.sleep(Duration::from_nanos(1)).await?;
        Ok(all)
    }
}

impl Drop for Reads {
    fn drop(&mut self) {
        let _ = self.sender.send(on_this_thread(self.read()));
        // Only rings have drivers of the calling thread.
        if let Ok(driver) = self.engine.current_thread_driver() {
            let _ = self.sender.send(driver.block_on(self.read()));
        }
    }
}

thread_local! {
    static READS_LAST: RefCell<Option<Reads>> = const { RefCell::new(None) };
}

#[test]
fn destructors_of_thread_locals_read_files_before_and_after_the_rings_are_dropped() {
    for_each_fixture(
        |builder| builder,
        |fixture| {
            let contents = bytes(1, 10 * READS as usize);
            let file = pollster::block_on(fixture.file("f", &contents));
            let expected = [&contents[..10], &contents[..]].concat();
            for used_before in [false, true] {
                let (sender, receiver) = channel();
                let reads = Reads {
                    engine: fixture.engine.clone(),
                    file: file.clone(),
                    sender,
                };
                // Thread-locals are destroyed in an order that depends on their first use.
                let body = move || {
                    if used_before {
                        on_this_thread(reads.read()).unwrap();
                    }
                    READS_LAST.set(Some(reads));
                    READS_LAST.with_borrow(|reads| {
                        let reads = reads.as_ref().unwrap();
                        on_this_thread(reads.read()).unwrap();
                    });
                };
                thread::spawn(body).join().unwrap();
                let results: Vec<_> = receiver.iter().collect();
                assert!(!results.is_empty());
                for result in results {
                    assert_eq!(result.unwrap(), expected);
                }
            }
        },
    );
}
