//! `Bytes` and `BytesMut` as buffers: a read appends to a `BytesMut`, a write takes the contents of either.

use std::io::ErrorKind;

#[cfg(not(annulus_portable))]
use annulus::fs::Merge;
use annulus::{IoBuf, OpenOptions};
use annulus_testing::skip;
use bytes::{Bytes, BytesMut};

use crate::fixtures::{Fixture, bytes, for_each_backend, uncache};
use crate::wait::DEADLINE;

/// Returns `head` with exactly `spare` bytes of spare capacity.
fn with_spare(head: &[u8], spare: usize) -> BytesMut {
    let mut buf = BytesMut::with_capacity(head.len() + spare);
    buf.extend_from_slice(head);
    assert_eq!(buf.capacity(), head.len() + spare);
    buf
}

#[test]
fn a_read_appends_to_the_contents_of_a_buffer() {
    for_each_backend(async |fixture| {
        let contents = bytes(1, 9_000);
        let file = fixture.file("f", &contents).await;
        for spare in [1, 100, 8_000] {
            let buf = with_spare(b"head", spare);
            let address = buf.as_ptr();
            let (n, buf) = file.read_at(buf, 500).await.unwrap();
            assert_eq!(n, spare);
            assert_eq!(buf, [b"head", &contents[500..500 + spare]].concat());
            assert_eq!(buf.as_ptr(), address);
        }
        // The end of the file is reached before that of the capacity.
        let (n, buf) = file.read_at(with_spare(b"head", 100), 8_950).await.unwrap();
        assert_eq!(
            (n, &buf[..]),
            (50, &[b"head", &contents[8_950..]].concat()[..])
        );
        // The next read fills the remaining capacity, at another offset.
        let (n, buf) = file.read_at(buf, 0).await.unwrap();
        assert_eq!((n, &buf[54..]), (50, &contents[..50]));
        let (n, buf) = file.read_at(with_spare(b"head", 9), 9_000).await.unwrap();
        assert_eq!((n, &buf[..]), (0, &b"head"[..]));
        let (n, buf) = file.read_at(BytesMut::with_capacity(64), 3).await.unwrap();
        assert_eq!((n, &buf[..]), (64, &contents[3..67]));
    });
}

#[test]
fn a_read_past_the_cache_appends() {
    for_each_backend(async |fixture| {
        let contents = bytes(2, 100_000);
        let file = fixture.file("f", &contents).await;
        uncache(&file).await;
        let (n, buf) = file.read_at(with_spare(b"ab", 70_000), 1).await.unwrap();
        assert_eq!(n, buf.len() - 2);
        assert_eq!(buf, [b"ab", &contents[1..=n]].concat());
    });
}

#[test]
fn a_buffer_without_spare_capacity_is_refused() {
    for_each_backend(async |fixture| {
        let file = fixture.file("f", &bytes(3, 100)).await;
        for buf in [BytesMut::new(), with_spare(b"full", 0)] {
            let before = buf.clone();
            let (error, buf) = file.read_at(buf, 0).await.unwrap_err().into_parts();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
            assert!(error.to_string().contains("spare capacity"), "{error}");
            let (error, buf) = file
                .read_exact_at(buf.unwrap(), 0)
                .await
                .unwrap_err()
                .into_parts();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
            let results = file.read_many_at([(buf.unwrap(), 0)]).await;
            for result in results {
                let (error, buf) = result.unwrap_err().into_parts();
                assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
                assert_eq!(buf.unwrap(), before);
            }
        }
    });
}

#[test]
fn an_exact_read_fills_the_spare_capacity_or_reports_how_much_there_was() {
    for_each_backend(async |fixture| {
        let contents = bytes(4, 1_000);
        let file = fixture.file("f", &contents).await;
        let buf = file
            .read_exact_at(with_spare(b"head", 300), 700)
            .await
            .unwrap();
        assert_eq!(buf, [b"head", &contents[700..]].concat());
        let refused = file.read_exact_at(with_spare(b"head", 300), 800).await;
        let (error, buf) = refused.unwrap_err().into_parts();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        assert!(error.to_string().contains("200 of 300"), "{error}");
        assert_eq!(buf.unwrap(), [b"head", &contents[800..]].concat());
    });
}

#[cfg(not(annulus_portable))]
#[test]
fn vectored_reads_and_batches_append_to_each_buffer() {
    for_each_backend(async |fixture| {
        let contents = bytes(5, 10_000);
        let file = fixture.file("f", &contents).await;
        let bufs = vec![
            with_spare(b"a", 10),
            with_spare(b"full", 0),
            with_spare(b"", 5),
            with_spare(b"cc", 20),
        ];
        let (n, bufs) = file.read_vectored_at(bufs, 100).await.unwrap();
        assert_eq!(n, 35);
        assert_eq!(bufs[0], [b"a", &contents[100..110]].concat());
        assert_eq!(bufs[1], b"full"[..]);
        assert_eq!(bufs[2], contents[110..115]);
        assert_eq!(bufs[3], [b"cc", &contents[115..135]].concat());
        let full = vec![with_spare(b"full", 0)];
        let (error, _) = file
            .read_vectored_at(full, 0)
            .await
            .unwrap_err()
            .into_parts();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);

        for merges in [false, true] {
            let reads = [(0, 100), (120, 300), (9_000, 4)];
            let requests = reads.map(|(at, count)| (with_spare(b"head", count), at as u64));
            if merges {
                uncache(&file).await;
            }
            let batch = file.read_many_at(requests);
            let results = if merges {
                batch.merge(Merge::default()).await
            } else {
                batch.await
            };
            for ((at, count), result) in reads.into_iter().zip(results) {
                let (n, buf) = result.unwrap();
                assert_eq!(n, count);
                assert_eq!(buf, [b"head", &contents[at..at + count]].concat());
            }
        }
    });
}

