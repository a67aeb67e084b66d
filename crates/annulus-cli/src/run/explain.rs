//! `annulus run --explain`: what of a program will be served and what not, and why, without starting it.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use annulus::engine::SetupMode;
use annulus::support::{KernelVersion, Support};
use rustix::process::{Resource, getrlimit};

use super::{Obstacles, PRELOAD, Variables, cores, elf};
use crate::args::RunArgs;
use crate::doctor::{BUFFER_GROUPS, Lines};

/// Since when receives share their buffers.
const INCREMENTAL_SINCE: KernelVersion = KernelVersion::new(6, 12);
/// Since when a server that sleeps is woken to be handed back.
const WOKEN_SINCE: KernelVersion = KernelVersion::new(6, 7);
/// The file of counts that `annulus top` and `annulus release` find; of its bytes few are ever used.
const SHARED_BYTES: u64 = 1 << 30;
/// Descriptors of the library: a ring and what wakes it for each thread that waits, the counts, the log.
const OWN_DESCRIPTORS: u64 = 4;

/// What is looked at.
pub(super) struct Request<'a> {
    pub(super) args: &'a RunArgs,
    pub(super) name: &'a OsStr,
    pub(super) program: &'a Path,
    pub(super) library: &'a Path,
    pub(super) obstacles: &'a Obstacles,
    pub(super) variables: &'a Variables,
}

/// Lines with labels, and what keeps the program from being served.
#[derive(Default)]
struct Text {
    lines: Lines,
    reasons: Vec<String>,
}

impl Text {
    fn row(&mut self, label: &str, text: &str) {
        self.lines.row(label, text);
    }

    fn against(&mut self, label: &str, text: String) {
        self.row(label, &text);
        self.reasons.push(text);
    }
}

/// What there is to say, and whether the program will be served.
pub(super) fn explain(request: &Request<'_>) -> (String, bool) {
    let mut text = Text::default();
    program(&mut text, request);
    library(&mut text, request);
    kernel(&mut text, request);
    variables(&mut text, request.variables);
    limits(&mut text);
    manager(&mut text);
    text.row(
        "served",
        "TCP connections that do not block, in an epoll set that one thread waits on: level, edge and oneshot",
    );
    text.row(
        "passed",
        "UDP, Unix sockets, pipes and files; connections that block or are still connecting; sets that several threads \
         wait on; poll, select; raw system calls; programs that it starts if they are static, for musl, setuid or Go \
         (docs/reference/preload.md)",
    );
    let name = request.name.display();
    let head = match &text.reasons[..] {
        [] => format!("{name} will be served by the library\n"),
        [first, ..] => format!("{name} will not be served: {first}\n"),
    };
    (head + &text.lines.0, text.reasons.is_empty())
}

