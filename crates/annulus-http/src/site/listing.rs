//! Directory listings, if they are enabled. Directories are read on a blocking thread.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::time::SystemTime;

use maud::{DOCTYPE, html};
use rustix::fs::{Dir, FileType};
use rustix::io::Errno;

use super::beneath::{Kind, Reach, Root};
use super::load::{date_field, time_of};
use super::path::escape;

/// The number of names on a page. The page says if there are more.
pub(crate) const LISTED_MAX: usize = 10_000;

/// The files and directories of a directory that can be served: directories first, sorted by name.
#[derive(Debug)]
pub(crate) struct Listing {
    items: Vec<Item>,
    /// Set if some names are left out.
    more: bool,
}

#[derive(Debug)]
struct Item {
    name: Vec<u8>,
    directory: bool,
    bytes: u64,
    modified: SystemTime,
}

/// Orders directories first, then by name.
impl Ord for Item {
    fn cmp(&self, other: &Item) -> Ordering {
        (!self.directory, &self.name).cmp(&(!other.directory, &other.name))
    }
}

impl PartialOrd for Item {
    fn partial_cmp(&self, other: &Item) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Item {
    fn eq(&self, other: &Item) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Item {}

impl Listing {
    /// Reads a directory. Names that cannot be inspected or would result in 404 are left out: links that lead out,
    /// names with a backslash, hidden names.
    pub(crate) fn read(root: &Root, path: &[u8], hidden: bool) -> Result<Listing, Errno> {
        // The heap's top is the last name in order. It makes way for an earlier one, so memory is bounded.
        let mut items = BinaryHeap::new();
        let mut more = false;
        for entry in Dir::new(root.open_dir(path)?)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            let dots = name == b"." || name == b"..";
            if dots || name.contains(&b'\\') || (!hidden && name.starts_with(b".")) {
                continue;
            }
            let last = items.peek().filter(|_| items.len() == LISTED_MAX);
            if last.is_some_and(|last| is_behind(entry.file_type(), name, last)) {
                more = true;
                continue;
            }
            let Some(item) = Item::of(root, path, name) else {
                continue;
            };
            items.push(item);
            if items.len() > LISTED_MAX {
                items.pop();
                more = true;
            }
        }
        Ok(Listing {
            items: items.into_sorted_vec(),
            more,
        })
    }

    /// Returns the page. `path` is the path of the directory, with a trailing slash.
    pub(crate) fn page(&self, path: &[u8]) -> String {
        let title = format!("Index of {}", String::from_utf8_lossy(path));
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width";
                    title { (title) }
                }
                body {
                    h1 { (title) }
                    table {
                        tr { th { "Name" } th { "Bytes" } th { "Modified" } }
                        @if path != b"/" {
                            tr { td { a href="../" { "../" } } td {} td {} }
                        }
                        @for item in &self.items { (item.row()) }
                    }
                    @if self.more { p { "These are the first " (LISTED_MAX) " names; the others are not shown." } }
                }
            }
        };
        page.into_string()
    }
}

/// Returns whether a name comes after `item`, as far as the directory entry tells.
fn is_behind(file_type: FileType, name: &[u8], item: &Item) -> bool {
    match file_type {
        FileType::Directory => !item.directory || name > &item.name[..],
        FileType::RegularFile => !item.directory && name > &item.name[..],
        _ => false,
    }
}

impl Item {
    /// Returns an item, or `None` if the name cannot be inspected or would result in 404.
    fn of(root: &Root, path: &[u8], name: &[u8]) -> Option<Item> {
        let below = [path, if path.is_empty() { b"" } else { b"/" }, name].concat();
        let state = root.look(&below, Reach::Wait).ok()?;
        (state.kind != Kind::Special).then(|| Item {
            name: name.to_vec(),
            directory: state.kind == Kind::Directory,
            bytes: state.bytes,
            modified: time_of(state.modified),
        })
    }

