//! The manifests: each dependency has a reason in the comment above it. Published crates contain the licences.

use crate::repo::{Findings, Repo};

/// The kind of a dependency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Section {
    /// `[dependencies]` and `[build-dependencies]`, for any target: users of the library build it, too.
    Shipped,
    /// `[dev-dependencies]`.
    Tests,
    /// `[workspace.dependencies]`: a version that crates may use.
    Workspace,
}

pub(crate) struct Dependency {
    pub(crate) name: String,
    pub(crate) line: usize,
    pub(crate) section: Section,
    /// True if the line directly above is a comment that is not empty.
    pub(crate) explained: bool,
    /// True if it is built only with a feature.
    pub(crate) optional: bool,
    /// True for a crate of this repository.
    pub(crate) local: bool,
}

/// Returns the dependencies of a manifest with one line per dependency.
pub(crate) fn dependencies(manifest: &str) -> Vec<Dependency> {
    let mut found = Vec::new();
    let mut section = None;
    let mut above = "";
    for (index, line) in manifest.lines().enumerate() {
        let line = line.trim();
        if let Some(title) = line.strip_prefix('[') {
            section = section_of(title.trim_end_matches(']'));
        } else if let (Some(section), Some((key, value))) = (section, entry(line)) {
            found.push(Dependency {
                name: key.split('.').next().unwrap_or(key).to_owned(),
                line: index + 1,
                section,
                explained: above.starts_with('#') && above.len() > 2,
                optional: value.contains("optional = true"),
                local: value.contains("path ="),
            });
        }
        above = line;
    }
    found
}

/// Splits `name = …` at the start of a dependency. Returns `None` in the continuation of a list of features.
fn entry(line: &str) -> Option<(&str, &str)> {
    let (key, value) = line.split_once('=')?;
    let key = key.trim();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (!key.is_empty() && key.chars().all(plain)).then_some((key, value))
}

fn section_of(title: &str) -> Option<Section> {
    match title.rsplit('.').next()? {
        "dependencies" if title.starts_with("workspace") => Some(Section::Workspace),
        "dependencies" | "build-dependencies" => Some(Section::Shipped),
        "dev-dependencies" => Some(Section::Tests),
        _ => None,
    }
}

pub(crate) fn reasons(repo: &Repo, found: &mut Findings) {
    for (path, text) in repo.texts() {
        if path.rsplit('/').next() != Some("Cargo.toml") {
            continue;
        }
        for dependency in dependencies(text) {
            let listed_only = dependency.section == Section::Workspace && dependency.local;
            if !dependency.explained && !listed_only {
                let name = &dependency.name;
                let says = format!("`{name}` has no reason; give it in a comment above");
                found.add(path, dependency.line, says);
            }
        }
    }
}

/// Cargo packages only files below a crate, so each published crate has its own links to the licences.
pub(crate) fn licences(repo: &Repo, found: &mut Findings) {
    for (path, text) in repo.texts() {
        let Some(folder) = path.strip_suffix("/Cargo.toml") else {
            continue;
        };
        if !path.starts_with("crates/") || text.contains("publish = false") {
            continue;
        }
        for name in ["LICENSE-APACHE", "LICENSE-MIT"] {
            if repo.text(&format!("{folder}/{name}")).is_empty() {
                found.add(
                    path,
                    1,
                    format!("the package has no {name}; link it from {folder}"),
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repo::{lines, planted};

    #[test]
    fn a_dependency_without_a_reason_is_reported() {
        let text = "[package]\nname = \"x\"\n[dependencies]\n# Why.\na = \"1\"\nb = { version = \"1\", features = [\n\
                    \"x=y\"] }\n[target.'cfg(loom)'.dependencies]\nc.workspace = true\n[features]\nd = []\n";
        let found = planted(reasons, &[("crates/x/Cargo.toml", text)]);
        assert_eq!(lines(&found), [6, 9]);
    }

    #[test]
    fn crates_of_the_workspace_need_no_reason_in_its_table() {
        let text = "[workspace.dependencies]\na = { path = \"crates/a\" }\nb = \"1\"\n";
        assert_eq!(lines(&planted(reasons, &[("Cargo.toml", text)])), [3]);
    }

    #[test]
    fn a_published_crate_without_a_licence_is_reported() {
        let files = [
            ("crates/x/Cargo.toml", "[package]\n"),
            ("crates/x/LICENSE-MIT", "text"),
            ("crates/y/Cargo.toml", "publish = false\n"),
        ];
        let found = planted(licences, &files);
        assert_eq!(lines(&found), [1]);
        assert!(found[0].says.contains("LICENSE-APACHE"));
    }
}
