//! Reads the facts about a program from its file. The file is untrusted: any content gives a result, and the kernel
//! decides about files that this module does not understand.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use object::elf::{self, FileHeader32, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader, Sym};
use object::{Endianness, FileKind, ReadCache};

/// The part of a script's first line that the kernel reads.
const LINE_BYTES: u64 = 256;
/// The sections of a Go program with information about its build.
const GO_SECTIONS: [&[u8]; 2] = [b".go.buildinfo", b".note.go.buildid"];

/// The name of the AddressSanitizer runtime, without its version. A statically linked runtime has no name.
const ASAN: &[u8] = b"libasan.so";

/// The kind of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Elf(Facts),
    /// A script, with the interpreter in its first line.
    Script(PathBuf),
    /// Any other file, or a damaged one.
    Other,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) machine: Machine,
    /// `true` if the file is position-independent, as libraries and most programs are.
    pub(super) is_shared: bool,
    /// The dynamic loader; `None` for a static program.
    pub(super) interpreter: Option<PathBuf>,
    pub(super) is_go: bool,
    /// The name of the AddressSanitizer runtime that the file needs.
    pub(super) asan: Option<OsString>,
}

/// A processor architecture, as far as loaders distinguish it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Machine {
    number: elf::Machine,
    is_64: bool,
    is_little: bool,
}

/// The architecture of this program.
pub(super) const OWN: Machine = Machine {
    number: if cfg!(target_arch = "aarch64") {
        elf::EM_AARCH64
    } else if cfg!(target_arch = "riscv64") {
        elf::EM_RISCV
    } else {
        elf::EM_X86_64
    },
    is_64: cfg!(target_pointer_width = "64"),
    is_little: cfg!(target_endian = "little"),
};

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.number, self.is_64) {
            (elf::EM_X86_64, true) => f.write_str("x86-64"),
            (elf::EM_X86_64, false) => f.write_str("x32"),
            (elf::EM_386, _) => f.write_str("32-bit x86"),
            (elf::EM_AARCH64, _) => f.write_str("64-bit Arm"),
            (elf::EM_ARM, _) => f.write_str("32-bit Arm"),
            (elf::EM_RISCV, true) => f.write_str("64-bit RISC-V"),
            (other, _) => write!(f, "ELF machine {}", other.0),
        }
    }
}

/// Returns the kind of a file.
pub(super) fn inspect(path: &Path) -> io::Result<Kind> {
    let mut file = File::open(path)?;
    let mut line = Vec::new();
    file.by_ref().take(LINE_BYTES).read_to_end(&mut line)?;
    if let Some(line) = line.strip_prefix(b"#!") {
        return Ok(script(line));
    }
    file.rewind()?;
    let data = ReadCache::new(file);
    let kind = match FileKind::parse(&data) {
        Ok(FileKind::Elf64) => facts::<FileHeader64<Endianness>>(&data, true),
        Ok(FileKind::Elf32) => facts::<FileHeader32<Endianness>>(&data, false),
        _ => return Ok(Kind::Other),
    };
    Ok(kind.map_or(Kind::Other, Kind::Elf))
}

/// Returns the build ID that the linker has set, as in the library's log.
pub(super) fn build_id(path: &Path) -> Option<String> {
    let data = ReadCache::new(File::open(path).ok()?);
    match FileKind::parse(&data).ok()? {
        FileKind::Elf64 => build_id_in::<FileHeader64<Endianness>>(&data),
        FileKind::Elf32 => build_id_in::<FileHeader32<Endianness>>(&data),
        _ => None,
    }
}

fn build_id_in<Header: FileHeader<Endian = Endianness>>(data: &ReadCache<File>) -> Option<String> {
    let header = Header::parse(data).ok()?;
    let endian = header.endian().ok()?;
    for segment in header.program_headers(endian, data).ok()? {
        let Some(mut notes) = segment.notes(endian, data).ok()? else {
            continue;
        };
        while let Some(note) = notes.next().ok()? {
            if note.name() == elf::ELF_NOTE_GNU && note.n_type(endian) == elf::NT_GNU_BUILD_ID {
                let bytes = note.desc().iter();
                return Some(bytes.map(|byte| format!("{byte:02x}")).collect());
            }
        }
    }
    None
}

/// The functions and libraries that a file takes from others.
#[derive(Debug, Default)]
pub(super) struct Links {
    /// The names of the functions.
    pub(super) imports: Vec<Vec<u8>>,
    /// The file names of the libraries.
    pub(super) needed: Vec<OsString>,
}

