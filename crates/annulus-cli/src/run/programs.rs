//! The programs that `ci/programs` tests under the preload library.

use std::ffi::OsStr;
use std::path::Path;

/// A line per program. Its first lines describe the columns.
const TABLE: &str = include_str!("programs.tsv");

/// A tested program.
#[derive(Clone, Copy)]
pub(super) struct Tested {
    pub(super) name: &'static str,
    pub(super) version: &'static str,
    commands: &'static str,
    /// The minimum share of exchanges that are served, in percent.
    pub(super) share: &'static str,
    /// Not empty if it is tested on that processor.
    #[cfg_attr(not(test), expect(dead_code, reason = "the guide has it"))]
    arm64: &'static str,
}

impl Tested {
    /// Returns whether nearly all exchanges are served.
    pub(super) fn is_served(&self) -> bool {
        self.share.parse::<u32>().is_ok_and(|share| share >= 90)
    }
}

fn rows() -> impl Iterator<Item = Tested> {
    let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| {
        let columns: Vec<&str> = line.split('\t').collect();
        let [_, name, version, _, commands, share, _, arm64] = columns[..] else {
            return None;
        };
        Some(Tested {
            name,
            version,
            commands,
            share,
            arm64,
        })
    })
}

/// Returns the tested programs that this command may start. A version at its end is ignored.
pub(super) fn of_command(command: &OsStr) -> impl Iterator<Item = Tested> {
    let file = Path::new(command).file_name().unwrap_or(command);
    let file = file.to_string_lossy().into_owned();
    rows().filter(move |row| {
        let name = file.trim_end_matches(|end: char| end.is_ascii_digit() || end == '.');
        row.commands.split_whitespace().any(|known| known == name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_recognised_by_its_file_with_or_without_a_version() {
        let names = |command: &str| -> Vec<&str> {
            of_command(OsStr::new(command))
                .map(|row| row.name)
                .collect()
        };
        assert_eq!(names("/usr/bin/redis-server"), ["Redis"]);
        assert_eq!(
            names("node"),
            [
                "Node.js 20",
                "Node.js 24",
                "Node.js 26",
                "Fastify on Node.js 24"
            ]
        );
        assert!(names("/usr/bin/python3.11").contains(&"uvloop"));
        assert_eq!(names("redis-cli"), [""; 0]);
        assert_eq!(names("7"), [""; 0]);
    }

    #[test]
    fn the_guide_lists_exactly_the_tested_programs() {
        let guide = include_str!("../../../../docs/guide/servers.md");
        let (_, list) = guide.split_once("## Tested programs").unwrap();
        let list = list.split("\n## ").next().unwrap();
        let listed: Vec<&str> = list.lines().filter(|line| line.contains(" % |")).collect();
        let expected: Vec<String> = rows()
            .map(|row| {
                let arm64 = if row.arm64.is_empty() { "–" } else { "yes" };
                let Tested {
                    name,
                    version,
                    share,
                    ..
                } = row;
                format!("| {name} | {version} | {share} % | {arm64} |")
            })
            .collect();
        let table = expected.join("\n");
        assert_eq!(
            listed, expected,
            "the table of docs/guide/servers.md must be:\n{table}"
        );
    }

    #[test]
    fn every_line_of_the_table_has_all_columns() {
        let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
        assert_eq!(rows().count(), lines.count());
        assert!(rows().all(|row| row.share.parse::<u32>().is_ok_and(|share| share <= 100)));
    }
}
