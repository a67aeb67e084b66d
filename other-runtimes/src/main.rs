//! Echo servers of other io_uring runtimes: `echo <runtime> <address>`.
//!
//! One module per runtime, each as its own documentation would have it, on one thread. Used as variants
//! from outside by `annulus bench net echo --server-cmd`; nothing of Annulus is in here.

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

/// A connection begins with a buffer of one page, which suits small messages.
const SMALL_BYTES: usize = 4 * 1024;
/// A message that fills the buffer doubles it, up to this.
const LARGE_BYTES: usize = 64 * 1024;

/// Serves until the process ends; returns only with an error.
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
        Ok(asked) => asked,
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
            "call it as `echo <runtime> <address>`; runtimes: {names}"
        ));
    };
    let Some((_, serve)) = RUNTIMES.iter().find(|(known, _)| known == name) else {
        return Err(format!("no runtime is called {name:?}; there are: {names}"));
    };
    let address: SocketAddr = address
        .parse()
        .map_err(|_| format!("{address:?} is no address; write it as 127.0.0.1:7000"))?;
    if !address.ip().is_loopback() {
        return Err(format!(
            "{address} can be reached from outside; use 127.0.0.1 or ::1"
        ));
    }
    Ok((*serve, address))
}

/// Prints the address of the listener, so that the parent process can start.
fn listening(address: SocketAddr) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "listening on {address}")?;
    out.flush()
}

/// An error of a runtime's own type, with what was being done.
fn failed(doing: &str, error: impl Display) -> io::Error {
    io::Error::other(format!("{doing}: {error}"))
}

/// How large the buffer of a connection is to be after a message of `count` bytes, if it is to change.
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
    fn a_wrong_call_says_what_is_wrong() {
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
                .contains("from outside")
        );
        assert_eq!(parsed(&["monoio", "127.0.0.1:1"]).unwrap().port(), 1);
    }

    #[test]
    fn a_buffer_grows_only_when_it_was_filled() {
        assert_eq!(grown(SMALL_BYTES, SMALL_BYTES), Some(2 * SMALL_BYTES));
        assert_eq!(grown(SMALL_BYTES - 1, SMALL_BYTES), None);
        assert_eq!(grown(LARGE_BYTES, LARGE_BYTES), None);
    }
}
