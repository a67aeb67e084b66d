//! `annulus doctor --for postgresql`: whether PostgreSQL 18 starts here with `io_method = io_uring`.
//!
//! The server creates a ring for each process that it may have, before it accepts connections. If one of them fails, it
//! does not start. The same number of rings is created here, by the same user and under the same limits.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use annulus_baselines::NopRing;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::advice::{Findings, Severity, advice};
use super::facts::Environment;
use super::figures::{Figures, Measurement};
use super::rules::us;
use super::text::Lines;
use crate::bench::output::print_text;
use crate::fault::Fault;

/// Processes besides the connections: autovacuum_worker_slots 16, max_worker_processes 8, max_wal_senders 10, by their
/// defaults, 2 special workers and 6 auxiliary processes. Each has a ring.
const OTHER_RINGS: u64 = 16 + 8 + 10 + 2 + 6;
/// The descriptors without which the server does not start: 48 for files, 10 in reserve (`FD_MINFREE` and
/// `NUM_RESERVED_FDS`), and its standard streams.
const DESCRIPTORS_LEAST: u64 = 48 + 10 + 3;
/// The default of `max_files_per_process`.
const FILES: u64 = 1000;
/// The memory of a ring with 64 entries, the largest default of `io_max_concurrency`: two pages.
const RING_BYTES: u64 = 8 << 10;
/// The first version with `io_method`.
const FIRST_VERSION: u32 = 18;
/// The drive gains from reads in flight if it then completes this many times as many.
const GAIN: f64 = 1.5;

const STARTS: u8 = 0;
const RESTRICTED: u8 = 1;
const FAILS: u8 = 77;

/// The report, line by line.
#[derive(Default)]
struct Report {
    lines: Lines,
    /// The reasons why the server does not start, and those why it has less than its settings.
    fails: Vec<String>,
    restricted: Vec<String>,
}

/// Prints the report for `connections`, the value of `max_connections`.
pub(super) fn report(
    env: &Environment,
    figures: Option<&Figures>,
    connections: u64,
) -> Result<ExitCode, Fault> {
    let rings = connections + OTHER_RINGS;
    let mut report = Report::default();
    let whose = match env.policy.user {
        0 => "root; run this as the server's user, as limits differ (sudo -u postgres)".to_owned(),
        user => format!("{user}; limits are those of this process, and a service has its own"),
    };
    report.lines.row("user", &whose);
    program(&mut report, &candidates());
    let needed = format!("{rings}: max_connections = {connections}, and {OTHER_RINGS} by default");
    report.lines.row("rings", &needed);
    descriptors(&mut report, env, rings);
    match env.has_ring() {
        true => create(&mut report, env, rings)?,
        false => refused(&mut report, env),
    }
    drive(&mut report, env, figures);
    let (code, verdict) = match (report.fails.first(), report.restricted.first()) {
        (Some(reason), _) => (FAILS, format!("will not start: {reason}")),
        (None, Some(reason)) => (RESTRICTED, format!("will start, but {reason}")),
        (None, None) => (STARTS, "will start".to_owned()),
    };
    let verdict = format!("PostgreSQL {FIRST_VERSION} with io_method = io_uring {verdict}");
    report.lines.row("verdict", &verdict);
    print_text(&report.lines.0)?;
    Ok(ExitCode::from(code))
}

/// Returns the paths where the server may be installed, the first choice first.
fn candidates() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path).map(|folder| folder.join("postgres"));
    let mut installed: Vec<PathBuf> = ["/usr/lib/postgresql", "/usr"]
        .iter()
        .flat_map(fs::read_dir)
        .flatten()
        .flatten()
        .map(|entry| entry.path().join("bin/postgres"))
        .filter(|path| version(path).is_some_and(|version| version >= FIRST_VERSION))
        .collect();
    installed.sort();
    in_path.chain(installed).collect()
}

/// Returns the version in the path of an installed server, such as `/usr/lib/postgresql/18` or `/usr/pgsql-18`.
fn version(path: &Path) -> Option<u32> {
    let folder = path.parent()?.parent()?.file_name()?.to_str()?;
    folder.trim_start_matches("pgsql-").parse().ok()
}

/// Reports whether the installed server can use io_uring at all.
fn program(report: &mut Report, candidates: &[PathBuf]) {
    const LIBRARY: &[u8] = b"liburing.so";
    let found = candidates
        .iter()
        .find_map(|path| Some((path, fs::read(path).ok()?)));
    let Some((path, content)) = found else {
        return report.lines.row("server", "no PostgreSQL 18 found here");
    };
    let path = path.display();
    if content.windows(LIBRARY.len()).any(|part| part == LIBRARY) {
        return report
            .lines
            .row("server", &format!("{path}, with liburing"));
    }
    let reason = format!("{path} is built without liburing, so it accepts only sync and worker");
    report.lines.row("server", &reason);
    let next = "→ install a build --with-liburing, such as Debian's (Alpine's has none)";
    report.lines.row("", next);
    report.fails.push(reason);
}

fn descriptors(report: &mut Report, env: &Environment, rings: u64) {
    let (least, whole) = (rings + DESCRIPTORS_LEAST, rings + FILES);
    let Some(limit) = env.limits.descriptors else {
        return report.lines.row("descriptors", "unlimited");
    };
    let need = format!("{least} to start, {whole} with max_files_per_process = {FILES}");
    let fact = format!("{limit} per process; needs {need}");
    report.lines.row("descriptors", &fact);
    if limit >= whole {
        return;
    }
    let next = format!(
        "→ {} more: ulimit -n {whole}; systemd: LimitNOFILE={whole}; docker run --ulimit nofile={whole}",
        whole - limit
    );
    report.lines.row("", &next);
    let reason = format!("the limit is {limit} descriptors per process");
    match limit < least {
        true => report.fails.push(format!("{reason}, and it needs {least}")),
        false => (report.restricted).push(format!("{reason}, so it keeps fewer files open")),
    }
}

