//! Responses to ordinary requests.

use std::time::{Duration, Instant};

use annulus_http::site::{Body, Method, SiteOptions};
use bytes::Bytes;
use http::StatusCode;

use crate::fixture::{Fixture, Received, SETTLED, always_recheck, for_each_backend};

/// More than the limit for caching.
const LARGE: usize = 300_000;

fn bytes_of(count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    fastrand::Rng::with_seed(count as u64).fill(&mut bytes);
    bytes
}

#[test]
fn small_and_large_files_are_served_completely() {
    for options in [SiteOptions::default(), always_recheck()] {
        for_each_backend(options, async |fixture| {
            for bytes in [0, 1, 1000, 64 << 10, (64 << 10) + 1, LARGE] {
                let name = format!("{bytes}.bin");
                fixture.write(&name, bytes_of(bytes));
                // From the disk, and from the cache.
                for _ in 0..3 {
                    let response = fixture.get(&format!("/{name}")).await;
                    assert_eq!(response.status, 200);
                    assert!(response.body == bytes_of(bytes));
                    assert_eq!(
                        response.field("content-type"),
                        Some("application/octet-stream")
                    );
                    assert_eq!(response.field("accept-ranges"), Some("bytes"));
                    assert!(response.field("etag").is_some());
                    assert_eq!(response.field("content-encoding"), None);
                    assert_eq!(response.field("vary"), None);
                }
            }
        });
    }
}

#[test]
fn the_fast_path_returns_responses_to_earlier_requests() {
    let options = {
        let mut options = SiteOptions::default();
        options.recheck = Duration::from_secs(100);
        options
    };
    for_each_backend(options, async |fixture| {
        fixture.write("a", "content");
        let now = Instant::now();
        assert!(fixture.site.ready(now, b"/a", None).is_none());
        for target in ["/a", "/missing", "/b%20c"] {
            fixture.get(target).await;
        }
        while !request_during_write(&fixture, LARGE).await {}
        let ready = fixture.cached("/a?query", Some(b"gzip, br")).unwrap();
        assert_eq!(&ready.body()[..], b"content");
        assert_eq!(ready.tail().len(), ready.head().len() + 7);
        assert_eq!(
            fixture.cached("/missing", None).unwrap().status(),
            StatusCode::NOT_FOUND
        );
        // The large file may still be written to.
        for target in ["/large", "//a", "/./a", "/%61", "/a/", "a", "", "*"] {
            let prompt = fixture.site.ready(now, target.as_bytes(), None);
            assert!(prompt.is_none(), "{target}: {prompt:?}");
        }
        // The lookup is too old.
        let later = Instant::now() + Duration::from_secs(200);
        assert!(fixture.site.ready(later, b"/a", None).is_none());
    });
}

/// Writes the large file and requests it. Returns whether this was fast enough that the file may still be written to.
async fn request_during_write(fixture: &Fixture, bytes: usize) -> bool {
    let before = Instant::now();
    fixture.write("large", bytes_of(bytes));
    let response = fixture.get("/large").await;
    assert!(response.body == bytes_of(bytes));
    before.elapsed() < SETTLED
}

#[test]
fn the_fast_path_returns_large_files_until_they_change() {
    let options = {
        let mut options = SiteOptions::default();
        options.recheck = Duration::from_secs(100);
        options
    };
    for_each_backend(options, async |fixture| {
        fixture.write("large", bytes_of(LARGE));
        std::thread::sleep(SETTLED);
        assert_eq!(fixture.open_bytes("/large"), None);
        let before = fixture.get("/large").await;
        assert_eq!(fixture.open_bytes("/large?query"), Some(LARGE as u64));
        assert!(before.body == bytes_of(LARGE));

        // In place, so that the open file changes.
        fixture.write("large", bytes_of(LARGE + 1));
        assert_eq!(fixture.open_bytes("/large"), None);
        while !request_during_write(&fixture, LARGE + 1).await {}
        assert_eq!(fixture.open_bytes("/large"), None);
        let after = fixture.get("/large").await;
        assert_ne!(before.field("etag"), after.field("etag"));
        std::thread::sleep(SETTLED);
        fixture.get("/large").await;
        assert_eq!(fixture.open_bytes("/large"), Some(LARGE as u64 + 1));
    });
}

