//! Conditions and ranges, as they come out of a file.

use std::time::{Duration, Instant, SystemTime};

use annulus_http::site::{Method, SiteOptions};

use crate::ground::{Ground, SETTLED, Shown, each_way};

/// More than is kept in memory.
const LARGE: usize = 200_000;

#[test]
fn what_a_client_has_already_is_not_sent_again() {
    each_way(SiteOptions::default(), async |ground| {
        ground.write("small.txt", "content");
        ground.write("large.txt", vec![b'x'; LARGE]);
        std::thread::sleep(SETTLED);
        for target in ["/small.txt", "/large.txt"] {
            let response = ground.get(target).await;
            let etag = response.field("etag").unwrap();
            let modified = response.field("last-modified").unwrap();
            assert!(etag.starts_with('"'), "{etag}");
            for (name, value, expected) in [
                ("if-none-match", etag, 304),
                ("if-none-match", "\"other\"", 200),
                ("if-none-match", "*", 304),
                ("if-modified-since", modified, 304),
                ("if-modified-since", "Thu, 01 Jan 1970 00:00:00 GMT", 200),
                ("if-match", etag, 200),
                ("if-match", "\"other\"", 412),
                ("if-unmodified-since", modified, 200),
                ("if-unmodified-since", "Thu, 01 Jan 1970 00:00:00 GMT", 412),
            ] {
                for method in [Method::Get, Method::Head] {
                    let response = ground
                        .ask(method, target.as_bytes(), &[(name, value)])
                        .await;
                    assert_eq!(response.status, expected, "{target} {name}: {value}");
                    if expected == 304 {
                        assert_eq!(response.field("etag"), Some(etag));
                        assert_eq!(response.field("last-modified"), Some(modified));
                        assert_eq!(response.fields.len(), 2, "{response:?}");
                    }
                }
            }
            // A list in two lines.
            let lines = [("if-none-match", "\"a\""), ("if-none-match", etag)];
            assert_eq!(ground.get_with(target, &lines).await.status, 304);
            // What is not there is not there, whatever is reported about it.
            let missing = [("if-none-match", "*"), ("if-match", etag)];
            assert_eq!(ground.get_with("/missing", &missing).await.status, 404);
        }
    });
}

#[test]
fn what_was_changed_a_moment_ago_has_no_date() {
    each_way(SiteOptions::default(), async |ground| {
        // A machine that stood still meanwhile has shown nothing.
        let response = loop {
            let before = Instant::now();
            ground.write("a", "content");
            let response = ground.get("/a").await;
            if before.elapsed() < SETTLED {
                break response;
            }
        };
        assert_eq!(response.field("last-modified"), None);
        let etag = response.field("etag").unwrap();
        let strong = etag.trim_start_matches("W/");
        let same = ground.get_with("/a", &[("if-none-match", etag)]).await;
        assert_eq!(same.status, 304);
        // It may have grown old enough for a strong one meanwhile.
        assert!([Some(etag), Some(strong)].contains(&same.field("etag")));
        std::thread::sleep(SETTLED);
        let response = ground.get("/a").await;
        assert!(response.field("last-modified").is_some());
        assert_eq!(response.field("etag"), Some(strong));
    });
}

#[test]
fn a_file_from_the_future_or_before_1970_has_no_date_that_lies() {
    each_way(SiteOptions::default(), async |ground| {
        ground.write("future", "content");
        ground.write("past", "content");
        let set = |name: &str, time| {
            let file = std::fs::File::options()
                .write(true)
                .open(ground.path(name))
                .unwrap();
            file.set_modified(time).unwrap();
        };
        set("future", SystemTime::now() + Duration::from_secs(3600));
        set("past", SystemTime::UNIX_EPOCH - Duration::from_secs(3600));
        std::thread::sleep(SETTLED);
        assert_eq!(ground.get("/future").await.field("last-modified"), None);
        let past = ground.get("/past").await;
        assert_eq!(
            past.field("last-modified"),
            Some("Thu, 01 Jan 1970 00:00:00 GMT")
        );
    });
}

async fn part(ground: &Ground, target: &str, range: &str) -> Shown {
    ground.get_with(target, &[("range", range)]).await
}

