//! Files that change while they are served.

use std::io::{ErrorKind, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use annulus_http::site::{Body, Method, SiteOptions};

use crate::fixture::{Received, always_recheck, for_each_backend, read};

/// The limit of each test.
const PATIENCE: Duration = Duration::from_secs(60);
const LARGE: usize = 200_000;

#[test]
fn a_change_is_detected_after_the_recheck_time() {
    let recheck = Duration::from_millis(100);
    for_each_backend(
        {
            let mut options = SiteOptions::default();
            options.recheck = recheck;
            options
        },
        async move |fixture| {
            for bytes in [10, LARGE] {
                let content = |letter| vec![letter; bytes];
                fixture.write("file", content(b'a'));
                assert!(fixture.get("/file").await.body == content(b'a'));
                let mut tags = Vec::new();
                // Rewritten with the same length, replaced, removed, and created again.
                for step in 0..6 {
                    match step % 3 {
                        0 => fixture.write("file", content(b'b')),
                        1 => {
                            fixture.write("new", content(b'c'));
                            std::fs::rename(fixture.path("new"), fixture.path("file")).unwrap();
                        }
                        _ => std::fs::remove_file(fixture.path("file")).unwrap(),
                    }
                    std::thread::sleep(recheck * 2);
                    let response = fixture.get("/file").await;
                    match step % 3 {
                        0 => assert!(response.body == content(b'b')),
                        1 => assert!(response.body == content(b'c')),
                        _ => assert_eq!(response.status, 404),
                    }
                    tags.extend(response.field("etag").map(str::to_owned));
                }
                tags.sort();
                tags.dedup();
                assert_eq!(tags.len(), 4);
                std::thread::sleep(recheck * 2);
            }
        },
    );
}

#[test]
fn a_new_file_is_found_after_the_recheck_time() {
    let recheck = Duration::from_millis(100);
    for_each_backend(
        {
            let mut options = SiteOptions::default();
            options.recheck = recheck;
            options
        },
        async move |fixture| {
            assert_eq!(fixture.status("/file").await, 404);
            fixture.write("file", "new");
            std::thread::sleep(recheck * 2);
            assert_eq!(fixture.get("/file").await.text(), "new");
        },
    );
}

#[test]
fn a_large_file_changed_in_place_is_served_with_its_current_length() {
    // No lookup within the test, so the length comes from the open file.
    let recheck = Duration::from_secs(1000);
    for_each_backend(
        {
            let mut options = SiteOptions::default();
            options.recheck = recheck;
            options
        },
        async |fixture| {
            fixture.write("file", vec![b'a'; LARGE]);
            let before = fixture.get("/file").await;
            let mut file = std::fs::File::options()
                .append(true)
                .open(fixture.path("file"))
                .unwrap();
            file.write_all(&[b'b'; 5]).unwrap();
            let after = fixture.get("/file").await;
            assert_eq!(after.body.len(), LARGE + 5);
            assert_ne!(after.field("etag"), before.field("etag"));
            // The same after it has become small, or empty.
            for bytes in [7, 0] {
                file.set_len(bytes).unwrap();
                assert_eq!(fixture.get("/file").await.body.len() as u64, bytes);
            }
        },
    );
}

#[test]
fn a_file_truncated_while_it_is_sent_ends_early_and_is_not_padded() {
    for_each_backend(SiteOptions::default(), async |fixture| {
        fixture.write("file", vec![b'a'; LARGE]);
        let response = fixture.response(Method::Get, b"/file", &[]).await;
        let Body::File {
            file,
            offset,
            bytes,
        } = response.body
        else {
            panic!()
        };
        std::fs::File::options()
            .write(true)
            .open(fixture.path("file"))
            .unwrap()
            .set_len(1000)
            .unwrap();
        let error = read(&file, offset, bytes).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        assert_eq!(read(&file, 0, 1000).await.unwrap().len(), 1000);
    });
}

#[test]
fn a_file_replaced_while_it_is_sent_is_sent_unchanged() {
    for_each_backend(always_recheck(), async |fixture| {
        fixture.write("file", vec![b'a'; LARGE]);
        let response = fixture.response(Method::Get, b"/file", &[]).await;
        fixture.write("new", vec![b'b'; LARGE / 2]);
        std::fs::rename(fixture.path("new"), fixture.path("file")).unwrap();
        assert!(fixture.get("/file").await.body == vec![b'b'; LARGE / 2]);
        assert!(Received::of(response).await.body == vec![b'a'; LARGE]);
    });
}

#[test]
fn a_deleted_file_is_closed_after_its_last_use() {
    for_each_backend(SiteOptions::default(), async |fixture| {
        fixture.write("file", vec![b'a'; LARGE]);
        let response = fixture.response(Method::Get, b"/file", &[]).await;
        let (path, now) = (fixture.path("file"), Instant::now());
        std::fs::remove_file(&path).unwrap();
        let gone = format!("{} (deleted)", path.display());
        let is_open = || {
            let links = std::fs::read_dir("/proc/self/fd").unwrap();
            let mut files = links.filter_map(|link| std::fs::read_link(link.unwrap().path()).ok());
            files.any(|file| file.as_os_str() == &*gone)
        };
        fixture.site.sweep(now + Duration::from_secs(5));
        assert!(is_open());
        // A response that is being sent keeps the file open.
        fixture.site.sweep(now + Duration::from_secs(60));
        assert!(is_open());
        assert_eq!(Received::of(response).await.body.len(), LARGE);
        // The engine closes it, on another thread.
        let until = Instant::now() + PATIENCE;
        while is_open() {
            assert!(Instant::now() < until, "still open");
            annulus::time::sleep(Duration::from_millis(1)).await;
        }
    });
}

/// The lengths of the versions: below and above the limit for caching.
const LENGTHS: [usize; 5] = [10, 5_000, 30_000, 65_000, 100_000];

/// The smallest numbers of requests and changes.
const ROUNDS: u32 = 2_000;
const CHANGES: u32 = 200;

/// Requests a file while a thread changes it as fast as possible.
fn request_while(change: fn(&Path, &Path, u32), whole: bool) {
    for_each_backend(always_recheck(), async move |fixture| {
        fixture.write("file", "a");
        let done = Arc::new(AtomicBool::new(false));
        let changes = Arc::new(AtomicU32::new(0));
        let changer = {
            let (done, changes) = (Arc::clone(&done), Arc::clone(&changes));
            let (file, new) = (fixture.path("file"), fixture.path("new"));
            std::thread::spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    change(&file, &new, changes.fetch_add(1, Ordering::Relaxed));
                }
            })
        };
        let (mut rounds, mut cut) = (0, 0);
        while rounds < ROUNDS || changes.load(Ordering::Relaxed) < CHANGES {
            rounds += 1;
            let response = fixture.response(Method::Get, b"/file", &[]).await;
            let tag = response.field(&http::header::ETAG);
            let strong = tag.is_some_and(|tag| tag.as_bytes()[0] == b'"');
            // A file that is truncated meanwhile has no response of the right length; the connection would end. A body
            // whose length differs from its head panics.
            let received = match Received::read(response).await {
                Ok(received) => received,
                Err(error) if error.kind() == ErrorKind::UnexpectedEof && !whole => {
                    cut += 1;
                    continue;
                }
                Err(error) => panic!("{error}"),
            };
            if received.status != 503 && (whole || strong) {
                assert_eq!(received.status, 200);
                let first = received.body.first().copied().unwrap_or_default();
                assert!(received.body.iter().all(|byte| *byte == first), "torn");
            }
        }
        done.store(true, Ordering::Relaxed);
        changer.join().unwrap();
        println!("{rounds} responses, {cut} of them truncated, with {changes:?} changes");
    });
}

fn content(round: u32) -> Vec<u8> {
    let bytes = LENGTHS[round as usize % LENGTHS.len()];
    vec![b'a' + (round % 23) as u8; bytes]
}

#[test]
fn a_file_that_is_replaced_continuously_is_always_one_version() {
    let change = |file: &Path, new: &Path, round| {
        std::fs::write(new, content(round)).unwrap();
        std::fs::rename(new, file).unwrap();
    };
    request_while(change, true);
}

#[test]
fn a_file_that_is_written_continuously_always_has_the_length_of_its_head() {
    let change = |file: &Path, _new: &Path, round| {
        // This truncates the file before writing it.
        std::fs::write(file, content(round)).unwrap();
    };
    request_while(change, false);
}
