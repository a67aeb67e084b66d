//! A Rust file in three views: code, comments, and the code that ships.
//!
//! This is a scanner, not a parser. Each view has the length of the text, with the rest blanked, so offsets are the
//! same in all views. It relies on rustfmt's layout, in which an item ends at the column where it begins.

use std::sync::LazyLock;

use regex::Regex;

/// One Rust file and its views.
pub(crate) struct Source {
    /// The text with comments and the insides of literals blanked.
    pub(crate) code: String,
    /// The text with everything except comments blanked.
    pub(crate) comments: String,
    /// `code` without the items that only a test build compiles.
    pub(crate) shipped: String,
}

impl Source {
    pub(crate) fn new(text: &str) -> Source {
        let (code, comments) = split(text);
        let shipped = without_tests(&code);
        Source {
            code,
            comments,
            shipped,
        }
    }

    /// Returns the `//!` block at the start of the file, without its slashes.
    pub(crate) fn header(&self) -> String {
        let lines = self.comments.lines();
        let lines = lines.map_while(|line| line.strip_prefix("//!"));
        lines.collect::<Vec<_>>().join("\n")
    }
}

/// Returns the line, counted from 1, of the byte at `offset`.
pub(crate) fn line_of(text: &str, offset: usize) -> usize {
    text[..offset].matches('\n').count() + 1
}

/// Returns the offsets of `word` in `code` as a whole identifier.
pub(crate) fn find_word(code: &str, word: &str) -> Vec<usize> {
    let whole = |at: &usize| {
        !code[..*at].ends_with(is_ident) && !code[at + word.len()..].starts_with(is_ident)
    };
    let found = code.match_indices(word).map(|(at, _)| at);
    found.filter(whole).collect()
}

/// Returns the identifier at or after `from`, skipping blanks; empty if there is none.
pub(crate) fn ident_after(code: &str, from: usize) -> &str {
    let rest = code[from..].trim_start();
    &rest[..rest.find(|c| !is_ident(c)).unwrap_or(rest.len())]
}

/// Splits at the commas outside of brackets, up to a bracket that closes an outer one.
pub(crate) fn split_top(list: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0, 0, Vec::new());
    for (at, b) in list.bytes().enumerate() {
        match b {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' if depth == 0 => {
                parts.push(&list[start..at]);
                return parts;
            }
            b')' | b']' | b'}' => depth -= 1,
            b',' if depth == 0 => {
                parts.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&list[start..]);
    parts
}

/// Blanks the items under an attribute that requires `test`, from the attribute to the end of the item.
fn without_tests(code: &str) -> String {
    let mut shipped = code.to_owned().into_bytes();
    let (mut at, mut test_from) = (0, None);
    for line in code.split_inclusive('\n') {
        let item = line.trim();
        let column = line.len() - line.trim_start().len();
        if test_from.is_none()
            && let Some(predicate) = item.strip_prefix("#[cfg(")
            && split_top(predicate).into_iter().any(demands_test)
        {
            test_from = Some(column);
        }
        if test_from.is_some() {
            blank(&mut shipped[at..at + line.len()]);
        }
        if test_from == Some(column) && item.ends_with([';', '}', ',']) {
            test_from = None;
        }
        at += line.len();
    }
    String::from_utf8(shipped).unwrap()
}

/// Returns whether a predicate requires `test`: `test`, or `all(…)` with it, but not `any(test, …)`.
fn demands_test(predicate: &str) -> bool {
    match predicate.trim().strip_prefix("all(") {
        Some(inside) => split_top(inside).into_iter().any(demands_test),
        None => predicate.trim() == "test",
    }
}

fn is_ident(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn blank(bytes: &mut [u8]) {
    let kept = |b: &&mut u8| **b != b'\n';
    bytes.iter_mut().filter(kept).for_each(|b| *b = b' ');
}

/// A comment, or a string or character literal; not a lifetime.
const TOKEN: &str = concat!(
    r"(?s)(?P<comment>//[^\n]*|/\*.*?\*/)",
    r##"|(?P<literal>\bb?r"[^"]*"|\bb?r#".*?"#"##,
    r###"|\bb?r##".*?"##|"(?:\\.|[^"\\])*"|'(?:\\[^']*'|\\''|[^'\\]'))"###,
);

/// Returns the code view and the comment view of a text.
fn split(text: &str) -> (String, String) {
    static TOKENS: LazyLock<Regex> = LazyLock::new(|| Regex::new(TOKEN).unwrap());
    let mut code = text.as_bytes().to_vec();
    let mut comments = code.clone();
    blank(&mut comments);
    for token in TOKENS.captures_iter(text) {
        if let Some(comment) = token.name("comment") {
            comments[comment.range()].copy_from_slice(comment.as_str().as_bytes());
            blank(&mut code[comment.range()]);
        } else if let Some(literal) = token.name("literal") {
            // The quotes are kept, so that `f("…")` still has an argument.
            blank(&mut code[literal.start() + 1..literal.end() - 1]);
        }
    }
    let views = [code, comments].map(|view| String::from_utf8(view).unwrap());
    views.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_leave_the_code_view() {
        let source =
            Source::new("let a = \"x // y\"; // note\nlet c = '\\''; /* a b */ fn f<'a>() {}");
        assert!(!source.code.contains("//") && !source.code.contains("note"));
        assert!(source.comments.contains("note") && source.comments.contains("a b */"));
        assert!(!source.comments.contains("// y"));
        assert!(source.code.contains("fn f<'a>() {}"));
        assert_eq!(source.code.len(), source.comments.len());
        // Raw strings end at their own number of hashes.
        let source = Source::new("let a = br##\"x\"# unwrap() \"##; r#type; after()");
        assert!(!source.code.contains("unwrap") && source.code.contains("after()"));
    }

    #[test]
    fn code_that_only_tests_compile_does_not_ship() {
        let source = Source::new(
            "fn kept() {}\n#[cfg(test)]\n#[allow(x)]\nmod tests {\n    fn gone() { if a {} }\n}\n\
             #[cfg(all(loom, test))]\nuse gone::too;\n#[cfg(any(test, sim))]\nfn also_kept() {}\n",
        );
        assert!(!source.shipped.contains("gone"));
        assert!(source.shipped.contains("fn kept") && source.shipped.contains("fn also_kept"));
    }

    #[test]
    fn only_whole_words_match() {
        assert_eq!(find_word("fn fn_a() {} fn", "fn"), [0, 13]);
    }
}
