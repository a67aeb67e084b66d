//! `annulus enable`, `annulus disable` and `annulus status`: systemd services under the preload library.
//!
//! A file beside the unit sets `LD_PRELOAD`. So the unit keeps its own command, also after an upgrade of its package,
//! and a service whose library is gone runs without it.

mod unit;

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use annulus_observe::snapshot_of;

use crate::args::{DisableArgs, EnableArgs};
use crate::fault::Fault;
use crate::release::has_library;
use crate::run::{find_library, obstacle, preloaded};
use crate::signals;
use crate::top::{Process, preload_lines};
use unit::{CALLS, FILE, UNITS, Unit, listeners, systemctl, threads};

/// The start of each file that `enable` writes.
const MARK: &str = "# Written by `annulus enable`";
/// The directory that exists if systemd has started the machine.
const BOOTED: &str = "/run/systemd/system";
/// The time after a restart in which the service must listen on its addresses again. systemd has waited before, unless
/// the unit has `Type=simple`.
const START_MAX: Duration = Duration::from_secs(60);
/// The time for a connection to be established.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// The time after the last connection in which a ring must appear.
const RING_MAX: Duration = Duration::from_secs(10);
/// The time in which a ring must appear before more connections are opened.
const ROUND: Duration = Duration::from_millis(200);
/// The number of connections with which an epoll set gets a ring.
const SET_CONNECTIONS: usize = 8;
/// The number of connections for each thread of a service after which a check opens no more. Servers spread them over
/// threads, and one that another thread accepts does not count.
const THREAD_CONNECTIONS: usize = 32;
/// The number of connections of a check after which it opens no more, below the usual limit on descriptors.
const CONNECTIONS_MAX: usize = 512;
/// The number of addresses of a service that are checked.
const ADDRESSES_MAX: usize = 32;
/// The interval between two checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
const CHECKING: &str = "checking the service";

/// A note about a changed filter.
const OPENED: &str = "its SystemCallFilter= refuses io_uring, which is now allowed; a filter cannot see what a ring \
                      does (docs/guide/containers.md)";

pub(crate) fn enable(args: &EnableArgs) -> Result<ExitCode, Fault> {
    needs_root_and_systemd()?;
    let unit = Unit::of(&args.service)?;
    let (id, file) = (unit.id(), unit.drop_in());
    unit.check_loaded()?;
    if let Some(text) = read(&file)? {
        check_own(&file, &text)?;
        return match has_loaded(&unit) {
            true => print(&format!("{id} is on a ring already; nothing was changed\n")),
            false => Err(failed!(
                "{id} is enabled already, but does not run with the library; run `annulus disable {id}` first"
            )),
        };
    }
    let addresses = served_addresses(&unit)?;
    let library = find_library(args.library.as_deref())?;
    let text = drop_in(&unit, &library)?;
    signals::listen()?;
    signals::end_in_order();
    write(&file, &text)?;
    match restart(id).and_then(|()| check(id, &addresses)) {
        Ok(connections) => {
            if unit.refuses_io_uring() {
                note!("annulus: {id}: {OPENED}");
            }
            let listed = list(&addresses);
            print(&format!(
                "{id} is on a ring, and answers on {listed} (checked with {connections} connections)\n\
                 `annulus status` shows what is served; `annulus disable {id}` undoes it ({})\n",
                file.display()
            ))
        }
        Err(fault) => Err(rolled_back(&unit, &addresses, fault)),
    }
}

pub(crate) fn disable(args: &DisableArgs) -> Result<ExitCode, Fault> {
    needs_root_and_systemd()?;
    let unit = Unit::of(&args.service)?;
    let (id, file) = (unit.id(), unit.drop_in());
    let Some(text) = read(&file)? else {
        return print(&format!("{id} is not on a ring; nothing was changed\n"));
    };
    check_own(&file, &text)?;
    remove(&file)?;
    if unit.main_process().is_none() {
        systemctl(&["daemon-reload"])?;
        return print(&format!(
            "{id} starts without the library; it does not run now\n"
        ));
    }
    restart(id)?;
    settle(id, &[])?;
    print(&format!("{id} runs without the library\n"))
}

