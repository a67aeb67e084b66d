//! Converts a request target to a path: escapes are decoded once and dot segments removed, before any file system
//! access. A pure function, fuzzed as `http_path`.
//!
//! | in the target | response |
//! |---|---|
//! | an invalid escape (`%`, `%2`, `%zz`), an encoded NUL, a space or control byte, `#` | 400 |
//! | `..` beyond the root | 400 |
//! | an encoded slash (`%2f`), a backslash, plain or encoded | 404 |
//! | a segment that begins with a dot, unless hidden names are served; `/.well-known` is allowed | 404 |
//! | more than [`PATH_BYTES_MAX`] | 414 |
//!
//! A slash or backslash within a name results in 404. No served file has one in its name, and a proxy in front of the
//! server may take it for a separator. A target that the proxy allows must mean the same here.
//!
//! Escapes are decoded once: `%252e` is the name `%2e`. Bytes that are not UTF-8 are kept, as in the file system.

use http::StatusCode;
use percent_encoding::{AsciiSet, CONTROLS, percent_encode};

/// PATH_MAX of the kernel without the NUL.
pub const PATH_BYTES_MAX: usize = 4095;

/// A decoded target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved<'a> {
    /// The decoded path. It begins with a slash, and has no segment that is empty, `.` or `..`. A trailing slash means
    /// a directory.
    pub path: Vec<u8>,
    /// The query after `?`, unchanged.
    pub query: Option<&'a [u8]>,
}

/// The bytes that are escaped in the path of a field or link: all except RFC 3986's `pchar` and the slash.
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

/// The bytes that are escaped in a query. Its existing escapes are kept.
const ESCAPED_IN_QUERY: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'<')
    .add(b'>')
    .add(b'\\')
    .add(b'^')
    .add(b'`');

/// Decodes a target in origin form.
///
/// # Errors
///
/// Returns the status of the response, as in the table of the [module](self).
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
    // The start of each segment in `path`, including its slash.
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

/// Returns whether a segment begins with a dot, except a leading `.well-known` (RFC 8615).
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

/// The bytes that need no decoding.
const NEEDS_NO_DECODING: [bool; 256] = {
    let mut plain = [false; 256];
    let mut byte = b'!';
    while byte <= b'~' {
        plain[byte as usize] = !matches!(byte, b'%' | b'?' | b'#' | b'\\');
        byte += 1;
    }
    plain
};

/// Returns the path of a target that needs no decoding, for a lookup as it is. It may differ from the result of
/// [`resolve`], but if it is a valid result, it means the same.
pub fn plain(target: &[u8]) -> Option<&[u8]> {
    match target
        .iter()
        .position(|&byte| !NEEDS_NO_DECODING[usize::from(byte)])
    {
        None => Some(target),
        Some(at) if target[at] == b'?' => Some(&target[..at]),
        Some(_) => None,
    }
}

/// Returns the path of a directory with a trailing slash, and the query, for `Location`. It cannot lead to another
/// host, because it begins with a single slash that a segment follows.
pub(crate) fn with_slash(resolved: &Resolved<'_>) -> String {
    let mut location = escape(&resolved.path);
    location.push('/');
    if let Some(query) = resolved.query {
        location.push('?');
        location.extend(percent_encode(query, ESCAPED_IN_QUERY));
    }
    location
}

/// Escapes a path or name for a link.
pub(crate) fn escape(path: &[u8]) -> String {
    percent_encode(path, ESCAPED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BAD: Result<&str, u16> = Err(400);
    const MISSING: Result<&str, u16> = Err(404);

    /// Targets with the expected path or status.
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
    fn targets_resolve_to_the_expected_path_or_status() {
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
    fn bytes_that_are_not_utf8_are_kept() {
        // Overlong encodings of dots and slashes are ordinary names.
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
    fn hidden_names_are_served_if_enabled() {
        assert_eq!(
            resolve(b"/.git/config", true).unwrap().path,
            b"/.git/config"
        );
        assert_eq!(resolve(b"/.git/../..", true), Err(StatusCode::BAD_REQUEST));
    }

    #[test]
    fn the_length_of_a_path_is_limited_after_decoding() {
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
    fn a_plain_target_is_its_own_path() {
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
