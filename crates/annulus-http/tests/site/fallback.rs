//! Sites without openat2, as in containers that forbid unknown system calls.

use std::os::unix::fs::symlink;

use annulus_http::site::SiteOptions;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

use crate::fixture::{for_each_backend, in_child};

/// The number on all supported architectures.
const SYS_OPENAT2: i64 = 437;
const EPERM: u32 = 1;
const ENOSYS: u32 = 38;

fn serves_without_openat2(errno: u32) {
    let rules = [(SYS_OPENAT2, Vec::new())].into_iter().collect();
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let response = SeccompAction::Errno(errno);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, response, arch).unwrap();
    seccompiler::apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
    for_each_backend(
        {
            let mut options = SiteOptions::default();
            options.listing = true;
            options
        },
        async |fixture| {
            fixture.write("../secret", "secret");
            fixture.write("dir/index.html", "index");
            fixture.write("dir/index.html.gz", "encoded");
            fixture.write("large", vec![b'x'; 100_000]);
            symlink("../secret", fixture.path("out")).unwrap();
            symlink("..", fixture.path("up")).unwrap();
            symlink("large", fixture.path("link")).unwrap();
            symlink("../large", fixture.path("dir/link")).unwrap();
            for _ in 0..2 {
                assert_eq!(fixture.get("/dir/").await.text(), "index");
                let encoded = fixture
                    .get_with("/dir/", &[("accept-encoding", "gzip")])
                    .await;
                assert_eq!(encoded.text(), "encoded");
                assert_eq!(fixture.status("/dir").await, 301);
                for target in ["/large", "/link", "/dir/link"] {
                    assert_eq!(fixture.get(target).await.body.len(), 100_000);
                }
                for target in ["/out", "/up/secret", "/missing", "/large/", "/large/x"] {
                    assert_eq!(fixture.status(target).await, 404, "{target}");
                }
                let page = fixture.get("/").await;
                assert!(page.text().contains(">large<") && page.text().contains(">link<"));
            }
        },
    );
}

#[test]
fn all_files_are_served_if_openat2_is_forbidden() {
    let test = "fallback::all_files_are_served_if_openat2_is_forbidden";
    in_child(test, false, || serves_without_openat2(EPERM));
}

#[test]
fn all_files_are_served_if_openat2_is_missing() {
    let test = "fallback::all_files_are_served_if_openat2_is_missing";
    in_child(test, false, || serves_without_openat2(ENOSYS));
}
