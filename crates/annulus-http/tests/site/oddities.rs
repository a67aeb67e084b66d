//! Special files.

use std::os::unix::net::UnixListener;
use std::time::Duration;

use annulus_http::site::SiteOptions;
use annulus_testing::skip::skip;
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

use crate::fixture::for_each_backend;

#[test]
fn pipes_sockets_and_devices_are_not_served() {
    for_each_backend(
        {
            let mut options = SiteOptions::default();
            options.listing = true;
            options
        },
        async |fixture| {
            fixture.write("file", "file");
            let mode = Mode::from_raw_mode(0o666);
            mknodat(CWD, fixture.path("pipe"), FileType::Fifo, mode, 0).unwrap();
            let _listener = UnixListener::bind(fixture.path("socket")).unwrap();
            let null = makedev(1, 3);
            let device = mknodat(
                CWD,
                fixture.path("device"),
                FileType::CharacterDevice,
                mode,
                null,
            );
            if let Err(error) = device {
                skip(format_args!("a device: {error}"));
            }
            let requests = async {
                for target in [
                    "/pipe",
                    "/socket",
                    "/device",
                    "/pipe/",
                    "/device/x",
                    "/file/x",
                    "/file/",
                ] {
                    assert_eq!(fixture.status(target).await, 404, "{target}");
                }
                let page = fixture.get("/").await;
                for name in ["pipe", "socket", "device"] {
                    assert!(!page.text().contains(&format!(">{name}<")), "{name}");
                }
                assert!(page.text().contains(">file<"));
            };
            annulus::time::timeout(Duration::from_secs(20), requests)
                .await
                .unwrap();
        },
    );
}

#[test]
fn a_pipe_named_like_an_index_or_an_encoding_is_skipped() {
    for_each_backend(SiteOptions::default(), async |fixture| {
        fixture.write("dir/a.css", "plain");
        let mode = Mode::from_raw_mode(0o666);
        for name in ["dir/index.html", "dir/a.css.br"] {
            mknodat(CWD, fixture.path(name), FileType::Fifo, mode, 0).unwrap();
        }
        assert_eq!(fixture.status("/dir/").await, 403);
        let response = fixture
            .get_with("/dir/a.css", &[("accept-encoding", "br")])
            .await;
        assert_eq!(response.text(), "plain");
    });
}
