//! Every commit that `runs/` names exists, so that a figure can be measured again.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::{io, thread};

use crate::repo::{Findings, Repo};

const FOLDER: &str = "runs/";
/// Commits of other projects.
const FOREIGN: [&str; 2] = [
    "781989b", // of tokio-epoll-uring
    "fd399c8", // of nginx-tests
];

/// Reports each commit that the repository does not have. A shallow clone lacks most commits, and is not checked.
pub(crate) fn named(repo: &Repo, found: &mut Findings) {
    let mut places: BTreeMap<&str, Vec<(&str, usize)>> = BTreeMap::new();
    for (path, text) in repo.texts().filter(|(path, _)| path.starts_with(FOLDER)) {
        for (index, line) in text.lines().enumerate() {
            for word in words(line) {
                places.entry(word).or_default().push((path, index + 1));
            }
        }
    }
    let missing = match git(&["rev-parse", "--is-shallow-repository"], "") {
        Ok(answer) if answer.trim() == "true" => return,
        Ok(_) => missing(&places.keys().copied().collect::<Vec<_>>()),
        Err(error) => Err(error),
    };
    match missing {
        Err(error) => found.add(FOLDER, 0, format!("git cannot check the commits: {error}")),
        Ok(missing) => {
            for (word, path, line) in (missing.iter()).flat_map(|word| {
                places[word.as_str()]
                    .iter()
                    .map(move |at| (word, at.0, at.1))
            }) {
                let text = "is no commit here; name the one that holds the measured code, or add one of another project \
                            to FOREIGN (crates/annulus-testing/tests/tidy/commits.rs)";
                found.add(path, line, format!("`{word}` {text}"));
            }
        }
    }
}

/// Returns the words of a line that are abbreviated or whole commits.
fn words(line: &str) -> impl Iterator<Item = &str> {
    let words = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| {
        let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        // Other numbers have digits only.
        let has_letter = word.bytes().any(|byte| byte.is_ascii_lowercase());
        let has_digit = word.bytes().any(|byte| byte.is_ascii_digit());
        (matches!(word.len(), 7..=12 | 40) && word.bytes().all(is_hex))
            && has_letter
            && has_digit
            && !FOREIGN.contains(word)
    })
}

/// Returns the names for which there is no commit.
fn missing(names: &[&str]) -> io::Result<Vec<String>> {
    let queries: String = names
        .iter()
        .map(|name| format!("{name}^{{commit}}\n"))
        .collect();
    let answers = git(&["cat-file", "--batch-check"], &queries)?;
    let missing = answers.lines().filter(|line| !line.contains(" commit "));
    let name = |line: &str| line.split('^').next().unwrap_or_default().to_owned();
    Ok(missing.map(name).collect())
}

/// Runs git in this repository, which may belong to another user.
fn git(args: &[&str], input: &str) -> io::Result<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut child = Command::new("git")
        .args(["-c", "safe.directory=*"])
        .args(args)
        .current_dir(root)
        .env_remove("GIT_DIR")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let (mut stdin, input) = (child.stdin.take(), input.to_owned());
    // git answers while it reads.
    let writer = thread::spawn(move || {
        stdin
            .iter_mut()
            .try_for_each(|stdin| stdin.write_all(input.as_bytes()))
    });
    let output = child.wait_with_output()?;
    let written = writer.join().unwrap();
    match output.status.success() {
        true => written.map(|()| String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(io::Error::other(
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repo::{lines, planted};

    #[test]
    fn an_unknown_commit_in_a_run_is_reported() {
        let head = git(&["rev-parse", "--short=8", "HEAD"], "").unwrap();
        let text = format!(
            "Commit {}\n# commit: 0badc0de-dirty\n781989b and 12345678 and deadbeef\nx 0badc0de.\n",
            head.trim()
        );
        let shallow = git(&["rev-parse", "--is-shallow-repository"], "").unwrap();
        let found = planted(
            named,
            &[("runs/a/README.md", &text), ("docs/a.md", "0badc0de")],
        );
        let expected: &[usize] = if shallow.trim() == "true" {
            &[]
        } else {
            &[2, 4]
        };
        assert_eq!(lines(&found), expected);
    }
}
