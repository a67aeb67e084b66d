//! # Safety
//!
//! The build ID and the path of this library, read from what the loader and the linker record about the object that
//! contains this code (Typed: the C library's own lists; Lent: for the call).
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::fmt::Write;

use crate::errno;

/// The type of the note with the linker's build ID; its owner is "GNU".
const BUILD_ID: u32 = 3;
/// The header of a note: three numbers, and the owner's four bytes.
const HEAD_BYTES: usize = 16;

/// The object that contains this code.
#[derive(Default)]
struct Object {
    path: String,
    id: String,
}

/// Returns the version, the build ID and the path, for a line of the log.
pub(crate) fn name() -> String {
    let mut object = Object::default();
    // SAFETY: Lent: `dl_iterate_phdr` calls the function before it returns, with the object passed here.
    unsafe { libc::dl_iterate_phdr(Some(inspect_object), (&raw mut object).cast()) };
    let version = env!("CARGO_PKG_VERSION");
    let Object { path, id } = object;
    let id = if id.is_empty() { "unknown" } else { &id };
    format!("libannulus_preload {version}, build {id}, {path}")
}

/// Returns the kernel's release.
pub(crate) fn kernel() -> String {
    let release = || std::fs::read_to_string("/proc/sys/kernel/osrelease");
    errno::without_cancel(release)
        .unwrap_or_default()
        .trim_end()
        .to_owned()
}

/// Returns 1 if the object contains this code, which ends the iteration.
unsafe extern "C" fn inspect_object(
    info: *mut libc::dl_phdr_info,
    _: usize,
    object: *mut c_void,
) -> c_int {
    // SAFETY: Lent: the loader's, and the object of `name`, for this call.
    let (info, object) = unsafe { (&*info, &mut *object.cast::<Object>()) };
    let base = info.dlpi_addr as usize;
    // SAFETY: Typed: the loader's own list of the object's segments.
    let segments =
        unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let own = (inspect_object as *const ()).addr();
    let is_here = segments.iter().any(|segment| {
        let from = base.wrapping_add(segment.p_vaddr as usize);
        segment.p_type == libc::PT_LOAD && (from..from + segment.p_memsz as usize).contains(&own)
    });
    if !is_here {
        return 0;
    }
    if !info.dlpi_name.is_null() {
        // SAFETY: Typed: a string of the loader's, which ends.
        let path = unsafe { CStr::from_ptr(info.dlpi_name) };
        object.path = path.to_string_lossy().into_owned();
    }
    for segment in segments.iter().filter(|one| one.p_type == libc::PT_NOTE) {
        let at = info.dlpi_addr as usize + segment.p_vaddr as usize;
        let at = std::ptr::with_exposed_provenance::<u8>(at);
        // SAFETY: Typed: notes are a part of the object that is loaded.
        let notes = unsafe { std::slice::from_raw_parts(at, segment.p_memsz as usize) };
        if let Some(id) = id_of(notes) {
            object.id = id;
        }
    }
    1
}

/// Returns the build ID in a list of notes, in hexadecimal digits.
fn id_of(mut notes: &[u8]) -> Option<String> {
    let number = |notes: &[u8], nth: usize| -> Option<u32> {
        let bytes = notes.get(4 * nth..4 * nth + 4)?;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?))
    };
    loop {
        let (owner, bytes) = (number(notes, 0)? as usize, number(notes, 1)? as usize);
        let end = HEAD_BYTES - 4 + owner.next_multiple_of(4);
        if number(notes, 2)? == BUILD_ID && notes.get(12..HEAD_BYTES)? == b"GNU\0" {
            let mut id = String::new();
            for byte in notes.get(end..end + bytes)? {
                let _ = write!(id, "{byte:02x}");
            }
            return Some(id);
        }
        notes = notes.get(end + bytes.next_multiple_of(4)..)?;
    }
}
