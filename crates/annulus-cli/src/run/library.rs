//! Locates the preload library.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::elf::{self, Kind};
use crate::fault::Fault;

/// The name of the binary that cargo builds and installs beside this program.
const INSTALLED: &str = "libannulus_preload";
/// The name in a directory of libraries.
const NAME: &str = "libannulus_preload.so";
/// Directories relative to that of this program.
const RELATIVE: [&str; 3] = [".", "../lib/annulus", "../lib"];
/// Absolute directories.
const ABSOLUTE: [&str; 2] = ["/usr/local/lib/annulus", "/usr/lib/annulus"];

/// Returns the path of the library `named`, or the first candidate that exists.
pub(crate) fn find(named: Option<&Path>) -> Result<PathBuf, Fault> {
    if let Some(named) = named {
        // The program may change its directory and start others there.
        let path = fs::canonicalize(named).map_err(|error| unreadable(named, &error))?;
        return check(path);
    }
    let own = env::current_exe().and_then(fs::canonicalize).ok();
    let candidates = candidates(own.as_deref().and_then(Path::parent));
    let first = candidates
        .iter()
        .find_map(|candidate| fs::canonicalize(candidate).ok());
    first.map_or_else(|| Err(Fault::failed(not_found(&candidates))), check)
}

fn candidates(own_folder: Option<&Path>) -> Vec<PathBuf> {
    let installed = own_folder.map(|folder| folder.join(INSTALLED));
    let relative = own_folder
        .into_iter()
        .flat_map(|folder| RELATIVE.map(|candidate| folder.join(candidate)));
    let folders = relative.chain(ABSOLUTE.map(PathBuf::from));
    let libraries = folders.map(|folder| folder.join(NAME));
    installed.into_iter().chain(libraries).collect()
}

fn not_found(candidates: &[PathBuf]) -> String {
    let mut message = String::from("the preload library was not found at any of these paths:\n");
    for candidate in candidates {
        message += &format!("  {}\n", candidate.display());
    }
    message
        + "`cargo install --locked annulus-cli` installs it beside this program (x86-64 and aarch64 Linux with glibc \
           only); if you copied the program, or it is the static one, copy libannulus_preload too, or use --library FILE"
}

fn unreadable(path: &Path, error: &io::Error) -> Fault {
    let path = path.display();
    usage!("cannot read --library {path}: {error}; name a {NAME}")
}

fn check(path: PathBuf) -> Result<PathBuf, Fault> {
    let shown = path.display();
    let kind = elf::inspect(&path).map_err(|error| unreadable(&path, &error))?;
    let Kind::Elf(facts) = kind else {
        return Err(usage!("{shown} is not a shared library; name a {NAME}"));
    };
    if facts.machine != elf::OWN {
        return Err(usage!(
            "{shown} is for {}, but the programs of this machine are for {}; build it on this machine",
            facts.machine,
            elf::OWN
        ));
    }
    if !facts.is_shared || facts.interpreter.is_some() {
        return Err(usage!(
            "{shown} is a program, not a shared library; name a {NAME}"
        ));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_about_a_missing_library_lists_all_paths() {
        let message = not_found(&candidates(Some(Path::new("/opt/annulus/bin"))));
        for candidate in [
            "/opt/annulus/bin/libannulus_preload",
            "/opt/annulus/bin/./libannulus_preload.so",
            "/opt/annulus/bin/../lib/annulus/libannulus_preload.so",
            "/opt/annulus/bin/../lib/libannulus_preload.so",
            "/usr/local/lib/annulus/libannulus_preload.so",
            "/usr/lib/annulus/libannulus_preload.so",
        ] {
            assert!(message.contains(candidate), "{message}");
        }
        assert!(message.contains("--library") && message.contains("cargo install"));
    }

    #[test]
    fn a_file_that_is_not_a_library_of_this_machine_is_refused() {
        let refused = |path: &str| {
            let fault = find(Some(Path::new(path))).unwrap_err();
            assert!(matches!(fault, Fault::Usage(_)), "{path}: {fault}");
            fault.to_string()
        };
        assert!(refused("/nowhere/at/all.so").contains("cannot read"));
        assert!(refused("/etc/passwd").contains("not a shared library"));
        assert!(refused("/etc").contains("cannot read"));
        let own = env::current_exe().unwrap();
        assert!(refused(own.to_str().unwrap()).contains("is a program"));
    }
}
