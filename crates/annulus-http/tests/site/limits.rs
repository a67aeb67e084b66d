//! Limits on memory, descriptors and names, and missing permissions.

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use annulus_http::site::SiteOptions;
use annulus_testing::skip;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::fixture::{always_recheck, for_each_backend, in_child};

#[test]
fn many_more_files_than_fit_into_the_cache_are_all_served() {
    let options = {
        let mut options = SiteOptions::default();
        options.cache_bytes = 100_000;
        options.open_files = 4;
        options
    };
    for_each_backend(options, async |fixture| {
        for index in 0..200 {
            fixture.write(format!("small/{index}"), format!("{index}").repeat(2000));
        }
        for index in 0..20 {
            fixture.write(format!("large/{index}"), format!("{index}").repeat(50_000));
        }
        for _ in 0..2 {
            for index in 0..200 {
                let response = fixture.get(&format!("/small/{index}")).await;
                assert!(response.text() == format!("{index}").repeat(2000));
            }
            for index in 0..20 {
                let response = fixture.get(&format!("/large/{index}")).await;
                assert!(response.text() == format!("{index}").repeat(50_000));
            }
        }
        assert!(open_files("small") + open_files("large") < 100);
    });
}

#[test]
fn as_many_large_files_stay_open_as_the_options_say() {
    for (most, expected) in [(usize::MAX, 3), (1, 1), (0, 0)] {
        let mut options = SiteOptions::default();
        options.open_files = most;
        for_each_backend(options, async move |fixture| {
            for index in 0..3 {
                fixture.write(format!("kept/{index}"), vec![b'x'; 100_000]);
                assert_eq!(fixture.status(&format!("/kept/{index}")).await, 200);
            }
            // The engine closes files, on another thread.
            let until = Instant::now() + Duration::from_secs(60);
            while open_files("kept") != expected {
                assert!(Instant::now() < until, "of {most}: {}", open_files("kept"));
                annulus::time::sleep(Duration::from_millis(1)).await;
            }
        });
    }
}

/// Returns the number of open files in folders of this name.
fn open_files(folder: &str) -> usize {
    let is_ours =
        |file: &std::path::PathBuf| file.parent().is_some_and(|parent| parent.ends_with(folder));
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let files = open.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
    files.filter(is_ours).count()
}

#[test]
fn names_and_paths_up_to_the_kernels_limits_are_served() {
    for_each_backend(SiteOptions::default(), async |fixture| {
        let name = "n".repeat(255);
        fixture.write(&name, "longest");
        assert_eq!(fixture.get(&format!("/{name}")).await.text(), "longest");
        assert_eq!(fixture.status(&format!("/{name}n")).await, 404);
        assert_eq!(fixture.status(&format!("/{name}n/x")).await, 404);
        // The name of an encoding may be too long although the name of the file is not.
        let response = fixture
            .get_with(&format!("/{name}"), &[("accept-encoding", "br")])
            .await;
        assert_eq!(response.text(), "longest");
        let deep = "d/".repeat(1000);
        fixture.write(format!("{deep}file"), "deep");
        assert_eq!(fixture.get(&format!("/{deep}file")).await.text(), "deep");
        assert_eq!(
            fixture.status(&format!("/{}", "d/".repeat(2040))).await,
            404
        );
        assert_eq!(
            fixture.status(&format!("/{}", "d/".repeat(2100))).await,
            414
        );
        assert_eq!(
            fixture.status(&format!("/{}", "%64/".repeat(2040))).await,
            404
        );
    });
}

#[test]
fn a_file_without_read_permission_is_forbidden() {
    in_child(
        "limits::a_file_without_read_permission_is_forbidden",
        true,
        || {
            for_each_backend(always_recheck(), async |fixture| {
                fixture.write("secret", "s");
                fixture.write("shut/file", "s");
                fixture.write("listed/file", "s");
                let deny = |name: &str| {
                    let none = std::fs::Permissions::from_mode(0o000);
                    std::fs::set_permissions(fixture.path(name), none).unwrap();
                };
                deny("secret");
                deny("shut");
                if std::fs::read(fixture.path("secret")).is_ok() {
                    return skip::skip("permissions do not hold for this user");
                }
                for target in ["/secret", "/shut/file", "/shut/missing", "/shut/"] {
                    assert_eq!(fixture.status(target).await, 403, "{target}");
                }
                // A file that is open already.
                fixture.write("large", vec![b'x'; 1 << 20]);
                assert_eq!(fixture.status("/large").await, 200);
                deny("large");
                assert_eq!(fixture.status("/large").await, 403);
                let open = std::fs::Permissions::from_mode(0o700);
                std::fs::set_permissions(fixture.path("shut"), open).unwrap();
                assert_eq!(fixture.status("/shut/file").await, 200);
            });
        },
    );
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
            for_each_backend(always_recheck(), async |fixture| {
                for index in 0..10 {
                    fixture.write(format!("{index}"), vec![b'x'; 100_000]);
                }
                fixture.write("small", "small");
                for index in 0..5 {
                    assert_eq!(fixture.status(&format!("/{index}")).await, 200);
                }
                let mut taken = Vec::new();
                let take = |taken: &mut Vec<_>| {
                    while let Ok(file) = std::fs::File::open("/dev/null") {
                        taken.push(file);
                    }
                };
                take(&mut taken);
                // A cached file that no response uses is closed for it.
                assert_eq!(fixture.get("/7").await.body.len(), 100_000);
                take(&mut taken);
                fixture
                    .site
                    .sweep(std::time::Instant::now() + std::time::Duration::from_secs(1000));
                take(&mut taken);
                for target in ["/8", "/small", "/missing", "/"] {
                    let response = fixture.get(target).await;
                    assert_eq!(
                        (response.status, response.field("retry-after")),
                        (503, Some("1")),
                        "{target}"
                    );
                }
                drop(taken);
                assert_eq!(fixture.get("/8").await.body.len(), 100_000);
                assert_eq!(fixture.get("/small").await.text(), "small");
                assert_eq!(fixture.status("/missing").await, 404);
            });
        },
    );
}
