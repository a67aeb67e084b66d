//! What is in a directory besides files and directories.

use std::os::unix::net::UnixListener;
use std::time::Duration;

use annulus_http::site::SiteOptions;
use annulus_testing::skip::skip;
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

use crate::ground::each_way;

#[test]
fn pipes_sockets_and_devices_are_not_there() {
    each_way(
        {
            let mut options = SiteOptions::default();
            options.listing = true;
            options
        },
        async |ground| {
            ground.write("file", "file");
            let mode = Mode::from_raw_mode(0o666);
            mknodat(CWD, ground.path("pipe"), FileType::Fifo, mode, 0).unwrap();
            let _listener = UnixListener::bind(ground.path("socket")).unwrap();
            let null = makedev(1, 3);
            let device = mknodat(
                CWD,
                ground.path("device"),
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
                    assert_eq!(ground.status(target).await, 404, "{target}");
                }
                let page = ground.get("/").await;
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
    each_way(SiteOptions::default(), async |ground| {
        ground.write("dir/a.css", "plain");
        let mode = Mode::from_raw_mode(0o666);
        for name in ["dir/index.html", "dir/a.css.br"] {
            mknodat(CWD, ground.path(name), FileType::Fifo, mode, 0).unwrap();
        }
        assert_eq!(ground.status("/dir/").await, 403);
        let response = ground
            .get_with("/dir/a.css", &[("accept-encoding", "br")])
            .await;
        assert_eq!(response.text(), "plain");
    });
}