    fn row(&self) -> maud::Markup {
        let slash = if self.directory { "/" } else { "" };
        // The prefix `./` prevents that a name is taken for a URL scheme (`a:b`).
        let link = format!("./{}{slash}", escape(&self.name));
        let date = date_field(self.modified);
        let date = date
            .as_ref()
            .and_then(|date| date.to_str().ok())
            .unwrap_or_default();
        html! {
            tr {
                td { a href=(link) { (String::from_utf8_lossy(&self.name)) (slash) } }
                td { @if !self.directory { (self.bytes) } }
                td { (date) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn names_are_escaped_as_text_and_as_links() {
        let dir = tempfile::tempdir().unwrap();
        let odd: [&[u8]; 5] = [
            b"<script>&\"'",
            b"a b%20?#c",
            b"caf\xe9",
            b"javascript:alert(1)",
            b"nl\n\r",
        ];
        for name in odd {
            std::fs::write(dir.path().join(OsStr::from_bytes(name)), "x").unwrap();
        }
        std::fs::write(dir.path().join("back\\slash"), "x").unwrap();
        std::fs::write(dir.path().join(".hidden"), "x").unwrap();
        std::fs::create_dir(dir.path().join("zdir")).unwrap();
        symlink("/etc/passwd", dir.path().join("leads-away")).unwrap();
        let root = Root::open(dir.path()).unwrap();
        let listing = Listing::read(&root, b"", false).unwrap();
        let page = listing.page(b"/<b>/");
        for part in [
            "<h1>Index of /&lt;b&gt;/</h1>",
            "href=\"./%3Cscript%3E&amp;%22'\">&lt;script&gt;&amp;",
            "href=\"./a%20b%2520%3F%23c\">a b%20?#c<",
            "href=\"./caf%E9\">caf\u{fffd}<",
            "href=\"./javascript:alert(1)\"",
            "href=\"./nl%0A%0D\"",
            "href=\"./zdir/\">zdir/<",
            "href=\"../\"",
        ] {
            assert!(page.contains(part), "{part} in\n{page}");
        }
        for part in ["<script>", "back", "hidden", "leads-away", "passwd"] {
            assert!(!page.contains(part), "{part} in\n{page}");
        }
        assert!(
            page.find("zdir/") < page.find("a b%20"),
            "directories first"
        );
        assert!(
            Listing::read(&root, b"", true)
                .unwrap()
                .page(b"/")
                .contains(".hidden")
        );
    }

    #[test]
    fn a_page_is_limited_and_says_that_there_are_more_names() {
        let dir = tempfile::tempdir().unwrap();
        let below = |name: &str| dir.path().join(name);
        for index in 0..LISTED_MAX + 500 {
            std::fs::write(below(&format!("{index:05}")), "").unwrap();
        }
        for name in ["zz-directory", "00-directory"] {
            std::fs::create_dir(below(name)).unwrap();
        }
        symlink("zz-directory", below("zz-link")).unwrap();
        let root = Root::open(dir.path()).unwrap();
        let listing = Listing::read(&root, b"", false).unwrap();
        let names = listing
            .items
            .iter()
            .map(|item| String::from_utf8_lossy(&item.name));
        let first = ["00-directory", "zz-directory", "zz-link"].map(str::to_owned);
        let expected = first
            .into_iter()
            .chain((0..LISTED_MAX - 3).map(|index| format!("{index:05}")));
        assert!(names.eq(expected));
        assert!(listing.page(b"/").contains("are not shown"));
        for index in LISTED_MAX - 3..LISTED_MAX + 500 {
            std::fs::remove_file(below(&format!("{index:05}"))).unwrap();
        }
        let listing = Listing::read(&root, b"", false).unwrap();
        assert_eq!(listing.items.len(), LISTED_MAX);
        assert!(!listing.page(b"/").contains("are not shown"), "that is all");
    }
}
