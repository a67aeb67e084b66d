//! Attempts to read files outside the root.

use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use annulus_http::site::{Method, SiteOptions};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::fixture::{Fixture, always_recheck, for_each_backend};

const SECRET: &str = "secret of the machine";

fn plant(fixture: &Fixture) {
    fixture.write("../secret", SECRET);
    fixture.write("../rootless/secret", SECRET);
    fixture.write("file", "file");
    fixture.write("dir/file", "dir/file");
    fixture.write("dir/.hidden", SECRET);
    fixture.write(".git/config", SECRET);
    fixture.write("%2e%2e/secret", "a name of percents");
    symlink("../secret", fixture.path("out")).unwrap();
    symlink(fixture.path("../secret"), fixture.path("absolute")).unwrap();
    symlink(fixture.path("file"), fixture.path("absolute-in")).unwrap();
    symlink("..", fixture.path("up")).unwrap();
    symlink("../../secret", fixture.path("dir/out")).unwrap();
    symlink("/", fixture.path("slash")).unwrap();
    symlink("/proc/self/root", fixture.path("magic")).unwrap();
    symlink("/proc/self/cwd", fixture.path("cwd")).unwrap();
    symlink("loop-b", fixture.path("loop-a")).unwrap();
    symlink("loop-a", fixture.path("loop-b")).unwrap();
    symlink("self/self", fixture.path("self")).unwrap();
    symlink("gone", fixture.path("dangling")).unwrap();
    symlink("out", fixture.path("out-again")).unwrap();
    symlink("file", fixture.path("in")).unwrap();
    symlink("dir", fixture.path("in-dir")).unwrap();
    symlink("../file", fixture.path("dir/back")).unwrap();
    symlink("dir/back", fixture.path("in-twice")).unwrap();
    symlink(".git", fixture.path("received-git")).unwrap();
}

const TARGETS: [(&str, u16); 76] = [
    ("/file", 200),
    ("/../secret", 400),
    ("/../root/file", 400),
    ("/../../../../../../etc/passwd", 400),
    ("/dir/../../secret", 400),
    ("/dir/../../root/file", 400),
    ("//../secret", 400),
    ("/./../secret", 400),
    ("/..", 400),
    ("/%2e%2e/secret", 400),
    ("/%2e%2e%2fsecret", 404),
    ("/.%2e/secret", 400),
    ("/%2e./secret", 400),
    ("/%2E%2E/secret", 400),
    ("/..%2fsecret", 404),
    ("/..%2Fsecret", 404),
    ("/%2f..%2fsecret", 404),
    ("/%2fetc%2fpasswd", 404),
    ("/dir%2f..%2f..%2fsecret", 404),
    ("/%252e%252e/secret", 200),
    ("/%252e%252e%252fsecret", 404),
    ("/%25%32%65%25%32%65/secret", 200),
    ("/..%255csecret", 404),
    ("/..\\secret", 404),
    ("/..%5csecret", 404),
    ("/..%5Csecret", 404),
    ("/dir\\..\\..\\secret", 404),
    ("/%5c..%5csecret", 404),
    ("/..%c0%afsecret", 404),
    ("/%c0%ae%c0%ae/secret", 404),
    ("/%e0%80%ae%e0%80%ae/secret", 404),
    ("/%c1%9c..%c1%9csecret", 404),
    ("/%uff0e%uff0e/secret", 400),
    ("/%ef%bc%8e%ef%bc%8e/secret", 404),
    ("/..%00/secret", 400),
    ("/%00/../secret", 400),
    ("/file%00.html", 400),
    ("/secret%00", 400),
    ("/..;/secret", 404),
    ("/..;a=b/secret", 404),
    ("/.../secret", 404),
    ("/..../secret", 404),
    ("/.. /secret", 400),
    ("/..%20/secret", 404),
    ("/..%09/secret", 404),
    ("/..%0d%0a/secret", 404),
    ("/file/../../secret", 400),
    ("/file/..%2f..%2fsecret", 404),
    ("/missing/../file", 200),
    ("/missing/../../secret", 400),
    ("/out", 404),
    ("/out-again", 404),
    ("/absolute", 404),
    // Documented: an absolute link is refused wherever it leads.
    ("/absolute-in", 404),
    ("/up", 404),
    ("/up/secret", 404),
    ("/up/root/file", 404),
    ("/dir/out", 404),
    ("/slash/etc/passwd", 404),
    ("/magic/etc/passwd", 404),
    ("/cwd/Cargo.toml", 404),
    ("/loop-a", 404),
    ("/self", 404),
    ("/dangling", 404),
    ("/in", 200),
    ("/in-dir/file", 200),
    ("/in-dir/back", 200),
    ("/dir/back", 200),
    ("/in-twice", 200),
    ("/.git/config", 404),
    ("/.git", 404),
    ("/%2egit/config", 404),
    ("/dir/.hidden", 404),
    ("/~root/secret", 404),
    ("/$HOME/secret", 404),
    ("/C:/secret", 404),
];

