//! # Safety
//!
//! Registrations on real rings. Nothing is in flight after `execute` (Lent, Still): each test keeps
//! its memory until its ring is closed.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::thread;

use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use super::*;
use crate::sys::errno::ENOBUFS;
use crate::sys::polling::RingPoll;
use crate::sys::ring::{RingConfig, SetupMode};
use crate::sys::sqe::{BUFFER_SELECT, Cqe, FIXED_FILE, Sqe, opcode};

const RECV: u8 = io_uring::opcode::Recv::CODE;

/// Creates a ring of each set-up mode that the kernel accepts.
fn rings() -> Vec<Ring> {
    let modes = [
        SetupMode::Deferred,
        SetupMode::Cooperative,
        SetupMode::Plain,
    ];
    let made = modes.map(|setup_mode| {
        Ring::new(RingConfig {
            sq_entries: 8,
            cq_entries: 16,
            setup_mode,
            workers: [0, 0],
            poll: RingPoll::Nothing,
        })
    });
    let (rings, refused): (Vec<_>, Vec<_>) = made.into_iter().partition(Result::is_ok);
    for error in refused.into_iter().filter_map(Result::err) {
        assert!(error.allows_fallback(), "{error}");
        println!("skip: {error}");
    }
    rings.into_iter().filter_map(Result::ok).collect()
}

