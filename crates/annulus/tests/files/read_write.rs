//! Positional reads and writes, with every kind of buffer.

use std::io::ErrorKind;
use std::sync::Arc;

use annulus::buf::AlignedBuf;
use annulus::{BackendInUse, IoBuf, OpenOptions};

use crate::fixtures::{bytes, for_each_backend, uncache};

#[test]
fn a_read_returns_the_bytes_at_its_offset_cached_or_not() {
    for_each_backend(async |fixture| {
        let contents = bytes(1, 40_960);
        let file = fixture.file("f", &contents).await;
        for (offset, count) in [(0, 4096), (1, 1), (4095, 2), (12_345, 20_000), (0, 40_960)] {
            for _ in 0..2 {
                uncache(&file).await;
                for cached in [false, true] {
                    let (n, buf) = file.read_at(vec![0; count], offset).await.unwrap();
                    let expected = &contents[offset as usize..][..count];
                    assert_eq!((n, &buf[..n]), (count, expected), "at {offset}, {cached}");
                    let buf = file.read_exact_at(vec![1; count], offset).await.unwrap();
                    assert_eq!(buf, expected, "{count} bytes at {offset}, {cached}");
                }
            }
        }
    });
}

#[test]
fn a_read_at_the_end_is_short_and_leaves_the_rest_of_the_buffer_alone() {
    for_each_backend(async |fixture| {
        let contents = bytes(2, 10_000);
        let file = fixture.file("f", &contents).await;
        let (n, buf) = file.read_at(vec![0xee; 4096], 9_000).await.unwrap();
        assert_eq!((n, buf.len()), (1000, 4096));
        assert_eq!(buf[..n], contents[9_000..]);
        assert!(buf[n..].iter().all(|&byte| byte == 0xee));
        for offset in [10_000, 10_001, 1 << 40, i64::MAX as u64 - 10] {
            let (n, buf) = file.read_at(vec![0xee; 10], offset).await.unwrap();
            assert_eq!((n, buf), (0, vec![0xee; 10]), "at {offset}");
        }
    });
}

#[test]
fn an_exact_read_that_reaches_the_end_reports_how_much_it_read() {
    for_each_backend(async |fixture| {
        let contents = bytes(3, 10_000);
        let file = fixture.file("f", &contents).await;
        let error = file.read_exact_at(vec![0; 4096], 9_000).await.unwrap_err();
        assert_eq!(error.error().kind(), ErrorKind::UnexpectedEof);
        assert!(error.to_string().contains("1000 of 4096"), "{error}");
        assert_eq!(error.into_buf().unwrap()[..1000], contents[9_000..]);
        let last = file.read_exact_at(vec![0; 1000], 9_000).await.unwrap();
        assert_eq!(last, contents[9_000..]);
    });
}

#[test]
fn zero_bytes_are_written_without_effect() {
    for_each_backend(async |fixture| {
        let file = fixture.file("f", b"abc").await;
        assert_eq!(file.write_at(Vec::new(), 99).await.unwrap(), (0, vec![]));
        assert_eq!(file.write_all_at("", 99).await.unwrap(), "");
        assert_eq!(file.write_all_durable_at("", 99).await.unwrap(), "");
        assert_eq!(fixture.contents("f").unwrap(), b"abc");
    });
}

#[test]
fn an_empty_vec_lends_its_capacity_and_a_filled_one_its_length() {
    for_each_backend(async |fixture| {
        let contents = bytes(4, 5000);
        let file = fixture.file("f", &contents).await;
        for _ in 0..2 {
            let empty = Vec::with_capacity(1000);
            let room = empty.capacity();
            let (n, buf) = file.read_at(empty, 100).await.unwrap();
            assert_eq!((n, buf.len(), buf.capacity()), (room, room, room));
            assert_eq!(buf, contents[100..100 + room]);

            let mut filled = Vec::with_capacity(1000);
            filled.extend([0; 10]);
            let (n, buf) = file.read_at(filled, 100).await.unwrap();
            assert_eq!((n, buf.as_slice()), (10, &contents[100..110]));

            let empty = Vec::with_capacity(1000);
            let (n, buf) = file.read_at(empty, 4990).await.unwrap();
            assert_eq!(
                (n, buf.as_slice()),
                (10, &contents[4990..]),
                "cut at the end"
            );
            let error = file.read_exact_at(Vec::with_capacity(1000), 4990).await;
            assert_eq!(error.unwrap_err().into_buf().unwrap(), contents[4990..]);
            uncache(&file).await;
        }
    });
}

