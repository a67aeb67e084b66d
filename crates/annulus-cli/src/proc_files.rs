//! Files of `/proc` and `/sys`. They contain names that others chose, in any bytes: names of processes, which the
//! kernel cuts after 15 bytes, of mount points and of file systems.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Returns the text of a file. Bytes that are not UTF-8 become replacement characters.
pub(crate) fn read(path: impl AsRef<Path>) -> io::Result<String> {
    let bytes = fs::read(path)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the text of a small file, without spaces around it.
pub(crate) fn text(path: &Path) -> Option<String> {
    Some(read(path).ok()?.trim().to_owned())
}

/// Returns the value of a line `key: value`, as in `/proc/PID/status`.
pub(crate) fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then(|| value.trim())
    })
}

/// Returns the number of bytes in a line `key: N kB`.
pub(crate) fn bytes(path: &str, key: &str) -> Option<u64> {
    let text = read(path).ok()?;
    let kib: u64 = value(&text, key)?.strip_suffix(" kB")?.parse().ok()?;
    Some(kib << 10)
}

/// Returns the name in brackets, as in `none [mq-deadline] bfq`.
pub(crate) fn chosen(line: &str) -> &str {
    let inner = line
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'));
    inner.map_or(line, |(name, _)| name)
}

/// A line of the mount table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    /// The device number, as `major:minor`.
    pub(crate) device: String,
    /// The directory of the file system that is mounted.
    pub(crate) root: PathBuf,
    pub(crate) point: PathBuf,
    /// The type of the file system.
    pub(crate) kind: String,
    /// The options of the file system.
    pub(crate) options: String,
}

/// Returns the mounts that this process sees. The list is empty without `/proc`.
pub(crate) fn mounts() -> Vec<Mount> {
    parse_mounts(&fs::read("/proc/self/mountinfo").unwrap_or_default())
}

/// Parses `/proc/PID/mountinfo`, whose fields proc(5) lists.
pub(crate) fn parse_mounts(table: &[u8]) -> Vec<Mount> {
    let lines = table.split(|&byte| byte == b'\n');
    lines.filter_map(parse_mount).collect()
}

fn parse_mount(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|&byte| byte == b' ').skip(2);
    let text = |field: &[u8]| String::from_utf8_lossy(&unescaped(field)).into_owned();
    let path = |field: &[u8]| PathBuf::from(OsString::from_vec(unescaped(field)));
    let (device, root, point) = (fields.next()?, fields.next()?, fields.next()?);
    // Optional fields end with a hyphen.
    let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
    let (kind, _source, options) = (fields.next()?, fields.next()?, fields.next()?);
    Some(Mount {
        device: text(device),
        root: path(root),
        point: path(point),
        kind: text(kind),
        options: text(options),
    })
}

/// Replaces `\ooo`. The kernel writes a space, a tab, a newline, a backslash and some other bytes as octal numbers.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, after @ ..] = rest {
        let octal = match rest {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] => {
                Some((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'))
            }
            _ => None,
        };
        bytes.push(octal.unwrap_or(*first));
        rest = if octal.is_some() { &rest[4..] } else { after };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn names_of_mounts_may_have_any_bytes() {
        let table = b"22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
            23 22 0:21 /\xff\\040a /a\\011b\\012c\\134d\\040e rw shared:1 master:2 - fuse.\xfe host: rw,user_id=0\n\
            24 22 0:30 / /\\134040 rw - tmpfs none rw\n\
            broken\n";
        let mounts = parse_mounts(table);
        assert_eq!(mounts.len(), 3);
        assert_eq!(mounts[0].point, Path::new("/"));
        assert_eq!(mounts[1].root, Path::new(OsStr::from_bytes(b"/\xff a")));
        assert_eq!(mounts[1].point, Path::new("/a\tb\nc\\d e"));
        assert_eq!(mounts[1].kind, "fuse.\u{fffd}");
        assert_eq!(mounts[1].options, "rw,user_id=0");
        assert_eq!(mounts[1].device, "0:21");
        assert_eq!(mounts[2].point, Path::new("/\\040"));
    }
}
