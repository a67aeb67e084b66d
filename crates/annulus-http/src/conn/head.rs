//! The head of a request: syntax by `httparse`, framing by RFC 9112.
//!
//! Everything that two implementations could interpret differently is refused, to prevent request smuggling. Parsing
//! works on the bytes where they were received and copies nothing.

use std::mem::MaybeUninit;

use httparse::{Error, Header, Request, Status};

use crate::options::Limits;

/// The capacity for fields. [`Limits::fields`] is at most this.
pub(crate) const FIELDS_MAX: usize = 128;

/// The memory for the parsed fields.
pub(crate) type HeaderArray<'b> = [MaybeUninit<Header<'b>>; FIELDS_MAX];

pub(crate) const fn header_array<'b>() -> HeaderArray<'b> {
    [const { MaybeUninit::uninit() }; FIELDS_MAX]
}

/// An error response. The connection ends after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: u16,
    pub(crate) message: &'static str,
}

pub(crate) const fn refusal(status: u16, message: &'static str) -> Refusal {
    Refusal { status, message }
}

/// The method of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Get,
    Head,
    Options,
    /// A known method that is not supported.
    Known,
    /// Any other method.
    Unknown,
}

/// The framing of a request's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// No body.
    Empty,
    Length(u64),
    Chunked,
}

#[derive(Debug)]
pub(crate) struct Head<'h, 'b> {
    pub(crate) verb: Verb,
    /// The name as sent.
    pub(crate) method: &'b str,
    /// Path and query, or `*`. For the absolute form, the part after the authority.
    pub(crate) target: &'b [u8],
    pub(crate) fields: &'h [Header<'b>],
    /// The length of the head in bytes, with the empty line.
    pub(crate) bytes: usize,
    /// The minor version: 1 for HTTP/1.1.
    pub(crate) minor: u8,
    /// Another request may follow.
    pub(crate) keep_alive: bool,
    pub(crate) framing: Framing,
    pub(crate) expects_continue: bool,
    /// No field makes the response conditional or partial, and there is no body.
    pub(crate) plain: bool,
    pub(crate) accept_encoding: Option<&'b [u8]>,
}

/// Parses a head from the start of `bytes`. Returns `None` if it is incomplete.
pub(crate) fn parse<'h, 'b>(
    bytes: &'b [u8],
    header_array: &'h mut HeaderArray<'b>,
    limits: &Limits,
) -> Result<Option<Head<'h, 'b>>, Refusal> {
    let mut request = Request::new(&mut []);
    let fields_max = limits.fields.min(FIELDS_MAX);
    let within = &bytes[..bytes.len().min(limits.head_bytes)];
    let read = match request.parse_with_uninit_headers(within, &mut header_array[..fields_max]) {
        Ok(Status::Complete(read)) => read,
        Ok(Status::Partial) if bytes.len() == within.len() => return Ok(None),
        Ok(Status::Partial) => return Err(too_long(within, limits)),
        Err(error) => return Err(refused(error, bytes)),
    };
    let (Some(method), Some(path), Some(minor)) = (request.method, request.path, request.version)
    else {
        return Err(refusal(400, "incomplete request line"));
    };
    if has_bare_line_feed(&bytes[..read]) {
        return Err(refusal(400, "a line ends without a carriage return"));
    }
    if path.len() > limits.target_bytes {
        return Err(refusal(414, "the request target is too long"));
    }
    let verb = verb(method);
    let (target, authority) = target(path.as_bytes(), verb, method)?;
    let fields: &'h [Header<'b>] = request.headers;
    let mut connection = ConnectionFields::default();
    for field in fields {
        connection.note(field)?;
    }
    connection.check_host(minor, authority)?;
    let framing = connection.framing(minor)?;
    Ok(Some(Head {
        verb,
        method,
        target,
        fields,
        bytes: read,
        minor,
        keep_alive: !connection.close && (minor == 1 || connection.keep_alive),
        framing,
        expects_continue: connection.expects_continue && minor == 1,
        plain: !connection.conditional && framing == Framing::Empty && !connection.expects_continue,
        accept_encoding: connection.accept_encoding,
    }))
}

