//! The head of a request: what `httparse` says it is, and what RFC 9112 says about its framing. Whatever two
//! implementations may read differently is refused: that is how requests are smuggled.
//!
//! Used by the connection, on bytes where they were received; nothing is copied.

use std::mem::MaybeUninit;

use httparse::{Error, Header, Request, Status};

use crate::options::Limits;

/// Room for fields; [`Limits::fields`] is at most this.
pub(crate) const FIELDS_MAX: usize = 128;

/// Where the parser puts the fields.
pub(crate) type HeaderArray<'b> = [MaybeUninit<Header<'b>>; FIELDS_MAX];

pub(crate) const fn header_array<'b>() -> HeaderArray<'b> {
    [const { MaybeUninit::uninit() }; FIELDS_MAX]
}

/// Why a request is not answered as what it asks for. The connection ends after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: u16,
    pub(crate) why: &'static str,
}

pub(crate) const fn refusal(status: u16, why: &'static str) -> Refusal {
    Refusal { status, why }
}

/// What a request may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Get,
    Head,
    Options,
    /// Known, and nothing that is done here.
    Known,
    /// Not known to HTTP's registry as far as people use it.
    Unknown,
}

/// How a request's body is delimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// There is none.
    Empty,
    Length(u64),
    Chunked,
}

#[derive(Debug)]
pub(crate) struct Head<'h, 'b> {
    pub(crate) verb: Verb,
    /// As it was written.
    pub(crate) method: &'b str,
    /// Path and query, or `*`: of an absolute form, what follows the authority.
    pub(crate) target: &'b [u8],
    pub(crate) fields: &'h [Header<'b>],
    /// Bytes of it all, with the empty line.
    pub(crate) bytes: usize,
    /// The 1 of HTTP/1.1.
    pub(crate) minor: u8,
    /// Another request may follow.
    pub(crate) keep_alive: bool,
    pub(crate) framing: Framing,
    pub(crate) expects_continue: bool,
    /// Has no field that makes the response another one than the whole, unconditionally.
    pub(crate) plain: bool,
    pub(crate) accept_encoding: Option<&'b [u8]>,
}

/// Reads a head from the start of `bytes`. `None`: it is not there as a whole yet.
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
        return Err(refusal(400, "the request line is not whole"));
    };
    if has_bare_line_feed(&bytes[..read]) {
        return Err(refusal(400, "a line ends without a carriage return"));
    }
    if path.len() > limits.target_bytes {
        return Err(refusal(414, "the target is too long"));
    }
    let verb = verb(method);
    let (target, authority) = target(path.as_bytes(), verb, method)?;
    let fields: &'h [Header<'b>] = request.headers;
    let mut noted = ConnectionFields::default();
    for field in fields {
        noted.note(field)?;
    }
    noted.check_host(minor, authority)?;
    let framing = noted.framing(minor)?;
    Ok(Some(Head {
        verb,
        method,
        target,
        fields,
        bytes: read,
        minor,
        keep_alive: !noted.close && (minor == 1 || noted.keep_alive),
        framing,
        expects_continue: noted.expects_continue && minor == 1,
        plain: !noted.conditional && framing == Framing::Empty && !noted.expects_continue,
        accept_encoding: noted.accept_encoding,
    }))
}