/// Returns what a file takes from other files. `None`: the file does not show it.
pub(super) fn links(path: &Path) -> Option<Links> {
    let data = ReadCache::new(File::open(path).ok()?);
    let header = FileHeader64::<Endianness>::parse(&data).ok()?;
    let endian = header.endian().ok()?;
    let sections = header.sections(endian, &data).ok()?;
    let symbols = sections.symbols(endian, &data, elf::SHT_DYNSYM).ok()?;
    let undefined = symbols.iter().filter(|symbol| symbol.is_undefined(endian));
    let imports = undefined.filter_map(|symbol| symbols.symbol_name(endian, symbol).ok());
    let imports: Vec<Vec<u8>> = imports.map(<[u8]>::to_vec).collect();
    let dynamic = sections.dynamic_table(endian, &data).ok()?;
    let needed = dynamic.iter().filter(|entry| entry.tag == elf::DT_NEEDED);
    let needed = needed.filter_map(|entry| dynamic.string(entry).ok());
    let needed = needed.map(|name| OsString::from_vec(name.to_vec()));
    Some(Links {
        needed: needed.collect(),
        imports,
    })
}

/// Parses the first line of a script, after `#!`.
fn script(line: &[u8]) -> Kind {
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or(&[]);
    let mut words = line.split(|byte| b" \t\0".contains(byte));
    match words.find(|word| !word.is_empty()) {
        Some(word) => Kind::Script(OsString::from_vec(word.to_vec()).into()),
        None => Kind::Other,
    }
}

fn facts<Header: FileHeader<Endian = Endianness>>(
    data: &ReadCache<File>,
    is_64: bool,
) -> object::Result<Facts> {
    let header = Header::parse(data)?;
    let endian = header.endian()?;
    let mut interpreter = None;
    for segment in header.program_headers(endian, data)? {
        if let Some(name) = segment.interpreter(endian, data)? {
            interpreter = Some(OsString::from_vec(name.to_vec()).into());
        }
    }
    // The sections may have been stripped.
    let sections = header.sections(endian, data).ok();
    let is_go = sections.as_ref().is_some_and(|sections| {
        let exists = |name| sections.section_by_name(endian, name).is_some();
        GO_SECTIONS.into_iter().any(exists)
    });
    let asan = sections.and_then(|sections| {
        let dynamic = sections.dynamic_table(endian, data).ok()?;
        let needed = dynamic.iter().filter(|entry| entry.tag == elf::DT_NEEDED);
        let mut names = needed.filter_map(|entry| dynamic.string(entry).ok());
        let name = names.find(|name| name.starts_with(ASAN))?;
        Some(OsString::from_vec(name.to_vec()))
    });
    Ok(Facts {
        machine: Machine {
            number: header.e_machine(endian),
            is_64,
            is_little: endian == Endianness::Little,
        },
        is_shared: header.e_type(endian) == elf::ET_DYN,
        interpreter,
        is_go,
        asan,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind_of(bytes: &[u8]) -> Kind {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, bytes).unwrap();
        inspect(&path).unwrap()
    }

    #[test]
    fn this_program_has_the_architecture_of_the_machine_and_a_loader() {
        let Kind::Elf(facts) = inspect(&std::env::current_exe().unwrap()).unwrap() else {
            panic!("not a program");
        };
        assert_eq!(facts.machine, OWN);
        assert!(!facts.is_go && facts.interpreter.is_some(), "{facts:?}");
    }

    #[test]
    fn the_first_line_of_a_script_names_its_interpreter() {
        for (line, interpreter) in [
            ("#!/bin/sh\necho", "/bin/sh"),
            ("#! /usr/bin/env python3\n", "/usr/bin/env"),
            ("#!\t/bin/awk -f", "/bin/awk"),
        ] {
            assert_eq!(kind_of(line.as_bytes()), Kind::Script(interpreter.into()));
        }
        for line in ["#!", "#!\n/bin/sh", "echo", ""] {
            assert_eq!(kind_of(line.as_bytes()), Kind::Other);
        }
    }

    #[test]
    fn a_truncated_or_damaged_file_gives_a_result() {
        let mut head = Vec::new();
        let own = File::open(std::env::current_exe().unwrap()).unwrap();
        own.take(4096).read_to_end(&mut head).unwrap();
        for end in (0..512).chain([1024, 4096]) {
            kind_of(&head[..end]);
        }
        let mut random = fastrand::Rng::with_seed(6);
        for _ in 0..500 {
            let mut garbled = head.clone();
            for _ in 0..random.usize(1..20) {
                // The first bytes stay, so that the file is still an ELF file.
                garbled[random.usize(5..1024)] = random.u8(..);
            }
            kind_of(&garbled);
        }
    }
}
