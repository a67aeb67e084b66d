//! Which path a request target names: decoded once, dot segments removed, before any file system is asked.
//! A pure function, used by `service`; fuzzed as `http_path`.
//!
//! | in the target | answer |
//! |---|---|
//! | an escape that is none (`%`, `%2`, `%zz`), an encoded NUL, a space or control byte, `#` | 400 |
//! | `..` beyond the root | 400 |
//! | an encoded slash (`%2f`), a backslash, plain or encoded | 404 |
//! | a segment that begins with a dot, unless requested; `/.well-known` is let through | 404 |
//! | more than [`PATH_BYTES_MAX`] | 414 |
//!
//! A slash or backslash within a name is 404 because no file that we serve has one there, and because a proxy that sits
//! before us may take it for a separator: what it lets through must mean the same here.
//!
//! Escapes are decoded once: `%252e` is the name `%2e`. Bytes that are not UTF-8 are bytes, as in the file system.

use http::StatusCode;
use percent_encoding::{AsciiSet, CONTROLS, percent_encode};

/// The kernel's PATH_MAX less its NUL.
pub const PATH_BYTES_MAX: usize = 4095;

/// What a target names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved<'a> {
    /// Begins with a slash; decoded; no segment is empty, `.` or `..`. Ends in a slash where a directory is meant.
    pub path: Vec<u8>,
    /// What followed `?`, as it came.
    pub query: Option<&'a [u8]>,
}

/// Bytes that a path in a field or link has as escapes: all but RFC 3986's `pchar` and the slash.
const ESCAPED: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'[')
    .add(b'\\')
    .add(b']')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// As in [`ESCAPED`], for a query: its own escapes stay as they are.
const ESCAPED_IN_QUERY: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'<')
    .add(b'>')
    .add(b'\\')
    .add(b'^')
    .add(b'`');

/// Takes a target (origin form) apart.
///
/// # Errors
///
/// The status to answer; the table above.
pub fn resolve(target: &[u8], hidden: bool) -> Result<Resolved<'_>, StatusCode> {
    let (raw, query) = match target.iter().position(|&byte| byte == b'?') {
        Some(at) => (&target[..at], Some(&target[at + 1..])),
        None => (target, None),
    };
    if raw.first() != Some(&b'/') {
        return Err(StatusCode::BAD_REQUEST);
    }
    if raw.len() > PATH_BYTES_MAX * 3 {
        return Err(StatusCode::URI_TOO_LONG);
    }
    let decoded = decode(raw)?;
    let mut path = Vec::with_capacity(decoded.len());
    // Where each segment that is in `path` begins, its slash included.
    let mut starts = Vec::new();
    let mut directory = false;
    for segment in decoded[1..].split(|&byte| byte == b'/') {
        directory = matches!(segment, b"" | b"." | b"..");
        match segment {
            b"" | b"." => {}
            b".." => path.truncate(starts.pop().ok_or(StatusCode::BAD_REQUEST)?),
            name => {
                starts.push(path.len());
                path.push(b'/');
                path.extend_from_slice(name);
            }
        }
    }
    if directory || path.is_empty() {
        path.push(b'/');
    }
    if path.len() > PATH_BYTES_MAX {
        return Err(StatusCode::URI_TOO_LONG);
    }
    if !hidden && is_hidden(&path) {
        return Err(StatusCode::NOT_FOUND);
    }
    Ok(Resolved { path, query })
}

/// Whether a segment begins with a dot: except the first one if that is `.well-known` (RFC 8615).
fn is_hidden(path: &[u8]) -> bool {
    let mut segments = path[1..].split(|&byte| byte == b'/').enumerate();
    segments
        .any(|(index, name)| name.first() == Some(&b'.') && !(index == 0 && name == b".well-known"))
}

