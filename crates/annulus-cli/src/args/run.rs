//! What can be typed behind `annulus run`.

use std::ffi::OsString;
use std::path::PathBuf;

const RUN_HELP: &str = "\
COMMAND is started as it is and becomes this process: its number, exit status, signals and
terminal are its own. What is added to its environment is LD_PRELOAD and the ANNULUS_* variables
of the options.

The library serves non-blocking TCP connections of one epoll set that one thread waits on;
everything else goes to the kernel as before. It works on programs that are linked to glibc: what
it can't help (static programs, musl, Go, setuid) is reported before COMMAND starts. Where io_uring is
refused COMMAND runs as it is, and that is reported.

Exit status: that of COMMAND; 127 if there is no such command, 126 if it can't be started, 2 for a
mistake in what is before it, 1 if the library can't be found. With --explain COMMAND is not
started: 0 if it would be served, 3 if not.

  annulus run -- redis-server /etc/redis/redis.conf
  annulus run --stats --log /tmp/annulus.log -- nginx -g 'daemon off;'
  annulus run --explain -- haproxy -f haproxy.cfg
  annulus top                       # from another terminal: what its rings do
  annulus release 4711              # and hand it back to the kernel, without a restart";

#[derive(Debug, clap::Args)]
#[command(after_long_help = RUN_HELP)]
pub(crate) struct RunArgs {
    /// Say what of COMMAND will be served and what not, and why, and do not start it. Exit status: 0 if it will be
    /// served, 3 if not
    #[arg(long)]
    pub(crate) explain: bool,

    /// Have a kernel thread take what is submitted (ANNULUS_SQPOLL=1); it needs a processor of its own
    #[arg(long)]
    pub(crate) sqpoll: bool,

    /// Count calls, and write a line of JSON when COMMAND ends (ANNULUS_STATS=1), to the log or standard error
    #[arg(long)]
    pub(crate) stats: bool,

    /// Append what the library has to say to this file (ANNULUS_LOG)
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,

    /// Leave listeners on these ports, and their connections, to the kernel (ANNULUS_PASS_PORTS)
    #[arg(long, value_name = "PORT[-PORT]", value_delimiter = ',', value_parser = parse_ports)]
    pub(crate) pass_port: Vec<Ports>,

    /// The library; else libannulus_preload.so beside this program, in ../lib/annulus, ../lib,
    /// /usr/local/lib/annulus or /usr/lib/annulus
    #[arg(long, value_name = "FILE")]
    pub(crate) library: Option<PathBuf>,

    /// The program, and what it is to be given
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true)]
    pub(crate) command: Vec<OsString>,
}

/// One port, or all from one to another.
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
            "`{text}` is no port; write one from 1 to 65535, or two with a hyphen between them: 6000-6010"
        )),
        Ok(port) => Ok(port),
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (port(first)?, port(last)?);
    match first <= last {
        true => Ok(Ports { first, last }),
        false => Err(format!(
            "from {first} to {last} there is no port; write {last}-{first}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_a_number_and_a_range_is_two() {
        let parsed = |text| parse_ports(text).map(|ports| ports.to_string());
        assert_eq!(parsed("80"), Ok("80".to_owned()));
        assert_eq!(parsed("6000-6010"), Ok("6000-6010".to_owned()));
        assert_eq!(parsed("7-7"), Ok("7".to_owned()));
        for bad in ["0", "-1", "65536", "http", "6010-6000", "1-", "-", "1-2-3"] {
            assert!(parsed(bad).is_err(), "{bad}");
        }
    }
}
