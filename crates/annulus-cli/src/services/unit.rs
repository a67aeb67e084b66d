//! A systemd service: its unit, as `systemctl show` describes it, its processes, and the addresses that they listen on.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use procfs::net::TcpState;
use procfs::process::{FDTarget, Process};

use crate::fault::Fault;
use crate::proc_files;

/// The folder of an administrator's units, which come before those of packages.
pub(super) const UNITS: &str = "/etc/systemd/system";
/// The name of the file that `enable` writes into the folder of a unit.
pub(super) const FILE: &str = "annulus.conf";
/// The end of a unit's name.
const SERVICE: &str = ".service";
/// The ends of the names of other units.
const OTHER_KINDS: [&str; 10] = [
    ".automount",
    ".device",
    ".mount",
    ".path",
    ".scope",
    ".slice",
    ".socket",
    ".swap",
    ".target",
    ".timer",
];
/// The properties of a unit that are read.
const PROPERTIES: &str = "--property=Id,LoadState,ActiveState,SubState,Result,MainPID,NRestarts,InvocationID,\
                          Environment,NoExecPaths,SystemCallFilter";
/// The calls that a filter must allow.
pub(super) const CALLS: [&str; 3] = ["io_uring_setup", "io_uring_enter", "io_uring_register"];
/// The start of the library's lines in the log of a service.
const LIBRARY: &str = "annulus: ";
/// The number of lines of a service's log that a message quotes.
const LINES_MAX: usize = 5;

/// A service, at the time of the call of `systemctl show`.
pub(super) struct Unit(BTreeMap<String, String>);

impl Unit {
    /// Returns the service of this name, with or without `.service`, or of an alias. It may be missing.
    pub(super) fn of(name: &str) -> Result<Unit, Fault> {
        let stem = name.strip_suffix(SERVICE).unwrap_or(name);
        let is_usual = |c: char| c.is_ascii_alphanumeric() || ":-_.\\@".contains(c);
        if stem.is_empty() || !stem.chars().all(is_usual) {
            return Err(usage!(
                "`{name}` is not the name of a service; write one that `systemctl list-units --type=service` lists"
            ));
        }
        if let Some(kind) = OTHER_KINDS.iter().find(|kind| stem.ends_with(**kind)) {
            let stem = stem.trim_end_matches(kind);
            return Err(usage!(
                "{name} is not a service, and only services have processes; name its service, such as {stem}"
            ));
        }
        if stem.ends_with('@') {
            return Err(usage!(
                "{name} is a template; name one of its instances, such as {stem}1"
            ));
        }
        let shown = systemctl(&["show", PROPERTIES, "--", &format!("{stem}{SERVICE}")])?;
        let properties = shown.lines().filter_map(|line| line.split_once('='));
        let properties = properties.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let unit = Unit(properties.collect());
        // The name is part of a path.
        match unit.id().ends_with(SERVICE) && !unit.id().contains('/') {
            true => Ok(unit),
            false => Err(failed!(
                "systemd reports no properties of {name}; try `systemctl status {name}`"
            )),
        }
    }

