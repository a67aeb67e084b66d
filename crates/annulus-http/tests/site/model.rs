//! A tree that changes at random, and a site that must always agree with the file system.

use std::collections::HashMap;
use std::os::unix::fs::symlink;
use std::path::Path;

use annulus_http::site::SiteOptions;

use crate::fixture::{Fixture, always_recheck, for_each_backend};

/// The number of changes and requests per backend.
const ROUNDS: u32 = 6_000;
/// Few names, so that each is used for every kind of file.
const NAMES: [&str; 5] = ["a", "b", "c", "index.html", "a.gz"];
/// Lengths on both sides of the limit for caching, and 0.
const LENGTHS: [usize; 5] = [0, 1, 90, 100, 3_000];

fn any_path(random: &mut fastrand::Rng) -> String {
    let names: Vec<&str> = (0..random.usize(1..4))
        .map(|_| NAMES[random.usize(..NAMES.len())])
        .collect();
    names.join("/")
}

/// Makes a change, which may fail.
fn change(fixture: &Fixture, random: &mut fastrand::Rng, round: u32) {
    let (path, other) = (
        fixture.path(any_path(random)),
        fixture.path(any_path(random)),
    );
    let _ = match random.u32(..10) {
        0..4 => {
            let bytes = LENGTHS[random.usize(..LENGTHS.len())];
            let content = format!("{round} ").repeat(bytes / 2 + 1);
            std::fs::write(path, &content[..bytes])
        }
        4 => std::fs::create_dir(path),
        5 => std::fs::remove_file(path),
        6 => std::fs::remove_dir(path),
        7 => std::fs::rename(path, other),
        // A link within the directory, or one that leads out of the root from any depth.
        8 => symlink(NAMES[random.usize(..NAMES.len())], path),
        _ => symlink("../../../../../outside", path),
    };
}

/// Returns the status and content that the file system implies.
fn expected(fixture: &Fixture, path: &str, slash: bool) -> (u16, Vec<u8>) {
    let root = fixture.path("").canonicalize().unwrap();
    let within = |path: &Path| {
        path.canonicalize()
            .ok()
            .filter(|real| real.starts_with(&root))
    };
    let requested = fixture.path(path);
    match within(&requested) {
        Some(real) if real.is_file() && !slash => (200, std::fs::read(real).unwrap()),
        Some(real) if real.is_dir() && !slash => (301, Vec::new()),
        Some(real) if real.is_dir() => match within(&requested.join("index.html")) {
            Some(index) if index.is_file() => (200, std::fs::read(index).unwrap()),
            _ => (403, Vec::new()),
        },
        _ => (404, Vec::new()),
    }
}

fn agrees_with_the_file_system(options: SiteOptions) {
    for_each_backend(options, async |fixture| {
        fixture.write("../outside/a", "not served");
        let mut random = fastrand::Rng::with_seed(20);
        let mut versions: HashMap<(String, String), Vec<u8>> = HashMap::new();
        let mut counts: HashMap<u16, u32> = HashMap::new();
        for round in 0..ROUNDS {
            change(&fixture, &mut random, round);
            let (path, slash) = (any_path(&mut random), random.u32(..4) == 0);
            let target = format!("/{path}{}", if slash { "/" } else { "" });
            let response = fixture.get(&target).await;
            let (status, body) = expected(&fixture, &path, slash);
            assert_eq!(response.status, status, "round {round}: {target}");
            *counts.entry(status).or_default() += 1;
            if status != 200 {
                continue;
            }
            assert!(response.body == body, "round {round}: {target}");
            // A strong tag identifies one content.
            let tag = response.field("etag").unwrap();
            if tag.starts_with('"') {
                let before = versions
                    .entry((target, tag.to_owned()))
                    .or_insert_with(|| body.clone());
                assert!(*before == body, "round {round}: {tag}");
            }
        }
        assert!(
            [200, 301, 403, 404]
                .iter()
                .all(|status| counts[status] > 50),
            "{counts:?}"
        );
    });
}

#[test]
fn a_site_without_caching_time_agrees_with_the_file_system() {
    let options = {
        let mut options = always_recheck();
        options.cache_bytes = 20_000;
        options.cache_file_bytes = 99;
        options.open_files = 2;
        options
    };
    agrees_with_the_file_system(options);
}

#[test]
fn a_site_without_a_cache_agrees_with_the_file_system() {
    let options = {
        let mut options = always_recheck();
        options.cache_bytes = 0;
        options.cache_file_bytes = 0;
        options.open_files = 0;
        options
    };
    agrees_with_the_file_system(options);
}
