//! Which of a file's encodings a client is sent, by its `Accept-Encoding` (RFC 9110, 12.5.3).

use http::HeaderValue;

/// How many encodings there are, identity included.
pub(crate) const ENCODINGS: usize = 4;

/// Encodings in the order that we would rather send: the smallest first, by rule of thumb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    Brotli,
    Zstd,
    Gzip,
    Identity,
}

impl Encoding {
    pub(crate) const ALL: [Encoding; ENCODINGS] = [
        Encoding::Brotli,
        Encoding::Zstd,
        Encoding::Gzip,
        Encoding::Identity,
    ];

    /// What is appended to a file's name.
    pub(crate) fn suffix(self) -> &'static str {
        ["br", "zst", "gz", ""][self as usize]
    }

    /// As fields name it; none for the file itself.
    pub(crate) fn field(self) -> Option<HeaderValue> {
        let name = match self {
            Encoding::Brotli => "br",
            Encoding::Zstd => "zstd",
            Encoding::Gzip => "gzip",
            Encoding::Identity => return None,
        };
        Some(HeaderValue::from_static(name))
    }
}

/// What a client would have of each encoding, in thousandths; 0 is "not that".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Accepted([u16; ENCODINGS]);

impl Accepted {
    /// The client has not said anything: it gets the file itself, though it could not complain about others.
    pub(crate) const UNSAID: Accepted = Accepted([0, 0, 0, 1000]);

    /// Reads the field's value, lines joined by commas. What is malformed is as if it were not there.
    pub(crate) fn parse(value: &[u8]) -> Accepted {
        let mut qualities: [Option<u16>; ENCODINGS] = [None; ENCODINGS];
        let mut others = None;
        for element in value.split(|&byte| byte == b',') {
            let mut parameters = element.split(|&byte| byte == b';').map(<[u8]>::trim_ascii);
            let Some(coding) = parameters.next().filter(|coding| !coding.is_empty()) else {
                continue;
            };
            let Some(quality) = quality(parameters) else {
                continue;
            };
            let is = |name: &str| coding.eq_ignore_ascii_case(name.as_bytes());
            let slot = if is("br") {
                &mut qualities[Encoding::Brotli as usize]
            } else if is("zstd") {
                &mut qualities[Encoding::Zstd as usize]
            } else if is("gzip") || is("x-gzip") {
                &mut qualities[Encoding::Gzip as usize]
            } else if is("identity") {
                &mut qualities[Encoding::Identity as usize]
            } else if is("*") {
                &mut others
            } else {
                continue;
            };
            *slot = Some(quality);
        }
        let others_or = |otherwise| move |one: Option<u16>| one.or(others).unwrap_or(otherwise);
        let mut accepted = qualities.map(others_or(0));
        // Acceptable unless ruled out, but the last choice if not named.
        let identity = &mut accepted[Encoding::Identity as usize];
        if qualities[Encoding::Identity as usize].is_none() && others != Some(0) {
            *identity = 1;
        }
        Accepted(accepted)
    }

    /// The best of those that there are. The file itself is there always, and is sent rather than nothing.
    pub(crate) fn choose(self, there: impl Fn(Encoding) -> bool) -> Encoding {
        let mut best = (0, Encoding::Identity);
        for encoding in Encoding::ALL {
            let quality = self.0[encoding as usize];
            if quality > best.0 && there(encoding) {
                best = (quality, encoding);
            }
        }
        best.1
    }
}

/// The weight of a coding: `q=0.5` is 500; 1000 if none is given, none if it is malformed.
fn quality<'a>(mut parameters: impl Iterator<Item = &'a [u8]>) -> Option<u16> {
    let Some(weight) = parameters.next() else {
        return Some(1000);
    };
    let number = weight
        .strip_prefix(b"q=")
        .or_else(|| weight.strip_prefix(b"Q="))?;
    let (whole, thousandths) = match number {
        [whole] => (whole, &b""[..]),
        [whole, b'.', digits @ ..] if digits.len() <= 3 => (whole, digits),
        _ => return None,
    };
    let padded = thousandths
        .iter()
        .copied()
        .chain(std::iter::repeat(b'0'))
        .take(3);
    let mut sum = match whole {
        b'0' => 0,
        b'1' => 1,
        _ => return None,
    };
    for digit in padded {
        sum = sum * 10 + u16::from(digit.is_ascii_digit().then(|| digit - b'0')?);
    }
    (sum <= 1000).then_some(sum)
}

#[cfg(test)]
mod tests {
    use super::Encoding::{Brotli, Gzip, Identity, Zstd};
    use super::*;

    fn choice(value: &str, there: &[Encoding]) -> Encoding {
        Accepted::parse(value.as_bytes()).choose(|one| one == Identity || there.contains(&one))
    }

    #[test]
    fn a_client_is_sent_what_it_would_rather_have() {
        let all = &[Brotli, Zstd, Gzip][..];
        for (value, there, expected) in [
            ("gzip, deflate, br, zstd", all, Brotli),
            ("gzip, deflate, br, zstd", &[Gzip, Zstd], Zstd),
            ("gzip, deflate", all, Gzip),
            ("x-gzip", all, Gzip),
            ("GZIP", all, Gzip),
            ("br;q=0.5, gzip", all, Gzip),
            ("br ; q=0.5 , gzip;q=0.499", all, Brotli),
            ("gzip;q=0", all, Identity),
            ("gzip;q=0.000, *", &[Gzip], Identity),
            ("*", all, Brotli),
            ("*;q=0.1, gzip", all, Gzip),
            ("identity, gzip;q=0.5", all, Identity),
            ("identity;q=0.5, gzip;q=0.9", all, Gzip),
            ("identity, gzip", all, Gzip),
            ("identity;q=0, gzip;q=0.001", all, Gzip),
            ("gzip;q=0.001", all, Gzip),
            // Nothing acceptable is there: the file rather than nothing.
            ("identity;q=0", all, Identity),
            ("*;q=0", all, Identity),
            ("br;q=1.001, gzip", all, Gzip),
            ("br;q=2, gzip;q=x, zstd;q=0.1234", all, Identity),
            ("br;level=5", all, Identity),
            ("", all, Identity),
            (",,", all, Identity),
            ("deflate, compress", all, Identity),
            ("gzip", &[], Identity),
        ] {
            assert_eq!(choice(value, there), expected, "{value}");
        }
        assert_eq!(Accepted::UNSAID.choose(|_| true), Identity);
    }
}
