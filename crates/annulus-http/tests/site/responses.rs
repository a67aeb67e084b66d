//! Ordinary requests: what is in a response.

use std::time::{Duration, Instant};

use annulus_http::site::{Body, Method, SiteOptions};
use bytes::Bytes;
use http::StatusCode;

use crate::ground::{Ground, SETTLED, Shown, always_looking, each_way};

/// More than is kept in memory.
const LARGE: usize = 300_000;

fn bytes_of(count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    fastrand::Rng::with_seed(count as u64).fill(&mut bytes);
    bytes
}

#[test]
fn small_and_large_files_are_served_whole() {
    for options in [SiteOptions::default(), always_looking()] {
        each_way(options, async |ground| {
            for bytes in [0, 1, 1000, 64 << 10, (64 << 10) + 1, LARGE] {
                let name = format!("{bytes}.bin");
                ground.write(&name, bytes_of(bytes));
                // From the disk, and from the cache.
                for _ in 0..3 {
                    let response = ground.get(&format!("/{name}")).await;
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
fn the_short_cut_knows_earlier_requests() {
    let options = {
        let mut options = SiteOptions::default();
        options.recheck = Duration::from_secs(100);
        options
    };
    each_way(options, async |ground| {
        ground.write("a", "content");
        let now = Instant::now();
        assert!(ground.site.ready(now, b"/a", None).is_none());
        for target in ["/a", "/missing", "/b%20c"] {
            ground.get(target).await;
        }
        while !request_during_write(&ground, LARGE).await {}
        let ready = ground.at_hand("/a?query", Some(b"gzip, br")).unwrap();
        assert_eq!(&ready.body()[..], b"content");
        assert_eq!(ready.tail().len(), ready.head().len() + 7);
        assert_eq!(
            ground.at_hand("/missing", None).unwrap().status(),
            StatusCode::NOT_FOUND
        );
        // The large one may be being written to.
        for target in ["/large", "//a", "/./a", "/%61", "/a/", "a", "", "*"] {
            let prompt = ground.site.ready(now, target.as_bytes(), None);
            assert!(prompt.is_none(), "{target}: {prompt:?}");
        }
        // Looked at too long ago.
        let later = Instant::now() + Duration::from_secs(200);
        assert!(ground.site.ready(later, b"/a", None).is_none());
    });
}

/// Writes the large file and asks for it. True: so soon that it may still be being written to, which is not known of
/// it if the machine stood still meanwhile.
async fn request_during_write(ground: &Ground, bytes: usize) -> bool {
    let before = Instant::now();
    ground.write("large", bytes_of(bytes));
    let response = ground.get("/large").await;
    assert!(response.body == bytes_of(bytes));
    before.elapsed() < SETTLED
}

#[test]
fn the_short_cut_knows_large_files_as_long_as_they_are_what_they_were() {
    let options = {
        let mut options = SiteOptions::default();
        options.recheck = Duration::from_secs(100);
        options
    };
    each_way(options, async |ground| {
        ground.write("large", bytes_of(LARGE));
        std::thread::sleep(SETTLED);
        assert_eq!(ground.open_bytes("/large"), None);
        let before = ground.get("/large").await;
        assert_eq!(ground.open_bytes("/large?query"), Some(LARGE as u64));
        assert!(before.body == bytes_of(LARGE));

        // In place: the file that is open.
        ground.write("large", bytes_of(LARGE + 1));
        assert_eq!(ground.open_bytes("/large"), None);
        while !request_during_write(&ground, LARGE + 1).await {}
        assert_eq!(ground.open_bytes("/large"), None);
        let after = ground.get("/large").await;
        assert_ne!(before.field("etag"), after.field("etag"));
        std::thread::sleep(SETTLED);
        ground.get("/large").await;
        assert_eq!(ground.open_bytes("/large"), Some(LARGE as u64 + 1));
    });
}

#[test]
fn a_name_with_an_escape_in_it_is_not_what_the_escape_means() {
    each_way(SiteOptions::default(), async |ground| {
        ground.write("a%20b", "percent");
        ground.write("a b", "space");
        for _ in 0..2 {
            assert_eq!(ground.get("/a%20b").await.text(), "space");
            assert_eq!(ground.get("/a%2520b").await.text(), "percent");
            assert_eq!(ground.get("/a%20b").await.text(), "space");
        }
    });
}

#[test]
fn head_has_the_fields_of_get() {
    each_way(SiteOptions::default(), async |ground| {
        ground.write("small", "content");
        ground.write("large", bytes_of(LARGE));
        // What is reported of a file that was just written changes as it grows older.
        std::thread::sleep(SETTLED);
        for target in ["/small", "/large", "/missing", "/"] {
            // A range is of GET alone.
            let head = ground
                .ask(Method::Head, target.as_bytes(), &[("range", "bytes=0-1")])
                .await;
            let get = ground.get(target).await;
            assert_eq!((head.status, head.fields), (get.status, get.fields));
        }
    });
}

#[test]
fn other_methods_get_the_list_of_methods() {
    each_way(SiteOptions::default(), async |ground| {
        ground.write("a", "content");
        for target in ["*", "/", "/a", "/missing"] {
            let response = ground.ask(Method::Options, target.as_bytes(), &[]).await;
            assert_eq!(response.status, 204);
            assert_eq!(response.field("allow"), Some("GET, HEAD, OPTIONS"));
        }
        assert_eq!(ground.ask(Method::Options, b"/../a", &[]).await.status, 400);
        let response = ground.ask(Method::Other, b"/a", &[]).await;
        assert_eq!(
            (response.status, response.field("allow")),
            (405, Some("GET, HEAD, OPTIONS"))
        );
        assert_eq!(ground.ask(Method::Get, b"*", &[]).await.status, 400);
    });
}

#[test]
fn a_fixed_response_is_given_without_a_root() {
    let options = {
        let mut options = SiteOptions::default();
        options.root = "/nowhere".into();
        options.respond = Some((StatusCode::OK, Bytes::from_static(b"Hello, World!")));
        options
    };
    each_way(options, async |ground| {
        for target in ["/", "/a?b", "/../..", "/%zz"] {
            let response = ground.get(target).await;
            assert_eq!((response.status, response.text()), (200, "Hello, World!"));
            let ready = ground.at_hand(target, None).unwrap();
            assert_eq!(&ready.body()[..], b"Hello, World!");
        }
        assert_eq!(ground.ask(Method::Other, b"/", &[]).await.status, 405);
    });
}

#[test]
fn a_root_that_is_not_there_or_no_directory_is_an_error() {
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
fn an_encoding_is_sent_to_who_takes_it() {
    each_way(SiteOptions::default(), async |ground| {
        ground.write("a.js", "plain text");
        ground.write("a.js.gz", "gzipped");
        ground.write("a.js.br", "brotli");
        ground.write("b.js", "alone");
        ground.write("c.js.gz", "compressed only");
        let mut tags = Vec::new();
        for (accepted, encoding, body) in [
            ("gzip, br", Some("br"), "brotli"),
            ("gzip", Some("gzip"), "gzipped"),
            ("zstd", None, "plain text"),
            ("br;q=0, *", Some("gzip"), "gzipped"),
            ("", None, "plain text"),
        ] {
            let response = ground
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
        assert_eq!(ground.get_with("/a.js", two).await.text(), "gzipped");
        assert_eq!(ground.get("/a.js").await.text(), "plain text");
        let alone = ground
            .get_with("/b.js", &[("accept-encoding", "gzip")])
            .await;
        assert_eq!((alone.text(), alone.field("vary")), ("alone", None));
        // What is there under its own name is a file like others; what is only encoded is not there.
        assert_eq!(
            ground.get("/a.js.gz").await.field("content-type"),
            Some("application/gzip")
        );
        assert_eq!(ground.status("/c.js").await, 404);
        // A range is one of what was chosen.
        let fields = &[("accept-encoding", "gzip"), ("range", "bytes=0-1")];
        let part = ground.get_with("/a.js", fields).await;
        assert_eq!(
            (part.text(), part.field("content-range")),
            ("gz", Some("bytes 0-1/7"))
        );
        assert_eq!(part.field("content-encoding"), Some("gzip"));
    });
}

#[test]
fn an_encoding_older_than_its_file_is_not_used() {
    each_way(always_looking(), async |ground| {
        ground.write("a.css.gz", "gzipped");
        std::thread::sleep(Duration::from_millis(20));
        ground.write("a.css", "newer");
        let fields = &[("accept-encoding", "gzip")];
        let response = ground.get_with("/a.css", fields).await;
        assert_eq!((response.text(), response.field("vary")), ("newer", None));
        std::thread::sleep(Duration::from_millis(20));
        ground.write("a.css.gz", "again");
        assert_eq!(ground.get_with("/a.css", fields).await.text(), "again");
        std::fs::remove_file(ground.path("a.css.gz")).unwrap();
        assert_eq!(ground.get_with("/a.css", fields).await.text(), "newer");
    });
}

#[test]
fn encodings_are_ignored_where_nobody_wants_them() {
    let options = {
        let mut options = SiteOptions::default();
        options.precompressed = false;
        options
    };
    each_way(options, async |ground| {
        ground.write("a.css", "plain");
        ground.write("a.css.gz", "gzipped");
        let response = ground
            .get_with("/a.css", &[("accept-encoding", "gzip")])
            .await;
        assert_eq!((response.text(), response.field("vary")), ("plain", None));
    });
}

#[test]
fn a_large_file_is_sent_from_its_descriptor() {
    use std::os::fd::AsFd;
    each_way(SiteOptions::default(), async |ground| {
        ground.write("large", bytes_of(LARGE));
        let response = ground
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
        // Two positions of one file do not move each other.
        let (one, other) = (
            file.descriptor_at(1000).unwrap(),
            file.descriptor_at(2000).unwrap(),
        );
        for (descriptor, from) in [(&one, 1000), (&other, 2000), (&one, 1010)] {
            let mut ten = [0; 10];
            rustix::io::read(descriptor.as_fd(), &mut ten).unwrap();
            assert!(ten == bytes_of(LARGE)[from..from + 10]);
        }
        assert!(Shown::of(response).await.body == bytes_of(LARGE)[1000..]);
    });
}
