//! Where the preload library is.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::elf::{self, Kind};
use crate::fault::Fault;

const NAME: &str = "libannulus_preload.so";
/// Seen from the folder of this program.
const BESIDE: [&str; 3] = [".", "../lib/annulus", "../lib"];
const ELSEWHERE: [&str; 2] = ["/usr/local/lib/annulus", "/usr/lib/annulus"];

/// The library of that name, or the first of the candidates that exists.
pub(super) fn find(named: Option<&Path>) -> Result<PathBuf, Fault> {
    if let Some(named) = named {
        // The program may go to another folder, and start others there.
        let path = fs::canonicalize(named).map_err(|error| unreadable(named, &error))?;
        return check(path);
    }
    let own = env::current_exe().and_then(fs::canonicalize).ok();
    let candidates = candidates(own.as_deref().and_then(Path::parent));
    let first = candidates
        .iter()
        .find_map(|candidate| fs::canonicalize(candidate).ok());
    first.map_or_else(|| Err(Fault::failed(nowhere(&candidates))), check)
}

fn candidates(own_folder: Option<&Path>) -> Vec<PathBuf> {
    let beside = own_folder
        .into_iter()
        .flat_map(|folder| BESIDE.map(|candidate| folder.join(candidate)));
    let folders = beside.chain(ELSEWHERE.map(PathBuf::from));
    folders.map(|folder| folder.join(NAME)).collect()
}

fn nowhere(candidates: &[PathBuf]) -> String {
    let mut says = format!("{NAME} is not there; looked for\n");
    for candidate in candidates {
        says += &format!("  {}\n", candidate.display());
    }
    says + "build it by `cargo build --release -p annulus-preload` and put it at one of these paths, or name it by \
            --library FILE"
}

fn unreadable(path: &Path, error: &io::Error) -> Fault {
    let path = path.display();
    Fault::usage(format!(
        "--library {path} can't be read: {error}; name a {NAME}"
    ))
}

fn check(path: PathBuf) -> Result<PathBuf, Fault> {
    let shown = path.display();
    let looked = elf::look(&path).map_err(|error| unreadable(&path, &error))?;
    let Kind::Elf(facts) = looked else {
        return Err(Fault::usage(format!(
            "{shown} is no shared library; name a {NAME}"
        )));
    };
    if facts.machine != elf::OWN {
        return Err(Fault::usage(format!(
            "{shown} is for {}, this machine's programs are for {}; build it here",
            facts.machine,
            elf::OWN
        )));
    }
    if !facts.is_shared || facts.interpreter.is_some() {
        return Err(Fault::usage(format!(
            "{shown} is a program, no shared library; name a {NAME}"
        )));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_there_is_no_library_it_is_reported_where_it_was_looked_for() {
        let says = nowhere(&candidates(Some(Path::new("/opt/annulus/bin"))));
        for candidate in [
            "/opt/annulus/bin/./libannulus_preload.so",
            "/opt/annulus/bin/../lib/annulus/libannulus_preload.so",
            "/opt/annulus/bin/../lib/libannulus_preload.so",
            "/usr/local/lib/annulus/libannulus_preload.so",
            "/usr/lib/annulus/libannulus_preload.so",
        ] {
            assert!(says.contains(candidate), "{says}");
        }
        assert!(says.contains("--library") && says.contains("cargo build"));
    }

    #[test]
    fn what_is_no_library_of_this_machine_is_refused() {
        let refused = |path: &str| {
            let fault = find(Some(Path::new(path))).unwrap_err();
            assert!(matches!(fault, Fault::Usage(_)), "{path}: {fault}");
            fault.to_string()
        };
        assert!(refused("/nowhere/at/all.so").contains("can't be read"));
        assert!(refused("/etc/passwd").contains("no shared library"));
        assert!(refused("/etc").contains("can't be read"));
        let own = env::current_exe().unwrap();
        assert!(refused(own.to_str().unwrap()).contains("is a program"));
    }
}