#[test]
fn a_name_with_a_percent_sign_differs_from_the_decoded_name() {
    for_each_backend(SiteOptions::default(), async |fixture| {
        fixture.write("a%20b", "percent");
        fixture.write("a b", "space");
        for _ in 0..2 {
            assert_eq!(fixture.get("/a%20b").await.text(), "space");
            assert_eq!(fixture.get("/a%2520b").await.text(), "percent");
            assert_eq!(fixture.get("/a%20b").await.text(), "space");
        }
    });
}

#[test]
fn head_has_the_fields_of_get() {
    for_each_backend(SiteOptions::default(), async |fixture| {
        fixture.write("small", "content");
        fixture.write("large", bytes_of(LARGE));
        // The head of a recently written file changes as the file grows older.
        std::thread::sleep(SETTLED);
        for target in ["/small", "/large", "/missing", "/"] {
            // Ranges apply to GET only.
            let head = fixture
                .request(Method::Head, target.as_bytes(), &[("range", "bytes=0-1")])
                .await;
            let get = fixture.get(target).await;
            assert_eq!((head.status, head.fields), (get.status, get.fields));
        }
    });
}

#[test]
fn other_methods_get_the_list_of_methods() {
    for_each_backend(SiteOptions::default(), async |fixture| {
        fixture.write("a", "content");
        for target in ["*", "/", "/a", "/missing"] {
            let response = fixture
                .request(Method::Options, target.as_bytes(), &[])
                .await;
            assert_eq!(response.status, 204);
            assert_eq!(response.field("allow"), Some("GET, HEAD, OPTIONS"));
        }
        assert_eq!(
            fixture.request(Method::Options, b"/../a", &[]).await.status,
            400
        );
        let response = fixture.request(Method::Other, b"/a", &[]).await;
        assert_eq!(
            (response.status, response.field("allow")),
            (405, Some("GET, HEAD, OPTIONS"))
        );
        assert_eq!(fixture.request(Method::Get, b"*", &[]).await.status, 400);
    });
}

#[test]
fn a_fixed_response_needs_no_root() {
    let options = {
        let mut options = SiteOptions::default();
        options.root = "/nowhere".into();
        options.respond = Some((StatusCode::OK, Bytes::from_static(b"Hello, World!")));
        options
    };
    for_each_backend(options, async |fixture| {
        for target in ["/", "/a?b", "/../..", "/%zz"] {
            let response = fixture.get(target).await;
            assert_eq!((response.status, response.text()), (200, "Hello, World!"));
            let ready = fixture.cached(target, None).unwrap();
            assert_eq!(&ready.body()[..], b"Hello, World!");
        }
        assert_eq!(fixture.request(Method::Other, b"/", &[]).await.status, 405);
    });
}

/// A client would take the bytes of such a body for the next response.
#[test]
fn a_fixed_response_whose_status_forbids_a_body_has_none() {
    let statuses = [
        (StatusCode::NO_CONTENT, None),
        (StatusCode::NOT_MODIFIED, None),
        (StatusCode::RESET_CONTENT, Some(&b"0"[..])),
    ];
    for (status, length) in statuses {
        let mut options = SiteOptions::default();
        options.respond = Some((status, Bytes::from_static(b"Hello, World!")));
        for_each_backend(options, async move |fixture| {
            let response = fixture.response(Method::Get, b"/", &[]).await;
            assert_eq!((response.status, response.body.bytes()), (status, 0));
            let found = response.field(&http::header::CONTENT_LENGTH);
            assert_eq!(found.map(|value| value.as_bytes()), length);
            let ready = fixture.cached("/", None).unwrap();
            assert_eq!((ready.status(), ready.body().len()), (status, 0));
        });
    }
}

#[test]
fn a_root_that_is_missing_or_not_a_directory_is_an_error() {
    let open = |root: &str| {
        let options = {
            let mut options = SiteOptions::default();
            options.root = root.into();
            options
        };
        annulus_http::site::Site::open(&options).unwrap_err().kind()
    };
    assert_eq!(open("/nowhere"), std::io::ErrorKind::NotFound);
    assert_eq!(open("/proc/version"), std::io::ErrorKind::NotADirectory);
}