/// Creates the rings, and reports the limit that prevents it.
fn create(report: &mut Report, env: &Environment, rings: u64) -> Result<(), Fault> {
    // The limit of descriptors has its own line, and must not hide that of memory.
    let own = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: own.maximum,
        maximum: own.maximum,
    };
    let _ = setrlimit(Resource::Nofile, raised);
    let count = usize::try_from(rings).unwrap_or(usize::MAX);
    let (made, error) =
        NopRing::together(count).map_err(|failure| Fault::failed(failure.to_string()))?;
    let Some(error) = error else {
        let fact = format!("{made} rings of 64 entries were created together");
        report.lines.row("io_uring", &fact);
        return Ok(());
    };
    let fact = format!("{made} of {rings} rings were created: {error}");
    report.lines.row("io_uring", &fact);
    let limit = env.limits.memlock_bytes.unwrap_or(u64::MAX);
    if Errno::from_io_error(&error) == Some(Errno::NOMEM) && limit != u64::MAX {
        // Other processes of the user count too, so a ring may seem to take more.
        let per_ring = match u64::try_from(made) {
            Ok(made @ 1..) => (limit / made).max(RING_BYTES),
            _ => RING_BYTES,
        };
        let needed = mebibytes(per_ring * rings);
        let fact = format!(
            "{} KiB for all processes of the user; this kernel charges rings; needs about {needed} MiB",
            limit >> 10
        );
        report.lines.row("locked memory", &fact);
        let next = format!(
            "→ ulimit -l {}; systemd: LimitMEMLOCK={needed}M; docker run --ulimit memlock={}",
            needed << 10,
            needed << 20
        );
        report.lines.row("", &next);
        let reason = format!("the limit of locked memory is {} KiB", limit >> 10);
        report.fails.push(reason);
    } else if Errno::from_io_error(&error) != Some(Errno::MFILE) {
        report.fails.push(error.to_string());
    } else if report.fails.is_empty() {
        // Beyond the hard limit of this process, or a limit of the machine.
        report.fails.push(error.to_string());
    }
    Ok(())
}

/// Returns the mebibytes that hold the bytes.
fn mebibytes(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

/// Reports what refuses io_uring to this process.
fn refused(report: &mut Report, env: &Environment) {
    let findings = Findings { env, figures: None };
    let blocking = advice(&findings).into_iter();
    for one in blocking.filter(|one| one.severity == Severity::Blocks) {
        let fact = format!("{}: {}", one.what, one.why);
        report.lines.row("io_uring", &fact);
        if let Some(next) = &one.next {
            report.lines.row("", &format!("→ {next}"));
        }
        report.fails.push(one.what);
    }
}

/// Reports whether the drive completes more reads if several are in flight, and what io_uring saves over threads.
fn drive(report: &mut Report, env: &Environment, figures: Option<&Figures>) {
    let Some(figures) = figures else {
        return report.lines.row("drive", "not measured (--quick)");
    };
    let of = |what| figures.ns(what);
    let (Some(one), Some(many)) = (of(Measurement::DirectPread), of(Measurement::DirectRing32))
    else {
        let missing = figures.missing.iter();
        let mut missing = missing.filter(|one| one.what == Measurement::DirectRing32);
        let why = missing.next().map_or("", |one| &one.why);
        return report.lines.row("drive", &format!("not measured: {why}"));
    };
    let path = (env.location.as_ref()).map_or(".", |location| &location.path);
    let gains = match one / many >= GAIN {
        true => "gains from reads in flight",
        false => "gains little from reads in flight",
    };
    let mut fact = format!(
        "that of {path} {gains}: a direct 4 KiB read takes {} alone, and {} with 32 in flight",
        us(one),
        us(many)
    );
    if let (Some(ring), Some(thread)) = (of(Measurement::DirectRing), of(Measurement::DirectHop)) {
        fact += &format!(
            "; {} through a ring and {} through another thread, as io_method = worker does",
            us(ring),
            us(thread)
        );
    }
    report.lines.row("drive", &fact);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_part_of_the_path() {
        let of = |path: &str| version(Path::new(path));
        assert_eq!(of("/usr/lib/postgresql/18/bin/postgres"), Some(18));
        assert_eq!(of("/usr/pgsql-19/bin/postgres"), Some(19));
        assert_eq!(of("/usr/bin/postgres"), None);
    }

    #[test]
    fn a_server_without_liburing_does_not_start() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("postgres");
        for (content, fails) in [("liburing.so.2", false), ("libc.so.6", true)] {
            fs::write(&path, content).unwrap();
            let mut report = Report::default();
            program(&mut report, std::slice::from_ref(&path));
            assert_eq!(!report.fails.is_empty(), fails, "{}", report.lines.0);
        }
    }

    #[test]
    fn low_limits_of_descriptors_prevent_the_start_or_leave_fewer_files() {
        let mut env = crate::doctor::tests::machines::good();
        let mut of = |limit| {
            env.limits.descriptors = limit;
            let mut report = Report::default();
            descriptors(&mut report, &env, 142);
            (report.fails.len(), report.restricted.len(), report.lines.0)
        };
        let (fails, _, text) = of(Some(202));
        assert_eq!(fails, 1);
        assert!(text.contains("940 more: ulimit -n 1142;"), "{text}");
        assert_eq!(of(Some(203)).0, 0);
        assert_eq!(of(Some(1141)).1, 1);
        let (fails, restricted, _) = of(Some(1142));
        assert_eq!((fails, restricted), (0, 0));
        assert_eq!(of(None).0, 0);
    }
}
