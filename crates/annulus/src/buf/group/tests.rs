//! Tests of receive buffers without a kernel.

use super::incremental::{Parts, Received};
use super::{Chunk, GroupLayout, ReceiveMode};

fn parts(count: u16, bytes: u32) -> Parts {
    Parts::new(GroupLayout {
        count,
        bytes,
        mode: ReceiveMode::Incremental,
    })
}

const fn at(from: u32) -> Option<Received> {
    Some(Received {
        from,
        is_scarce: false,
    })
}

#[test]
fn receives_into_one_buffer_are_contiguous() {
    let mut parts = parts(4, 100);
    assert_eq!(parts.receive(2, 30, true), at(0));
    assert_eq!(parts.receive(2, 50, true), at(30));
    assert_eq!(
        parts.receive(3, 1, true),
        at(0),
        "each buffer has its own position"
    );
    assert_eq!(parts.receive(2, 20, false), at(80));
}

#[test]
fn a_buffer_goes_back_when_the_kernel_and_all_chunks_have_finished_with_it_and_once() {
    let mut parts = parts(4, 100);
    parts.receive(0, 30, true).unwrap();
    parts.receive(0, 30, true).unwrap();
    assert!(!parts.release(0), "the kernel and a chunk have it");
    assert!(!parts.release(0), "the kernel has it");
    parts.receive(0, 30, true).unwrap();
    parts.receive(0, 10, false).unwrap();
    assert_eq!(
        parts.receive(0, 1, false),
        None,
        "the kernel has finished with it"
    );
    assert!(!parts.release(0), "a chunk has it");
    assert_eq!(parts.read(), 1);
    assert!(parts.release(0));
    assert_eq!(parts.read(), 0);
    assert_eq!(parts.receive(0, 7, true), at(0), "from the start again");
}

#[test]
#[cfg_attr(debug_assertions, should_panic(expected = "returned once"))]
#[cfg_attr(not(debug_assertions), ignore = "only asserted in debug builds")]
fn returning_a_chunk_twice_panics_in_debug_builds() {
    let mut parts = parts(4, 100);
    parts.receive(1, 30, true).unwrap();
    parts.release(1);
    parts.release(1);
}

#[test]
fn an_answer_without_data_takes_nothing_whatever_it_says() {
    let mut parts = parts(4, 100);
    parts.receive(1, 40, true).unwrap();
    assert_eq!(
        parts.receive(1, 0, false),
        at(40),
        "an end of stream that names a buffer"
    );
    assert_eq!(parts.receive(1, 60, false), at(40));
}

#[test]
fn a_completion_with_more_bytes_than_the_buffer_has_left_is_rejected() {
    let mut parts = parts(4, 100);
    parts.receive(1, 40, true).unwrap();
    assert_eq!(parts.receive(1, 61, false), None);
    assert_eq!(parts.receive(4, 1, false), None, "there is no such buffer");
}

#[test]
fn a_task_that_keeps_chunks_leaves_a_quarter_of_the_memory_and_at_least_a_buffer_to_others() {
    for (count, read_max) in [(1, 0), (2, 1), (4, 3), (8, 6), (64, 48)] {
        let mut parts = parts(count, 10);
        for id in 0..count {
            let received = parts.receive(id, 4, true).unwrap();
            let copied = received.is_scarce;
            assert_eq!(copied, id >= read_max, "buffer {id} of {count}");
            if copied {
                parts.release(id);
            }
        }
        assert_eq!(parts.read(), u32::from(read_max));
        if read_max > 0 {
            let again = parts.receive(0, 4, true).unwrap();
            assert!(!again.is_scarce, "it has a chunk already");
        }
        let last = count - 1;
        let received = parts.receive(last, 6, false).unwrap();
        assert!(received.is_scarce);
        assert!(
            parts.release(last),
            "immediately, because all of it was copied"
        );
    }
}

/// Returns a size slightly above 4 GiB, or `None` if there is not enough address space. A mapping uses no memory until
/// it is touched.
#[cfg(target_pointer_width = "64")]
fn beyond_4_gib() -> Option<usize> {
    let bytes = (1 << 32) + 1000;
    let has_space = Vec::<u8>::new().try_reserve_exact(bytes).is_ok();
    if !has_space {
        println!("skip: no address space for 4 GiB");
    }
    has_space.then_some(bytes)
}

#[test]
#[cfg(target_pointer_width = "64")]
fn a_chunk_of_more_than_4_gib_has_all_its_bytes_and_the_size_of_its_memory() {
    let Some(bytes) = beyond_4_gib() else { return };
    let mut chunk = Chunk::from_vec(vec![0; bytes]);
    assert_eq!(chunk.len(), bytes);
    assert!(chunk.is_full());
    chunk.advance(1 << 32);
    assert_eq!(chunk.len(), 1000);
    drop(chunk);
    let chunk = Chunk::with_capacity(bytes);
    assert_eq!(chunk.space(), bytes, "the size to free");
    assert!(!chunk.is_full());
}