#[test]
fn every_kind_of_owned_buffer_can_be_written() {
    for_each_backend(async |fixture| {
        let file = fixture.file("f", b"").await;
        let mut aligned = AlignedBuf::with_len(4, 512);
        aligned.copy_from_slice(b"6666");
        let shared: Arc<[u8]> = Arc::from(*b"2222");
        file.write_all_at(vec![b'0'; 4], 0).await.unwrap();
        let boxed: Box<[u8]> = Box::from(*b"1111");
        file.write_all_at(boxed, 4).await.unwrap();
        file.write_all_at(Arc::clone(&shared), 8).await.unwrap();
        file.write_all_at(String::from("3333"), 12).await.unwrap();
        file.write_all_at("4444", 16).await.unwrap();
        file.write_all_at(&b"5555"[..], 20).await.unwrap();
        file.write_all_at(aligned, 24).await.unwrap();
        file.write_all_at(Box::new(*b"7777"), 28).await.unwrap();
        file.write_all_at(String::from("<8888>").subslice(1..5), 32)
            .await
            .unwrap();
        assert_eq!(
            fixture.contents("f").unwrap(),
            b"000011112222333344445555666677778888"
        );
        assert_eq!(Arc::strong_count(&shared), 1, "the engine let go of it");
    });
}

#[test]
fn every_kind_of_writable_buffer_can_be_read_into() {
    for_each_backend(async |fixture| {
        let contents = bytes(5, 1000);
        let file = fixture.file("f", &contents).await;
        for _ in 0..2 {
            uncache(&file).await;
            let boxed: Box<[u8]> = vec![0; 300].into();
            let boxed = file.read_exact_at(boxed, 7).await.unwrap();
            assert_eq!(boxed[..], contents[7..307]);
            let array = file.read_exact_at(Box::new([0; 300]), 8).await.unwrap();
            assert_eq!(array[..], contents[8..308]);
            let aligned = AlignedBuf::with_len(300, 512);
            let aligned = file.read_exact_at(aligned, 9).await.unwrap();
            assert_eq!(aligned[..], contents[9..309]);
        }
    });
}

#[test]
fn a_slice_is_read_and_written_without_touching_its_surroundings() {
    for_each_backend(async |fixture| {
        let file = fixture.file("f", b"abcdefghij").await;
        for _ in 0..2 {
            let part = vec![b'-'; 8].subslice(2..5);
            assert_eq!((part.begin(), part.end()), (2, 5));
            let (n, part) = file.read_at(part, 3).await.unwrap();
            assert_eq!((n, &part[..]), (3, &b"def"[..]));
            assert_eq!(part.into_inner(), b"--def---");
            uncache(&file).await;
        }
        let part = b"0123456789".to_vec().subslice(4..7);
        let (n, part) = file.write_at(part, 0).await.unwrap();
        assert_eq!((n, part.into_inner().len()), (3, 10));
        assert_eq!(fixture.contents("f").unwrap(), b"456defghij");
        let nested = vec![b'-'; 8].subslice(2..7).subslice(1..3);
        let nested = file.read_exact_at(nested, 0).await.unwrap();
        assert_eq!(nested.into_inner().into_inner(), b"---45---");
    });
}

#[test]
fn a_borrowed_slice_is_filled_cached_or_not() {
    for_each_backend(async |fixture| {
        let contents = bytes(6, 300_000);
        let file = fixture.file("f", &contents).await;
        for (offset, count, expected) in [
            (0, 1, 1),
            (10, 4096, 4096),
            (1, 200_000, 200_000),
            (299_990, 100, 10),
            (300_000, 5, 0),
        ] {
            uncache(&file).await;
            for _ in 0..2 {
                let mut into = vec![0xee; count];
                let n = file.read_into(&mut into, offset).await.unwrap();
                assert_eq!(n, expected, "{count} bytes at {offset}");
                assert_eq!(into[..n], contents[offset as usize..][..n]);
                assert!(into[n..].iter().all(|&byte| byte == 0xee));
            }
        }
    });
}