#[test]
fn no_target_leads_out_of_the_root() {
    for_each_backend(SiteOptions::default(), async |fixture| {
        plant(&fixture);
        for (target, status) in TARGETS {
            for method in [Method::Get, Method::Head, Method::Get] {
                let response = fixture.request(method, target.as_bytes(), &[]).await;
                assert_eq!(response.status, status, "{target}");
                assert!(!response.text().contains(SECRET), "{target}");
                // The response does not repeat the target.
                assert!(status == 200 || response.body.len() < 64);
            }
        }
        for target in [
            &b"/..\xc0\xaf../secret"[..],
            b"/\xff\xfe",
            b"/file\0",
            b"/\x01",
            b"\\..\\secret",
        ] {
            let response = fixture.request(Method::Get, target, &[]).await;
            assert!(matches!(response.status, 400 | 404), "{target:?}");
        }
    });
}

#[test]
fn a_link_to_a_hidden_name_is_followed() {
    for_each_backend(SiteOptions::default(), async |fixture| {
        plant(&fixture);
        assert_eq!(fixture.status("/received-git/config").await, 200);
    });
    for_each_backend(
        {
            let mut options = SiteOptions::default();
            options.hidden = true;
            options
        },
        async |fixture| {
            plant(&fixture);
            assert_eq!(fixture.status("/.git/config").await, 200);
            assert_eq!(fixture.status("/../secret").await, 400);
        },
    );
}

#[test]
fn a_directory_swapped_for_a_link_does_not_lead_out() {
    for_each_backend(always_recheck(), async |fixture| {
        fixture.write("../outside/name", SECRET);
        fixture.write("dir/name", "inside");
        symlink("../outside", fixture.path("link")).unwrap();
        let done = Arc::new(AtomicBool::new(false));
        let swaps = {
            let (done, dir, link) = (Arc::clone(&done), fixture.path("dir"), fixture.path("link"));
            std::thread::spawn(move || {
                let mut swaps = 0u32;
                while !done.load(Ordering::Relaxed) {
                    renameat_with(CWD, &dir, CWD, &link, RenameFlags::EXCHANGE).unwrap();
                    swaps += 1;
                }
                swaps
            })
        };
        let (mut inside, mut refused) = (0, 0);
        for round in 0..5_000 {
            let response = fixture.get(["/dir/name", "/link/name"][round % 2]).await;
            match (response.status, response.text()) {
                (200, "inside") => inside += 1,
                (404, _) => refused += 1,
                // The kernel has seen a rename during each attempt.
                (503, _) => {}
                _ => panic!("{response:?}"),
            }
        }
        done.store(true, Ordering::Relaxed);
        let swaps = swaps.join().unwrap();
        assert!(
            inside > 0 && refused > 0 && swaps > 0,
            "{inside} {refused} {swaps}"
        );
    });
}
