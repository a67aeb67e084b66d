//! `annulus run --explain`: reports whether a program would be served, and why, without starting it.

use std::ffi::OsStr;
use std::path::Path;

use annulus::engine::SetupMode;
use annulus::support::{KernelVersion, Probe, ProbeKind, Support};
use rustix::process::{Resource, getrlimit};

use super::{Obstacles, PRELOAD, Variables, cores, elf, programs};
use crate::args::RunArgs;
use crate::doctor::{BUFFER_GROUPS, Lines};
use crate::proc_files;

/// The first version in which receives share buffers.
const INCREMENTAL_SINCE: KernelVersion = KernelVersion::new(6, 12);
/// The first version in which `annulus release` wakes a sleeping server.
const WOKEN_SINCE: KernelVersion = KernelVersion::new(6, 7);
/// The length of the shared memory file for `annulus top` and `annulus release`. Most of it is never used.
const SHARED_BYTES: u64 = 1 << 30;
/// The descriptors of the library: a ring and its eventfd for each waiting thread, the shared memory file, the log.
const OWN_DESCRIPTORS: u64 = 4;

/// The program to explain.
pub(super) struct Request<'a> {
    pub(super) args: &'a RunArgs,
    pub(super) name: &'a OsStr,
    pub(super) program: &'a Path,
    pub(super) library: Option<&'a Path>,
    pub(super) obstacles: &'a Obstacles,
    pub(super) variables: &'a Variables,
}

/// The rows of the report, and the obstacles.
#[derive(Default)]
struct Text {
    lines: Lines,
    reasons: Vec<String>,
}

impl Text {
    fn row(&mut self, label: &str, text: &str) {
        self.lines.row(label, text);
    }

    /// Appends a row about an obstacle.
    fn obstacle(&mut self, label: &str, text: String) {
        self.row(label, &text);
        self.reasons.push(text);
    }
}

/// The result for a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The tests have the program, and nearly all of its exchanges are served.
    Served,
    NotServed,
    /// Served in part, or not tested.
    InPart,
}

/// Returns the verdict on a program without obstacles, with its reason.
fn verdict(request: &Request<'_>) -> (Verdict, &'static str) {
    let mut rows = programs::of_command(request.name).peekable();
    if rows.peek().is_some() {
        return match rows.all(|row| row.is_served()) {
            true => (Verdict::Served, ""),
            false => (
                Verdict::InPart,
                "the tests of this command serve not all exchanges",
            ),
        };
    }
    if super::inspect::never_waits(request.program) {
        return (
            Verdict::NotServed,
            "neither it nor its libraries wait on an epoll set, and it starts no other code",
        );
    }
    (
        Verdict::InPart,
        "the tests have no program of this name; start it, and read `annulus top`",
    )
}

/// Returns the report, and whether the program will be served.
pub(super) fn explain(request: &Request<'_>) -> (String, Verdict) {
    let mut text = Text::default();
    program(&mut text, request);
    library(&mut text, request);
    kernel(&mut text, request);
    variables(&mut text, request.variables);
    limits(&mut text);
    manager(&mut text);
    text.row("tested", &tested(request.name));
    text.row(
        "served",
        "non-blocking TCP connections in an epoll set that one thread waits on: level-triggered, edge-triggered and \
         one-shot",
    );
    text.row(
        "not served",
        "UDP, Unix sockets, pipes and files; blocking and connecting sockets; sets that several threads wait on; poll \
         and select; system calls without libc; child programs that are static, linked to musl, setuid or written in Go \
         (docs/reference/preload.md)",
    );
    let name = request.name.display();
    let (verdict, reason) = match text.reasons.first() {
        Some(first) => (Verdict::NotServed, first.as_str()),
        None => verdict(request),
    };
    let head = match verdict {
        Verdict::Served => format!("{name} will be served by the library\n"),
        Verdict::NotServed => format!("{name} will not be served: {reason}\n"),
        Verdict::InPart => format!("{name} may be served in part: {reason}\n"),
    };
    (head + &text.lines.0, verdict)
}

fn program(text: &mut Text, request: &Request<'_>) {
    let path = request.program.display();
    match super::inspect::started(request.program) {
        Some((file, facts)) => {
            let through = match file == request.program {
                true => String::new(),
                false => format!(", interpreted by {}", file.display()),
            };
            let loader = match &facts.interpreter {
                Some(loader) => format!("loaded by {}", loader.display()),
                None => "linked statically".to_owned(),
            };
            text.row(
                "program",
                &format!("{path}{through}: {}, {loader}", facts.machine),
            );
        }
        None => text.row("program", &format!("{path}: its file cannot be read")),
    }
    for remark in &request.obstacles.remarks {
        text.obstacle("", remark.to_string());
    }
}

/// Returns the results of tests with the program.
fn tested(command: &OsStr) -> String {
    let versions: Vec<String> = programs::of_command(command)
        .map(|row| format!("{} {} ({} %)", row.name, row.version, row.share))
        .collect();
    match &versions[..] {
        [] => {
            "the tests have no program of this name; `annulus top` shows what is served".to_owned()
        }
        _ => format!(
            "minimum shares of served exchanges: {}",
            versions.join(", ")
        ),
    }
}

fn library(text: &mut Text, request: &Request<'_>) {
    let Some(library) = request.library else {
        return text.row("library", "none is installed");
    };
    let path = library.display();
    let build = elf::build_id(library).unwrap_or_else(|| "unknown".to_owned());
    text.row("library", &format!("{path}, build {build}"));
}