/// Decodes the escapes of a path.
fn decode(raw: &[u8]) -> Result<Vec<u8>, StatusCode> {
    let mut decoded = Vec::with_capacity(raw.len());
    let mut bytes = raw.iter().copied();
    while let Some(byte) = bytes.next() {
        let byte = match byte {
            b'%' => {
                let mut digit = || char::from(bytes.next().unwrap_or_default()).to_digit(16);
                let (Some(high), Some(low)) = (digit(), digit()) else {
                    return Err(StatusCode::BAD_REQUEST);
                };
                match (high << 4 | low) as u8 {
                    0 => return Err(StatusCode::BAD_REQUEST),
                    b'/' => return Err(StatusCode::NOT_FOUND),
                    decoded => decoded,
                }
            }
            0..=b' ' | 0x7f | b'#' => return Err(StatusCode::BAD_REQUEST),
            plain => plain,
        };
        if byte == b'\\' {
            return Err(StatusCode::NOT_FOUND);
        }
        decoded.push(byte);
    }
    Ok(decoded)
}

/// Which bytes stand for themselves in a path.
const STANDS_FOR_ITSELF: [bool; 256] = {
    let mut stands = [false; 256];
    let mut byte = b'!';
    while byte <= b'~' {
        stands[byte as usize] = !matches!(byte, b'%' | b'?' | b'#' | b'\\');
        byte += 1;
    }
    stands
};

/// The path of a target whose bytes stand for themselves, so that it may be looked up as it is; it need not be
/// one that [`resolve`] would give, only mean the same if it is.
pub fn plain(target: &[u8]) -> Option<&[u8]> {
    match target
        .iter()
        .position(|&byte| !STANDS_FOR_ITSELF[usize::from(byte)])
    {
        None => Some(target),
        Some(at) if target[at] == b'?' => Some(&target[..at]),
        Some(_) => None,
    }
}

/// The path of a directory, its slash added, and the query, as `Location` has them. It can't lead to another
/// host: it begins with one slash, and what follows is a segment.
pub(crate) fn with_slash(resolved: &Resolved<'_>) -> String {
    let mut location = escape(&resolved.path);
    location.push('/');
    if let Some(query) = resolved.query {
        location.push('?');
        location.extend(percent_encode(query, ESCAPED_IN_QUERY));
    }
    location
}