pub(crate) fn status() -> Result<ExitCode, Fault> {
    needs_systemd()?;
    let folders = fs::read_dir(UNITS)
        .map_err(|error| failed!("cannot list the units in {UNITS}: {error}"))?;
    let folders = folders.flatten().map(|folder| folder.path());
    let enabled = folders.filter(|folder| folder.join(FILE).exists());
    let mut names: Vec<String> = enabled
        .filter_map(|folder| {
            let name = folder.file_name()?.to_str()?;
            name.strip_suffix(".service.d").map(str::to_owned)
        })
        .collect();
    names.sort_unstable();
    if names.is_empty() {
        return print("no service is on a ring; `annulus enable SERVICE` puts one there\n");
    }
    for name in names {
        print(&match Unit::of(&name) {
            Ok(unit) => describe(&unit),
            Err(fault) => format!("{name}.service  {fault}\n"),
        })?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns a line for a service, and lines for what each of its processes serves and passes through.
fn describe(unit: &Unit) -> String {
    let mut text = format!("{}  {}\n", unit.id(), unit.state());
    let mut has_rings = false;
    for pid in unit.processes() {
        match preload_lines(pid) {
            Ok(lines) => {
                has_rings = true;
                lines.iter().for_each(|line| text += &format!("  {line}\n"));
            }
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                return text + "  only root can see what it serves: sudo annulus status\n";
            }
            // It has no ring, or has ended.
            Err(_) => {}
        }
    }
    if unit.is_running() && !has_rings {
        text += match has_loaded(unit) {
            true => "  no ring yet: an epoll set gets one with eight connections at a time\n",
            false => "  its processes have not loaded the library; `systemctl restart` does it\n",
        };
    }
    text
}

fn needs_systemd() -> Result<(), Fault> {
    match Path::new(BOOTED).exists() {
        true => Ok(()),
        false => Err(failed!(
            "systemd does not run this machine (there is no {BOOTED}); start the server with `annulus run -- COMMAND`"
        )),
    }
}

fn needs_root_and_systemd() -> Result<(), Fault> {
    needs_systemd()?;
    match rustix::process::geteuid().is_root() {
        true => Ok(()),
        false => Err(Fault::failed(
            "only root may change a service; run the command with sudo",
        )),
    }
}

/// Returns the addresses on which the service accepts connections. Fails if the library could not serve them.
fn served_addresses(unit: &Unit) -> Result<Vec<SocketAddr>, Fault> {
    let id = unit.id();
    let refused = |reason: String| failed!("{id} was not changed: {reason}");
    let Some(main) = unit.main_process().filter(|_| unit.is_running()) else {
        return Err(refused(format!(
            "it does not run (state {}); start it first (systemctl start {id}), so that its answers can be compared",
            unit.state()
        )));
    };
    // The file that the process executes, also if the path has another file in this file system, or after an upgrade.
    let program = format!("/proc/{main}/exe");
    let name = fs::read_link(&program).unwrap_or_else(|_| id.into());
    if let Some(obstacle) = obstacle(Path::new(&program), name.as_os_str()) {
        return Err(refused(obstacle));
    }
    let network = |process: &str| fs::read_link(format!("/proc/{process}/ns/net")).ok();
    if network("self") != network(&main.to_string()) {
        return Err(refused(
            "it has another network (PrivateNetwork=), in which its addresses cannot be checked; write the file by \
             hand (annulus doctor --profile systemd)"
                .to_owned(),
        ));
    }
    let mut addresses = listeners(&unit.processes());
    addresses.truncate(ADDRESSES_MAX);
    addresses.retain(|address| TcpStream::connect_timeout(address, CONNECT_MAX).is_ok());
    match addresses.is_empty() {
        true => Err(refused(
            "it accepts connections on no TCP address, and the library serves only those"
                .to_owned(),
        )),
        false => Ok(addresses),
    }
}

/// Returns whether a process of the service has loaded the library.
fn has_loaded(unit: &Unit) -> bool {
    unit.processes().into_iter().any(has_library)
}

/// Returns the text of the file beside the unit.
fn drop_in(unit: &Unit, library: &Path) -> Result<String, Fault> {
    let id = unit.id();
    let value = preloaded(unit.preloaded(), library)?;
    let value = quoted(&format!("LD_PRELOAD={}", value.display()));
    let mut text =
        format!("{MARK}; `annulus disable {id}` removes it.\n[Service]\nEnvironment={value}\n");
    if unit.forbids_executing() {
        let path = quoted(&format!("-{}", library.display()));
        text += &format!("# The unit has NoExecPaths=.\nExecPaths={path}\n");
    }
    if unit.refuses_io_uring() {
        let calls = CALLS.join(" ");
        text +=
            &format!("# The filter of the unit refuses these calls.\nSystemCallFilter={calls}\n");
    }
    Ok(text)
}

/// Returns a text as one word of a unit file.
fn quoted(text: &str) -> String {
    let escaped = text
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('%', "%%");
    format!("\"{escaped}\"")
}

/// Returns the content of the file, if there is one.
fn read(file: &Path) -> Result<Option<String>, Fault> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed!("cannot read {}: {error}", file.display())),
    }
}

/// Fails if the file is not from `enable`.
fn check_own(file: &Path, text: &str) -> Result<(), Fault> {
    match text.starts_with(MARK) {
        true => Ok(()),
        false => Err(failed!(
            "{} is not from `annulus enable`, so it was not changed; remove it by hand, and restart the service",
            file.display()
        )),
    }
}

fn write(file: &Path, text: &str) -> Result<(), Fault> {
    let folder = file.parent().unwrap_or(file);
    let written = fs::create_dir_all(folder).and_then(|()| fs::write(file, text));
    written.map_err(|error| {
        let _ = remove(file);
        failed!(
            "cannot write {}: {error}; the service was not changed",
            file.display()
        )
    })
}

