//! Which file a command is, by the rules of `execvp`.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use super::inspect;

/// Where commands are looked for if nobody says, as in glibc.
const PATH: &str = "/bin:/usr/bin";

/// A program that can't be started.
#[derive(Debug)]
pub(super) enum FindError {
    /// Nothing of that name.
    Missing(String),
    /// It is there.
    Unusable(String),
}

impl FindError {
    /// As shells and `env` have it.
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            FindError::Missing(_) => 127,
            FindError::Unusable(_) => 126,
        }
    }

    /// Why it did not start that had been found.
    pub(super) fn of(name: &OsStr, program: &Path, error: io::Error) -> FindError {
        let name = name.display();
        match error.kind() {
            io::ErrorKind::NotFound => FindError::Missing(match inspect::interpreter(program) {
                Some(missing) => {
                    let missing = missing.display();
                    format!(
                        "{name} can't be started: it is to be run by {missing}, which is not there; install that"
                    )
                }
                None => format!("{name} can't be started: {error}"),
            }),
            _ => FindError::Unusable(format!("{name} can't be started: {error}")),
        }
    }
}

impl fmt::Display for FindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (FindError::Missing(says) | FindError::Unusable(says)) = self;
        f.write_str(says)
    }
}

/// The file of the command `name`.
pub(super) fn find(name: &OsStr) -> Result<PathBuf, FindError> {
    let path = env::var_os("PATH").unwrap_or_else(|| OsString::from(PATH));
    find_in(name, &path)
}

fn find_in(name: &OsStr, path: &OsStr) -> Result<PathBuf, FindError> {
    let shown = name.display();
    if name.is_empty() {
        return Err(FindError::Missing(
            "the command has no name; write one behind `--`".to_owned(),
        ));
    }
    if name.as_bytes().contains(&b'/') {
        return match usable(Path::new(name)) {
            Ok(()) => Ok(name.into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(FindError::Missing(
                format!("there is no file {shown}; look at its name and its folder"),
            )),
            Err(error) => Err(FindError::Unusable(format!(
                "{shown} can't be run: {error}"
            ))),
        };
    }
    let mut refused = None;
    for folder in env::split_paths(path) {
        // An empty part of PATH is the folder that we are in.
        let file = Path::new(".").join(folder).join(name);
        match usable(&file) {
            Ok(()) => return Ok(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => refused = refused.or(Some((file, error))),
        }
    }
    Err(match refused {
        Some((file, error)) => {
            FindError::Unusable(format!("{} can't be run: {error}", file.display()))
        }
        None => FindError::Missing(format!(
            "there is no command {shown} in PATH; install it, or name its file with a slash: ./{shown}"
        )),
    })
}

/// Whether it is a file that may be executed; what lies on the way to it may be no folder.
fn usable(file: &Path) -> io::Result<()> {
    let metadata = fs::metadata(file).map_err(|error| match error.kind() {
        io::ErrorKind::NotADirectory => io::ErrorKind::NotFound.into(),
        _ => error,
    })?;
    if metadata.is_dir() {
        return Err(io::Error::other("it is a folder; name a program in it"));
    }
    access(file, Access::EXEC_OK).map_err(|_| {
        io::Error::other("this user may not execute it; change that by chmod, or name another")
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn file(folder: &Path, name: &str, mode: u32) {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join(name), "").unwrap();
        fs::set_permissions(folder.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn the_first_in_path_that_can_be_executed_is_the_command() {
        let dir = tempfile::tempdir().unwrap();
        let [first, second] = ["first", "second"].map(|name| dir.path().join(name));
        file(&first, "plain", 0o644);
        file(&first, "only-plain", 0o644);
        file(&second, "plain", 0o755);
        fs::create_dir(first.join("folder")).unwrap();
        let path = env::join_paths([&first.join("plain"), &first, &second]).unwrap();
        let matched = find_in(OsStr::new("plain"), &path);
        assert_eq!(matched.unwrap(), second.join("plain"));
        let lost = |name: &str| find_in(OsStr::new(name), &path).unwrap_err();
        for (name, code, says) in [
            ("nothing", 127, "there is no command nothing in PATH"),
            ("", 127, "no name"),
            ("only-plain", 126, "may not execute it"),
            ("folder", 126, "it is a folder"),
            ("./nothing", 127, "there is no file ./nothing"),
            ("/etc/passwd/x", 127, "there is no file"),
            ("/etc/passwd", 126, "may not execute it"),
            ("/etc", 126, "it is a folder"),
        ] {
            let lost = lost(name);
            assert_eq!(lost.exit_code(), code, "{name}: {lost}");
            assert!(lost.to_string().contains(says), "{name}: {lost}");
        }
        let name = first.join("only-plain");
        assert_eq!(
            find_in(name.as_os_str(), &path).unwrap_err().exit_code(),
            126
        );
    }
}
