//! Vectored reads and writes.

use std::io::ErrorKind;

use crate::fixtures::{bytes, for_each_backend, uncache};

#[test]
fn several_buffers_are_written_and_read_in_order() {
    for_each_backend(async |fixture| {
        let file = fixture.file("f", b"").await;
        let parts = vec![bytes(1, 100), bytes(2, 5000), vec![], bytes(3, 1)];
        let whole = parts.concat();
        let (n, parts) = file.write_vectored_at(parts, 10).await.unwrap();
        assert_eq!((n, parts.concat()), (5101, whole.clone()));
        assert_eq!(fixture.contents("f").unwrap()[10..], whole);
        for _ in 0..2 {
            uncache(&file).await;
            let bufs = vec![vec![0; 1], vec![0; 4000], vec![], vec![0; 1100]];
            let (n, bufs) = file.read_vectored_at(bufs, 10).await.unwrap();
            assert_eq!((n, bufs.concat()), (5101, whole.clone()));
        }
    });
}

#[test]
fn a_vectored_read_at_the_end_fills_the_first_buffers_only() {
    for_each_backend(async |fixture| {
        let contents = bytes(4, 1000);
        let file = fixture.file("f", &contents).await;
        let bufs = vec![vec![0xee; 300]; 3];
        let (n, bufs) = file.read_vectored_at(bufs, 500).await.unwrap();
        assert_eq!((n, bufs.len()), (500, 3));
        let whole = bufs.concat();
        assert_eq!(whole[..500], contents[500..]);
        assert!(whole[500..].iter().all(|&byte| byte == 0xee));

        let error = file
            .read_vectored_exact_at(vec![vec![0; 300]; 3], 500)
            .await;
        let error = error.unwrap_err();
        assert_eq!(error.error().kind(), ErrorKind::UnexpectedEof);
        assert_eq!(error.into_buf().unwrap().concat()[..500], contents[500..]);
    });
}

#[test]
fn buffers_with_spare_capacity_only_are_filled_one_after_another() {
    for_each_backend(async |fixture| {
        let contents = bytes(5, 1000);
        let file = fixture.file("f", &contents).await;
        let bufs: Vec<Vec<u8>> = (0..3).map(|_| Vec::with_capacity(400)).collect();
        let rooms: Vec<usize> = bufs.iter().map(Vec::capacity).collect();
        let (n, bufs) = file.read_vectored_at(bufs, 0).await.unwrap();
        assert_eq!(n, 1000);
        assert_eq!(bufs.concat(), contents);
        assert_eq!(bufs[0].len(), rooms[0]);
        assert_eq!(bufs[2].len(), 1000 - rooms[0] - rooms[1]);
    });
}

#[test]
fn more_buffers_than_one_transfer_takes_are_moved_by_the_exact_forms() {
    for_each_backend(async |fixture| {
        let file = fixture.file("f", b"").await;
        let contents = bytes(6, 3000 * 7);
        let parts: Vec<Vec<u8>> = contents.chunks(7).map(<[u8]>::to_vec).collect();
        let parts = file.write_vectored_all_at(parts, 0).await.unwrap();
        assert_eq!(parts.len(), 3000);
        assert_eq!(fixture.contents("f").unwrap(), contents);
        uncache(&file).await;
        let bufs = file
            .read_vectored_exact_at(vec![vec![0; 7]; 3000], 0)
            .await
            .unwrap();
        assert_eq!(bufs.concat(), contents);
        let (n, bufs) = file
            .read_vectored_at(vec![vec![0; 7]; 3000], 0)
            .await
            .unwrap();
        assert!(n > 0 && n <= 1024 * 7, "one transfer: {n} bytes");
        assert_eq!(bufs.concat()[..n], contents[..n]);
    });
}

#[test]
fn no_buffers_and_empty_buffers_write_nothing() {
    for_each_backend(async |fixture| {
        let file = fixture.file("f", b"abc").await;
        let none: Vec<Vec<u8>> = Vec::new();
        assert_eq!(file.write_vectored_at(none.clone(), 9).await.unwrap().0, 0);
        file.write_vectored_all_at(none, 9).await.unwrap();
        let empty = vec![Vec::new(); 3];
        assert_eq!(file.write_vectored_at(empty.clone(), 9).await.unwrap().0, 0);
        file.write_vectored_all_at(empty, 9).await.unwrap();
        assert_eq!(fixture.contents("f").unwrap(), b"abc");
    });
}

/// One transfer takes 1,024 buffers. With empty ones only, its result of 0 would look like the end of the file.
#[test]
fn empty_buffers_before_others_are_not_taken_for_the_end() {
    for_each_backend(async |fixture| {
        let file = fixture.file("f", b"abc").await;
        let behind = |last: &[u8]| {
            let mut bufs = vec![Vec::new(); 1500];
            bufs.push(last.to_vec());
            bufs
        };
        let (bytes, bufs) = file.read_vectored_at(behind(b"..."), 0).await.unwrap();
        assert_eq!((bytes, bufs), (3, behind(b"abc")));
        let bufs = file.read_vectored_exact_at(behind(b".."), 1).await.unwrap();
        assert_eq!(bufs, behind(b"bc"));
        let (bytes, _) = file.write_vectored_at(behind(b"de"), 3).await.unwrap();
        assert_eq!(bytes, 2);
        file.write_vectored_all_at(behind(b"f"), 5).await.unwrap();
        assert_eq!(fixture.contents("f").unwrap(), b"abcdef");
    });
}

#[test]
fn vectors_that_end_beyond_the_largest_offset_are_refused_and_given_back() {
    for_each_backend(async |fixture| {
        let file = fixture.file("f", b"abc").await;
        let at = i64::MAX as u64 - 10;
        let error = file.read_vectored_at(vec![vec![0; 8]; 2], at).await;
        let error = error.unwrap_err();
        assert_eq!(error.error().kind(), ErrorKind::InvalidInput);
        assert_eq!(error.into_buf().unwrap().len(), 2);
        let error = file.write_vectored_all_at(vec!["12345678"; 2], at).await;
        let error = error.unwrap_err();
        assert_eq!(error.error().kind(), ErrorKind::InvalidInput);
        assert_eq!(error.into_buf().unwrap().len(), 2);
        assert_eq!(fixture.contents("f").unwrap(), b"abc");
    });
}
