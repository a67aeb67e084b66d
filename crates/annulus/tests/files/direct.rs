//! Direct I/O: aligned transfers go to the disk directly; others are rounded or refused.

use std::io::ErrorKind;

use annulus::buf::AlignedBuf;
use annulus::{File, IoBuf, OpenOptions};
use annulus_testing::skip;

use crate::fixtures::{Fixture, bytes, for_each_backend};

const BYTES: usize = 40_001;

/// Opens a file with direct I/O. Returns it with its contents, or `None` after a skip.
async fn direct(fixture: &Fixture) -> Option<(File, Vec<u8>)> {
    if !fixture.machine_has("direct I/O") {
        return None;
    }
    let contents = bytes(1, BYTES);
    fixture.put("f", &contents);
    let mut options = OpenOptions::new();
    options.read(true).write(true).direct(true);
    match fixture.engine.open_with(&options, fixture.path("f")).await {
        Ok(file) => Some((file, contents)),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            skip::skip("the temporary directory's file system has no direct I/O");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn the_alignment_of_a_direct_file_is_the_one_that_statx_reports() {
    for_each_backend(async |fixture| {
        let Some((file, _)) = direct(fixture).await else {
            return;
        };
        let align = file.direct_alignment().unwrap();
        let (memory, offset) = (align.memory_bytes, align.offset_bytes);
        assert!(memory.is_power_of_two() && offset.is_power_of_two());
        let reported = file.metadata().await.unwrap().direct_alignment();
        if let Some(reported) = reported {
            assert_eq!(align, reported);
        }
        let by_path = fixture.engine.metadata(fixture.path("f")).await.unwrap();
        assert_eq!(by_path.direct_alignment(), reported);
        let buffered = fixture.engine.open(fixture.path("f")).await.unwrap();
        assert_eq!(buffered.direct_alignment(), None);
    });
}

#[test]
fn aligned_transfers_reach_the_file() {
    for_each_backend(async |fixture| {
        let Some((file, contents)) = direct(fixture).await else {
            return;
        };
        let align = file.direct_alignment().unwrap();
        let (memory, offset) = (align.memory_bytes, align.offset_bytes);
        let unit = offset.max(512);
        let mut buf = AlignedBuf::with_len(4 * unit, memory);
        buf.copy_from_slice(&bytes(2, 4 * unit));
        let buf = file.write_all_at(buf, 2 * unit as u64).await.unwrap();
        assert_eq!(fixture.contents("f").unwrap()[2 * unit..6 * unit], buf[..]);
        let buf = AlignedBuf::with_len(unit, memory);
        let (n, buf) = file.read_at(buf, unit as u64).await.unwrap();
        assert_eq!((n, &buf[..]), (unit, &contents[unit..2 * unit]));
    });
}

#[test]
fn a_read_that_is_not_aligned_is_rounded_out_and_trimmed() {
    for_each_backend(async |fixture| {
        let Some((file, contents)) = direct(fixture).await else {
            return;
        };
        for skip in (0..1024).step_by(37) {
            for count in [1, 511, 512, 1000, 4096, 9000] {
                let (n, buf) = file.read_at(vec![0; count], skip).await.unwrap();
                let expected = &contents[skip as usize..][..count];
                assert_eq!((n, buf.as_slice()), (count, expected), "at {skip}");
            }
            let buf = file.read_exact_at(vec![0; 700], skip).await.unwrap();
            assert_eq!(buf, contents[skip as usize..][..700]);
            let mut into = [0; 600];
            assert_eq!(file.read_into(&mut into, skip).await.unwrap(), 600);
            assert_eq!(into, contents[skip as usize..][..600]);
            let empty = Vec::with_capacity(100);
            let room = empty.capacity();
            let (_, buf) = file.read_at(empty, skip).await.unwrap();
            assert_eq!(buf, contents[skip as usize..][..room]);
        }
    });
}

#[test]
fn a_rounded_read_at_the_end_returns_exactly_the_remaining_bytes() {
    for_each_backend(async |fixture| {
        let Some((file, contents)) = direct(fixture).await else {
            return;
        };
        for before in (0..1024).step_by(37) {
            let at = BYTES - before;
            let (n, buf) = file.read_at(vec![0xee; 2000], at as u64).await.unwrap();
            assert_eq!((n, &buf[..n]), (before, &contents[at..]), "{before} left");
            assert!(buf[n..].iter().all(|&byte| byte == 0xee));
            let error = file.read_exact_at(vec![0; 2000], at as u64).await;
            let error = error.unwrap_err();
            assert_eq!(error.error().kind(), ErrorKind::UnexpectedEof);
            if before > 0 {
                let exact = file.read_exact_at(vec![0; before], at as u64).await;
                assert_eq!(exact.unwrap(), contents[at..]);
            }
            let beyond = (BYTES + before) as u64;
            assert_eq!(file.read_at(vec![0; 9], beyond).await.unwrap().0, 0);
            let mut into = [0xee; 2000];
            assert_eq!(file.read_into(&mut into, at as u64).await.unwrap(), before);
            assert_eq!(into[..before], contents[at..]);
        }
    });
}

#[test]
fn a_write_that_is_not_aligned_is_refused_with_the_numbers() {
    for_each_backend(async |fixture| {
        let Some((file, contents)) = direct(fixture).await else {
            return;
        };
        let align = file.direct_alignment().unwrap();
        let (memory, offset) = (align.memory_bytes, align.offset_bytes);
        let refused = async |buf: annulus::buf::Slice<AlignedBuf>, at: u64| {
            let count = buf.len();
            let error = file.write_all_at(buf, at).await.unwrap_err();
            assert_eq!(error.error().kind(), ErrorKind::InvalidInput);
            let text = error.to_string();
            assert!(
                text.contains(&format!("of {count} bytes at offset {at}")),
                "{text}"
            );
            assert!(text.contains(&format!("multiples of {offset} ")), "{text}");
            assert!(text.contains(&format!("aligned to {memory};")), "{text}");
            assert!(error.into_buf().is_some());
        };
        let buf = || AlignedBuf::with_len(3 * offset, memory.max(512));
        refused(buf().subslice(..offset), 1).await;
        refused(buf().subslice(..offset - 1), 0).await;
        if memory > 1 {
            refused(buf().subslice(1..1 + offset), 0).await;
        }
        let both = file.write_vectored_at(vec![buf(), AlignedBuf::with_len(1, memory)], 0);
        let error = both.await.unwrap_err();
        assert_eq!(error.error().kind(), ErrorKind::InvalidInput);
        assert_eq!(error.into_buf().unwrap().len(), 2);
        let read = file.read_vectored_at(vec![vec![0; 1]; 2], 0).await;
        assert_eq!(read.unwrap_err().error().kind(), ErrorKind::InvalidInput);
        assert!(
            fixture.contents("f").unwrap() == contents,
            "nothing was written"
        );
    });
}

#[test]
fn a_batch_on_a_direct_file_mixes_aligned_and_rounded_reads() {
    for_each_backend(async |fixture| {
        let Some((file, contents)) = direct(fixture).await else {
            return;
        };
        let reads = (0..100).map(|n| (vec![0; 512 + n % 3], n as u64 * 400));
        for (n, result) in file.read_many_at(reads).await.into_iter().enumerate() {
            let (count, buf) = result.unwrap();
            let expected = &contents[n * 400..];
            assert_eq!(count, (512 + n % 3).min(expected.len()));
            assert_eq!(buf[..count], expected[..count]);
        }
    });
}

#[test]
fn several_aligned_buffers_are_read_and_written_in_one_transfer() {
    for_each_backend(async |fixture| {
        let Some((file, contents)) = direct(fixture).await else {
            return;
        };
        let align = file.direct_alignment().unwrap();
        let (memory, offset) = (align.memory_bytes, align.offset_bytes);
        let (unit, memory) = (offset.max(512), memory.max(512));
        let bufs: Vec<_> = (0..3).map(|_| AlignedBuf::with_len(unit, memory)).collect();
        let bufs = file.read_vectored_exact_at(bufs, 0).await.unwrap();
        assert!(
            bufs.iter()
                .flat_map(|buf| buf.iter())
                .eq(&contents[..3 * unit])
        );
        file.write_vectored_all_at(bufs, 3 * unit as u64)
            .await
            .unwrap();
        assert_eq!(
            fixture.contents("f").unwrap()[3 * unit..6 * unit],
            contents[..3 * unit]
        );
    });
}
