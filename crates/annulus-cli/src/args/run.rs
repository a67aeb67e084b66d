//! The command line of `annulus run`.

use std::ffi::OsString;
use std::path::PathBuf;

const RUN_HELP: &str = "\
COMMAND is executed in this process, so its process ID, exit status, signals and terminal are
unchanged. LD_PRELOAD and the ANNULUS_* variables of the options are added to its environment.

The library serves non-blocking TCP connections of an epoll set that a single thread waits on,
once it has eight of them (ANNULUS_MIN_CONNECTIONS).
All other calls go to the kernel as before. It works with programs that are linked to glibc. If
it cannot serve COMMAND (static program, musl, Go, setuid), a warning is printed before COMMAND
starts. If io_uring is not available, COMMAND runs unchanged, and a warning is printed.

Exit status:
  that of COMMAND; 127 if COMMAND does not exist, 126 if it cannot be executed, 2 if an option is
  wrong, 1 if the library is not found. With --explain, COMMAND is not started: 0 if it would be
  served, 3 if not, 4 if in part or if it is not tested.

Examples:
  annulus run -- redis-server /etc/redis/redis.conf
  annulus run --stats --log /tmp/annulus.log -- nginx -g 'daemon off;'
  annulus run --explain -- haproxy -f haproxy.cfg
  annulus top                       # in another terminal: show what its rings do
  annulus release 4711              # return process 4711 to the kernel's epoll, without a restart";

#[derive(Debug, clap::Args)]
#[command(after_long_help = RUN_HELP)]
pub(crate) struct RunArgs {
    /// Print which calls of COMMAND would be served, and why the others would not, without starting it. Exit status: 0
    /// if it would be served, 3 if not, 4 if in part or if it is not tested
    #[arg(long)]
    pub(crate) explain: bool,

    /// Let a kernel thread poll the submission queues (ANNULUS_SQPOLL=1); it needs a free processor
    #[arg(long)]
    pub(crate) sqpoll: bool,

    /// Count calls, and write a line of JSON to the log or standard error when COMMAND ends (ANNULUS_STATS=1)
    #[arg(long)]
    pub(crate) stats: bool,

    /// Append the messages of the library to FILE (ANNULUS_LOG)
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,

    /// Leave listeners on these ports and their connections to the kernel (ANNULUS_PASS_PORTS)
    #[arg(long, value_name = "PORT[-PORT]", value_delimiter = ',', value_parser = parse_ports)]
    pub(crate) pass_port: Vec<Ports>,

    /// Path of the library [default: libannulus_preload next to this program; then libannulus_preload.so there, in
    /// ../lib/annulus, ../lib, /usr/local/lib/annulus or /usr/lib/annulus]
    #[arg(long, value_name = "FILE")]
    pub(crate) library: Option<PathBuf>,

    /// Program to run, with its arguments
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true)]
    pub(crate) command: Vec<OsString>,
}

/// A port, or an inclusive range of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ports {
    first: u16,
    last: u16,
}

impl std::fmt::Display for Ports {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.first == self.last {
            true => write!(f, "{}", self.first),
            false => write!(f, "{}-{}", self.first, self.last),
        }
    }
}

fn parse_ports(text: &str) -> Result<Ports, String> {
    let port = |text: &str| match text.parse() {
        Ok(0) | Err(_) => Err(format!(
            "`{text}` is not a port; write a number from 1 to 65535, or a range such as 6000-6010"
        )),
        Ok(port) => Ok(port),
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (port(first)?, port(last)?);
    match first <= last {
        true => Ok(Ports { first, last }),
        false => Err(format!(
            "the range {first}-{last} is empty; write {last}-{first}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_and_ranges_of_ports_are_parsed() {
        let parsed = |text| parse_ports(text).map(|ports| ports.to_string());
        assert_eq!(parsed("80"), Ok("80".to_owned()));
        assert_eq!(parsed("6000-6010"), Ok("6000-6010".to_owned()));
        assert_eq!(parsed("7-7"), Ok("7".to_owned()));
        for bad in ["0", "-1", "65536", "http", "6010-6000", "1-", "-", "1-2-3"] {
            assert!(parsed(bad).is_err(), "{bad}");
        }
    }
}
