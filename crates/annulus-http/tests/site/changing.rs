//! Files that change while they are served.

use std::io::{ErrorKind, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use annulus_http::site::{Body, Method, SiteOptions};

use crate::ground::{Shown, always_looking, each_way, read};

/// A test that takes longer hangs. It decides nothing else.
const PATIENCE: Duration = Duration::from_secs(60);
const LARGE: usize = 200_000;

#[test]
fn a_change_is_noticed_after_the_recheck() {
    let recheck = Duration::from_millis(100);
    each_way(
        {
            let mut options = SiteOptions::default();
            options.recheck = recheck;
            options
        },
        async move |ground| {
            for bytes in [10, LARGE] {
                let content = |letter| vec![letter; bytes];
                ground.write("file", content(b'a'));
                assert!(ground.get("/file").await.body == content(b'a'));
                let mut tags = Vec::new();
                // In place with the same length, by another file with its name, by none, by one again.
                for step in 0..6 {
                    match step % 3 {
                        0 => ground.write("file", content(b'b')),
                        1 => {
                            ground.write("new", content(b'c'));
                            std::fs::rename(ground.path("new"), ground.path("file")).unwrap();
                        }
                        _ => std::fs::remove_file(ground.path("file")).unwrap(),
                    }
                    std::thread::sleep(recheck * 2);
                    let response = ground.get("/file").await;
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
fn a_file_that_appears_is_found_after_the_recheck() {
    let recheck = Duration::from_millis(100);
    each_way(
        {
            let mut options = SiteOptions::default();
            options.recheck = recheck;
            options
        },
        async move |ground| {
            assert_eq!(ground.status("/file").await, 404);
            ground.write("file", "new");
            std::thread::sleep(recheck * 2);
            assert_eq!(ground.get("/file").await.text(), "new");
        },
    );
}

#[test]
fn a_large_file_changed_in_place_has_the_length_that_it_has_now() {
    // No recheck in the time of the test: it is the open file that is asked.
    let recheck = Duration::from_secs(1000);
    each_way(
        {
            let mut options = SiteOptions::default();
            options.recheck = recheck;
            options
        },
        async |ground| {
            ground.write("file", vec![b'a'; LARGE]);
            let before = ground.get("/file").await;
            let mut file = std::fs::File::options()
                .append(true)
                .open(ground.path("file"))
                .unwrap();
            file.write_all(&[b'b'; 5]).unwrap();
            let after = ground.get("/file").await;
            assert_eq!(after.body.len(), LARGE + 5);
            assert_ne!(after.field("etag"), before.field("etag"));
            // Also where it has become small, or nothing.
            for bytes in [7, 0] {
                file.set_len(bytes).unwrap();
                assert_eq!(ground.get("/file").await.body.len() as u64, bytes);
            }
        },
    );
}

#[test]
fn a_file_cut_while_it_is_sent_ends_short_and_is_never_filled_up() {
    each_way(SiteOptions::default(), async |ground| {
        ground.write("file", vec![b'a'; LARGE]);
        let response = ground.response(Method::Get, b"/file", &[]).await;
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
            .open(ground.path("file"))
            .unwrap()
            .set_len(1000)
            .unwrap();
        let error = read(&file, offset, bytes).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        assert_eq!(read(&file, 0, 1000).await.unwrap().len(), 1000);
    });
}

#[test]
fn a_file_replaced_while_it_is_sent_is_sent_as_it_was() {
    each_way(always_looking(), async |ground| {
        ground.write("file", vec![b'a'; LARGE]);
        let response = ground.response(Method::Get, b"/file", &[]).await;
        ground.write("new", vec![b'b'; LARGE / 2]);
        std::fs::rename(ground.path("new"), ground.path("file")).unwrap();
        assert!(ground.get("/file").await.body == vec![b'b'; LARGE / 2]);
        assert!(Shown::of(response).await.body == vec![b'a'; LARGE]);
    });
}

#[test]
fn a_file_that_is_gone_is_let_go_of() {
    each_way(SiteOptions::default(), async |ground| {
        ground.write("file", vec![b'a'; LARGE]);
        let response = ground.response(Method::Get, b"/file", &[]).await;
        let (path, now) = (ground.path("file"), Instant::now());
        std::fs::remove_file(&path).unwrap();
        let gone = format!("{} (deleted)", path.display());
        let is_open = || {
            let links = std::fs::read_dir("/proc/self/fd").unwrap();
            let mut files = links.filter_map(|link| std::fs::read_link(link.unwrap().path()).ok());
            files.any(|file| file.as_os_str() == &*gone)
        };
        ground.site.sweep(now + Duration::from_secs(5));
        assert!(is_open());
        // Who is being sent it has it to the end.
        ground.site.sweep(now + Duration::from_secs(60));
        assert!(is_open());
        assert_eq!(Shown::of(response).await.body.len(), LARGE);
        // Closing is the engine's.
        let until = Instant::now() + PATIENCE;
        while is_open() {
            assert!(Instant::now() < until, "still open");
            annulus::time::sleep(Duration::from_millis(1)).await;
        }
    });
}

/// Lengths that are changed between: below and above what is kept in memory.
const LENGTHS: [usize; 5] = [10, 5_000, 30_000, 65_000, 100_000];

/// How many times a file is requested, and changed, at least.
const ROUNDS: u32 = 2_000;
const CHANGES: u32 = 200;

/// Has a thread change the file as fast as it can, and asks meanwhile.
fn ask_while(change: fn(&Path, &Path, u32), whole: bool) {
    each_way(always_looking(), async move |ground| {
        ground.write("file", "a");
        let done = Arc::new(AtomicBool::new(false));
        let changes = Arc::new(AtomicU32::new(0));
        let changer = {
            let (done, changes) = (Arc::clone(&done), Arc::clone(&changes));
            let (file, new) = (ground.path("file"), ground.path("new"));
            std::thread::spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    change(&file, &new, changes.fetch_add(1, Ordering::Relaxed));
                }
            })
        };
        let (mut rounds, mut cut) = (0, 0);
        while rounds < ROUNDS || changes.load(Ordering::Relaxed) < CHANGES {
            rounds += 1;
            let response = ground.response(Method::Get, b"/file", &[]).await;
            let tag = response.field(&http::header::ETAG);
            let strong = tag.is_some_and(|tag| tag.as_bytes()[0] == b'"');
            // Of a file that is cut under way there is no response of the right length: the connection ends.
            // A body that has not the length of its head panics.
            let shown = match Shown::read(response).await {
                Ok(shown) => shown,
                Err(error) if error.kind() == ErrorKind::UnexpectedEof && !whole => {
                    cut += 1;
                    continue;
                }
                Err(error) => panic!("{error}"),
            };
            if shown.status != 503 && (whole || strong) {
                assert_eq!(shown.status, 200);
                let first = shown.body.first().copied().unwrap_or_default();
                assert!(shown.body.iter().all(|byte| *byte == first), "torn");
            }
        }
        done.store(true, Ordering::Relaxed);
        changer.join().unwrap();
        println!("{rounds} answers, {cut} of them cut, of {changes:?} changes");
    });
}

fn content(round: u32) -> Vec<u8> {
    let bytes = LENGTHS[round as usize % LENGTHS.len()];
    vec![b'a' + (round % 23) as u8; bytes]
}

#[test]
fn a_file_that_is_replaced_all_the_time_is_always_one_version() {
    let change = |file: &Path, new: &Path, round| {
        std::fs::write(new, content(round)).unwrap();
        std::fs::rename(new, file).unwrap();
    };
    ask_while(change, true);
}

#[test]
fn a_file_that_is_written_all_the_time_has_always_the_length_of_its_head() {
    let change = |file: &Path, _new: &Path, round| {
        // Cut to nothing, then written.
        std::fs::write(file, content(round)).unwrap();
    };
    ask_while(change, false);
}
