//! Directories: index, redirect to the trailing slash, listing.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;

use annulus_http::site::{Method, SiteOptions};

use crate::fixture::{always_recheck, for_each_backend};

fn listed() -> SiteOptions {
    {
        let mut options = SiteOptions::default();
        options.listing = true;
        options
    }
}

#[test]
fn a_directory_without_a_trailing_slash_is_redirected() {
    for_each_backend(listed(), async |fixture| {
        fixture.write("dir/sub/index.html", "sub");
        std::fs::create_dir(fixture.path("a b")).unwrap();
        std::fs::create_dir(fixture.path("evil.example")).unwrap();
        for (target, location) in [
            ("/dir", "/dir/"),
            ("/dir?a=b&c", "/dir/?a=b&c"),
            ("/dir/sub", "/dir/sub/"),
            ("/dir//sub", "/dir/sub/"),
            ("/x/../dir/./sub", "/dir/sub/"),
            ("/a%20b", "/a%20b/"),
            ("//evil.example", "/evil.example/"),
            ("///evil.example?//x", "/evil.example/?//x"),
        ] {
            for _ in 0..2 {
                let response = fixture.get(target).await;
                assert_eq!(
                    (response.status, response.field("location")),
                    (301, Some(location)),
                    "{target}"
                );
            }
        }
        assert_eq!(fixture.status("/evil.example/..").await, 200);
        assert_eq!(fixture.status("//evil.example/%2e%2e/%2e%2e").await, 400);
    });
}

#[test]
fn the_index_is_served_for_its_directory() {
    let index = vec!["index.html".to_owned(), "index.htm".to_owned()];
    for_each_backend(
        {
            let mut options = always_recheck();
            options.index = index;
            options
        },
        async |fixture| {
            fixture.write("index.htm", "second");
            std::fs::create_dir_all(fixture.path("empty/index.html")).unwrap();
            let response = fixture.get("/").await;
            assert_eq!((response.status, response.text()), (200, "second"));
            assert_eq!(
                response.field("content-type"),
                Some("text/html; charset=utf-8")
            );
            fixture.write("index.html", "first");
            fixture.write("index.html.gz", "encoded");
            assert_eq!(fixture.get("/").await.text(), "first");
            assert_eq!(fixture.get("/?q").await.text(), "first");
            assert_eq!(
                fixture
                    .get_with("/", &[("accept-encoding", "gzip")])
                    .await
                    .text(),
                "encoded"
            );
            std::fs::remove_file(fixture.path("index.html")).unwrap();
            assert_eq!(fixture.get("/").await.text(), "second");
            // A directory with that name is not an index.
            assert_eq!(fixture.status("/empty/").await, 403);
            assert_eq!(fixture.status("/index.htm/").await, 404);
            assert_eq!(fixture.status("/missing/").await, 404);
        },
    );
}

#[test]
fn a_directory_is_listed_only_if_enabled() {
    for_each_backend(SiteOptions::default(), async |fixture| {
        fixture.write("dir/file", "x");
        assert_eq!(fixture.status("/dir/").await, 403);
        assert_eq!(fixture.status("/").await, 403);
    });
    for_each_backend(listed(), async |fixture| {
        fixture.write("dir/file.txt", "12345");
        fixture.write("dir/.hidden", "x");
        fixture.write("dir/sub/x", "x");
        fixture.write("indexed/index.html", "index");
        let response = fixture.get("/dir/").await;
        assert_eq!(response.status, 200);
        assert_eq!(
            response.field("content-type"),
            Some("text/html; charset=utf-8")
        );
        assert_eq!(response.field("x-content-type-options"), Some("nosniff"));
        let page = response.text();
        assert!(
            page.contains("<a href=\"./file.txt\">file.txt</a></td><td>5</td>"),
            "{page}"
        );
        assert!(page.contains("<a href=\"./sub/\">sub/</a>") && page.contains("../"));
        assert!(!page.contains("hidden"));
        assert_eq!(fixture.get("/indexed/").await.text(), "index");
        assert_eq!(
            fixture.request(Method::Head, b"/dir/", &[]).await.status,
            200
        );
        assert!(!fixture.get("/").await.text().contains("../"));
    });
}

#[test]
fn every_link_of_a_listing_leads_to_its_file() {
    for_each_backend(listed(), async |fixture| {
        let mut random = fastrand::Rng::with_seed(11);
        let mut made = std::collections::BTreeMap::new();
        while made.len() < 200 {
            let name: Vec<u8> = (0..random.usize(1..12)).map(|_| random.u8(1..)).collect();
            let odd = name.contains(&b'/') || name.contains(&b'\\') || name[0] == b'.';
            if !odd {
                let content = format!("{name:?}");
                fixture.write(OsStr::from_bytes(&name), &content);
                made.insert(content, ());
            }
        }
        let page = fixture.get("/").await;
        let links: Vec<&str> = page.text().split("href=\"").skip(1).collect();
        assert_eq!(links.len(), made.len());
        for link in links {
            let link = link
                .split('"')
                .next()
                .unwrap()
                .replace("&amp;", "&")
                .replace("&#39;", "'");
            let target = link.strip_prefix('.').unwrap();
            let response = fixture.get(target).await;
            assert_eq!(response.status, 200, "{target}");
            assert!(made.remove(response.text()).is_some(), "{target}");
        }
        assert!(made.is_empty());
    });
}

#[test]
fn many_concurrent_requests_for_a_listing_are_served() {
    for_each_backend(listed(), async |fixture| {
        for index in 0..500 {
            fixture.write(format!("dir/{index}"), "x");
        }
        let fixture = Rc::new(fixture);
        let tasks: Vec<_> = (0..300)
            .map(|_| {
                let fixture = Rc::clone(&fixture);
                annulus::runtime::spawn(async move { fixture.get("/dir/").await.body.len() })
            })
            .collect();
        let first = fixture.get("/dir/").await.body.len();
        for task in tasks {
            assert_eq!(task.await.unwrap(), first);
        }
    });
}
