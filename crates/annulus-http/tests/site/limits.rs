//! What is bounded: memory, descriptors, names; and what is not allowed.

use std::os::unix::fs::PermissionsExt;

use annulus_http::site::SiteOptions;
use annulus_testing::skip;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::ground::{always_looking, each_way, in_child};

#[test]
fn many_more_files_than_fit_into_the_cache_are_all_served() {
    let options = {
        let mut options = SiteOptions::default();
        options.cache_bytes = 100_000;
        options.open_files = 4;
        options
    };
    each_way(options, async |ground| {
        for index in 0..200 {
            ground.write(format!("small/{index}"), format!("{index}").repeat(2000));
        }
        for index in 0..20 {
            ground.write(format!("large/{index}"), format!("{index}").repeat(50_000));
        }
        for _ in 0..2 {
            for index in 0..200 {
                let response = ground.get(&format!("/small/{index}")).await;
                assert!(response.text() == format!("{index}").repeat(2000));
            }
            for index in 0..20 {
                let response = ground.get(&format!("/large/{index}")).await;
                assert!(response.text() == format!("{index}").repeat(50_000));
            }
        }
        assert!(open_files() < 100);
    });
}

/// Of those that the test has written; others open files meanwhile.
fn open_files() -> usize {
    let is_ours = |file: &std::path::PathBuf| {
        let folder = file.parent().and_then(|folder| folder.file_name());
        folder.is_some_and(|folder| folder == "small" || folder == "large")
    };
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let files = open.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
    files.filter(is_ours).count()
}

#[test]
fn names_and_paths_at_the_kernels_limits() {
    each_way(SiteOptions::default(), async |ground| {
        let name = "n".repeat(255);
        ground.write(&name, "longest");
        assert_eq!(ground.get(&format!("/{name}")).await.text(), "longest");
        assert_eq!(ground.status(&format!("/{name}n")).await, 404);
        assert_eq!(ground.status(&format!("/{name}n/x")).await, 404);
        // The encodings of a name may be too long where the name is not.
        let response = ground
            .get_with(&format!("/{name}"), &[("accept-encoding", "br")])
            .await;
        assert_eq!(response.text(), "longest");
        let deep = "d/".repeat(1000);
        ground.write(format!("{deep}file"), "deep");
        assert_eq!(ground.get(&format!("/{deep}file")).await.text(), "deep");
        assert_eq!(ground.status(&format!("/{}", "d/".repeat(2040))).await, 404);
        assert_eq!(ground.status(&format!("/{}", "d/".repeat(2100))).await, 414);
        assert_eq!(
            ground.status(&format!("/{}", "%64/".repeat(2040))).await,
            404
        );
    });
}

#[test]
fn what_may_not_be_read_is_forbidden() {
    in_child("limits::what_may_not_be_read_is_forbidden", true, || {
        each_way(always_looking(), async |ground| {
            ground.write("secret", "s");
            ground.write("shut/file", "s");
            ground.write("listed/file", "s");
            let deny = |name: &str| {
                let none = std::fs::Permissions::from_mode(0o000);
                std::fs::set_permissions(ground.path(name), none).unwrap();
            };
            deny("secret");
            deny("shut");
            if std::fs::read(ground.path("secret")).is_ok() {
                return skip::skip("permissions do not hold for this user");
            }
            for target in ["/secret", "/shut/file", "/shut/missing", "/shut/"] {
                assert_eq!(ground.status(target).await, 403, "{target}");
            }
            let open = std::fs::Permissions::from_mode(0o700);
            std::fs::set_permissions(ground.path("shut"), open).unwrap();
            assert_eq!(ground.status("/shut/file").await, 200);
        });
    });
}

#[test]
fn without_descriptors_the_response_asks_to_retry() {
    in_child(
        "limits::without_descriptors_the_response_asks_to_retry",
        false,
        || {
            let limit = getrlimit(Resource::Nofile);
            setrlimit(
                Resource::Nofile,
                Rlimit {
                    current: Some(200),
                    ..limit
                },
            )
            .unwrap();
            each_way(always_looking(), async |ground| {
                for index in 0..10 {
                    ground.write(format!("{index}"), vec![b'x'; 100_000]);
                }
                ground.write("small", "small");
                for index in 0..5 {
                    assert_eq!(ground.status(&format!("/{index}")).await, 200);
                }
                let mut taken = Vec::new();
                let take = |taken: &mut Vec<_>| {
                    while let Ok(file) = std::fs::File::open("/dev/null") {
                        taken.push(file);
                    }
                };
                take(&mut taken);
                // What was open for nobody is closed for it.
                assert_eq!(ground.get("/7").await.body.len(), 100_000);
                take(&mut taken);
                ground
                    .site
                    .sweep(std::time::Instant::now() + std::time::Duration::from_secs(1000));
                take(&mut taken);
                for target in ["/8", "/small", "/missing", "/"] {
                    let response = ground.get(target).await;
                    assert_eq!(
                        (response.status, response.field("retry-after")),
                        (503, Some("1")),
                        "{target}"
                    );
                }
                drop(taken);
                assert_eq!(ground.get("/8").await.body.len(), 100_000);
                assert_eq!(ground.get("/small").await.text(), "small");
                assert_eq!(ground.status("/missing").await, 404);
            });
        },
    );
}