    /// Returns the value of a property. An old systemd has fewer.
    fn property(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    /// Returns the name, with `.service`. For an alias this is the name of the unit.
    pub(super) fn id(&self) -> &str {
        self.property("Id")
    }

    /// Returns the path of the file that `enable` writes.
    pub(super) fn drop_in(&self) -> PathBuf {
        Path::new(UNITS).join(format!("{}.d", self.id())).join(FILE)
    }

    /// Returns the state as words, for messages.
    pub(super) fn state(&self) -> String {
        format!(
            "{} ({})",
            self.property("ActiveState"),
            self.property("SubState")
        )
    }

    /// Returns the process ID of the main process, if the service has one.
    pub(super) fn main_process(&self) -> Option<u32> {
        self.property("MainPID")
            .parse()
            .ok()
            .filter(|&pid| pid != 0)
    }

    /// Returns whether the service has started, and has a main process.
    pub(super) fn is_running(&self) -> bool {
        matches!(self.property("ActiveState"), "active" | "reloading")
            && self.main_process().is_some()
    }

    /// Fails if the unit cannot be started at all.
    pub(super) fn check_loaded(&self) -> Result<(), Fault> {
        let id = self.id();
        let message = match self.property("LoadState") {
            "loaded" => return Ok(()),
            "not-found" => format!(
                "there is no service {id}; `systemctl list-units --type=service` lists those of this machine"
            ),
            "masked" => format!(
                "{id} is masked, so systemd does not start it; run `systemctl unmask {id}` first"
            ),
            other => format!(
                "systemd could not load {id} ({other}); `systemctl status {id}` has the reason"
            ),
        };
        Err(Fault::failed(message))
    }

    /// Fails if the service has ended or was restarted since it was started by hand.
    pub(super) fn check_alive(&self) -> Result<(), Fault> {
        let has_ended = match (self.property("ActiveState"), self.property("SubState")) {
            (_, "auto-restart") | ("failed" | "inactive" | "deactivating", _) => true,
            // systemd sets the count to zero when a user starts the service.
            _ => self.property("NRestarts").parse() != Ok(0u64),
        };
        match has_ended {
            true => Err(failed!(
                "it ended (state {}, result {})",
                self.state(),
                self.property("Result")
            )),
            false => Ok(()),
        }
    }

    /// Returns the libraries that the unit itself loads first.
    pub(super) fn preloaded(&self) -> &str {
        preloaded_in(self.property("Environment"))
    }

    pub(super) fn forbids_executing(&self) -> bool {
        !self.property("NoExecPaths").is_empty()
    }

    pub(super) fn refuses_io_uring(&self) -> bool {
        let filter = self.property("SystemCallFilter");
        CALLS.iter().any(|call| refuses(filter, call))
    }

    /// Returns the running processes: those in the control group of the main process.
    pub(super) fn processes(&self) -> Vec<u32> {
        let groups = |pid: u32| proc_files::read(format!("/proc/{pid}/cgroup")).ok();
        let Some(own) = self.main_process().and_then(groups) else {
            return Vec::new();
        };
        let all = procfs::process::all_processes().into_iter().flatten();
        let pids = all.flatten().map(|process| process.pid.unsigned_abs());
        pids.filter(|&pid| groups(pid).as_ref() == Some(&own))
            .collect()
    }

    /// Returns what the library logged about this start, or else the last lines of the service and of systemd.
    pub(super) fn logged(&self) -> String {
        let id = self.property("InvocationID");
        let mut command = Command::new("journalctl");
        command.args(["--quiet", "--no-pager", "--output=cat"]);
        command.arg(format!("_SYSTEMD_INVOCATION_ID={id}"));
        command.args(["+", &format!("INVOCATION_ID={id}")]);
        let output = command.output().map(|output| output.stdout);
        let text = String::from_utf8_lossy(&output.unwrap_or_default()).into_owned();
        let mut lines: Vec<&str> = text.lines().collect();
        if lines.iter().any(|line| line.starts_with(LIBRARY)) {
            lines.retain(|line| line.starts_with(LIBRARY));
        }
        let last = &lines[lines.len().saturating_sub(LINES_MAX)..];
        last.iter().map(|line| format!("\n  {line}")).collect()
    }
}

/// Returns the addresses on which the processes, of one network, listen for TCP connections. A client on this machine
/// reaches them.
pub(super) fn listeners(pids: &[u32]) -> Vec<SocketAddr> {
    let processes: Vec<Process> = pids.iter().filter_map(|&pid| opened(pid)).collect();
    let descriptors = processes.iter().filter_map(|process| process.fd().ok());
    let sockets: Vec<u64> = descriptors
        .flatten()
        .flatten()
        .filter_map(|descriptor| match descriptor.target {
            FDTarget::Socket(inode) => Some(inode),
            _ => None,
        })
        .collect();
    let tables = processes.first().map(|one| [one.tcp(), one.tcp6()]);
    let sockets_of_all = tables.into_iter().flatten().flatten().flatten();
    let mut addresses: Vec<SocketAddr> = sockets_of_all
        .filter(|entry| entry.state == TcpState::Listen && sockets.contains(&entry.inode))
        .map(|entry| reached(entry.local_address))
        .collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

/// Returns the number of threads of the processes.
pub(super) fn threads(pids: &[u32]) -> usize {
    let stats = pids.iter().filter_map(|&pid| opened(pid)?.stat().ok());
    let threads = stats.filter_map(|stat| usize::try_from(stat.num_threads).ok());
    threads.sum()
}

/// Returns the files of a process in `/proc`. `None` if it has ended.
fn opened(pid: u32) -> Option<Process> {
    Process::new(i32::try_from(pid).ok()?).ok()
}

/// Returns the address by which a client reaches a listener.
fn reached(mut listener: SocketAddr) -> SocketAddr {
    if listener.ip().is_unspecified() {
        listener.set_ip(match listener.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    listener
}

/// Returns the value of `LD_PRELOAD` in a list of variables, in which systemd quotes those with a space.
fn preloaded_in(environment: &str) -> &str {
    const VARIABLE: &str = "LD_PRELOAD=";
    let starts = environment.match_indices(VARIABLE).find_map(|(at, _)| {
        let (before, value) = (&environment[..at], &environment[at + VARIABLE.len()..]);
        match before.chars().next_back() {
            Some('"') => Some((value, '"')),
            None | Some(' ') => Some((value, ' ')),
            Some(_) => None,
        }
    });
    starts.map_or("", |(value, end)| {
        value.split(end).next().unwrap_or_default()
    })
}

/// Returns whether a filter, as systemd shows it, refuses a call. `~` precedes a list of refused calls, which is empty
/// without a filter.
fn refuses(filter: &str, call: &str) -> bool {
    let (is_list_of_refused, calls) = match filter.strip_prefix('~') {
        Some(calls) => (true, calls),
        None => (false, filter),
    };
    // A refused call may have the name of its error after a colon.
    let is_listed = calls
        .split_whitespace()
        .any(|one| one.split(':').next() == Some(call));
    is_listed == is_list_of_refused && !filter.is_empty()
}

/// Runs `systemctl`, and returns its output.
pub(super) fn systemctl(args: &[&str]) -> Result<String, Fault> {
    let shown = args.join(" ");
    let mut command = Command::new("systemctl");
    // In its own process group, so that Ctrl-C does not end it in the middle.
    command
        .args(args)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .process_group(0);
    let output = command.output().map_err(|error| {
        failed!("cannot run systemctl: {error}; install systemd, or use `annulus run`")
    })?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => {
            let error = String::from_utf8_lossy(&output.stderr);
            // The second line says which command has the reason.
            let error = error.lines().next().unwrap_or_default();
            Err(failed!("`systemctl {shown}` failed: {error}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_libraries_of_a_unit_are_found_in_its_variables() {
        for (environment, libraries) in [
            ("", ""),
            ("A=b", ""),
            ("LD_PRELOAD=/a.so", "/a.so"),
            ("A=b LD_PRELOAD=/a.so:/b.so C=d", "/a.so:/b.so"),
            ("A=b \"LD_PRELOAD=/a.so /b.so\" C=d", "/a.so /b.so"),
            ("OLD_LD_PRELOAD=/a.so", ""),
            ("LD_PRELOAD= C=d", ""),
        ] {
            assert_eq!(preloaded_in(environment), libraries, "{environment}");
        }
    }

    #[test]
    fn a_filter_lists_either_the_allowed_calls_or_the_refused_ones() {
        for (filter, is_refused) in [
            ("", false),
            ("~", false),
            ("~mount io_uring_setup", true),
            ("~mount io_uring_setup:EPERM", true),
            ("~mount umount", false),
            ("read write", true),
            ("read io_uring_setup write", false),
        ] {
            assert_eq!(refuses(filter, "io_uring_setup"), is_refused, "{filter}");
        }
    }

    #[test]
    fn only_names_of_services_are_accepted() {
        for (name, reason) in [
            ("", "not the name"),
            (".service", "not the name"),
            ("../redis", "not the name"),
            ("redis*", "not the name"),
            ("dbus.socket", "name its service, such as dbus"),
            ("redis-server@", "such as redis-server@1"),
            ("redis-server@.service", "is a template"),
        ] {
            let Err(fault) = Unit::of(name) else {
                panic!("{name}");
            };
            assert!(matches!(fault, Fault::Usage(_)), "{name}: {fault}");
            assert!(fault.to_string().contains(reason), "{name}: {fault}");
        }
    }

    #[test]
    fn a_listener_on_every_address_is_reached_over_loopback() {
        for (listener, client) in [
            ("0.0.0.0:80", "127.0.0.1:80"),
            ("[::]:80", "[::1]:80"),
            ("10.0.0.1:80", "10.0.0.1:80"),
        ] {
            assert_eq!(reached(listener.parse().unwrap()), client.parse().unwrap());
        }
    }

    #[test]
    fn the_listeners_of_this_process_are_found() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let own = std::process::id();
        assert!(threads(&[own]) > 0);
        assert!(listeners(&[own]).contains(&listener.local_addr().unwrap()));
    }
}
