//! Conditional requests and ranges of files.

use std::time::{Duration, Instant, SystemTime};

use annulus_http::site::{Method, SiteOptions};

use crate::fixture::{Fixture, Received, SETTLED, always_recheck, for_each_backend};

/// More than the limit for caching.
const LARGE: usize = 200_000;

#[test]
fn a_representation_that_the_client_has_is_not_sent_again() {
    for_each_backend(SiteOptions::default(), async |fixture| {
        fixture.write("small.txt", "content");
        fixture.write("large.txt", vec![b'x'; LARGE]);
        std::thread::sleep(SETTLED);
        for target in ["/small.txt", "/large.txt"] {
            let response = fixture.get(target).await;
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
                    let response = fixture
                        .request(method, target.as_bytes(), &[(name, value)])
                        .await;
                    assert_eq!(response.status, expected, "{target} {name}: {value}");
                    if expected == 304 {
                        assert_eq!(response.field("etag"), Some(etag));
                        assert_eq!(response.field("last-modified"), Some(modified));
                        assert_eq!(response.fields.len(), 2, "{response:?}");
                    }
                }
            }
            // A list in two field lines.
            let lines = [("if-none-match", "\"a\""), ("if-none-match", etag)];
            assert_eq!(fixture.get_with(target, &lines).await.status, 304);
            // A missing file is missing under any condition.
            let missing = [("if-none-match", "*"), ("if-match", etag)];
            assert_eq!(fixture.get_with("/missing", &missing).await.status, 404);
        }
    });
}

#[test]
fn a_recently_changed_file_has_no_last_modified() {
    for_each_backend(SiteOptions::default(), async |fixture| {
        // A machine that stood still meanwhile proves nothing.
        let response = loop {
            let before = Instant::now();
            fixture.write("a", "content");
            let response = fixture.get("/a").await;
            if before.elapsed() < SETTLED {
                break response;
            }
        };
        assert_eq!(response.field("last-modified"), None);
        let etag = response.field("etag").unwrap();
        let strong = etag.trim_start_matches("W/");
        let same = fixture.get_with("/a", &[("if-none-match", etag)]).await;
        assert_eq!(same.status, 304);
        // It may have become old enough for a strong tag meanwhile.
        assert!([Some(etag), Some(strong)].contains(&same.field("etag")));
        std::thread::sleep(SETTLED);
        let response = fixture.get("/a").await;
        assert!(response.field("last-modified").is_some());
        assert_eq!(response.field("etag"), Some(strong));
    });
}

#[test]
fn a_file_time_in_the_future_is_omitted_and_one_before_1970_becomes_1970() {
    for_each_backend(SiteOptions::default(), async |fixture| {
        fixture.write("future", "content");
        fixture.write("past", "content");
        let set = |name: &str, time| {
            let file = std::fs::File::options()
                .write(true)
                .open(fixture.path(name))
                .unwrap();
            file.set_modified(time).unwrap();
        };
        set("future", SystemTime::now() + Duration::from_secs(3600));
        set("past", SystemTime::UNIX_EPOCH - Duration::from_secs(3600));
        std::thread::sleep(SETTLED);
        assert_eq!(fixture.get("/future").await.field("last-modified"), None);
        let past = fixture.get("/past").await;
        assert_eq!(
            past.field("last-modified"),
            Some("Thu, 01 Jan 1970 00:00:00 GMT")
        );
    });
}

async fn part(fixture: &Fixture, target: &str, range: &str) -> Received {
    fixture.get_with(target, &[("range", range)]).await
}

#[test]
fn ranges_are_parts_of_small_and_large_files() {
    for_each_backend(SiteOptions::default(), async |fixture| {
        let content: Vec<u8> = (0..LARGE).map(|at| at as u8).collect();
        fixture.write("large", &content);
        fixture.write("small", &content[..1000]);
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
                let response = part(&fixture, target, range).await;
                assert_eq!(response.status, 206, "{range}");
                let (first, last) = (expected.start, expected.end - 1);
                let content_range = format!("bytes {first}-{last}/{len}");
                assert_eq!(response.field("content-range"), Some(&*content_range));
                assert!(response.field("etag").is_some());
                assert!(response.body == whole[expected]);
            }
            for range in ["bytes=999999-", "bytes=-0", "bytes=999999-,888888-"] {
                let response = part(&fixture, target, range).await;
                let content_range = format!("bytes */{len}");
                assert_eq!(
                    (response.status, response.field("content-range")),
                    (416, Some(&*content_range))
                );
            }
            for range in ["bytes=", "lines=1-2", "bytes=5-4", "bytes=0-,0-,0-"] {
                let response = part(&fixture, target, range).await;
                assert_eq!(
                    (response.status, response.field("content-range")),
                    (200, None),
                    "{range}"
                );
            }
            let two_lines = [("range", "bytes=0-0"), ("range", "bytes=1-1")];
            assert_eq!(fixture.get_with(target, &two_lines).await.status, 200);
        }
    });
}

#[test]
fn several_ranges_are_sent_as_multipart() {
    for_each_backend(SiteOptions::default(), async |fixture| {
        let content: Vec<u8> = (0..LARGE).map(|at| b'a' + (at % 23) as u8).collect();
        fixture.write("large.txt", &content);
        fixture.write("small.txt", &content[..1000]);
        for (target, len) in [("/large.txt", LARGE), ("/small.txt", 1000)] {
            let response = part(&fixture, target, "bytes=0-4, 100-109, -3").await;
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
            let again = part(&fixture, target, "bytes=0-4, 100-109").await;
            assert!(!again.field("content-type").unwrap().contains(boundary));
            // Overlapping ranges are merged.
            let merged = part(&fixture, target, "bytes=0-4,3-9").await;
            assert_eq!(
                merged.field("content-range"),
                Some(&*format!("bytes 0-9/{len}"))
            );
        }
    });
}

#[test]
fn a_download_is_resumed_only_from_the_same_file() {
    for_each_backend(SiteOptions::default(), async |fixture| {
        fixture.write("small", "content");
        fixture.write("large", vec![b'x'; LARGE]);
        std::thread::sleep(SETTLED);
        for target in ["/small", "/large"] {
            let response = fixture.get(target).await;
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
                    fixture.get_with(target, &fields).await.status,
                    expected,
                    "{condition}"
                );
            }
            // Two of them are no condition that can be met.
            let fields = [
                ("range", "bytes=1-2"),
                ("if-range", etag),
                ("if-range", "\"other\""),
            ];
            assert_eq!(fixture.get_with(target, &fields).await.status, 200);
        }
    });
}

#[test]
fn new_content_of_the_same_length_and_time_has_another_tag() {
    for_each_backend(always_recheck(), async |fixture| {
        for (name, len) in [("small", 1000), ("large", LARGE)] {
            let (path, target) = (fixture.path(name), format!("/{name}"));
            fixture.write(name, vec![b'a'; len]);
            let time = std::fs::metadata(&path).unwrap().modified().unwrap();
            let response = fixture.get(&target).await;
            let etag = response.field("etag").unwrap();
            // As `cp -p` does with files of a reproducible build.
            fixture.write(name, vec![b'b'; len]);
            let file = std::fs::File::options().write(true).open(&path);
            file.unwrap().set_modified(time).unwrap();
            let response = fixture.get_with(&target, &[("if-none-match", etag)]).await;
            assert_eq!((response.status, response.body[0]), (200, b'b'), "{name}");
        }
    });
}