fn program(text: &mut Text, request: &Request<'_>) {
    let path = request.program.display();
    match super::inspect::started(request.program) {
        Some((file, facts)) => {
            let through = match file == request.program {
                true => String::new(),
                false => format!(", run by {}", file.display()),
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
        None => text.row("program", &format!("{path}: its file tells nothing")),
    }
    for remark in &request.obstacles.remarks {
        text.against("", remark.to_string());
    }
}

fn library(text: &mut Text, request: &Request<'_>) {
    let path = request.library.display();
    let build = elf::build_id(request.library).unwrap_or_else(|| "unknown".to_owned());
    text.row("library", &format!("{path}, build {build}"));
}

fn kernel(text: &mut Text, request: &Request<'_>) {
    let support = Support::detect();
    let release = support.kernel_release();
    let version = support.kernel_version();
    let filter = match support.seccomp_filter() {
        true => "; a filter of system calls (seccomp) is set here, which COMMAND inherits",
        false => "",
    };
    let groups = support.registrations().iter();
    let mut groups = groups.filter(|probe| probe.name == BUFFER_GROUPS);
    match support.ring() {
        Err(error) => text.against("kernel", format!("Linux {release}: {error}")),
        Ok(SetupMode::Deferred) if groups.all(|probe| probe.result.is_ok()) => {
            let buffers = match version >= INCREMENTAL_SINCE {
                true => "receives share buffers",
                false => "receives take a buffer each, which Linux 6.12 spares",
            };
            let woken = match version >= WOKEN_SINCE {
                true => "wakes it",
                false => "is seen at its next event",
            };
            text.row(
                "kernel",
                &format!(
                    "Linux {release}: io_uring with deferred task work; {buffers}; `annulus release` {woken}{filter}"
                ),
            );
        }
        Ok(SetupMode::Deferred) => text.against(
            "kernel",
            format!("Linux {release} has no buffer groups, which there are since 5.19"),
        ),
        Ok(_) => text.against(
            "kernel",
            format!("Linux {release} has no deferred task work, which there is since 6.1"),
        ),
    }
    text.row(
        "filters",
        "one that COMMAND sets itself has its sets handed back before; it is not seen if set by a raw call",
    );
    if request.args.sqpoll {
        let warning = cores::warning();
        let says = "on; off for a program that changes its user or group";
        text.row("SQPOLL", warning.as_deref().unwrap_or(says));
    }
}

fn variables(text: &mut Text, variables: &Variables) {
    let ours = |name: &str| name == PRELOAD || name.starts_with("ANNULUS_");
    let pairs = variables.0.iter();
    let named = pairs.filter_map(|(name, value)| Some((name.to_str()?, value.to_string_lossy())));
    for (name, value) in named.filter(|(name, _)| ours(name)) {
        let line = format!("{name}={value}");
        match name {
            "ANNULUS_DISABLE" if is_on(&value) => {
                text.against("variables", format!("{line} has everything pass through"));
            }
            "ANNULUS_PASS_PORTS" if !are_ports(&value) => text.against(
                "variables",
                format!("{line} can't be read, and has everything pass through; write for example 80,8000-8010"),
            ),
            "ANNULUS_PASS_PORTS" if !value.is_empty() => {
                text.row("variables", &format!("{line}: listeners there, and their connections, are left alone"));
            }
            _ => text.row("variables", &line),
        }
    }
}

/// As the library reads its switches.
fn is_on(value: &str) -> bool {
    !matches!(value, "" | "0" | "no" | "off" | "false")
}

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
            "{} descriptors ({} at most), of which the library takes about {OWN_DESCRIPTORS}",
            shown(files.current),
            shown(files.maximum)
        ),
    );
    let locked = getrlimit(Resource::Memlock).current;
    text.row(
        "",
        &format!(
            "{} bytes of locked memory; a ring that does not fit is refused",
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
                "files of at most {bytes} bytes (RLIMIT_FSIZE): served, but neither `annulus top` nor \
                 `annulus release` finds it; raise it to 1 GiB (ulimit -f)"
            ),
        );
    }
}

/// These limits are those of this process; another launcher may set others.
fn manager(text: &mut Text) {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let unit = groups.lines().find_map(|line| {
        let path = line.rsplit(':').next()?;
        path.rsplit('/').find(|part| part.ends_with(".service"))
    });
    let here = match unit {
        Some(unit) => format!("limits and filters are those of {unit} here; "),
        None => String::new(),
    };
    text.row(
        "manager",
        &format!(
            "{here}a service manager gives a server limits, filters and variables of its own. For systemd: \
             ExecStart=annulus run …, LimitNOFILE=, and a SystemCallFilter= with @aio, which has io_uring_setup, \
             io_uring_enter and io_uring_register; containers refuse these by default"
        ),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_read_as_the_library_reads_them() {
        for ports in ["", "80", "80,8000-8010", " 1 , 2-2,"] {
            assert!(are_ports(ports), "{ports}");
        }
        for ports in ["http", "9-1", "70000", "1-2-3", "80;90"] {
            assert!(!are_ports(ports), "{ports}");
        }
        assert!(is_on("1") && is_on("yes") && !is_on("off") && !is_on(""));
    }
}
