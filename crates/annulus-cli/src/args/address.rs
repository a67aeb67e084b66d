//! Where a server listens, as it is typed.

use std::net::SocketAddr;
use std::path::PathBuf;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    Tcp(SocketAddr),
    /// A host, whose addresses are requested, and a port.
    Host(String, u16),
    Unix(PathBuf),
    /// The sockets that systemd has passed.
    Systemd,
}

/// `127.0.0.1:8080`, `[::1]:8080`, `localhost:8080`, `unix:/run/a.sock`, `systemd`.
pub(crate) fn parse_address(text: &str) -> Result<Address, String> {
    const WRITE: &str = "write HOST:PORT, unix:PATH or systemd";
    if text == "systemd" {
        return Ok(Address::Systemd);
    }
    if let Some(path) = text.strip_prefix("unix:") {
        return match path {
            "" => Err("unix: is followed by a path, as in unix:/run/annulus.sock".to_owned()),
            _ => Ok(Address::Unix(path.into())),
        };
    }
    if let Ok(address) = text.parse() {
        return Ok(Address::Tcp(address));
    }
    let Some((host, port)) = text.rsplit_once(':') else {
        return Err(format!("there is no port; {WRITE}"));
    };
    if host.is_empty() {
        return Err(format!(
            "there is no host; 0.0.0.0:{port} is all of IPv4, [::]:{port} of IPv6, too"
        ));
    }
    if host.contains(':') {
        return Err("an IPv6 address is written in brackets, as in [::1]:8080".to_owned());
    }
    let port = port
        .parse()
        .map_err(|_| format!("`{port}` is no port; {WRITE}"))?;
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
        for (text, says) in [
            ("localhost", "no port"),
            ("8080", "no port"),
            ("", "no port"),
            (":8080", "0.0.0.0:8080"),
            ("::1:8080", "brackets"),
            ("[::1]", "brackets"),
            ("localhost:http", "`http` is no port"),
            ("localhost:70000", "`70000` is no port"),
            ("unix:", "followed by a path"),
        ] {
            let error = parse_address(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
