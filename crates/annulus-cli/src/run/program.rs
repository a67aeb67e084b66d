//! Finds the file of a command, by the rules of `execvp`.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use super::inspect;

/// The default search path, as in glibc.
const PATH: &str = "/bin:/usr/bin";

/// A program that cannot be started.
#[derive(Debug)]
pub(super) enum FindError {
    /// The program does not exist.
    Missing(String),
    /// The program exists, but cannot be executed.
    Unusable(String),
}

impl FindError {
    /// Returns the exit code that shells and `env` use.
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            FindError::Missing(_) => 127,
            FindError::Unusable(_) => 126,
        }
    }

    /// Returns the error for a program that was found and could not be started.
    pub(super) fn of(name: &OsStr, program: &Path, error: io::Error) -> FindError {
        let name = name.display();
        match error.kind() {
            io::ErrorKind::NotFound => {
                FindError::Missing(match inspect::missing_interpreter(program) {
                    Some(missing) => {
                        let missing = missing.display();
                        format!(
                            "cannot start {name}: its interpreter or loader {missing} does not exist; install it"
                        )
                    }
                    None => format!("cannot start {name}: {error}"),
                })
            }
            _ => FindError::Unusable(format!("cannot start {name}: {error}")),
        }
    }
}

impl fmt::Display for FindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (FindError::Missing(message) | FindError::Unusable(message)) = self;
        f.write_str(message)
    }
}

/// Returns the path of the command `name`.
pub(super) fn find(name: &OsStr) -> Result<PathBuf, FindError> {
    let path = env::var_os("PATH").unwrap_or_else(|| OsString::from(PATH));
    find_in(name, &path)
}

fn find_in(name: &OsStr, path: &OsStr) -> Result<PathBuf, FindError> {
    let shown = name.display();
    if name.is_empty() {
        return Err(FindError::Missing(
            "the command has no name; write one after `--`".to_owned(),
        ));
    }
    if name.as_bytes().contains(&b'/') {
        return match check_usable(Path::new(name)) {
            Ok(()) => Ok(name.into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(FindError::Missing(
                format!("there is no file {shown}; check its name and directory"),
            )),
            Err(error) => Err(FindError::Unusable(format!("cannot run {shown}: {error}"))),
        };
    }
    let mut refused = None;
    for folder in env::split_paths(path) {
        // An empty part of PATH is the current directory.
        let file = Path::new(".").join(folder).join(name);
        match check_usable(&file) {
            Ok(()) => return Ok(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => refused = refused.or(Some((file, error))),
        }
    }
    Err(match refused {
        Some((file, error)) => {
            FindError::Unusable(format!("cannot run {}: {error}", file.display()))
        }
        None => FindError::Missing(format!(
            "there is no command {shown} in PATH; install it, or write its path: ./{shown}"
        )),
    })
}

/// Fails if the file does not exist, or may not be executed. A parent that is not a directory counts as missing.
fn check_usable(file: &Path) -> io::Result<()> {
    let metadata = fs::metadata(file).map_err(|error| match error.kind() {
        io::ErrorKind::NotADirectory => io::ErrorKind::NotFound.into(),
        _ => error,
    })?;
    if metadata.is_dir() {
        return Err(io::Error::other("it is a directory; name a program in it"));
    }
    access(file, Access::EXEC_OK).map_err(|_| {
        io::Error::other(
            "this user may not execute it; change its mode with chmod, or name another program",
        )
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
    fn the_first_executable_file_in_path_is_the_command() {
        let dir = tempfile::tempdir().unwrap();
        let [first, second] = ["first", "second"].map(|name| dir.path().join(name));
        file(&first, "plain", 0o644);
        file(&first, "only-plain", 0o644);
        file(&second, "plain", 0o755);
        fs::create_dir(first.join("folder")).unwrap();
        let path = env::join_paths([&first.join("plain"), &first, &second]).unwrap();
        let matched = find_in(OsStr::new("plain"), &path);
        assert_eq!(matched.unwrap(), second.join("plain"));
        let error = |name: &str| find_in(OsStr::new(name), &path).unwrap_err();
        for (name, code, text) in [
            ("nothing", 127, "there is no command nothing in PATH"),
            ("", 127, "no name"),
            ("only-plain", 126, "may not execute it"),
            ("folder", 126, "it is a directory"),
            ("./nothing", 127, "there is no file ./nothing"),
            ("/etc/passwd/x", 127, "there is no file"),
            ("/etc/passwd", 126, "may not execute it"),
            ("/etc", 126, "it is a directory"),
        ] {
            let error = error(name);
            assert_eq!(error.exit_code(), code, "{name}: {error}");
            assert!(error.to_string().contains(text), "{name}: {error}");
        }
        let name = first.join("only-plain");
        assert_eq!(
            find_in(name.as_os_str(), &path).unwrap_err().exit_code(),
            126
        );
    }
}