#[test]
fn a_read_with_a_timeout_appends() {
    for_each_backend(async |fixture| {
        let contents = bytes(6, 1_000);
        let file = fixture.file("f", &contents).await;
        let read = file.read_at(with_spare(b"head", 30), 10).timeout(DEADLINE);
        let (n, buf) = read.await.unwrap();
        assert_eq!((n, &buf[4..]), (30, &contents[10..40]));
        drop(file.read_at(with_spare(b"dropped", 30), 10));
    });
}

#[cfg(not(annulus_portable))]
async fn direct_reads(fixture: &Fixture) {
    let contents = bytes(7, 40_000);
    fixture.put("d", &contents);
    let mut options = OpenOptions::new();
    options.read(true).direct(true);
    let file = match fixture.engine.open_with(&options, fixture.path("d")).await {
        Ok(file) => file,
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            return skip::skip("the temporary directory's file system has no direct I/O");
        }
        Err(error) => panic!("{error}"),
    };
    // Neither address nor offset is aligned: the engine reads into aligned memory and copies.
    for (spare, offset) in [(1, 0), (5_000, 4_096), (5_000, 7)] {
        let buf = with_spare(b"head", spare);
        let (n, buf) = file.read_at(buf, offset as u64).await.unwrap();
        assert_eq!(n, spare);
        assert_eq!(buf, [b"head", &contents[offset..offset + spare]].concat());
    }
}

#[cfg(not(annulus_portable))]
#[test]
fn a_direct_read_appends() {
    for_each_backend(async |fixture| {
        if fixture.machine_has("direct I/O") {
            direct_reads(fixture).await;
        }
    });
}

#[cfg(not(annulus_portable))]
#[test]
fn writes_take_the_contents_of_both() {
    for_each_backend(async |fixture| {
        let file = fixture.file("f", b"..........").await;
        let shared = Bytes::from(b"0123456789".to_vec());
        let (n, back) = file.write_at(shared.slice(2..5), 0).await.unwrap();
        assert_eq!((n, &back[..]), (3, &b"234"[..]));
        let part = file
            .write_all_at(shared.clone().subslice(7..), 3)
            .await
            .unwrap();
        assert_eq!(part.into_inner(), shared);
        // Spare capacity is not written.
        let (n, back) = file.write_at(with_spare(b"mut", 100), 6).await.unwrap();
        assert_eq!((n, &back[..]), (3, &b"mut"[..]));
        file.write_all_at(Bytes::from_static(b"!"), 9)
            .await
            .unwrap();
        assert_eq!(fixture.contents("f").unwrap(), b"234789mut!");
        let parts = vec![shared.slice(..2), shared.slice(4..4), shared.slice(8..)];
        let (n, parts) = file.write_vectored_at(parts, 0).await.unwrap();
        assert_eq!((n, &parts.concat()[..]), (4, &b"0189"[..]));
        assert_eq!(fixture.contents("f").unwrap(), b"018989mut!");
        let (n, _) = file.write_at(Bytes::new(), 0).await.unwrap();
        assert_eq!(n, 0);
    });
}

#[test]
fn a_read_into_a_part_overwrites_it() {
    for_each_backend(async |fixture| {
        let contents = bytes(8, 100);
        let file = fixture.file("f", &contents).await;
        let buf = with_spare(b"0123456789", 50);
        let (n, part) = file.read_at(buf.subslice(3..7), 20).await.unwrap();
        assert_eq!((n, &part[..]), (4, &contents[20..24]));
        let buf = part.into_inner();
        assert_eq!(buf, [b"012", &contents[20..24], b"789"].concat());
    });
}

#[test]
fn the_halves_of_a_split_buffer_are_filled_separately() {
    for_each_backend(async |fixture| {
        let contents = bytes(9, 100);
        let file = fixture.file("f", &contents).await;
        let mut one = with_spare(b"abcd", 60);
        let mut other = one.split_off(32);
        let head = one.split_to(2).freeze();
        other.extend_from_slice(b"x");
        let (reads, reads_too) = (file.read_at(one, 0), file.read_at(other, 50));
        let (n, one) = reads.await.unwrap();
        let (m, other) = reads_too.await.unwrap();
        assert_eq!((n, m), (28, 31));
        assert_eq!(head, b"ab"[..]);
        assert_eq!(one, [b"cd", &contents[..28]].concat());
        assert_eq!(other, [b"x", &contents[50..81]].concat());
    });
}
