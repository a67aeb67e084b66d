//! Without openat2, as containers have it that forbid what they do not know.

use std::os::unix::fs::symlink;

use annulus_http::site::SiteOptions;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

use crate::ground::{each_way, in_child};

/// On every architecture that we run on.
const SYS_OPENAT2: i64 = 437;
const EPERM: u32 = 1;
const ENOSYS: u32 = 38;

fn serves_without_openat2(errno: u32) {
    let rules = [(SYS_OPENAT2, Vec::new())].into_iter().collect();
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let response = SeccompAction::Errno(errno);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, response, arch).unwrap();
    seccompiler::apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
    each_way(
        {
            let mut options = SiteOptions::default();
            options.listing = true;
            options
        },
        async |ground| {
            ground.write("../secret", "secret");
            ground.write("dir/index.html", "index");
            ground.write("dir/index.html.gz", "encoded");
            ground.write("large", vec![b'x'; 100_000]);
            symlink("../secret", ground.path("out")).unwrap();
            symlink("..", ground.path("up")).unwrap();
            symlink("large", ground.path("link")).unwrap();
            symlink("../large", ground.path("dir/link")).unwrap();
            for _ in 0..2 {
                assert_eq!(ground.get("/dir/").await.text(), "index");
                let encoded = ground
                    .get_with("/dir/", &[("accept-encoding", "gzip")])
                    .await;
                assert_eq!(encoded.text(), "encoded");
                assert_eq!(ground.status("/dir").await, 301);
                for target in ["/large", "/link", "/dir/link"] {
                    assert_eq!(ground.get(target).await.body.len(), 100_000);
                }
                for target in ["/out", "/up/secret", "/missing", "/large/", "/large/x"] {
                    assert_eq!(ground.status(target).await, 404, "{target}");
                }
                let page = ground.get("/").await;
                assert!(page.text().contains(">large<") && page.text().contains(">link<"));
            }
        },
    );
}

#[test]
fn where_openat2_is_forbidden_all_is_served() {
    let test = "fallback::where_openat2_is_forbidden_all_is_served";
    in_child(test, false, || serves_without_openat2(EPERM));
}

#[test]
fn where_openat2_is_missing_all_is_served() {
    let test = "fallback::where_openat2_is_missing_all_is_served";
    in_child(test, false, || serves_without_openat2(ENOSYS));
}