/// Removes the file, and its folder if that is empty.
fn remove(file: &Path) -> Result<(), Fault> {
    let removed = fs::remove_file(file);
    if let Some(folder) = file.parent() {
        let _ = fs::remove_dir(folder);
    }
    removed.map_err(|error| failed!("cannot remove {}: {error}", file.display()))
}

fn restart(id: &str) -> Result<(), Fault> {
    systemctl(&["daemon-reload"])?;
    // A service that failed too often is not started otherwise. Without a failure this has no effect.
    let _ = systemctl(&["reset-failed", "--", id]);
    systemctl(&["restart", "--", id]).map(drop)
}

/// Waits until the service runs, and listens on the addresses.
fn settle(id: &str, addresses: &[SocketAddr]) -> Result<Unit, Fault> {
    let until = Instant::now() + START_MAX;
    loop {
        let unit = Unit::of(id)?;
        unit.check_alive()?;
        let mut missing = addresses.to_vec();
        let now = listeners(&unit.processes());
        missing.retain(|address| !now.contains(address));
        if unit.is_running() && missing.is_empty() {
            return Ok(unit);
        }
        if Instant::now() > until {
            let missing = list(&missing);
            let state = unit.state();
            return Err(failed!(
                "it is {state} and did not listen on {missing} within {} s",
                START_MAX.as_secs()
            ));
        }
        thread::sleep(CHECK_INTERVAL);
    }
}

/// Checks that the service answers and that a ring serves it. Returns the number of connections that this took.
fn check(id: &str, addresses: &[SocketAddr]) -> Result<usize, Fault> {
    signals::check(CHECKING)?;
    let unit = settle(id, addresses)?;
    if !has_loaded(&unit) {
        return Err(Fault::failed(
            "its processes have not loaded the library: the unit hides its file, its EnvironmentFile= sets LD_PRELOAD, \
             or the program gets more rights than its caller; for a hidden file, install the library in \
             /usr/local/lib/annulus",
        ));
    }
    let most = CONNECTIONS_MAX.min(THREAD_CONNECTIONS * threads(&unit.processes()));
    let mut connections = Vec::new();
    let serving = loop {
        for address in std::iter::repeat_n(addresses, SET_CONNECTIONS).flatten() {
            let connection = TcpStream::connect_timeout(address, CONNECT_MAX);
            let refused = |error| failed!("{address} accepts no connection: {error}");
            connections.push(connection.map_err(refused)?);
        }
        let is_last = connections.len() >= most;
        let time = if is_last { RING_MAX } else { ROUND };
        match wait_for_ring(&unit, time)? {
            Some(serving) => break serving,
            None if is_last => {
                return Err(failed!(
                    "{} connections got no ring: it does not wait for them on an epoll set, or several threads wait on \
                     one, or io_uring is refused to it",
                    connections.len()
                ));
            }
            None => {}
        }
    };
    let opened = connections.len();
    // The server reads the end of each.
    drop(connections);
    let now = Unit::of(id)?;
    now.check_alive()?;
    match now.main_process() == unit.main_process() && serving.is_running() {
        true => Ok(opened),
        false => Err(Fault::failed("one of its processes ended during the check")),
    }
}

/// Returns a process of the service with a ring, if there is one in time.
fn wait_for_ring(unit: &Unit, time: Duration) -> Result<Option<Process>, Fault> {
    let has_ring = |&pid: &u32| snapshot_of(pid).is_ok_and(|now| now.total().preload.rings > 0);
    let until = Instant::now() + time;
    loop {
        signals::check(CHECKING)?;
        if let Some(pid) = unit.processes().into_iter().find(has_ring) {
            return Ok(Process::running(pid));
        }
        if Instant::now() > until {
            return Ok(None);
        }
        thread::sleep(CHECK_INTERVAL);
    }
}

/// Removes the file, restarts the service, and returns the error of the whole command.
fn rolled_back(unit: &Unit, addresses: &[SocketAddr], fault: Fault) -> Fault {
    let id = unit.id();
    let logged = Unit::of(id).map(|unit| unit.logged()).unwrap_or_default();
    let undone = remove(&unit.drop_in())
        .and_then(|()| restart(id))
        .and_then(|()| settle(id, addresses));
    let after = match &undone {
        Ok(_) => "the change is undone, and it runs as before".to_owned(),
        Err(error) => {
            format!("undoing the change failed too: {error}; see `systemctl status {id}`")
        }
    };
    match fault {
        Fault::Interrupted { .. } if undone.is_ok() => {
            note!("annulus: {id}: {after}");
            fault
        }
        fault => failed!("{id} cannot run on a ring: {fault}; {after}{logged}"),
    }
}

fn list(addresses: &[SocketAddr]) -> String {
    let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    addresses.join(", ")
}

/// Prints to standard output. If that is closed, the text is lost.
fn print(text: &str) -> Result<ExitCode, Fault> {
    let _ = io::stdout().write_all(text.as_bytes());
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_in_a_unit_file_keeps_its_special_characters() {
        assert_eq!(quoted("-/a b/50%/\"x\"\\"), r#""-/a b/50%%/\"x\"\\""#);
    }
}