/// What the fields say that concerns the connection.
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
                return Err(refusal(400, "Host is given twice"));
            }
            5 if is("range") => self.conditional = true,
            6 if is("expect") => {
                if !value.eq_ignore_ascii_case(b"100-continue") {
                    return Err(refusal(417, "only 100-continue can be expected"));
                }
                self.expects_continue = true;
            }
            10 if is("connection") => self.note_connection(value),
            14 if is("content-length") && self.length.replace(value).is_some() => {
                return Err(refusal(400, "Content-Length is given twice"));
            }
            // Two lines are one list, which takes a look at both.
            15 if is("accept-encoding") => {
                self.conditional |= self.accept_encoding.replace(value).is_some();
            }
            17 if is("transfer-encoding") => {
                if self.chunked || !value.eq_ignore_ascii_case(b"chunked") {
                    return Err(refusal(400, "Transfer-Encoding is not `chunked`, once"));
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

    /// A request says once whom it is for; where its target does, that counts, and Host must still be there.
    fn check_host(&self, minor: u8, authority: Option<&[u8]>) -> Result<(), Refusal> {
        let Some(host) = self.host else {
            return match minor {
                0 => Ok(()),
                _ => Err(refusal(400, "Host is missing")),
            };
        };
        match is_authority(host) && authority.is_none_or(is_authority) {
            true => Ok(()),
            false => Err(refusal(400, "that is no host")),
        }
    }

    fn framing(&self, minor: u8) -> Result<Framing, Refusal> {
        match (self.chunked, self.length) {
            (false, None) => Ok(Framing::Empty),
            (true, Some(_)) => {
                let why = "Content-Length and Transfer-Encoding are both given";
                Err(refusal(400, why))
            }
            (true, None) if minor == 0 => Err(refusal(400, "HTTP/1.0 has no Transfer-Encoding")),
            (true, None) => Ok(Framing::Chunked),
            (false, Some(length)) => match length_of(length) {
                Some(0) => Ok(Framing::Empty),
                Some(bytes) => Ok(Framing::Length(bytes)),
                None => Err(refusal(400, "Content-Length is no number")),
            },
        }
    }
}

/// Digits and nothing else: no sign, no list, no space. 19 digits are below 2^64.
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

/// The four forms of a target (RFC 9112, 3.2): path and query, and the authority if it has one.
fn target<'b>(
    path: &'b [u8],
    verb: Verb,
    method: &str,
) -> Result<(&'b [u8], Option<&'b [u8]>), Refusal> {
    if path.contains(&b'#') {
        return Err(refusal(400, "a target has no fragment"));
    }
    if path.first() == Some(&b'/') {
        return Ok((path, None));
    }
    if path == b"*" {
        return match verb {
            Verb::Options => Ok((path, None)),
            _ => Err(refusal(400, "`*` is for OPTIONS alone")),
        };
    }
    // What CONNECT names is nowhere here; it is refused as a method.
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
            "the target is neither a path nor a URL of HTTP",
        ));
    };
    let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?'));
    let (authority, path) = rest.split_at(end.unwrap_or(rest.len()));
    if authority.is_empty() {
        return Err(refusal(400, "the target has no host"));
    }
    match path.first() {
        Some(b'/') => Ok((path, Some(authority))),
        // No path is the root; its query means nothing to a file.
        _ => Ok((b"/", Some(authority))),
    }
}

/// Host and port as far as their characters go: whom they name is not looked at.
fn is_authority(text: &[u8]) -> bool {
    text.iter()
        .all(|&byte| byte.is_ascii_alphanumeric() || b"-._~:[]%!$&'()*+,;=".contains(&byte))
}

fn has_bare_line_feed(head: &[u8]) -> bool {
    memchr::memchr_iter(b'\n', head).any(|at| at == 0 || head[at - 1] != b'\r')
}

/// A head that is longer than it may be: its target, or its fields.
fn too_long(bytes: &[u8], limits: &Limits) -> Refusal {
    let line = memchr::memchr(b'\n', bytes).unwrap_or(bytes.len());
    match line > limits.target_bytes {
        true => refusal(414, "the target is too long"),
        false => refusal(431, "the fields are too long"),
    }
}

fn refused(error: Error, bytes: &[u8]) -> Refusal {
    match error {
        Error::TooManyHeaders => refusal(431, "there are too many fields"),
        Error::Version if names_a_version(bytes) => {
            refusal(505, "only HTTP/1.1 and HTTP/1.0 are spoken here")
        }
        Error::HeaderName => refusal(400, "a field's name has what it may not have"),
        Error::HeaderValue => refusal(400, "a field's value has what it may not have"),
        Error::NewLine => refusal(400, "a line does not end as it must"),
        _ => refusal(400, "that is no request line of HTTP/1.1"),
    }
}

/// Whether the first line is whole but for its version, which is another one than ours.
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
