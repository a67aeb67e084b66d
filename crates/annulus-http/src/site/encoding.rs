//! The selection of a file's encoding by `Accept-Encoding` (RFC 9110, section 12.5.3).

use http::HeaderValue;

/// The number of encodings, including identity.
pub(crate) const ENCODINGS: usize = 4;

/// The encodings in order of preference: usually the smallest first.
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

    /// Returns the suffix of the file name.
    pub(crate) fn suffix(self) -> &'static str {
        ["br", "zst", "gz", ""][self as usize]
    }

    /// Returns the name in header fields, or `None` for identity.
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

/// The weight that a client gives to each encoding, in thousandths; 0 for not acceptable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Accepted([u16; ENCODINGS]);

impl Accepted {
    /// The client sent no `Accept-Encoding`. It gets the file itself, although any encoding would be allowed.
    pub(crate) const UNSPECIFIED: Accepted = Accepted([0, 0, 0, 1000]);

    /// Parses the value of the field, with its lines joined by commas. Malformed elements are ignored.
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
        // Identity is acceptable unless excluded. If it is not named, it is the last choice.
        let identity = &mut accepted[Encoding::Identity as usize];
        if qualities[Encoding::Identity as usize].is_none() && others != Some(0) {
            *identity = 1;
        }
        Accepted(accepted)
    }

    /// Returns the best available encoding. The file itself always exists, and is sent rather than nothing.
    pub(crate) fn choose(self, exists: impl Fn(Encoding) -> bool) -> Encoding {
        let mut best = (0, Encoding::Identity);
        for encoding in Encoding::ALL {
            let quality = self.0[encoding as usize];
            if quality > best.0 && exists(encoding) {
                best = (quality, encoding);
            }
        }
        best.1
    }
}

/// Returns the weight of a coding: 500 for `q=0.5`, 1000 if there is none, `None` if it is malformed.
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

    fn choice(value: &str, exists: &[Encoding]) -> Encoding {
        Accepted::parse(value.as_bytes()).choose(|one| one == Identity || exists.contains(&one))
    }

    #[test]
    fn the_encoding_with_the_highest_weight_is_chosen() {
        let all = &[Brotli, Zstd, Gzip][..];
        for (value, exists, expected) in [
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
            // No acceptable encoding exists: the file rather than nothing.
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
            assert_eq!(choice(value, exists), expected, "{value}");
        }
        assert_eq!(Accepted::UNSPECIFIED.choose(|_| true), Identity);
    }
}