/// The fields that concern the connection.
#[derive(Default)]
struct ConnectionFields<'b> {
    host: Option<&'b [u8]>,
    length: Option<&'b [u8]>,
    chunked: bool,
    close: bool,
    keep_alive: bool,
    expects_continue: bool,
    conditional: bool,
    accept_encoding: Option<&'b [u8]>,
}

impl<'b> ConnectionFields<'b> {
    fn note(&mut self, field: &Header<'b>) -> Result<(), Refusal> {
        let (name, value) = (field.name, field.value);
        let is = |other: &str| name.eq_ignore_ascii_case(other);
        match name.len() {
            4 if is("host") && self.host.replace(value).is_some() => {
                return Err(refusal(400, "duplicate Host field"));
            }
            5 if is("range") => self.conditional = true,
            6 if is("expect") => {
                if !value.eq_ignore_ascii_case(b"100-continue") {
                    return Err(refusal(
                        417,
                        "unsupported expectation; only 100-continue is known",
                    ));
                }
                self.expects_continue = true;
            }
            10 if is("connection") => self.note_connection(value),
            14 if is("content-length") && self.length.replace(value).is_some() => {
                return Err(refusal(400, "duplicate Content-Length field"));
            }
            // Several lines form one list, which the cold path joins.
            15 if is("accept-encoding") => {
                self.conditional |= self.accept_encoding.replace(value).is_some();
            }
            17 if is("transfer-encoding") => {
                if self.chunked || !value.eq_ignore_ascii_case(b"chunked") {
                    return Err(refusal(
                        400,
                        "Transfer-Encoding must be `chunked`, given once",
                    ));
                }
                self.chunked = true;
            }
            8.. if name.as_bytes()[..3].eq_ignore_ascii_case(b"if-") => self.conditional = true,
            _ => {}
        }
        Ok(())
    }

    fn note_connection(&mut self, value: &[u8]) {
        for option in value.split(|&byte| byte == b',') {
            let option = option.trim_ascii();
            self.close |= option.eq_ignore_ascii_case(b"close");
            self.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
        }
    }

    /// Checks that Host is present and valid. The authority of an absolute target takes precedence, but Host is still
    /// required.
    fn check_host(&self, minor: u8, authority: Option<&[u8]>) -> Result<(), Refusal> {
        let Some(host) = self.host else {
            return match minor {
                0 => Ok(()),
                _ => Err(refusal(400, "missing Host field")),
            };
        };
        match is_authority(host) && authority.is_none_or(is_authority) {
            true => Ok(()),
            false => Err(refusal(400, "invalid host")),
        }
    }

    fn framing(&self, minor: u8) -> Result<Framing, Refusal> {
        match (self.chunked, self.length) {
            (false, None) => Ok(Framing::Empty),
            (true, Some(_)) => {
                let message = "Content-Length and Transfer-Encoding are both present";
                Err(refusal(400, message))
            }
            (true, None) if minor == 0 => {
                Err(refusal(400, "HTTP/1.0 does not support Transfer-Encoding"))
            }
            (true, None) => Ok(Framing::Chunked),
            (false, Some(length)) => match length_of(length) {
                Some(0) => Ok(Framing::Empty),
                Some(bytes) => Ok(Framing::Length(bytes)),
                None => Err(refusal(400, "Content-Length is not a valid number")),
            },
        }
    }
}

/// Parses digits only: no sign, list or space. A number of 19 digits is below 2^64.
fn length_of(value: &[u8]) -> Option<u64> {
    if value.is_empty() || value.len() > 19 {
        return None;
    }
    value.iter().try_fold(0, |sum: u64, byte| {
        byte.is_ascii_digit()
            .then(|| sum * 10 + u64::from(byte - b'0'))
    })
}

fn verb(method: &str) -> Verb {
    match method {
        "GET" => Verb::Get,
        "HEAD" => Verb::Head,
        "OPTIONS" => Verb::Options,
        "POST" | "PUT" | "DELETE" | "PATCH" | "TRACE" | "CONNECT" | "PROPFIND" => Verb::Known,
        _ => Verb::Unknown,
    }
}

