//! The address that a server listens on.

use std::net::SocketAddr;
use std::path::PathBuf;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    Tcp(SocketAddr),
    /// A host name to resolve, and a port.
    Host(String, u16),
    Unix(PathBuf),
    /// The sockets that systemd passes to the process.
    Systemd,
}

/// Parses `127.0.0.1:8080`, `[::1]:8080`, `localhost:8080`, `unix:/run/a.sock` or `systemd`.
pub(crate) fn parse_address(text: &str) -> Result<Address, String> {
    const FORMS: &str = "write HOST:PORT, unix:PATH or systemd";
    if text == "systemd" {
        return Ok(Address::Systemd);
    }
    if let Some(path) = text.strip_prefix("unix:") {
        return match path {
            "" => Err("unix: must be followed by a path, as in unix:/run/annulus.sock".to_owned()),
            _ => Ok(Address::Unix(path.into())),
        };
    }
    if let Ok(address) = text.parse() {
        return Ok(Address::Tcp(address));
    }
    let Some((host, port)) = text.rsplit_once(':') else {
        return Err(format!("the port is missing; {FORMS}"));
    };
    if host.is_empty() {
        return Err(format!(
            "the host is missing; write 0.0.0.0:{port} for all IPv4 addresses, or [::]:{port} for IPv6 as well"
        ));
    }
    if host.contains(':') {
        return Err("an IPv6 address must be in brackets, as in [::1]:8080".to_owned());
    }
    let port = port
        .parse()
        .map_err(|_| format!("`{port}` is not a port; {FORMS}"))?;
    Ok(Address::Host(host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_hosts_paths_and_systemd_are_distinguished() {
        for (text, expected) in [
            ("127.0.0.1:1", Address::Tcp("127.0.0.1:1".parse().unwrap())),
            ("[::1]:0", Address::Tcp("[::1]:0".parse().unwrap())),
            ("localhost:80", Address::Host("localhost".to_owned(), 80)),
            ("unix:a:b", Address::Unix("a:b".into())),
            ("systemd", Address::Systemd),
        ] {
            assert_eq!(parse_address(text), Ok(expected), "{text}");
        }
        for (text, message) in [
            ("localhost", "port is missing"),
            ("8080", "port is missing"),
            ("", "port is missing"),
            (":8080", "0.0.0.0:8080"),
            ("::1:8080", "brackets"),
            ("[::1]", "brackets"),
            ("localhost:http", "`http` is not a port"),
            ("localhost:70000", "`70000` is not a port"),
            ("unix:", "must be followed by a path"),
        ] {
            let error = parse_address(text).unwrap_err();
            assert!(error.contains(message), "{text}: {error}");
        }
    }
}
