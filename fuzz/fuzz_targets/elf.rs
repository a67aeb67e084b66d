//! Any bytes as a program: `annulus run` reads facts from it or calls it unknown, and never panics.

#![no_main]
// The parser belongs to a binary crate. Its file is compiled in here, and some of its items are unused.
#![allow(dead_code)]

use std::cell::RefCell;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use libfuzzer_sys::fuzz_target;
use rustix::fs::{MemfdFlags, memfd_create};

#[path = "../../crates/annulus-cli/src/run/elf.rs"]
mod elf;

thread_local! {
    static FILE: RefCell<File> =
        RefCell::new(File::from(memfd_create("program", MemfdFlags::CLOEXEC).unwrap()));
}

fuzz_target!(|bytes: &[u8]| {
    FILE.with_borrow_mut(|file| {
        file.set_len(0).unwrap();
        file.write_all_at(bytes, 0).unwrap();
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let kind = elf::inspect(Path::new(&path)).unwrap();
        if bytes.starts_with(b"#!") {
            assert!(!matches!(kind, elf::Kind::Elf(_)));
        }
        if let Some(id) = elf::build_id(Path::new(&path)) {
            assert!(id.len() <= 2 * bytes.len() && id.bytes().all(|byte| byte.is_ascii_hexdigit()));
        }
    });
});
