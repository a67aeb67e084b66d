//! Any bytes as a request target: it is refused, or resolves to the same path below the root as in a simpler model.

#![no_main]

use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use annulus_http::site::path::{PATH_BYTES_MAX, plain, resolve};
use libfuzzer_sys::fuzz_target;
use percent_encoding::percent_decode;
use rustix::fs::{self, CWD, Mode, OFlags, ResolveFlags};

/// A small tree below a root, and files beside the root. The corpus uses its names.
fn root() -> &'static OwnedFd {
    static ROOT: OnceLock<OwnedFd> = OnceLock::new();
    ROOT.get_or_init(|| {
        let around = tempfile::tempdir().unwrap().keep();
        let root = around.join("root");
        std::fs::create_dir_all(root.join("a/b/c")).unwrap();
        std::fs::create_dir_all(root.join("root")).unwrap();
        for name in [
            "f",
            "secret",
            "root/f",
            "root/a/f",
            "root/a/b/f",
            "root/%2e%2e",
            "root/a/..f",
        ] {
            std::fs::write(around.join(name), name).unwrap();
        }
        fs::openat(CWD, &root, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap()
    })
}

/// Computes the status or the path in another way: split, decode, then resolve.
fn model(target: &[u8], hidden: bool) -> Result<Vec<u8>, u16> {
    let raw = target.split(|byte| *byte == b'?').next().unwrap();
    if !raw.starts_with(b"/") {
        return Err(400);
    }
    if raw.len() > PATH_BYTES_MAX * 3 {
        return Err(414);
    }
    // The first error decides the status.
    for (at, byte) in raw.iter().enumerate() {
        if *byte == b'%' {
            let digits = raw.get(at + 1..at + 3).ok_or(400u16)?;
            if !digits.iter().all(u8::is_ascii_hexdigit) || digits == b"00" {
                return Err(400);
            }
            if [&b"2f"[..], b"2F", b"5c", b"5C"].contains(&digits) {
                return Err(404);
            }
        }
        if *byte <= 0x20 || *byte == 0x7f || *byte == b'#' {
            return Err(400);
        }
        if *byte == b'\\' {
            return Err(404);
        }
    }
    let names: Vec<Vec<u8>> = raw[1..]
        .split(|byte| *byte == b'/')
        .map(|name| percent_decode(name).collect())
        .collect();
    let mut stack: Vec<&[u8]> = Vec::new();
    for name in &names {
        match &name[..] {
            b"" | b"." => {}
            b".." => {
                stack.pop().ok_or(400u16)?;
            }
            name => stack.push(name),
        }
    }
    let last = names.last().unwrap();
    let slash = stack.is_empty() || [&b""[..], b".", b".."].contains(&&last[..]);
    let slash = slash && !stack.is_empty();
    let end: &[u8] = if slash { b"/" } else { b"" };
    let path = [b"/", &stack.join(&b'/')[..], end].concat();
    if path.len() > PATH_BYTES_MAX {
        return Err(414);
    }
    let open = |(index, name): (usize, &&[u8])| {
        !name.starts_with(b".") || (index == 0 && *name == b".well-known")
    };
    if !hidden && !stack.iter().enumerate().all(open) {
        return Err(404);
    }
    Ok(path)
}

fuzz_target!(|bytes: &[u8]| {
    let (hidden, target) = match bytes {
        [first, rest @ ..] => (first % 2 == 1, rest),
        [] => return,
    };
    let resolved = resolve(target, hidden);
    let path = resolved
        .as_ref()
        .map(|resolved| resolved.path.clone())
        .map_err(|status| status.as_u16());
    assert_eq!(path, model(target, hidden));
    let Ok(path) = path else {
        return;
    };
    assert!(!path.contains(&0) && !path.windows(2).any(|pair| pair == b"//"));
    // Resolving a plain path again does not change it.
    if plain(&path) == Some(&path) {
        assert_eq!(resolve(&path, hidden).unwrap().path, path);
    }
    // The kernel opens the same file with and without `RESOLVE_BENEATH`.
    let below = path[1..].strip_suffix(b"/").unwrap_or(&path[1..]);
    let below = if below.is_empty() { b"." } else { below };
    let (flags, mode) = (OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let inode = |fd: OwnedFd| fs::fstat(fd).map(|stat| stat.st_ino);
    let kept = fs::openat2(root(), below, flags, mode, beneath).and_then(inode);
    let free = fs::openat(root(), below, flags, mode).and_then(inode);
    assert_eq!(kept, free);
});
