//! The content type of a file, derived from its name.

use http::HeaderValue;

/// The type of a file without a known extension.
const UNKNOWN: HeaderValue = HeaderValue::from_static("application/octet-stream");

/// Returns the content type for the file at `path`. Text is assumed to be UTF-8.
pub(crate) fn of(path: &[u8]) -> HeaderValue {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    let extension = name
        .iter()
        .rposition(|&byte| byte == b'.')
        .map(|dot| &name[dot + 1..]);
    let extension = extension.and_then(|extension| str::from_utf8(extension).ok());
    let Some(guess) = extension.and_then(|extension| mime_guess::from_ext(extension).first_raw())
    else {
        return UNKNOWN;
    };
    let guess = match guess {
        // RFC 9239.
        "application/javascript" => "text/javascript",
        guess if guess.starts_with("text/") => guess,
        guess => return HeaderValue::from_static(guess),
    };
    HeaderValue::try_from(format!("{guess}; charset=utf-8")).unwrap_or(UNKNOWN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_extensions_have_the_types_that_browsers_need() {
        for (path, expected) in [
            ("/index.html", "text/html; charset=utf-8"),
            ("/a.b/INDEX.HTM", "text/html; charset=utf-8"),
            ("/a.css", "text/css; charset=utf-8"),
            ("/a.js", "text/javascript; charset=utf-8"),
            ("/a.mjs", "text/javascript; charset=utf-8"),
            ("/a.txt", "text/plain; charset=utf-8"),
            ("/a.json", "application/json"),
            ("/a.wasm", "application/wasm"),
            ("/a.svg", "image/svg+xml"),
            ("/a.webp", "image/webp"),
            ("/a.avif", "image/avif"),
            ("/a.woff2", "font/woff2"),
            ("/a.mp4", "video/mp4"),
            ("/a.webm", "video/webm"),
            ("/a.pdf", "application/pdf"),
            ("/a.tar.gz", "application/gzip"),
            ("/a", "application/octet-stream"),
            ("/a.html/b", "application/octet-stream"),
            ("/a.unknown", "application/octet-stream"),
            ("/a.", "application/octet-stream"),
            ("/", "application/octet-stream"),
        ] {
            assert_eq!(of(path.as_bytes()), expected, "{path}");
        }
        assert_eq!(of(b"/a.\xff"), "application/octet-stream");
    }
}