#[test]
fn ranges_are_parts_of_small_and_large_files() {
    each_way(SiteOptions::default(), async |ground| {
        let content: Vec<u8> = (0..LARGE).map(|at| at as u8).collect();
        ground.write("large", &content);
        ground.write("small", &content[..1000]);
        for (target, whole) in [("/large", &content[..]), ("/small", &content[..1000])] {
            let len = whole.len();
            for (range, expected) in [
                ("bytes=0-0", 0..1),
                ("bytes=10-19", 10..20),
                ("bytes=900-", 900..len),
                ("bytes=-100", len - 100..len),
                ("bytes=-999999", 0..len),
                ("bytes=0-999999", 0..len),
            ] {
                let response = part(&ground, target, range).await;
                assert_eq!(response.status, 206, "{range}");
                let (first, last) = (expected.start, expected.end - 1);
                let content_range = format!("bytes {first}-{last}/{len}");
                assert_eq!(response.field("content-range"), Some(&*content_range));
                assert!(response.field("etag").is_some());
                assert!(response.body == whole[expected]);
            }
            for range in ["bytes=999999-", "bytes=-0", "bytes=999999-,888888-"] {
                let response = part(&ground, target, range).await;
                let content_range = format!("bytes */{len}");
                assert_eq!(
                    (response.status, response.field("content-range")),
                    (416, Some(&*content_range))
                );
            }
            for range in ["bytes=", "lines=1-2", "bytes=5-4", "bytes=0-,0-,0-"] {
                let response = part(&ground, target, range).await;
                assert_eq!(
                    (response.status, response.field("content-range")),
                    (200, None),
                    "{range}"
                );
            }
            let two_lines = [("range", "bytes=0-0"), ("range", "bytes=1-1")];
            assert_eq!(ground.get_with(target, &two_lines).await.status, 200);
        }
    });
}

#[test]
fn several_ranges_are_a_multipart() {
    each_way(SiteOptions::default(), async |ground| {
        let content: Vec<u8> = (0..LARGE).map(|at| b'a' + (at % 23) as u8).collect();
        ground.write("large.txt", &content);
        ground.write("small.txt", &content[..1000]);
        for (target, len) in [("/large.txt", LARGE), ("/small.txt", 1000)] {
            let response = part(&ground, target, "bytes=0-4, 100-109, -3").await;
            assert_eq!(
                (response.status, response.field("content-range")),
                (206, None)
            );
            let kind = response.field("content-type").unwrap();
            let boundary = kind
                .strip_prefix("multipart/byteranges; boundary=")
                .unwrap();
            let mut expected = String::new();
            for range in [0..5, 100..110, len - 3..len] {
                let (first, last) = (range.start, range.end - 1);
                let body = str::from_utf8(&content[range]).unwrap();
                expected += &format!(
                    "--{boundary}\r\nContent-Type: text/plain; charset=utf-8\r\n\
                     Content-Range: bytes {first}-{last}/{len}\r\n\r\n{body}\r\n"
                );
            }
            expected += &format!("--{boundary}--\r\n");
            assert_eq!(response.text(), expected);
            let again = part(&ground, target, "bytes=0-4, 100-109").await;
            assert!(!again.field("content-type").unwrap().contains(boundary));
            // Overlapping ones are one.
            let merged = part(&ground, target, "bytes=0-4,3-9").await;
            assert_eq!(
                merged.field("content-range"),
                Some(&*format!("bytes 0-9/{len}"))
            );
        }
    });
}

#[test]
fn a_download_goes_on_only_with_the_same_file() {
    each_way(SiteOptions::default(), async |ground| {
        ground.write("small", "content");
        ground.write("large", vec![b'x'; LARGE]);
        std::thread::sleep(SETTLED);
        for target in ["/small", "/large"] {
            let response = ground.get(target).await;
            let etag = response.field("etag").unwrap();
            let modified = response.field("last-modified").unwrap();
            let weak = format!("W/{etag}");
            for (condition, expected) in [
                (etag, 206),
                (modified, 206),
                (&*weak, 200),
                ("\"other\"", 200),
                ("Thu, 01 Jan 2037 00:00:00 GMT", 200),
            ] {
                let fields = [("range", "bytes=1-2"), ("if-range", condition)];
                assert_eq!(
                    ground.get_with(target, &fields).await.status,
                    expected,
                    "{condition}"
                );
            }
        }
    });
}
