//! The repository as the rules read it: the text of every file that a person wrote.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use crate::source::Source;

/// Folders without files that a person wrote.
const SKIPPED: [&str; 3] = [".git", "target", "node_modules"];

/// A rule, which adds its violations to the findings.
pub(crate) type Rule = fn(&Repo, &mut Findings);

/// A violation of a rule, with the remedy.
pub(crate) struct Finding {
    pub(crate) file: String,
    pub(crate) line: usize,
    pub(crate) says: String,
}

#[derive(Default)]
pub(crate) struct Findings(pub(crate) Vec<Finding>);

impl Findings {
    pub(crate) fn add(&mut self, file: &str, line: usize, says: impl Into<String>) {
        let (file, says) = (file.to_owned(), says.into());
        self.0.push(Finding { file, line, says });
    }
}

/// Returns the findings of `rule` in a repository of these files, given by path and text.
pub(crate) fn planted(rule: Rule, files: &[(&str, &str)]) -> Vec<Finding> {
    let (mut repo, mut found) = (Repo::default(), Findings::default());
    files.iter().for_each(|(path, text)| repo.add(path, text));
    rule(&repo, &mut found);
    found.0
}

pub(crate) fn lines(found: &[Finding]) -> Vec<usize> {
    found.iter().map(|finding| finding.line).collect()
}

/// The files, by path relative to the root of the repository.
#[derive(Default)]
pub(crate) struct Repo {
    texts: BTreeMap<String, String>,
    /// The Rust files, each parsed when a rule first asks for it: nextest runs each rule in a process of its own.
    sources: BTreeMap<String, OnceLock<Source>>,
}

impl Repo {
    /// Reads the tree under `root`.
    pub(crate) fn read(root: &Path) -> Repo {
        let mut repo = Repo::default();
        repo.read_folder(root, "");
        repo
    }

    /// Returns the text of a file; empty if it does not exist.
    pub(crate) fn text(&self, path: &str) -> &str {
        self.texts.get(path).map_or("", String::as_str)
    }

    /// Returns all text files.
    pub(crate) fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        let texts = self.texts.iter();
        texts.map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// Returns all Rust files.
    pub(crate) fn sources(&self) -> impl Iterator<Item = (&str, &Source)> {
        let paths = self.sources.keys();
        paths.filter_map(|path| Some((path.as_str(), self.source(path)?)))
    }

    pub(crate) fn source(&self, path: &str) -> Option<&Source> {
        let source = self.sources.get(path)?;
        Some(source.get_or_init(|| Source::new(self.text(path))))
    }

    /// Returns the files of the library, with their paths below its `src/`.
    pub(crate) fn library(&self) -> impl Iterator<Item = (&str, &str, &Source)> {
        self.sources_of("annulus")
    }

    /// Returns the files of a crate, with their paths below its `src/`.
    pub(crate) fn sources_of(&self, name: &str) -> impl Iterator<Item = (&str, &str, &Source)> {
        let folder = format!("crates/{name}/src/");
        self.sources.keys().filter_map(move |path| {
            let below = path.strip_prefix(&folder)?;
            Some((path.as_str(), below, self.source(path)?))
        })
    }

    fn read_folder(&mut self, folder: &Path, prefix: &str) {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let path = format!("{prefix}{name}");
            // In a linked worktree `.git` is a file.
            if SKIPPED.contains(&name.as_str()) {
            } else if entry.file_type().unwrap().is_dir() {
                self.read_folder(&entry.path(), &format!("{path}/"));
            } else if let Ok(text) = fs::read_to_string(entry.path()) {
                self.add(&path, &text);
            }
        }
    }

    fn add(&mut self, path: &str, text: &str) {
        self.texts.insert(path.to_owned(), text.to_owned());
        if path.ends_with(".rs") {
            self.sources.insert(path.to_owned(), OnceLock::new());
        }
    }
}