#[test]
fn an_encoding_is_sent_to_clients_that_accept_it() {
    for_each_backend(SiteOptions::default(), async |fixture| {
        fixture.write("a.js", "plain text");
        fixture.write("a.js.gz", "gzipped");
        fixture.write("a.js.br", "brotli");
        fixture.write("b.js", "alone");
        fixture.write("c.js.gz", "compressed only");
        let mut tags = Vec::new();
        for (accepted, encoding, body) in [
            ("gzip, br", Some("br"), "brotli"),
            ("gzip", Some("gzip"), "gzipped"),
            ("zstd", None, "plain text"),
            ("br;q=0, *", Some("gzip"), "gzipped"),
            ("", None, "plain text"),
        ] {
            let response = fixture
                .get_with("/a.js", &[("accept-encoding", accepted)])
                .await;
            assert_eq!(
                (response.text(), response.field("content-encoding")),
                (body, encoding),
                "{accepted}"
            );
            assert_eq!(response.field("vary"), Some("accept-encoding"));
            assert_eq!(
                response.field("content-type"),
                Some("text/javascript; charset=utf-8")
            );
            tags.push(response.field("etag").unwrap().to_owned());
        }
        tags.sort();
        tags.dedup();
        assert_eq!(tags.len(), 3);
        let two = &[("accept-encoding", "zstd"), ("accept-encoding", "gzip")];
        assert_eq!(fixture.get_with("/a.js", two).await.text(), "gzipped");
        assert_eq!(fixture.get("/a.js").await.text(), "plain text");
        let alone = fixture
            .get_with("/b.js", &[("accept-encoding", "gzip")])
            .await;
        assert_eq!((alone.text(), alone.field("vary")), ("alone", None));
        // An encoded file can be requested by its own name. A file that exists only encoded cannot be requested by the
        // plain name.
        assert_eq!(
            fixture.get("/a.js.gz").await.field("content-type"),
            Some("application/gzip")
        );
        assert_eq!(fixture.status("/c.js").await, 404);
        // A range applies to the chosen encoding.
        let fields = &[("accept-encoding", "gzip"), ("range", "bytes=0-1")];
        let part = fixture.get_with("/a.js", fields).await;
        assert_eq!(
            (part.text(), part.field("content-range")),
            ("gz", Some("bytes 0-1/7"))
        );
        assert_eq!(part.field("content-encoding"), Some("gzip"));
    });
}

#[test]
fn an_encoding_older_than_its_file_is_not_used() {
    for_each_backend(always_recheck(), async |fixture| {
        fixture.write("a.css.gz", "gzipped");
        std::thread::sleep(Duration::from_millis(20));
        fixture.write("a.css", "newer");
        let fields = &[("accept-encoding", "gzip")];
        let response = fixture.get_with("/a.css", fields).await;
        assert_eq!((response.text(), response.field("vary")), ("newer", None));
        std::thread::sleep(Duration::from_millis(20));
        fixture.write("a.css.gz", "again");
        assert_eq!(fixture.get_with("/a.css", fields).await.text(), "again");
        std::fs::remove_file(fixture.path("a.css.gz")).unwrap();
        assert_eq!(fixture.get_with("/a.css", fields).await.text(), "newer");
    });
}

#[test]
fn encodings_are_ignored_if_disabled() {
    let options = {
        let mut options = SiteOptions::default();
        options.precompressed = false;
        options
    };
    for_each_backend(options, async |fixture| {
        fixture.write("a.css", "plain");
        fixture.write("a.css.gz", "gzipped");
        let response = fixture
            .get_with("/a.css", &[("accept-encoding", "gzip")])
            .await;
        assert_eq!((response.text(), response.field("vary")), ("plain", None));
    });
}

#[test]
fn a_large_file_is_sent_from_its_descriptor() {
    use std::os::fd::AsFd;
    for_each_backend(SiteOptions::default(), async |fixture| {
        fixture.write("large", bytes_of(LARGE));
        let response = fixture
            .response(Method::Get, b"/large", &[("range", "bytes=1000-")])
            .await;
        let Body::File {
            file,
            offset,
            bytes,
        } = &response.body
        else {
            panic!("{response:?}")
        };
        assert_eq!((*offset, *bytes), (1000, LARGE as u64 - 1000));
        // The positions are independent.
        let (one, other) = (
            file.descriptor_at(1000).unwrap(),
            file.descriptor_at(2000).unwrap(),
        );
        for (descriptor, from) in [(&one, 1000), (&other, 2000), (&one, 1010)] {
            let mut ten = [0; 10];
            rustix::io::read(descriptor.as_fd(), &mut ten).unwrap();
            assert!(ten == bytes_of(LARGE)[from..from + 10]);
        }
        assert!(Received::of(response).await.body == bytes_of(LARGE)[1000..]);
    });
}
