//! The public CI in `.github/workflows`: it runs every part of `ci/test` and of `ci/long`.

use crate::repo::{Findings, Repo};

const MAIN: &str = ".github/workflows/ci.yml";
const NIGHTLY: &str = ".github/workflows/nightly.yml";
/// Compiles for a later job of `ci/test`.
const AHEAD: &str = "ci/lib/ahead";
/// Takes hours, and needs a checkout of another project.
const BY_HAND: &str = "servers-whole";

/// Checks that the jobs of main run each command of `ci/test`, and those of the night each part of `ci/long`.
pub(crate) fn parts(repo: &Repo, found: &mut Findings) {
    let main = repo.text(MAIN);
    for (index, line) in repo.text("ci/test").lines().enumerate() {
        let is_job = ["job \"", "beside "]
            .iter()
            .any(|start| line.starts_with(start));
        let Some((_, command)) = line.split_once("\" ").filter(|_| is_job) else {
            continue;
        };
        let script = command.split(' ').find(|word| word.starts_with("ci/"));
        let script = script.unwrap_or("cargo test");
        if script != AHEAD && !main.contains(script) {
            let says = format!("no job of {MAIN} runs `{script}`; add one");
            found.add("ci/test", index + 1, says);
        }
    }
    let night: Vec<&str> = repo.text(NIGHTLY).lines().map(str::trim).collect();
    for (index, line) in repo.text("ci/long").lines().enumerate() {
        let Some((part, _)) = line
            .strip_prefix("part_")
            .and_then(|part| part.split_once("()"))
        else {
            continue;
        };
        let is_there = part == BY_HAND
            || night.contains(&format!("- {part}").as_str())
            || night
                .iter()
                .any(|line| line.starts_with(&format!("run: ci/{part}")));
        if !is_there {
            found.add(
                "ci/long",
                index + 1,
                format!("{NIGHTLY} lacks the part `{part}`; add it to the matrix"),
            );
        }
    }
}

#[test]
fn a_missing_part_is_reported() {
    let files = [
        (
            "ci/test",
            "beside a.log \"a\" env A=\"b\" ci/check\njob \"b\" env OPS=3 ci/stress\nbeside c.log \"c\" ci/lib/ahead\n",
        ),
        (MAIN, "- run: ci/check\n"),
        (
            "ci/long",
            "part_fuzz() {\n}\npart_soak() { ci/soak; }\npart_abort() { ci/abort; }\npart_servers-whole() {\n",
        ),
        (NIGHTLY, "  - soak\n run: ci/fuzz 600\n"),
    ];
    let findings = crate::repo::planted(parts, &files);
    let places: Vec<(&str, usize)> = findings
        .iter()
        .map(|one| (one.file.as_str(), one.line))
        .collect();
    assert_eq!(places, [("ci/test", 2), ("ci/long", 4)]);
    assert!(findings[1].says.contains("`abort`"), "{}", findings[1].says);
}
