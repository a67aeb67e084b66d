//! The public CI in `.github/workflows`: it runs every part of `ci/test` and of `ci/long`, and fuzz targets compile.

use regex::Regex;

use crate::repo::{Findings, Repo};
use crate::source::line_of;

const MAIN: &str = ".github/workflows/ci.yml";
const NIGHTLY: &str = ".github/workflows/nightly.yml";
/// It takes hours, and needs a checkout of another project.
const LEFT_OUT: &str = "servers-whole";

/// Checks that the jobs of main run each command of `ci/test`, and those of the night each part of `ci/long`.
pub(crate) fn parts(repo: &Repo, found: &mut Findings) {
    let jobs = r"(?m)^(?:job|beside) .*?\b(ci/\S+|cargo test)";
    let parts = r"(?m)^part_(\S+)\(\)";
    for (script, pattern, workflow) in [("ci/test", jobs, MAIN), ("ci/long", parts, NIGHTLY)] {
        let runs = format!("{}\n", repo.text(workflow));
        let pattern = Regex::new(pattern).unwrap();
        for part in pattern.captures_iter(repo.text(script)) {
            let (part, at) = (&part[1], part.get(0).unwrap().start());
            let names = match script {
                "ci/test" => vec![part.to_owned()],
                _ => vec![format!("- {part}\n"), format!("run: ci/{part}")],
            };
            if !names.iter().any(|name| runs.contains(name)) && part != LEFT_OUT {
                let says = format!("{workflow} lacks `{part}`; add it");
                found.add(script, line_of(repo.text(script), at), says);
            }
        }
    }
}

/// Checks that fuzz targets, which only the night compiles, name existing files of other crates.
pub(crate) fn fuzzed_files(repo: &Repo, found: &mut Findings) {
    let pattern = Regex::new(r#"#\[path = "\.\./\.\./([^"]+)"\]"#).unwrap();
    for (file, text) in repo.texts() {
        for named in pattern.captures_iter(text) {
            if file.starts_with("fuzz/") && repo.text(&named[1]).is_empty() {
                let at = line_of(text, named.get(0).unwrap().start());
                let says = format!(
                    "no file `{}`; name its new place, and run ci/fuzz",
                    &named[1]
                );
                found.add(file, at, says);
            }
        }
    }
}

#[test]
fn a_fuzzed_file_that_has_moved_is_reported() {
    let target = "#[path = \"../../a/b.rs\"]\nmod b;\n#[path = \"../../a/c.rs\"]\nmod c;\n";
    let files = [
        ("fuzz/fuzz_targets/x.rs", target),
        ("a/b.rs", "fn b() {}\n"),
    ];
    let findings = crate::repo::planted(fuzzed_files, &files);
    assert_eq!(crate::repo::lines(&findings), [3]);
}

#[test]
fn a_missing_part_is_reported() {
    let test = "beside a.log \"a\" env A=\"b\" ci/check\njob \"b\" env OPS=3 ci/stress\n";
    let long = "part_fuzz() {\n}\npart_soak() { ci/soak; }\npart_abort() { ci/abort; }\npart_servers-whole() {\n";
    let files = [
        ("ci/test", test),
        (MAIN, "- run: ci/check\n"),
        ("ci/long", long),
        (NIGHTLY, "  - soak\n run: ci/fuzz 600\n"),
    ];
    let findings = crate::repo::planted(parts, &files);
    let places = findings.iter().map(|one| (one.file.as_str(), one.line));
    assert_eq!(Vec::from_iter(places), [("ci/test", 2), ("ci/long", 4)]);
    assert!(findings[1].says.contains("`abort`"), "{}", findings[1].says);
}
