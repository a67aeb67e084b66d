//! Echo servers of other io_uring runtimes: `echo <runtime> <address>`.
//!
//! There is one module per runtime. Each follows the runtime's documentation and runs on one thread. `annulus bench net
//! echo --server-cmd` runs them as external variants. They use nothing of Annulus.

#![forbid(unsafe_code)]

mod compio;
mod glommio;
mod monoio;
mod ringline;
mod tokio_uring;

use std::convert::Infallible;
use std::fmt::Display;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::ExitCode;

/// The initial buffer of a connection: one page, for small messages.
const SMALL_BYTES: usize = 4 * 1024;
/// The largest buffer. A message that fills the buffer doubles it.
const LARGE_BYTES: usize = 64 * 1024;

/// Serves until the process ends. Returns only on an error.
type Serve = fn(SocketAddr) -> io::Result<Infallible>;

const RUNTIMES: [(&str, Serve); 5] = [
    ("compio", compio::serve),
    ("glommio", glommio::serve),
    ("monoio", monoio::serve),
    ("ringline", ringline::serve),
    ("tokio-uring", tokio_uring::serve),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (serve, address) = match parse(&arguments) {
        Ok(parsed) => parsed,
        Err(fault) => {
            eprintln!("echo: {fault}");
            return ExitCode::from(2);
        }
    };
    let Err(error) = serve(address);
    eprintln!("echo: {} on {address}: {error}", arguments[0]);
    ExitCode::FAILURE
}

fn parse(arguments: &[String]) -> Result<(Serve, SocketAddr), String> {
    let names = RUNTIMES.map(|(name, _)| name).join(", ");
    let [name, address] = arguments else {
        return Err(format!(
            "usage: echo <runtime> <address>; runtimes: {names}"
        ));
    };
    let Some((_, serve)) = RUNTIMES.iter().find(|(known, _)| known == name) else {
        return Err(format!("unknown runtime {name:?}; use one of {names}"));
    };
    let address: SocketAddr = address
        .parse()
        .map_err(|_| format!("{address:?} is not an address; write it like 127.0.0.1:7000"))?;
    if !address.ip().is_loopback() {
        return Err(format!(
            "{address} is not a loopback address; use 127.0.0.1 or ::1"
        ));
    }
    Ok((*serve, address))
}

/// Prints the address of the listener. The parent process waits for this line.
fn listening(address: SocketAddr) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "listening on {address}")?;
    out.flush()
}

/// Returns an error of a runtime's own type as an `io::Error` that names the failed action.
fn failed(doing: &str, error: impl Display) -> io::Error {
    io::Error::other(format!("{doing}: {error}"))
}

/// Returns the new size of a connection's buffer after a message of `count` bytes, or `None` if it stays the same.
fn grown(count: usize, capacity: usize) -> Option<usize> {
    (count == capacity && count < LARGE_BYTES).then_some(2 * capacity)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(arguments: &[&str]) -> Result<SocketAddr, String> {
        let arguments: Vec<String> = arguments.iter().map(|one| (*one).to_owned()).collect();
        parse(&arguments).map(|(_, address)| address)
    }

    #[test]
    fn the_error_for_a_wrong_command_line_names_the_problem() {
        assert!(parsed(&[]).unwrap_err().contains("tokio-uring"));
        assert!(parsed(&["monoio"]).unwrap_err().contains("<address>"));
        assert!(
            parsed(&["mono", "127.0.0.1:0"])
                .unwrap_err()
                .contains("\"mono\"")
        );
        assert!(
            parsed(&["monoio", "here"])
                .unwrap_err()
                .contains("\"here\"")
        );
        assert!(
            parsed(&["monoio", "0.0.0.0:1"])
                .unwrap_err()
                .contains("not a loopback address")
        );
        assert_eq!(parsed(&["monoio", "127.0.0.1:1"]).unwrap().port(), 1);
    }

    #[test]
    fn a_buffer_grows_only_when_a_message_fills_it() {
        assert_eq!(grown(SMALL_BYTES, SMALL_BYTES), Some(2 * SMALL_BYTES));
        assert_eq!(grown(SMALL_BYTES - 1, SMALL_BYTES), None);
        assert_eq!(grown(LARGE_BYTES, LARGE_BYTES), None);
    }
}