fn kernel(text: &mut Text, request: &Request<'_>) {
    let support = Support::detect();
    let release = support.kernel_release();
    let version = support.kernel_version();
    let filter = match support.seccomp_filter() {
        true => "; COMMAND inherits a seccomp filter",
        false => "",
    };
    let groups = support.probes(ProbeKind::Registration);
    let mut groups = groups.filter(|probe| probe.name == BUFFER_GROUPS);
    match support.ring() {
        Err(error) => text.obstacle("kernel", format!("Linux {release}: {error}")),
        Ok(SetupMode::Deferred) if groups.all(Probe::works) => {
            let buffers = match version >= INCREMENTAL_SINCE {
                true => "receives share buffers",
                false => "each receive takes a buffer (shared from Linux 6.12 on)",
            };
            let woken = match version >= WOKEN_SINCE {
                true => "wakes a sleeping server",
                false => "takes effect at the next event",
            };
            text.row(
                "kernel",
                &format!(
                    "Linux {release}: io_uring with deferred task work; {buffers}; `annulus release` {woken}{filter}"
                ),
            );
        }
        Ok(SetupMode::Deferred) => text.obstacle(
            "kernel",
            format!("Linux {release} has no buffer groups; boot 5.19 or later"),
        ),
        Ok(_) => text.obstacle(
            "kernel",
            format!("Linux {release} has no deferred task work; boot 6.1 or later"),
        ),
    }
    text.row(
        "filters",
        "before COMMAND sets a seccomp filter, its epoll sets return to the kernel; a filter that it sets by a raw \
         system call is not detected",
    );
    if request.args.sqpoll {
        let warning = cores::warning();
        let default = "on; off for a program that changes its user or group";
        text.row("SQPOLL", warning.as_deref().unwrap_or(default));
    }
}

fn variables(text: &mut Text, variables: &Variables) {
    let is_relevant = |name: &str| name == PRELOAD || name.starts_with("ANNULUS_");
    let pairs = variables.0.iter();
    let named = pairs.filter_map(|(name, value)| Some((name.to_str()?, value.to_string_lossy())));
    for (name, value) in named.filter(|(name, _)| is_relevant(name)) {
        let line = format!("{name}={value}");
        match name {
            "ANNULUS_DISABLE" if is_on(&value) => {
                text.obstacle("variables", format!("{line} turns the library off"));
            }
            "ANNULUS_PASS_PORTS" if !are_ports(&value) => text.obstacle(
                "variables",
                format!("{line} is not a list of ports, which turns the library off; write for example 80,8000-8010"),
            ),
            "ANNULUS_PASS_PORTS" if !value.is_empty() => {
                text.row("variables", &format!("{line}: listeners on these ports and their connections stay with the kernel"));
            }
            _ => text.row("variables", &line),
        }
    }
}

/// Returns whether a variable is on, by the rules of the library.
fn is_on(value: &str) -> bool {
    !matches!(value, "" | "0" | "no" | "off" | "false")
}

/// Returns whether the text is a list of ports, by the rules of the library.
fn are_ports(value: &str) -> bool {
    let parts = value
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty());
    let mut ranges = parts.map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.trim().parse::<u16>().ok();
        Some(number(first)? <= number(last)?)
    });
    ranges.all(|range| range == Some(true))
}

fn limits(text: &mut Text) {
    let shown =
        |limit: Option<u64>| limit.map_or("unlimited".to_owned(), |limit| limit.to_string());
    let files = getrlimit(Resource::Nofile);
    text.row(
        "limits",
        &format!(
            "{} descriptors (at most {}); the library uses about {OWN_DESCRIPTORS}, and releases them near the limit",
            shown(files.current),
            shown(files.maximum)
        ),
    );
    let locked = getrlimit(Resource::Memlock).current;
    text.row(
        "",
        &format!(
            "{} bytes of locked memory; a larger ring is refused",
            shown(locked)
        ),
    );
    if let Some(bytes) = getrlimit(Resource::Fsize)
        .current
        .filter(|&bytes| bytes < SHARED_BYTES)
    {
        text.row(
            "",
            &format!(
                "files of at most {bytes} bytes (RLIMIT_FSIZE), so `annulus top` and `annulus release` cannot find \
                 the program; raise the limit to 1 GiB (ulimit -f)"
            ),
        );
    }
}

/// Explains that a service manager may set other limits than those of this process.
fn manager(text: &mut Text) {
    let groups = proc_files::read("/proc/self/cgroup").unwrap_or_default();
    let unit = groups.lines().find_map(|line| {
        let path = line.rsplit(':').next()?;
        path.rsplit('/').find(|part| part.ends_with(".service"))
    });
    let unit_text = match unit {
        Some(unit) => format!("the limits and filters above are those of {unit}; "),
        None => String::new(),
    };
    text.row(
        "manager",
        &format!(
            "{unit_text}a service manager sets its own limits, filters and variables. For systemd, use \
             ExecStart=annulus run …, LimitNOFILE=, and a SystemCallFilter= with @aio, which contains io_uring_setup, \
             io_uring_enter and io_uring_register. Containers refuse these calls by default"
        ),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_parsed_by_the_rules_of_the_library() {
        for ports in ["", "80", "80,8000-8010", " 1 , 2-2,"] {
            assert!(are_ports(ports), "{ports}");
        }
        for ports in ["http", "9-1", "70000", "1-2-3", "80;90"] {
            assert!(!are_ports(ports), "{ports}");
        }
        assert!(is_on("1") && is_on("yes") && !is_on("off") && !is_on(""));
    }
}
