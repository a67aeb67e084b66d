//! A directory as a page, where that is asked for. Read on a blocking thread; used by `service`.

use std::time::SystemTime;

use maud::{DOCTYPE, html};
use rustix::fs::Dir;
use rustix::io::Errno;

use super::beneath::{Kind, Reach, Root};
use super::load::{date_field, time_of};
use super::path::escape;

/// How many names a page has; the page says if there are more.
pub(crate) const LISTED_MAX: usize = 10_000;

/// What is in a directory, and can be served: files and directories, directories first, sorted by name.
#[derive(Debug)]
pub(crate) struct Listing {
    items: Vec<Item>,
    /// Whether some are left out.
    more: bool,
}

#[derive(Debug)]
struct Item {
    name: Vec<u8>,
    directory: bool,
    bytes: u64,
    modified: SystemTime,
}

impl Listing {
    /// Reads a directory. What can't be looked at, or would be answered 404, is left out: links that lead out,
    /// names with a backslash, hidden names.
    pub(crate) fn read(root: &Root, path: &[u8], hidden: bool) -> Result<Listing, Errno> {
        let mut items = Vec::new();
        for entry in Dir::new(root.open_dir(path)?)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            let dots = name == b"." || name == b"..";
            if dots || name.contains(&b'\\') || (!hidden && name.starts_with(b".")) {
                continue;
            }
            let below = [path, if path.is_empty() { b"" } else { b"/" }, name].concat();
            let Ok(state) = root.look(&below, Reach::Wait) else {
                continue;
            };
            if state.kind == Kind::Special {
                continue;
            }
            if items.len() == LISTED_MAX {
                return Ok(Listing::sorted(items, true));
            }
            items.push(Item {
                name: name.to_vec(),
                directory: state.kind == Kind::Directory,
                bytes: state.bytes,
                modified: time_of(state.modified),
            });
        }
        Ok(Listing::sorted(items, false))
    }

    fn sorted(mut items: Vec<Item>, more: bool) -> Listing {
        items.sort_by(|one, other| {
            (!one.directory, &one.name).cmp(&(!other.directory, &other.name))
        });
        Listing { items, more }
    }

    /// The page; `path` is the directory's, with its slash.
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
                    @if self.more { p { "There are more than " (LISTED_MAX) " names; the others are not shown." } }
                }
            }
        };
        page.into_string()
    }
}

impl Item {
    fn row(&self) -> maud::Markup {
        let slash = if self.directory { "/" } else { "" };
        // With a dot before it no name is taken for a scheme (`a:b`).
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
    fn a_page_has_a_bounded_number_of_names() {
        let dir = tempfile::tempdir().unwrap();
        for index in 0..=LISTED_MAX {
            std::fs::write(dir.path().join(format!("{index}")), "").unwrap();
        }
        let listing = Listing::read(&Root::open(dir.path()).unwrap(), b"", false).unwrap();
        assert_eq!(listing.items.len(), LISTED_MAX);
        assert!(listing.page(b"/").contains("are not shown"));
    }
}