/// A path or name as links have it.
pub(crate) fn escape(path: &[u8]) -> String {
    percent_encode(path, ESCAPED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BAD: Result<&str, u16> = Err(400);
    const MISSING: Result<&str, u16> = Err(404);

    /// Target, and the path or status that it must be.
    const TARGETS: [(&str, Result<&str, u16>); 58] = [
        ("/", Ok("/")),
        ("/a", Ok("/a")),
        ("/a/", Ok("/a/")),
        ("/a/b.html?c=/../d", Ok("/a/b.html")),
        ("/?", Ok("/")),
        ("/a%20b", Ok("/a b")),
        ("/%61", Ok("/a")),
        ("/a+b", Ok("/a+b")),
        ("//a", Ok("/a")),
        ("///a////b//", Ok("/a/b/")),
        ("/./a", Ok("/a")),
        ("/a/.", Ok("/a/")),
        ("/a/./", Ok("/a/")),
        ("/a/..", Ok("/")),
        ("/a/../b", Ok("/b")),
        ("/a/b/../..", Ok("/")),
        ("/a/b/../../c", Ok("/c")),
        ("/a/%2e%2e/b", Ok("/b")),
        ("/a/.%2e/b", Ok("/b")),
        ("/a/%2E./b", Ok("/b")),
        ("/..", BAD),
        ("/../", BAD),
        ("/../etc/passwd", BAD),
        ("//../etc/passwd", BAD),
        ("/./../etc/passwd", BAD),
        ("/a/../../etc/passwd", BAD),
        ("/a/../../a", BAD),
        ("/%2e%2e/etc/passwd", BAD),
        ("/%2e%2e%2fetc/passwd", MISSING),
        ("/..%2fetc%2fpasswd", MISSING),
        ("/..%5cetc", MISSING),
        ("/..\\etc", MISSING),
        ("/a\\..\\b", MISSING),
        ("/%5c%5cevil.example/", MISSING),
        ("/%252e%252e/etc/passwd", Ok("/%2e%2e/etc/passwd")),
        ("/%252f", Ok("/%2f")),
        ("/...", MISSING),
        ("/a/.../b", MISSING),
        ("/..a", MISSING),
        ("/a..", Ok("/a..")),
        ("/a..b/c", Ok("/a..b/c")),
        ("/..;/a", MISSING),
        ("/.git/config", MISSING),
        ("/a/.htaccess", MISSING),
        ("/%2ehtaccess", MISSING),
        (
            "/.well-known/acme-challenge/x",
            Ok("/.well-known/acme-challenge/x"),
        ),
        ("/.well-known/.secret", MISSING),
        ("/a/.well-known", MISSING),
        ("/a%00.html", BAD),
        ("/%", BAD),
        ("/%2", BAD),
        ("/%zz", BAD),
        ("/%+1", BAD),
        ("/a#b", BAD),
        ("/a b", BAD),
        ("", BAD),
        ("a", BAD),
        ("*", BAD),
    ];

    #[test]
    fn targets_name_what_they_name() {
        for (target, expected) in TARGETS {
            let resolved = resolve(target.as_bytes(), false);
            let resolved = resolved.map(|target| String::from_utf8(target.path).unwrap());
            let resolved = resolved.map_err(|status| status.as_u16());
            assert_eq!(
                resolved.as_deref(),
                expected.as_ref().map(|path| *path),
                "{target}"
            );
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_bytes() {
        // Overlong forms of dots and slashes are names like any other.
        let path = resolve(b"/%c0%ae%c0%ae/%c0%af\xff", false).unwrap().path;
        assert_eq!(path, b"/\xc0\xae\xc0\xae/\xc0\xaf\xff");
        assert_eq!(
            resolve(b"/%E2%80%AE%01", false).unwrap().path,
            b"/\xe2\x80\xae\x01"
        );
        assert_eq!(resolve(b"/a\0b", false), Err(StatusCode::BAD_REQUEST));
        assert_eq!(resolve(b"/a\r\nb", false), Err(StatusCode::BAD_REQUEST));
    }

    #[test]
    fn hidden_names_are_served_if_requested() {
        assert_eq!(
            resolve(b"/.git/config", true).unwrap().path,
            b"/.git/config"
        );
        assert_eq!(resolve(b"/.git/../..", true), Err(StatusCode::BAD_REQUEST));
    }

    #[test]
    fn a_path_is_bounded_after_decoding() {
        let path = |name: &str, times| format!("/{}", name.repeat(times));
        assert!(resolve(path("a", PATH_BYTES_MAX - 1).as_bytes(), false).is_ok());
        assert!(resolve(path("%61", PATH_BYTES_MAX - 1).as_bytes(), false).is_ok());
        for long in [path("a", PATH_BYTES_MAX), path("/", PATH_BYTES_MAX * 3)] {
            assert_eq!(
                resolve(long.as_bytes(), false),
                Err(StatusCode::URI_TOO_LONG)
            );
        }
    }

    #[test]
    fn plain_targets_mean_themselves() {
        assert_eq!(plain(b"/a/b.html"), Some(&b"/a/b.html"[..]));
        assert_eq!(plain(b"/a?b%00"), Some(&b"/a"[..]));
        for target in ["/a%20b", "/a\\b", "/a#b", "/a b", "/\u{e4}"] {
            assert_eq!(plain(target.as_bytes()), None, "{target}");
        }
    }

    #[test]
    fn a_location_stays_on_this_host() {
        let location = |target: &str| with_slash(&resolve(target.as_bytes(), false).unwrap());
        assert_eq!(
            location("//evil.example/%2e%2e/a b".replace(' ', "%20").as_str()),
            "/a%20b/"
        );
        assert_eq!(location("//evil.example"), "/evil.example/");
        assert_eq!(location("/a?b=c&d=%20\"<>"), "/a/?b=c&d=%20%22%3C%3E");
        assert_eq!(location("/a%0d%0ab:%20c"), "/a%0D%0Ab:%20c/");
        let split = with_slash(&Resolved {
            path: b"/a".to_vec(),
            query: Some(b"\r\nx: y\xff"),
        });
        assert_eq!(split, "/a/?%0D%0Ax:%20y%FF");
    }
}