/// Returns the value, or `None` if the kernel is too old for it.
fn or_skip<T>(result: Result<T, SetupError>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error @ SetupError::TooOld { .. }) => {
            println!("skip: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Creates a file whose byte at `n` is `n` modulo 251.
fn counted_file() -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(
        &(0..16384)
            .map(|n: u32| (n % 251).to_le_bytes()[0])
            .collect::<Vec<_>>(),
    )
    .unwrap();
    file
}

fn bytes(pages: &Pages, from: usize, count: usize) -> &[u8] {
    assert!(from + count <= pages.bytes);
    // SAFETY: Owned: within the mapping, and nothing is in flight.
    unsafe { std::slice::from_raw_parts(pages.base().cast::<u8>().add(from), count) }
}

fn vector(pages: &Pages, from: usize, bytes: usize) -> IoVec {
    let base = pages.base().cast::<u8>().wrapping_add(from);
    IoVec { base, bytes }
}

fn read_fixed(pages: &Pages, at: usize, len: u32, index: u16, file: &File, off: u64) -> Sqe {
    let addr = (pages.base().expose_provenance() + at) as u64;
    let sqe = Sqe::new(opcode::READ_FIXED, file.as_raw_fd());
    Sqe {
        addr,
        len,
        off,
        buf_index: index,
        ..sqe
    }
}

#[test]
fn a_read_into_a_registered_buffer_returns_the_files_bytes() {
    let file = counted_file();
    for mut ring in rings() {
        let pages = Pages::new(8192).unwrap();
        let halves = [vector(&pages, 0, 4096), vector(&pages, 4096, 4096)];
        // SAFETY: Lent, Still: `pages` outlives the registration.
        unsafe { ring.register_buffers(&halves) }.unwrap();

        let into_second = read_fixed(&pages, 5000, 100, 1, &file, 300);
        assert_eq!(ring.execute(into_second).unwrap().res, 100);
        assert_eq!(bytes(&pages, 5000, 3), [49, 50, 51]);
        assert_eq!(bytes(&pages, 4999, 1), [0]);

        // The address has to be inside the buffer that the index names.
        let into_other = read_fixed(&pages, 5000, 100, 0, &file, 0);
        assert_eq!(ring.execute(into_other).unwrap().res, -libc::EFAULT);
        ring.unregister_buffers().unwrap();
        let unregistered = read_fixed(&pages, 5000, 100, 1, &file, 0);
        assert_eq!(ring.execute(unregistered).unwrap().res, -libc::EFAULT);
    }
}

#[test]
fn a_replaced_buffer_takes_the_slot_of_the_old_one() {
    let file = counted_file();
    for mut ring in rings() {
        let (old, new) = (Pages::new(4096).unwrap(), Pages::new(4096).unwrap());
        // SAFETY: Lent, Still: `old` and `new` outlive the registration.
        unsafe { ring.register_buffers(&[vector(&old, 0, 4096)]) }.unwrap();
        // SAFETY: Lent, Still: `old` and `new` outlive the registration.
        if or_skip(unsafe { ring.update_buffers(0, &[vector(&new, 0, 4096)]) }).is_none() {
            continue;
        }
        let cqe = ring.execute(read_fixed(&new, 0, 10, 0, &file, 7)).unwrap();
        assert_eq!((cqe.res, bytes(&new, 0, 2)), (10, &[7, 8][..]));
        let cqe = ring.execute(read_fixed(&old, 0, 10, 0, &file, 7)).unwrap();
        assert_eq!(cqe.res, -libc::EFAULT);
    }
}

#[test]
fn a_direct_descriptor_reads_the_file_that_was_put_in_its_slot() {
    let file = counted_file();
    for mut ring in rings() {
        let into = Pages::new(4096).unwrap();
        let read = |ring: &mut Ring, position: i32| {
            let addr = into.base().expose_provenance() as u64;
            let read = Sqe::new(opcode::READ, position);
            let read = Sqe {
                addr,
                len: 4,
                off: 1000,
                flags: FIXED_FILE,
                ..read
            };
            ring.execute(read).unwrap().res
        };
        ring.register_files(&[-1, file.as_raw_fd()]).unwrap();
        assert_eq!((read(&mut ring, 1), read(&mut ring, 0)), (4, -libc::EBADF));
        assert_eq!(bytes(&into, 0, 4), [247, 248, 249, 250]);
        // The table holds a reference, so the process's descriptor may be closed.
        drop(
            file.try_clone()
                .map(|copy| ring.update_files(0, &[copy.as_raw_fd()]).unwrap()),
        );
        assert_eq!(read(&mut ring, 0), 4);
        ring.update_files(1, &[-1]).unwrap();
        assert_eq!(read(&mut ring, 1), -libc::EBADF);
        ring.unregister_files().unwrap();
        assert_eq!(read(&mut ring, 0), -libc::EBADF);

        if or_skip(ring.register_files_sparse(3)).is_some() {
            ring.update_files(2, &[file.as_raw_fd()]).unwrap();
            assert_eq!((read(&mut ring, 2), read(&mut ring, 1)), (4, -libc::EBADF));
            assert!(ring.update_files(3, &[file.as_raw_fd()]).is_err());
        }
    }
}

fn receive(ring: &mut Ring, socket: &UnixStream, group: u16) -> Cqe {
    ring.execute(Sqe {
        flags: BUFFER_SELECT,
        buf_index: group,
        ..Sqe::new(RECV, socket.as_raw_fd())
    })
    .unwrap()
}

#[test]
fn a_receive_names_the_buffer_of_the_group_that_has_its_bytes() {
    const SLICE: usize = 64;
    for mut ring in rings() {
        let Some(mut group) = or_skip(ring.register_buf_ring(4, 7)) else {
            continue;
        };
        assert_eq!(group.group(), 7);
        let pages = Pages::new(4096).unwrap();
        let (mut sender, receiver) = UnixStream::pair().unwrap();
        let give = |group: &mut BufRing, id: u16| {
            let base = vector(&pages, usize::from(id) * SLICE, SLICE).base;
            // SAFETY: Lent, Still, Once: `pages` outlives the ring, and no id is in the ring twice.
            unsafe { group.add(base, u32::try_from(SLICE).unwrap(), id) };
        };

        // Seven times around the ring, so that entry 0, which holds the tail, is overwritten
        // several times.
        for id in [10, 11, 12] {
            give(&mut group, id);
        }
        group.publish();
        for round in 0..28_u16 {
            let text = format!("message {round}");
            sender.write_all(text.as_bytes()).unwrap();
            let cqe = receive(&mut ring, &receiver, 7);
            assert_eq!(usize::try_from(cqe.res).unwrap(), text.len());
            let id = cqe.buffer_id().unwrap();
            assert_eq!(id, 10 + round % 3);
            assert_eq!(
                bytes(&pages, usize::from(id) * SLICE, text.len()),
                text.as_bytes()
            );
            give(&mut group, id);
            group.publish();
        }
        // No buffer is given back from here on: the kernel has three, and must notice when it has
        // none.
        sender.write_all(&[b'y'; 3 * SLICE]).unwrap();
        for _ in 0..3 {
            let res = receive(&mut ring, &receiver, 7).res;
            assert_eq!(usize::try_from(res).unwrap(), SLICE);
        }
        sender.write_all(b"z").unwrap();
        assert_eq!(receive(&mut ring, &receiver, 7).res, -ENOBUFS);
        give(&mut group, 11);
        group.publish();
        assert_eq!(receive(&mut ring, &receiver, 7).buffer_id(), Some(11));

        ring.unregister_buf_ring(group).unwrap();
        sender.write_all(b"x").unwrap();
        assert_eq!(receive(&mut ring, &receiver, 7).res, -ENOBUFS);
    }
}

#[test]
fn a_buffer_that_is_added_but_not_published_is_not_used() {
    for mut ring in rings() {
        let Some(mut group) = or_skip(ring.register_buf_ring(2, 0)) else {
            continue;
        };
        let pages = Pages::new(4096).unwrap();
        let (mut sender, receiver) = UnixStream::pair().unwrap();
        sender.write_all(b"hello").unwrap();
        // SAFETY: Lent, Still, Once: `pages` outlives the ring; the only buffer.
        unsafe { group.add(pages.base().cast(), 4096, 3) };
        let cqe = receive(&mut ring, &receiver, 0);
        assert_eq!((cqe.res, cqe.buffer_id()), (-ENOBUFS, None));
        group.publish();
        let cqe = receive(&mut ring, &receiver, 0);
        assert_eq!((cqe.res, cqe.buffer_id()), (5, Some(3)));
        assert_eq!(bytes(&pages, 0, 5), b"hello");
        ring.unregister_buf_ring(group).unwrap();
    }
}

#[test]
fn a_group_of_a_wrong_size_or_number_is_refused() {
    for mut ring in rings() {
        for entries in [0, 3, 65535] {
            let refused = ring.register_buf_ring(entries, 0);
            assert!(matches!(refused, Err(SetupError::Config(_))), "{entries}");
        }
        if let Some(group) = or_skip(ring.register_buf_ring(1, 4)) {
            assert!(ring.register_buf_ring(1, 4).is_err(), "the number is taken");
            ring.unregister_buf_ring(group).unwrap();
            let again = ring.register_buf_ring(32768, 4).unwrap();
            ring.unregister_buf_ring(again).unwrap();
        }
    }
}

/// Returns the processors that each worker thread of this thread's rings may use.
fn processors_of_workers() -> Vec<String> {
    let tid = rustix::thread::gettid().as_raw_nonzero();
    let mut processors = Vec::new();
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let status =
            std::fs::read_to_string(task.unwrap().path().join("status")).unwrap_or_default();
        let line = |name: &str| {
            status
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .unwrap_or_default()
                .trim()
                .to_owned()
        };
        if line("Name:") == format!("iou-wrk-{tid}") {
            processors.push(line("Cpus_allowed_list:"));
        }
    }
    processors
}

