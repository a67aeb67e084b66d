//! A Rust file split into what is code, what is comment, and what ships.
//!
//! Not a parser: a scanner that knows comments, literals, braces and `#[cfg(test)]`. All views have the length
//! of the text, with the rest blanked, so an offset means the same place in each of them.

use std::ops::Range;

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

/// The `mod name;` declarations of a file: name, value of `#[path]`, compiled for tests only.
pub(crate) fn declared_modules(source: &Source) -> Vec<(String, Option<String>, bool)> {
    let tests = test_items(&source.code);
    let mut found = Vec::new();
    for at in find_word(&source.code, "mod") {
        let name = ident_after(&source.code, at + 3);
        let after = source.code[at + 3..].trim_start()[name.len()..].trim_start();
        if name.is_empty() || !after.starts_with(';') {
            continue;
        }
        let attributes = attributes_above(&source.code, at);
        let path = source.text[attributes.clone()]
            .split_once("path = \"")
            .and_then(|(_, rest)| rest.split_once('"'))
            .map(|(path, _)| path.to_owned());
        found.push((
            name.to_owned(),
            path,
            tests.iter().any(|range| range.contains(&at)),
        ));
    }
    found
}

/// What lies between the end of the item before and the item at `at`: its attributes and visibility.
pub(crate) fn attributes_above(code: &str, at: usize) -> Range<usize> {
    let start = code[..at].rfind([';', '}', '{']).map_or(0, |end| end + 1);
    start..at
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

/// The code view and the comment view of a text.
fn split(text: &str) -> (String, String) {
    let bytes = text.as_bytes();
    let mut code = bytes.to_vec();
    let mut comments = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        if let Some(end) = comment_end(bytes, at) {
            blank(&mut code[at..end]);
            at = end;
        } else if let Some(end) = literal_end(bytes, at) {
            blank(&mut comments[at..end]);
            // The quotes stay, so that `f("…")` is still seen to have an argument.
            blank(&mut code[at + 1..end - 1]);
            at = end;
        } else {
            blank(&mut comments[at..at + 1]);
            if !bytes[at].is_ascii() {
                code[at] = b' ';
            }
            at += 1;
        }
    }
    (
        String::from_utf8(code).unwrap(),
        String::from_utf8(comments).unwrap(),
    )
}

fn comment_end(bytes: &[u8], at: usize) -> Option<usize> {
    if bytes[at..].starts_with(b"//") {
        let length = bytes[at..].iter().position(|&b| b == b'\n');
        return Some(length.map_or(bytes.len(), |length| at + length));
    }
    if !bytes[at..].starts_with(b"/*") {
        return None;
    }
    let (mut depth, mut end) = (0, at);
    while end < bytes.len() {
        if bytes[end..].starts_with(b"/*") {
            depth += 1;
            end += 2;
        } else if bytes[end..].starts_with(b"*/") {
            depth -= 1;
            end += 2;
            if depth == 0 {
                return Some(end);
            }
        } else {
            end += 1;
        }
    }
    Some(bytes.len())
}

/// The end of the string or character literal that starts at `at`, if one does.
fn literal_end(bytes: &[u8], at: usize) -> Option<usize> {
    match bytes[at] {
        b'"' => Some(quoted_end(bytes, at, b'"')),
        b'r' => raw_end(bytes, at),
        b'\'' => {
            let next = *bytes.get(at + 1)?;
            if next == b'\\' {
                return Some(quoted_end(bytes, at, b'\''));
            }
            let width = std::str::from_utf8(&bytes[at + 1..])
                .ok()?
                .chars()
                .next()?
                .len_utf8();
            // Otherwise a lifetime.
            (bytes.get(at + 1 + width) == Some(&b'\'')).then_some(at + width + 2)
        }
        _ => None,
    }
}

fn quoted_end(bytes: &[u8], at: usize, quote: u8) -> usize {
    let mut end = at + 1;
    while end < bytes.len() {
        match bytes[end] {
            b'\\' => end += 2,
            b if b == quote => return end + 1,
            _ => end += 1,
        }
    }
    bytes.len()
}

fn raw_end(bytes: &[u8], at: usize) -> Option<usize> {
    let prefix = bytes[..at]
        .iter()
        .rev()
        .take_while(|b| is_ident(**b))
        .count();
    if prefix > 1 || (prefix == 1 && !matches!(bytes[at - 1], b'b' | b'c')) {
        return None;
    }
    let hashes = bytes[at + 1..].iter().take_while(|&&b| b == b'#').count();
    if bytes.get(at + 1 + hashes) != Some(&b'"') {
        return None;
    }
    let mut closing = vec![b'"'];
    closing.resize(hashes + 1, b'#');
    let body = at + hashes + 2;
    let length = bytes[body..]
        .windows(closing.len())
        .position(|window| window == closing);
    Some(length.map_or(bytes.len(), |length| body + length + closing.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_leave_the_code_view() {
        let source = Source::new(
            "let a = \"x // y\"; // note\nlet c = '\\''; /* a /* b */ c */ fn f<'a>() {}",
        );
        assert!(!source.code.contains("//") && !source.code.contains("note"));
        assert!(source.comments.contains("note") && source.comments.contains("b */ c"));
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
    fn declared_modules_carry_their_path_and_their_condition() {
        let text = "mod a;\n#[path = \"other/b.rs\"]\npub(crate) mod b;\nmod c { }\n#[cfg(test)]\nmod tests;\n";
        let names = declared_modules(&Source::new(text));
        assert_eq!(names[0], ("a".to_owned(), None, false));
        assert_eq!(
            names[1],
            ("b".to_owned(), Some("other/b.rs".to_owned()), false)
        );
        assert_eq!(names[2], ("tests".to_owned(), None, true));
        assert_eq!(names.len(), 3);
    }

    #[test]
    fn words_are_found_whole() {
        assert_eq!(find_word("fn fn_a() {} fn", "fn"), [0, 13]);
    }
}
