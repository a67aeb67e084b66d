//! The repository as the rules see it: the text of every file that a person wrote.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

use crate::source::Source;

/// Folders that hold nothing a person wrote.
const SKIPPED: [&str; 3] = [".git", "target", "node_modules"];

/// Something that breaks a rule, with what to do instead.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) file: String,
    pub(crate) line: usize,
    pub(crate) says: String,
}

impl Finding {
    pub(crate) fn new(file: &str, line: usize, says: impl Into<String>) -> Finding {
        Finding {
            file: file.to_owned(),
            line,
            says: says.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.says)
    }
}

/// The files, by path relative to the root of the repository.
#[derive(Default)]
pub(crate) struct Repo {
    texts: BTreeMap<String, String>,
    sources: BTreeMap<String, Source>,
}

impl Repo {
    /// Reads the tree under `root`.
    pub(crate) fn read(root: &Path) -> Repo {
        let mut repo = Repo::default();
        repo.read_folder(root, "");
        repo
    }

    /// A repository of a few files, to plant violations in.
    pub(crate) fn planted(files: &[(&str, &str)]) -> Repo {
        let mut repo = Repo::default();
        for (path, text) in files {
            repo.add(path, text);
        }
        repo
    }

    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.texts.get(path).map(String::as_str)
    }

    /// Every file that holds text.
    pub(crate) fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.texts
            .iter()
            .map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// Every Rust file.
    pub(crate) fn sources(&self) -> impl Iterator<Item = (&str, &Source)> {
        self.sources
            .iter()
            .map(|(path, source)| (path.as_str(), source))
    }

    pub(crate) fn source(&self, path: &str) -> Option<&Source> {
        self.sources.get(path)
    }

    /// The files of the library itself, with their path below its `src/`.
    pub(crate) fn library(&self) -> impl Iterator<Item = (&str, &str, &Source)> {
        self.sources().filter_map(|(path, source)| {
            Some((path, path.strip_prefix("crates/annulus/src/")?, source))
        })
    }

    /// Every manifest.
    pub(crate) fn manifests(&self) -> impl Iterator<Item = (&str, &str)> {
        self.texts()
            .filter(|(path, _)| path.rsplit('/').next() == Some("Cargo.toml"))
    }

    /// Every Markdown file.
    pub(crate) fn documents(&self) -> impl Iterator<Item = (&str, &str)> {
        self.texts().filter(|(path, _)| path.ends_with(".md"))
    }

    fn read_folder(&mut self, folder: &Path, prefix: &str) {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let path = format!("{prefix}{name}");
            if entry.file_type().unwrap().is_dir() {
                if !SKIPPED.contains(&name.as_str()) {
                    self.read_folder(&entry.path(), &format!("{path}/"));
                }
            } else if name == ".git" {
                // Git's own file, in a linked worktree.
            } else if let Ok(text) = fs::read_to_string(entry.path()) {
                self.add(&path, &text);
            }
        }
    }

    fn add(&mut self, path: &str, text: &str) {
        self.texts.insert(path.to_owned(), text.to_owned());
        if path.ends_with(".rs") {
            self.sources.insert(path.to_owned(), Source::new(text));
        }
    }
}