#[test]
fn a_worker_thread_runs_where_it_was_placed() {
    /// `IOSQE_ASYNC`: the request goes to a worker immediately.
    const ASYNC: u8 = 1 << 4;
    let run = || {
        for mut ring in rings() {
            or_skip(ring.limit_workers([2, 3]));
            let mine = rustix::thread::sched_getaffinity(None).unwrap();
            let mine: Vec<_> = (0..rustix::thread::CpuSet::MAX_CPU)
                .filter(|&cpu| mine.is_set(cpu))
                .collect();
            let last = *mine.last().unwrap();
            if or_skip(ring.pin_workers(&[last])).is_none() {
                continue;
            }
            let nop = Sqe {
                flags: ASYNC,
                ..Sqe::new(opcode::NOP, -1)
            };
            assert_eq!(ring.execute(nop).unwrap().res, 0);
            // If the worker of the previous ring is not idle yet, there is a second one.
            let processors = processors_of_workers();
            let placed = |position: &String| *position == last.to_string();
            assert!(
                !processors.is_empty() && processors.iter().all(placed),
                "{processors:?}"
            );
            ring.unpin_workers().unwrap();
        }
    };
    // Workers belong to the submitting thread. A new thread has no others.
    thread::spawn(run).join().unwrap();
}

/// The limit does not apply with CAP_IPC_LOCK, which a thread can drop for itself.
#[test]
fn buffers_beyond_the_locked_memory_limit_are_refused_with_the_limit_and_a_hint() {
    let Some(limit) = probe::memlock_bytes().filter(|&bytes| bytes < 1 << 30) else {
        return println!("skip: needs a locked-memory limit (ulimit -l) below 1 GiB");
    };
    let unprivileged = thread::spawn(move || {
        let mut sets = capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::IPC_LOCK);
        set_capabilities(None, sets).unwrap();
        assert!(!probe::memlock_waived());
        let bytes = usize::try_from(limit).unwrap() + 4096;
        let pages = Pages::new(bytes).unwrap();
        for mut ring in rings() {
            // SAFETY: Lent, Still: `pages` outlives the ring.
            let refused = unsafe { ring.register_buffers(&[vector(&pages, 0, bytes)]) };
            let error = refused.unwrap_err();
            let SetupError::Memlock {
                what: BUFFERS,
                have_bytes,
                ..
            } = error
            else {
                panic!("{error}");
            };
            assert_eq!(have_bytes, Some(limit));
            let text = error.to_string();
            assert!(
                text.contains("too small for registered buffers; raise it (ulimit -l"),
                "{text}"
            );
        }
    });
    unprivileged.join().unwrap();
}