/// Parses the four forms of a target (RFC 9112, section 3.2). Returns path and query, and the authority if there is
/// one.
fn target<'b>(
    path: &'b [u8],
    verb: Verb,
    method: &str,
) -> Result<(&'b [u8], Option<&'b [u8]>), Refusal> {
    if path.contains(&b'#') {
        return Err(refusal(400, "the request target must not have a fragment"));
    }
    if path.first() == Some(&b'/') {
        return Ok((path, None));
    }
    if path == b"*" {
        return match verb {
            Verb::Options => Ok((path, None)),
            _ => Err(refusal(400, "the target `*` is valid with OPTIONS only")),
        };
    }
    // The target of CONNECT is not needed, because the method is refused.
    if method == "CONNECT" {
        return Ok((b"/", Some(path)));
    }
    let after = |scheme: &str| {
        let (start, rest) = path.split_at_checked(scheme.len())?;
        start
            .eq_ignore_ascii_case(scheme.as_bytes())
            .then_some(rest)
    };
    let Some(rest) = after("http://").or_else(|| after("https://")) else {
        return Err(refusal(
            400,
            "the request target is neither a path nor an HTTP URL",
        ));
    };
    let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?'));
    let (authority, path) = rest.split_at(end.unwrap_or(rest.len()));
    if authority.is_empty() {
        return Err(refusal(400, "the request target has no host"));
    }
    match path.first() {
        Some(b'/') => Ok((path, Some(authority))),
        // An empty path means the root. Its query does not matter for a file.
        _ => Ok((b"/", Some(authority))),
    }
}

/// Returns whether the characters are valid in a host and port. The name itself is not checked.
fn is_authority(text: &[u8]) -> bool {
    text.iter()
        .all(|&byte| byte.is_ascii_alphanumeric() || b"-._~:[]%!$&'()*+,;=".contains(&byte))
}

fn has_bare_line_feed(head: &[u8]) -> bool {
    memchr::memchr_iter(b'\n', head).any(|at| at == 0 || head[at - 1] != b'\r')
}

/// Returns the error for a head beyond the limit: its target or its fields are too long.
fn too_long(bytes: &[u8], limits: &Limits) -> Refusal {
    let line = memchr::memchr(b'\n', bytes).unwrap_or(bytes.len());
    match line > limits.target_bytes {
        true => refusal(414, "the request target is too long"),
        false => refusal(431, "the header fields are too long"),
    }
}

fn refused(error: Error, bytes: &[u8]) -> Refusal {
    match error {
        Error::TooManyHeaders => refusal(431, "too many header fields"),
        Error::Version if names_a_version(bytes) => {
            refusal(505, "unsupported HTTP version; use HTTP/1.1 or HTTP/1.0")
        }
        Error::HeaderName => refusal(400, "invalid character in a header field name"),
        Error::HeaderValue => refusal(400, "invalid character in a header field value"),
        Error::NewLine => refusal(400, "malformed line ending"),
        _ => refusal(400, "malformed request line"),
    }
}

/// Returns whether the request line is valid except for an unsupported HTTP version.
fn names_a_version(bytes: &[u8]) -> bool {
    let line = bytes
        .split(|&byte| byte == b'\r')
        .next()
        .unwrap_or_default();
    let mut words = line.split(|&byte| byte == b' ');
    let (method, target, version) = (words.next(), words.next(), words.next());
    let is_whole = |word: Option<&[u8]>| word.is_some_and(|word| !word.is_empty());
    let number = version.and_then(|word| word.strip_prefix(b"HTTP/"));
    let is_other = match number {
        Some([major, b'.', minor]) => {
            major.is_ascii_digit() && minor.is_ascii_digit() && (*major != b'1' || *minor > b'1')
        }
        Some([major]) => major.is_ascii_digit(),
        _ => false,
    };
    is_whole(method) && is_whole(target) && is_other && words.next().is_none()
}

#[cfg(test)]
mod tests;
