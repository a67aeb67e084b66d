//! Directories: their index, their slash, their listing.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;

use annulus_http::site::{Method, SiteOptions};

use crate::ground::{always_looking, each_way};

fn listed() -> SiteOptions {
    {
        let mut options = SiteOptions::default();
        options.listing = true;
        options
    }
}

#[test]
fn a_directory_without_its_slash_is_sent_there() {
    each_way(listed(), async |ground| {
        ground.write("dir/sub/index.html", "sub");
        std::fs::create_dir(ground.path("a b")).unwrap();
        std::fs::create_dir(ground.path("evil.example")).unwrap();
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
                let response = ground.get(target).await;
                assert_eq!(
                    (response.status, response.field("location")),
                    (301, Some(location)),
                    "{target}"
                );
            }
        }
        assert_eq!(ground.status("/evil.example/..").await, 200);
        assert_eq!(ground.status("//evil.example/%2e%2e/%2e%2e").await, 400);
    });
}

#[test]
fn an_index_stands_for_its_directory() {
    let index = vec!["index.html".to_owned(), "index.htm".to_owned()];
    each_way(
        {
            let mut options = always_looking();
            options.index = index;
            options
        },
        async |ground| {
            ground.write("index.htm", "second");
            std::fs::create_dir_all(ground.path("empty/index.html")).unwrap();
            let response = ground.get("/").await;
            assert_eq!((response.status, response.text()), (200, "second"));
            assert_eq!(
                response.field("content-type"),
                Some("text/html; charset=utf-8")
            );
            ground.write("index.html", "first");
            ground.write("index.html.gz", "encoded");
            assert_eq!(ground.get("/").await.text(), "first");
            assert_eq!(ground.get("/?q").await.text(), "first");
            assert_eq!(
                ground
                    .get_with("/", &[("accept-encoding", "gzip")])
                    .await
                    .text(),
                "encoded"
            );
            std::fs::remove_file(ground.path("index.html")).unwrap();
            assert_eq!(ground.get("/").await.text(), "second");
            // A directory of that name is no index.
            assert_eq!(ground.status("/empty/").await, 403);
            assert_eq!(ground.status("/index.htm/").await, 404);
            assert_eq!(ground.status("/missing/").await, 404);
        },
    );
}

#[test]
fn a_directory_is_listed_only_on_request() {
    each_way(SiteOptions::default(), async |ground| {
        ground.write("dir/file", "x");
        assert_eq!(ground.status("/dir/").await, 403);
        assert_eq!(ground.status("/").await, 403);
    });
    each_way(listed(), async |ground| {
        ground.write("dir/file.txt", "12345");
        ground.write("dir/.hidden", "x");
        ground.write("dir/sub/x", "x");
        ground.write("indexed/index.html", "index");
        let response = ground.get("/dir/").await;
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
        assert_eq!(ground.get("/indexed/").await.text(), "index");
        assert_eq!(ground.ask(Method::Head, b"/dir/", &[]).await.status, 200);
        assert!(!ground.get("/").await.text().contains("../"));
    });
}

#[test]
fn every_link_of_a_listing_leads_to_its_file() {
    each_way(listed(), async |ground| {
        let mut random = fastrand::Rng::with_seed(11);
        let mut made = std::collections::BTreeMap::new();
        while made.len() < 200 {
            let name: Vec<u8> = (0..random.usize(1..12)).map(|_| random.u8(1..)).collect();
            let odd = name.contains(&b'/') || name.contains(&b'\\') || name[0] == b'.';
            if !odd {
                let content = format!("{name:?}");
                ground.write(OsStr::from_bytes(&name), &content);
                made.insert(content, ());
            }
        }
        let page = ground.get("/").await;
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
            let response = ground.get(target).await;
            assert_eq!(response.status, 200, "{target}");
            assert!(made.remove(response.text()).is_some(), "{target}");
        }
        assert!(made.is_empty());
    });
}

#[test]
fn many_who_ask_for_one_listing_are_all_served() {
    each_way(listed(), async |ground| {
        for index in 0..500 {
            ground.write(format!("dir/{index}"), "x");
        }
        let ground = Rc::new(ground);
        let asks: Vec<_> = (0..300)
            .map(|_| {
                let ground = Rc::clone(&ground);
                annulus::runtime::spawn(async move { ground.get("/dir/").await.body.len() })
            })
            .collect();
        let first = ground.get("/dir/").await.body.len();
        for ask in asks {
            assert_eq!(ask.await.unwrap(), first);
        }
    });
}
