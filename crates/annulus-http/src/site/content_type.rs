//! The content type of a file, derived from its name.

use http::HeaderValue;

/// The type of a file without a known extension.
const UNKNOWN: HeaderValue = HeaderValue::from_static("application/octet-stream");

/// Types that IANA has registered, or that servers commonly use, and that the table of `mime_guess` lacks or has with
/// an obsolete name. Extensions are in lower case.
const CORRECTIONS: &[(&str, &[&str])] = &[
    ("text/javascript", &["mjs", "cjs"]),
    ("application/json", &["map"]),
    ("application/toml", &["toml"]),
    ("application/yaml", &["yaml", "yml"]),
    ("text/vcard", &["vcf"]),
    ("text/troff", &["t", "tr", "roff"]),
    ("text/wgsl", &["wgsl"]),
    ("text/plain", &["java"]),
    ("font/otf", &["otf"]),
    ("font/woff", &["woff"]),
    ("image/vnd.adobe.photoshop", &["psd"]),
    ("image/vnd.dwg", &["dwg"]),
    ("image/vnd.dxf", &["dxf"]),
    ("audio/mp4", &["m4a"]),
    ("audio/midi", &["mid"]),
    ("video/mp2t", &["ts", "m2ts", "mts"]),
    ("model/obj", &["obj"]),
    ("model/stl", &["stl"]),
    ("model/vrml", &["wrl"]),
    ("model/vnd.usdz+zip", &["usdz"]),
    ("application/gzip", &["tgz"]),
    ("application/zstd", &["zst"]),
    ("application/sql", &["sql"]),
    ("application/smil+xml", &["smi"]),
    ("application/vnd.apple.mpegurl", &["m3u8"]),
    ("application/vnd.debian.binary-package", &["deb"]),
    ("application/vnd.rar", &["rar"]),
    ("application/vnd.sqlite3", &["sqlite"]),
    ("application/x-redhat-package-manager", &["rpm"]),
    ("application/wsdl+xml", &["wsdl"]),
    ("application/xml-dtd", &["dtd"]),
    ("application/xslt+xml", &["xsl", "xslt"]),
];

/// Returns the content type for the file at `path`. Text is assumed to be UTF-8.
pub(crate) fn of(path: &[u8]) -> HeaderValue {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    let extension = name
        .iter()
        .rposition(|&byte| byte == b'.')
        .map(|dot| &name[dot + 1..]);
    let extension = extension.and_then(|extension| str::from_utf8(extension).ok());
    match extension.and_then(|extension| {
        corrected(extension).or_else(|| mime_guess::from_ext(extension).first_raw())
    }) {
        None => UNKNOWN,
        Some(text) if text.starts_with("text/") => {
            HeaderValue::try_from(format!("{text}; charset=utf-8")).unwrap_or(UNKNOWN)
        }
        Some(other) => HeaderValue::from_static(other),
    }
}

fn corrected(extension: &str) -> Option<&'static str> {
    let is_one = |known: &&str| known.eq_ignore_ascii_case(extension);
    let mut corrections = CORRECTIONS.iter();
    let found = corrections.find(|(_, extensions)| extensions.iter().any(is_one));
    found.map(|&(kind, _)| kind)
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
            ("/a.tgz", "application/gzip"),
            ("/a.rpm", "application/x-redhat-package-manager"),
            ("/a.ts", "video/mp2t"),
            ("/A.M3U8", "application/vnd.apple.mpegurl"),
            ("/a.m4a", "audio/mp4"),
            ("/a.woff", "font/woff"),
            ("/a.otf", "font/otf"),
            ("/a.ttf", "font/ttf"),
            ("/a.js.map", "application/json"),
            ("/a.cjs", "text/javascript; charset=utf-8"),
            ("/a.ics", "text/calendar; charset=utf-8"),
            ("/a.zst", "application/zstd"),
            ("/a.rs", "text/x-rust; charset=utf-8"),
            (
                "/a.docx",
                "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
            ),
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

    #[test]
    fn every_correction_is_needed_and_each_extension_has_one() {
        let mut seen = std::collections::HashSet::new();
        for (kind, extensions) in CORRECTIONS {
            for extension in *extensions {
                let guess = mime_guess::from_ext(extension).first_raw();
                assert_ne!(guess, Some(*kind), "{extension}");
                assert!(seen.insert(*extension), "{extension}");
                assert_eq!(
                    of(format!("/a.{extension}").as_bytes())
                        .to_str()
                        .unwrap()
                        .split(';')
                        .next(),
                    Some(*kind)
                );
            }
        }
    }
}
