//! One page for all processes of this machine that share their metrics.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use annulus::metrics::Snapshot;

use super::page::encode;
use crate::exported::{PROCESSES, Totals};
use crate::process::{snapshot_of, started_ticks};

/// A process ID, and the start time of the process. The kernel reuses IDs.
type Id = (u32, u64);

/// The processes that share their metrics, with their totals.
#[derive(Debug, Default)]
pub(super) struct Machine {
    totals: BTreeMap<Id, Totals>,
}

/// The processes at one time.
#[derive(Default)]
struct Scan {
    snapshots: BTreeMap<Id, Snapshot>,
    /// The number of processes of other users, whose descriptors this process may not read.
    hidden: u64,
    /// The number of processes with another layout of counters.
    other_version: u64,
}

impl Machine {
    /// Takes a snapshot of each process. A process records latencies for 10 s after that.
    pub(super) fn advance(&mut self) {
        self.look();
    }

    fn look(&mut self) -> Scan {
        let found = processes();
        self.totals.retain(|id, _| found.snapshots.contains_key(id));
        for (id, snapshot) in &found.snapshots {
            self.totals.entry(*id).or_default().advance(snapshot);
        }
        found
    }

    /// Returns the page in the OpenMetrics format. Each sample has the labels `pid` and `program`.
    pub(super) fn text(&mut self) -> String {
        let found = self.look();
        let mut families = Families::default();
        for (id, snapshot) in &found.snapshots {
            let Some(totals) = self.totals.get(id) else {
                continue;
            };
            let page = encode(totals.kinds(), snapshot, Vec::new());
            families.add(&page, &labels(id.0));
        }
        let (name, help) = PROCESSES;
        let mut text = families.text();
        text += &format!("# HELP annulus_{name} {help}.\n# TYPE annulus_{name} gauge\n");
        for (state, count) in [
            ("shown", found.snapshots.len() as u64),
            ("hidden", found.hidden),
            ("other_version", found.other_version),
        ] {
            text += &format!("annulus_{name}{{state=\"{state}\"}} {count}\n");
        }
        text + "# EOF\n"
    }
}

/// Takes a snapshot of each process that shares its metrics.
fn processes() -> Scan {
    let mut found = Scan::default();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    for pid in ids {
        match snapshot_of(pid) {
            Ok(snapshot) => {
                // A process that has ended meanwhile has no start time.
                let id = started_ticks(pid).map(|started| (pid, started));
                found.snapshots.extend(id.map(|id| (id, snapshot)));
            }
            Err(error) if error.kind() == ErrorKind::PermissionDenied => found.hidden += 1,
            Err(error) if error.kind() == ErrorKind::InvalidData => found.other_version += 1,
            Err(_) => {}
        }
    }
    found
}

/// Returns the labels of a process.
fn labels(pid: u32) -> String {
    let name = fs::read(Path::new("/proc").join(pid.to_string()).join("comm")).unwrap_or_default();
    format!("pid=\"{pid}\",program=\"{}\"", escaped(&name))
}

/// Escapes a label's value. A program's name may have any bytes.
fn escaped(name: &[u8]) -> String {
    let name = String::from_utf8_lossy(name);
    let name = name.strip_suffix('\n').unwrap_or(&name);
    name.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

/// The families of several pages. A page has each of them once.
#[derive(Default)]
struct Families(Vec<Family>);

#[derive(Default)]
struct Family {
    /// The lines about the name, the unit and the type.
    head: String,
    samples: String,
}

impl Families {
    /// Adds the samples of a page, with further labels.
    fn add(&mut self, page: &str, labels: &str) {
        let mut at = 0;
        let mut head = String::new();
        for line in page.lines().filter(|line| *line != "# EOF") {
            if line.starts_with('#') {
                if line.starts_with("# HELP ") {
                    head.clear();
                }
                head += &format!("{line}\n");
                continue;
            }
            if !head.is_empty() {
                let known = self.0.iter().position(|family| family.head == head);
                at = known.unwrap_or(self.0.len());
                if known.is_none() {
                    let head = head.clone();
                    self.0.push(Family {
                        head,
                        ..Family::default()
                    });
                }
                head.clear();
            }
            if let Some(family) = self.0.get_mut(at) {
                family.samples += &with_labels(line, labels);
            }
        }
    }

    fn text(&self) -> String {
        let families = self.0.iter();
        families
            .map(|family| [&*family.head, &family.samples].concat())
            .collect()
    }
}

/// Returns a sample with further labels.
fn with_labels(sample: &str, labels: &str) -> String {
    match sample.split_once('{') {
        Some((name, rest)) if rest.starts_with('}') => format!("{name}{{{labels}{rest}\n"),
        Some((name, rest)) => format!("{name}{{{labels},{rest}\n"),
        None => {
            let (name, value) = sample.split_once(' ').unwrap_or((sample, ""));
            format!("{name}{{{labels}}} {value}\n")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_one_family_stand_together_and_have_the_labels_of_their_process() {
        let page = |value: &str| {
            format!(
                "# HELP a_seconds A.\n# TYPE a_seconds histogram\n# UNIT a_seconds seconds\n\
                 # HELP b B.\n# TYPE b gauge\nb{{}} {value}\n# HELP c C.\n# TYPE c counter\n\
                 c_total{{op=\"{{x}} y\"}} {value}\nc_total {value}\n# EOF\n"
            )
        };
        let mut families = Families::default();
        families.add(&page("1"), r#"pid="7""#);
        families.add(&page("2"), r#"pid="8""#);
        let expected = "# HELP b B.\n# TYPE b gauge\nb{pid=\"7\"} 1\nb{pid=\"8\"} 2\n\
             # HELP c C.\n# TYPE c counter\n\
             c_total{pid=\"7\",op=\"{x} y\"} 1\nc_total{pid=\"7\"} 1\n\
             c_total{pid=\"8\",op=\"{x} y\"} 2\nc_total{pid=\"8\"} 2\n";
        assert_eq!(families.text(), expected);
    }

    #[test]
    fn a_name_with_any_bytes_is_a_label() {
        assert_eq!(escaped(b"a \"b\"\\\nc\n"), r#"a \"b\"\\\nc"#);
        assert_eq!(escaped(b"\xff\n"), "\u{fffd}");
    }
}
