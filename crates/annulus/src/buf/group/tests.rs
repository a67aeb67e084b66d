//! Tests of shared receive buffers, without a kernel.

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
fn what_is_received_into_one_buffer_lies_one_behind_the_other() {
    let mut parts = parts(4, 100);
    assert_eq!(parts.receive(2, 30, true), at(0));
    assert_eq!(parts.receive(2, 50, true), at(30));
    assert_eq!(
        parts.receive(3, 1, true),
        at(0),
        "another buffer has an index of its own"
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
    assert_eq!(parts.receive(0, 1, false), None, "the kernel gave it up");
    assert!(!parts.release(0), "a chunk has it");
    assert_eq!(parts.read(), 1);
    assert!(parts.release(0));
    assert_eq!(parts.read(), 0);
    assert_eq!(
        parts.receive(0, 7, true),
        at(0),
        "from its start, the next time"
    );
}

#[test]
#[cfg_attr(debug_assertions, should_panic(expected = "given back once"))]
#[cfg_attr(not(debug_assertions), ignore = "only asserted in debug builds")]
fn a_chunk_that_were_given_back_twice_would_be_seen() {
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
        "an end that names a buffer"
    );
    assert_eq!(parts.receive(1, 60, false), at(40));
}

#[test]
fn a_kernel_that_names_more_than_there_is_room_for_is_not_believed() {
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
            assert!(!again.is_scarce, "it is read already");
        }
        let last = count - 1;
        let received = parts.receive(last, 6, false).unwrap();
        assert!(received.is_scarce);
        assert!(parts.release(last), "at once, for all of it was copied");
    }
}

/// A little more than 4 GiB, of which a mapping takes no memory until it is touched; `None` where not even the
/// addresses are to be had.
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
fn a_chunk_of_more_than_4_gib_has_all_of_its_bytes_and_knows_the_size_of_its_memory() {
    let Some(bytes) = beyond_4_gib() else { return };
    let mut chunk = Chunk::from_vec(vec![0; bytes]);
    assert_eq!(chunk.len(), bytes);
    assert!(chunk.is_full());
    chunk.advance(1 << 32);
    assert_eq!(chunk.len(), 1000);
    drop(chunk);
    let chunk = Chunk::with_capacity(bytes);
    assert_eq!(chunk.space(), bytes, "what it is freed as");
    assert!(!chunk.is_full());
}