#[test]
fn a_write_is_visible_to_std_immediately_and_a_gap_reads_as_zeroes() {
    for_each_backend(async |fixture| {
        let file = fixture.file("f", b"").await;
        let (n, buf) = file.write_at(b"abc".to_vec(), 0).await.unwrap();
        assert_eq!((n, buf.as_slice()), (3, &b"abc"[..]));
        assert_eq!(fixture.contents("f").unwrap(), b"abc");
        file.write_all_at("xyz", 10_000).await.unwrap();
        let contents = fixture.contents("f").unwrap();
        assert_eq!(contents.len(), 10_003);
        assert!(contents[3..10_000].iter().all(|&byte| byte == 0));
        assert_eq!(contents[10_000..], *b"xyz");
        file.write_all_at("B", 1).await.unwrap();
        assert_eq!(fixture.contents("f").unwrap()[..4], *b"aBc\0");
    });
}

#[test]
fn a_durable_write_and_both_syncs_leave_the_bytes_in_the_file() {
    for_each_backend(async |fixture| {
        let file = fixture.file("f", b"").await;
        let contents = bytes(7, 10_000);
        let back = file
            .write_all_durable_at(contents.clone(), 0)
            .await
            .unwrap();
        assert_eq!(back, contents);
        file.sync_data().await.unwrap();
        file.sync_all().await.unwrap();
        assert_eq!(fixture.contents("f").unwrap(), contents);
    });
}

#[cfg(not(annulus_portable))]
#[test]
fn only_durable_writes_of_buffered_files_run_on_blocking_threads() {
    for_each_backend(async |fixture| {
        let without_rings = matches!(fixture.engine.backend(), BackendInUse::Fallback { .. });
        let file = fixture.file("f", b"").await;
        let mut options = OpenOptions::new();
        let direct = options.write(true).direct(true);
        let direct = if fixture.is_real() {
            fixture
                .engine
                .open_with(direct, fixture.path("f"))
                .await
                .ok()
        } else {
            None
        };
        let page = AlignedBuf::with_len(4096, 4096);
        let mut page = file.write_all_at(page, 0).await.unwrap();
        for (file, buffered) in [(Some(&file), true), (direct.as_ref(), false)] {
            let Some(file) = file else { continue };
            let before = fixture.engine.metrics().blocking;
            for offset in [0, 4096, 8192] {
                page = file.write_all_durable_at(page, offset).await.unwrap();
            }
            let by_threads = fixture.engine.metrics().blocking - before;
            let expected = without_rings || (buffered && fixture.is_real());
            assert_eq!(by_threads, 3 * u64::from(expected), "buffered: {buffered}");
            let before = fixture.engine.metrics().blocking;
            page = file.write_all_at(page, 0).await.unwrap();
            let by_threads = fixture.engine.metrics().blocking - before;
            assert_eq!(by_threads, u64::from(without_rings), "not durable");
        }
    });
}

#[test]
fn transfers_of_many_megabytes_arrive_whole() {
    for_each_backend(async |fixture| {
        let contents = bytes(8, (5 << 20) + 3);
        let file = fixture.file("f", b"").await;
        let contents = file.write_all_at(contents, 1).await.unwrap();
        assert_eq!(fixture.contents("f").unwrap()[1..], contents);
        uncache(&file).await;
        for _ in 0..2 {
            let buf = vec![0; contents.len()];
            let buf = file.read_exact_at(buf, 1).await.unwrap();
            assert!(buf == contents);
        }
        let mut into = vec![0; contents.len()];
        let n = file.read_into(&mut into, 1).await.unwrap();
        assert!(n > 0 && into[..n] == contents[..n]);
    });
}

#[cfg(not(annulus_portable))]
#[test]
fn a_nop_completes_and_is_counted() {
    for_each_backend(async |fixture| {
        let before = fixture.engine.metrics().completed;
        fixture.engine.nop().await.unwrap();
        let metrics = fixture.engine.metrics();
        assert!(metrics.completed > before, "{metrics:?}");
    });
}
