//! The width of comments and documents: 120 columns. rustfmt limits code only.

use crate::repo::{Findings, Repo};

const COLUMNS: usize = 120;
/// Measured output, whose width is that of its program.
const LEFT_OUT: &str = "runs/";

/// Checks the lines of comments and documents. Rows of tables and examples may be wider.
pub(crate) fn wide_lines(repo: &Repo, found: &mut Findings) {
    for (path, text) in repo.texts() {
        let is_rust = path.ends_with(".rs");
        if path.starts_with(LEFT_OUT) || !is_rust && !path.ends_with(".md") {
            continue;
        }
        let mut in_example = false;
        for (nth, line) in text.lines().enumerate() {
            let is_comment = line.trim_start().starts_with("//");
            let prose = match is_rust {
                true if !is_comment => continue,
                true => line
                    .trim_start()
                    .trim_start_matches(['/', '!'])
                    .trim_start(),
                false => line.trim_start(),
            };
            in_example ^= prose.starts_with("```");
            let columns = line.chars().count();
            if columns > COLUMNS && !in_example && !prose.starts_with('|') {
                let says = format!("{columns} columns; break the line at {COLUMNS}");
                found.add(path, nth + 1, says);
            }
        }
    }
}

#[test]
fn wide_prose_is_reported() {
    let wide = "word ".repeat(COLUMNS / 5);
    let rust = format!("/// {wide}\nlet code = \"{wide}\";\n/// ```text\n/// {wide}\n/// ```\n");
    let document = format!("{wide}\n{wide}.\n| {wide} |\n```\n{wide}.\n```\n- {wide}\n");
    let run = format!("{wide}.\n");
    let files = [
        ("a.rs", rust.as_str()),
        ("b.md", document.as_str()),
        ("runs/c.md", run.as_str()),
    ];
    let findings = crate::repo::planted(wide_lines, &files);
    let places = findings.iter().map(|one| (one.file.as_str(), one.line));
    assert_eq!(
        Vec::from_iter(places),
        [("a.rs", 1), ("b.md", 2), ("b.md", 7)]
    );
}
