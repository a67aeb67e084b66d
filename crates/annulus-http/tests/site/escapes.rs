//! Attempts to get at what is outside the root.

use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use annulus_http::site::{Method, SiteOptions};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::ground::{Ground, always_looking, each_way};

const SECRET: &str = "secret of the machine";

fn plant(ground: &Ground) {
    ground.write("../secret", SECRET);
    ground.write("../rootless/secret", SECRET);
    ground.write("file", "file");
    ground.write("dir/file", "dir/file");
    ground.write("dir/.hidden", SECRET);
    ground.write(".git/config", SECRET);
    ground.write("%2e%2e/secret", "a name of percents");
    symlink("../secret", ground.path("out")).unwrap();
    symlink(ground.path("../secret"), ground.path("absolute")).unwrap();
    symlink(ground.path("file"), ground.path("absolute-in")).unwrap();
    symlink("..", ground.path("up")).unwrap();
    symlink("../../secret", ground.path("dir/out")).unwrap();
    symlink("/", ground.path("slash")).unwrap();
    symlink("/proc/self/root", ground.path("magic")).unwrap();
    symlink("/proc/self/cwd", ground.path("cwd")).unwrap();
    symlink("loop-b", ground.path("loop-a")).unwrap();
    symlink("loop-a", ground.path("loop-b")).unwrap();
    symlink("self/self", ground.path("self")).unwrap();
    symlink("gone", ground.path("dangling")).unwrap();
    symlink("out", ground.path("out-again")).unwrap();
    symlink("file", ground.path("in")).unwrap();
    symlink("dir", ground.path("in-dir")).unwrap();
    symlink("../file", ground.path("dir/back")).unwrap();
    symlink("dir/back", ground.path("in-twice")).unwrap();
    symlink(".git", ground.path("shown-git")).unwrap();
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
    each_way(SiteOptions::default(), async |ground| {
        plant(&ground);
        for (target, status) in TARGETS {
            for method in [Method::Get, Method::Head, Method::Get] {
                let response = ground.ask(method, target.as_bytes(), &[]).await;
                assert_eq!(response.status, status, "{target}");
                assert!(!response.text().contains(SECRET), "{target}");
                // Nor do the targets themselves come back, as part of a page.
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
            let response = ground.ask(Method::Get, target, &[]).await;
            assert!(matches!(response.status, 400 | 404), "{target:?}");
        }
    });
}

#[test]
fn a_link_to_a_hidden_name_is_its_owners_choice() {
    each_way(SiteOptions::default(), async |ground| {
        plant(&ground);
        assert_eq!(ground.status("/shown-git/config").await, 200);
    });
    each_way(
        {
            let mut options = SiteOptions::default();
            options.hidden = true;
            options
        },
        async |ground| {
            plant(&ground);
            assert_eq!(ground.status("/.git/config").await, 200);
            assert_eq!(ground.status("/../secret").await, 400);
        },
    );
}

#[test]
fn a_directory_that_becomes_a_link_leads_nowhere() {
    each_way(always_looking(), async |ground| {
        ground.write("../outside/name", SECRET);
        ground.write("dir/name", "inside");
        symlink("../outside", ground.path("link")).unwrap();
        let done = Arc::new(AtomicBool::new(false));
        let swaps = {
            let (done, dir, link) = (Arc::clone(&done), ground.path("dir"), ground.path("link"));
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
        for round in 0..20_000 {
            let response = ground.get(["/dir/name", "/link/name"][round % 2]).await;
            match (response.status, response.text()) {
                (200, "inside") => inside += 1,
                (404, _) => refused += 1,
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
