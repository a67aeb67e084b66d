//! A Rust file as code, comments, and the code that ships.
//!
//! This is a scanner, not a parser. Each view has the length of the text, with the rest blanked, so an offset means the same
//! place in all of them. A nested block comment ends too early; rustfmt's style has none.

use std::ops::Range;
use std::sync::LazyLock;

use regex::Regex;

/// One Rust file and its views.
pub(crate) struct Source {
    /// As it is on disk.
    pub(crate) text: String,
    /// Comments and the insides of literals blanked.
    pub(crate) code: String,
    /// Everything but comments blanked.
    pub(crate) comments: String,
    /// `code` without the items that only a test build compiles.
    pub(crate) shipped: String,
}

impl Source {
    pub(crate) fn new(text: &str) -> Source {
        let (code, comments) = split(text);
        let mut shipped = code.clone().into_bytes();
        for range in test_items(&code) {
            blank(&mut shipped[range]);
        }
        Source {
            text: text.to_owned(),
            comments,
            shipped: String::from_utf8(shipped).unwrap(),
            code,
        }
    }

    /// The `//!` block that opens the file, without its slashes.
    pub(crate) fn header(&self) -> String {
        let lines = self.text.lines().map_while(|line| line.strip_prefix("//!"));
        lines.collect::<Vec<_>>().join("\n")
    }
}

/// The line, counted from 1, that holds the byte at `offset`.
pub(crate) fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes()[..offset]
        .iter()
        .filter(|&&b| b == b'\n')
        .count()
        + 1
}

/// Where `word` stands in `code` as a whole identifier.
pub(crate) fn find_word(code: &str, word: &str) -> Vec<usize> {
    let bytes = code.as_bytes();
    let whole = |at: usize| {
        let end = at + word.len();
        (at == 0 || !is_ident(bytes[at - 1])) && (end == bytes.len() || !is_ident(bytes[end]))
    };
    code.match_indices(word)
        .map(|(at, _)| at)
        .filter(|&at| whole(at))
        .collect()
}

/// The identifier at or after `from`, blanks skipped; empty if something else stands there.
pub(crate) fn ident_after(code: &str, from: usize) -> &str {
    let rest = code[from..].trim_start();
    let end = rest
        .bytes()
        .position(|b| !is_ident(b))
        .unwrap_or(rest.len());
    &rest[..end]
}

/// From an item's first byte to its end: the closing brace of its body, or its semicolon.
pub(crate) fn item_end(code: &str, from: usize) -> usize {
    let mut depth = 0;
    for (at, b) in code.bytes().enumerate().skip(from) {
        match b {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth -= 1,
            b';' if depth == 0 => return at + 1,
            b'{' if depth == 0 => return matching(code, at) + 1,
            _ => {}
        }
    }
    code.len()
}

/// The bracket that closes the one at `open`; the last byte if none does.
pub(crate) fn matching(code: &str, open: usize) -> usize {
    let bytes = code.as_bytes();
    let (up, down) = match bytes[open] {
        b'(' => (b'(', b')'),
        b'[' => (b'[', b']'),
        _ => (b'{', b'}'),
    };
    let mut depth = 0;
    for (at, &b) in bytes.iter().enumerate().skip(open) {
        if b == up {
            depth += 1;
        } else if b == down {
            depth -= 1;
            if depth == 0 {
                return at;
            }
        }
    }
    bytes.len() - 1
}

/// The items under an attribute that demands `test`, from the attribute to the end of the item.
fn test_items(code: &str) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    for (at, opening) in code.match_indices("#[cfg(") {
        if found.last().is_some_and(|last| last.contains(&at)) {
            continue;
        }
        let open = at + opening.len() - 1;
        let predicate = &code[open + 1..matching(code, open)];
        if demands_test(predicate) {
            found.push(at..item_end(code, after_attributes(code, at)));
        }
    }
    found
}

fn after_attributes(code: &str, mut at: usize) -> usize {
    loop {
        at += code[at..].len() - code[at..].trim_start().len();
        if !code[at..].starts_with("#[") {
            return at;
        }
        at = matching(code, at + 1) + 1;
    }
}

/// `test`, or `all(…)` of something that demands it; `any(test, …)` does not.
fn demands_test(predicate: &str) -> bool {
    let predicate = predicate.trim();
    match predicate
        .strip_prefix("all(")
        .and_then(|rest| rest.strip_suffix(')'))
    {
        Some(inside) => split_top(inside).iter().any(|part| demands_test(part)),
        None => predicate == "test",
    }
}

/// Splits at the commas that are in no bracket.
pub(crate) fn split_top(list: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0, 0, Vec::new());
    for (at, b) in list.bytes().enumerate() {
        match b {
            b'(' | b'[' | b'{' => depth += 1,
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

fn is_ident(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'_'
}

fn blank(bytes: &mut [u8]) {
    bytes
        .iter_mut()
        .filter(|b| **b != b'\n')
        .for_each(|b| *b = b' ');
}

/// A comment, or a string or character literal. A lifetime is neither.
const TOKEN: &str = concat!(
    r"(?s)(?P<comment>//[^\n]*|/\*.*?\*/)",
    r##"|(?P<literal>\bb?r"[^"]*"|\bb?r#".*?"#"##,
    r###"|\bb?r##".*?"##|"(?:\\.|[^"\\])*"|'(?:\\[^']*'|\\''|[^'\\]'))"###,
);

/// The code view and the comment view of a text.
fn split(text: &str) -> (String, String) {
    static TOKENS: LazyLock<Regex> = LazyLock::new(|| Regex::new(TOKEN).unwrap());
    let mut code = text.as_bytes().to_vec();
    let mut comments = text.as_bytes().to_vec();
    blank(&mut comments);
    for token in TOKENS.captures_iter(text) {
        if let Some(comment) = token.name("comment") {
            comments[comment.range()].copy_from_slice(comment.as_str().as_bytes());
            blank(&mut code[comment.range()]);
        } else if let Some(literal) = token.name("literal") {
            // The quotes stay, so that `f("…")` still has an argument.
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
        assert_eq!(source.code.len(), source.text.len());
    }

    #[test]
    fn raw_strings_end_at_their_own_hashes() {
        let source = Source::new("let a = br##\"x\"# unwrap() \"##; r#type; after()");
        assert!(!source.code.contains("unwrap"));
        assert!(source.code.contains("after()"));
    }

    #[test]
    fn what_only_tests_compile_does_not_ship() {
        let source = Source::new(
            "fn kept() {}\n#[cfg(test)]\n#[allow(x)]\nmod tests { fn gone() { if a {} } }\n\
             #[cfg(all(test, loom))]\nuse gone::too;\n#[cfg(any(test, sim))]\nfn also_kept() {}\n",
        );
        assert!(!source.shipped.contains("gone"));
        assert!(source.shipped.contains("fn kept") && source.shipped.contains("fn also_kept"));
    }

    #[test]
    fn words_are_found_whole() {
        assert_eq!(find_word("fn fn_a() {} fn", "fn"), [0, 13]);
    }
}
