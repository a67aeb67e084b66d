//! # Safety
//!
//! Settings from the environment, read once when the library is loaded (Typed: strings of the C library).
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::sync::OnceLock;

/// With fewer connections, Redis, memcached and nginx take more CPU time on a ring than without it.
const MIN_CONNECTIONS: u32 = 8;

/// The settings, `ANNULUS_…`; docs/reference/preload.md explains each.
#[derive(Debug, Default)]
pub(crate) struct Config {
    pub(crate) disabled: bool,
    pub(crate) sqpoll: bool,
    pub(crate) stats: bool,
    /// Writes are batched from the first round on; for tests.
    pub(crate) batch_from_start: bool,
    pub(crate) log: Option<CString>,
    /// The number of connections with which an epoll set gets a ring.
    pub(crate) min_connections: u32,
    /// The first and the last port of each range that is not served.
    pass_ports: Vec<(u16, u16)>,
    /// The error message for a setting that could not be parsed.
    pub(crate) wrong: Option<String>,
}

static CONFIG: OnceLock<Config> = OnceLock::new();

pub(crate) fn get() -> &'static Config {
    CONFIG.get_or_init(read)
}

impl Config {
    /// Returns whether connections of a listener on this port pass through.
    pub(crate) fn passes(&self, port: u16) -> bool {
        let within = |&(first, last): &(u16, u16)| (first..=last).contains(&port);
        self.pass_ports.iter().any(within)
    }
}

unsafe extern "C" {
    /// Returns the value of a variable as `getenv` does, but null in a process with more privileges than its caller.
    fn secure_getenv(name: *const std::ffi::c_char) -> *const std::ffi::c_char;
}

fn variable(name: &CStr) -> Option<String> {
    // SAFETY: Typed: a NUL-terminated name. The result is null, or a string that stays valid until it has been copied.
    // It is null in a process with more privileges than its caller.
    let value = unsafe { secure_getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: Typed: `secure_getenv` returned a NUL-terminated string.
    let value = unsafe { CStr::from_ptr(value) };
    Some(value.to_string_lossy().into_owned())
}

fn is_on(name: &CStr) -> bool {
    variable(name).is_some_and(|value| !matches!(value.as_str(), "" | "0" | "no" | "off" | "false"))
}

fn read() -> Config {
    let mut config = Config {
        disabled: is_on(c"ANNULUS_DISABLE"),
        sqpoll: is_on(c"ANNULUS_SQPOLL"),
        stats: is_on(c"ANNULUS_STATS"),
        batch_from_start: is_on(c"ANNULUS_HOLD"),
        log: variable(c"ANNULUS_LOG").and_then(|path| CString::new(path).ok()),
        min_connections: MIN_CONNECTIONS,
        ..Config::default()
    };
    if let Some(number) = variable(c"ANNULUS_MIN_CONNECTIONS").filter(|text| !text.is_empty()) {
        match number.trim().parse() {
            Ok(number @ 1..) => config.min_connections = number,
            _ => {
                config.disabled = true;
                config.wrong = Some(format!(
                    "ANNULUS_MIN_CONNECTIONS is {number:?}, which is not a number of connections, so everything \
                     passes through; write, for example, 8"
                ));
            }
        }
    }
    let ports = variable(c"ANNULUS_PASS_PORTS").unwrap_or_default();
    for part in ports
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
    {
        match range(part) {
            Some(range) => config.pass_ports.push(range),
            None => {
                // Serving a port by mistake is worse than passing one through by mistake.
                config.disabled = true;
                config.wrong = Some(format!(
                    "ANNULUS_PASS_PORTS contains {part:?}, which is not a port or a range of ports, so everything \
                     passes through; write, for example, 80,8000-8010"
                ));
            }
        }
    }
    config
}

fn range(part: &str) -> Option<(u16, u16)> {
    let (first, last) = part.split_once('-').unwrap_or((part, part));
    let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    (first <= last).then_some((first, last))
}
