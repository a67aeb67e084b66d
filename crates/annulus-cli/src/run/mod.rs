//! `annulus run`: executes another program with the preload library.
//!
//! Obstacles are reported first, in a line each. Most of them do not prevent the start: a program that cannot be served
//! runs unchanged.

mod cores;
mod elf;
mod explain;
mod inspect;
mod library;
mod program;
mod programs;

use std::env;
use std::ffi::{CString, NulError, OsStr, OsString};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::ExitCode;

use annulus::support::Support;
use nix::errno::Errno;
use nix::unistd::execve;

use crate::args::RunArgs;
use crate::fault::Fault;
use explain::Verdict;
use inspect::Remark;
pub(crate) use library::find as find_library;
use program::FindError;

/// The variable with the libraries that the loader loads before libc.
const PRELOAD: &str = "LD_PRELOAD";
/// The interpreter of a file that is neither a program nor names an interpreter, as in `execvp`.
const SHELL: &str = "/bin/sh";
/// The exit codes of `--explain` for a program that would not be served, and for one that is served in part or not
/// tested.
const NOT_SERVED: u8 = 3;
const IN_PART: u8 = 4;

pub(crate) fn run(args: &RunArgs) -> Result<ExitCode, Fault> {
    let Some(name) = args.command.first() else {
        return Err(Fault::usage("the command is missing; write it after `--`"));
    };
    let program = match program::find(name) {
        Ok(program) => program,
        Err(error) => return Ok(report(&error)),
    };
    let obstacles = Obstacles::to(&program);
    let library = match library::find(args.library.as_deref()) {
        // The static tool in a container with musl has no library, and needs none.
        Err(_) if args.library.is_none() && obstacles.exclude_library() => None,
        found => Some(found?),
    };
    let mut variables = Variables::inherited();
    if obstacles.is_set()
        && let Some(library) = &library
    {
        variables.prepend(PRELOAD, library)?;
        for first in obstacles.remarks.iter().filter_map(Remark::loaded_first) {
            variables.put_first(PRELOAD, first);
        }
    }
    options(args, &mut variables)?;
    if args.explain {
        let (text, verdict) = explain::explain(&explain::Request {
            args,
            name,
            program: &program,
            library: library.as_deref(),
            obstacles: &obstacles,
            variables: &variables,
        });
        // If standard output is closed, the exit code still has the result.
        let _ = io::stdout().write_all(text.as_bytes());
        return Ok(ExitCode::from(match verdict {
            Verdict::Served => 0,
            Verdict::NotServed => NOT_SERVED,
            Verdict::InPart => IN_PART,
        }));
    }
    if args.sqpoll
        && let Some(warning) = cores::warning()
    {
        warn(&warning);
    }
    obstacles.warn(name);
    let error = execute(&program, &args.command, &variables.0);
    Ok(report(&FindError::of(
        name,
        &program,
        io::Error::from(error),
    )))
}

/// Returns the first obstacle to the library in a program that a service manager starts under the name `name`.
pub(crate) fn obstacle(program: &Path, name: &OsStr) -> Option<String> {
    let obstacles = Obstacles::to(program);
    let remark = obstacles.remarks.first();
    let found = remark.map(|remark| remark.sentence(name));
    found.or(obstacles.refused).or_else(|| {
        inspect::never_waits(program).then(|| {
            let name = name.display();
            format!(
                "neither {name} nor its libraries wait on an epoll set, and it starts no other code"
            )
        })
    })
}

/// Returns the value of `LD_PRELOAD` with the library before those that it has.
pub(crate) fn preloaded(before: &str, library: &Path) -> Result<OsString, Fault> {
    let mut variables = Variables(vec![(PRELOAD.into(), before.into())]);
    variables.prepend(PRELOAD, library)?;
    Ok(variables.0.swap_remove(0).1)
}

/// The obstacles to the library in a program.
struct Obstacles {
    remarks: Vec<Remark>,
    /// The reason for a missing ring. Not determined if the library is not set for another reason.
    refused: Option<String>,
}

impl Obstacles {
    fn to(program: &Path) -> Obstacles {
        let mut obstacles = Obstacles {
            remarks: inspect::remarks_about(program),
            refused: None,
        };
        if !obstacles.exclude_library() {
            let support = Support::detect();
            obstacles.refused = support.ring().err().map(ToString::to_string);
        }
        obstacles
    }

    /// Returns whether the program is not started with the library, whatever the kernel supports.
    fn exclude_library(&self) -> bool {
        !self.remarks.iter().all(Remark::is_harmless)
    }

    /// Returns whether `LD_PRELOAD` is set for the program.
    fn is_set(&self) -> bool {
        !self.exclude_library() && self.refused.is_none()
    }

    /// Prints a line for each obstacle.
    fn warn(&self, name: &OsStr) {
        for remark in &self.remarks {
            warn(&remark.sentence(name));
        }
        if let Some(error) = &self.refused {
            let name = name.display();
            warn(&format!(
                "{name} runs unchanged, without the library: {error}"
            ));
        }
    }
}

/// The environment of the program.
struct Variables(Vec<(OsString, OsString)>);

impl Variables {
    fn inherited() -> Variables {
        Variables(env::vars_os().collect())
    }

    fn set(&mut self, name: &str, value: impl Into<OsString>) {
        let value = value.into();
        match self.0.iter_mut().find(|(known, _)| known == name) {
            Some((_, known)) => *known = value,
            None => self.0.push((name.into(), value)),
        }
    }

    /// Inserts `path` before the paths of the variable, unless it is there already.
    fn prepend(&mut self, name: &str, path: &Path) -> Result<(), Fault> {
        if path
            .as_os_str()
            .as_bytes()
            .iter()
            .any(|byte| b": ".contains(byte))
        {
            let path = path.display();
            return Err(usage!(
                "{PRELOAD} cannot contain {path}, because colons and spaces separate its paths; name a copy of it or a \
                 link to it with --library"
            ));
        }
        let before = self.0.iter().find(|(known, _)| known == name);
        let mut value = path.as_os_str().to_owned();
        if let Some((_, before)) = before.filter(|(_, before)| !before.is_empty()) {
            let mut parts = before.as_bytes().split(|byte| b": ".contains(byte));
            // An outer `annulus run` has set it.
            if parts.any(|part| part == path.as_os_str().as_bytes()) {
                return Ok(());
            }
            value.push(":");
            value.push(before);
        }
        self.set(name, value);
        Ok(())
    }
}

impl Variables {
    /// Moves or inserts `path` before all others.
    fn put_first(&mut self, name: &str, path: &Path) {
        let first = path.as_os_str();
        let before = self.0.iter().find(|(known, _)| known == name);
        let before = before.map_or(OsStr::new(""), |(_, value)| value);
        let parts = before.as_bytes().split(|byte| b": ".contains(byte));
        let mut value = first.to_owned();
        for part in parts.filter(|part| !part.is_empty() && *part != first.as_bytes()) {
            value.push(":");
            value.push(OsStr::from_bytes(part));
        }
        self.set(name, value);
    }
}

/// Sets the variables of the library. A variable without an option stays unchanged.
fn options(args: &RunArgs, variables: &mut Variables) -> Result<(), Fault> {
    if args.sqpoll {
        variables.set("ANNULUS_SQPOLL", "1");
    }
    if args.stats {
        variables.set("ANNULUS_STATS", "1");
    }
    if let Some(log) = &args.log {
        let refused = |error: io::Error| {
            let log = log.display();
            usage!("cannot write to --log {log}: {error}; name a file in a writable directory")
        };
        // The program may change its directory before the library writes.
        let path = std::path::absolute(log).map_err(refused)?;
        let mut options = OpenOptions::new();
        options.append(true).create(true);
        // --explain does not create the file.
        if !args.explain {
            options.open(&path).map_err(refused)?;
        }
        variables.set("ANNULUS_LOG", path);
    }
    if !args.pass_port.is_empty() {
        let ports: Vec<String> = args.pass_port.iter().map(ToString::to_string).collect();
        variables.set("ANNULUS_PASS_PORTS", ports.join(","));
    }
    Ok(())
}

/// Replaces this process by the program. Returns only on failure.
fn execute(program: &Path, args: &[OsString], variables: &[(OsString, OsString)]) -> Errno {
    let variables = variables.iter().map(|(name, value)| {
        let mut variable = name.clone();
        variable.push("=");
        variable.push(value);
        variable
    });
    let prepared = (
        c_strings([program.into(), SHELL.into()]),
        c_strings(args.iter().cloned()),
        c_strings(variables),
    );
    let (Ok(paths), Ok(args), Ok(variables)) = prepared else {
        // A text contains a zero byte, which arguments of this process cannot.
        return Errno::EINVAL;
    };
    annulus_baselines::restore_inherited();
    let Err(error) = execve(&paths[0], &args, &variables);
    if error != Errno::ENOEXEC {
        return error;
    }
    let shell_args = args.into_iter().skip(1);
    let through_shell: Vec<CString> = (paths.iter().rev().cloned()).chain(shell_args).collect();
    let Err(error) = execve(&paths[1], &through_shell, &variables);
    error
}

fn c_strings(texts: impl IntoIterator<Item = OsString>) -> Result<Vec<CString>, NulError> {
    let strings = texts.into_iter();
    strings.map(|text| CString::new(text.into_vec())).collect()
}

/// Prints the error, and returns its exit code.
fn report(error: &FindError) -> ExitCode {
    warn(&error.to_string());
    ExitCode::from(error.exit_code())
}

/// Prints a line to standard error. If that is closed, the line is lost.
fn warn(line: &str) {
    let _ = writeln!(io::stderr(), "annulus: {line}");
}

#[cfg(test)]
mod tests;
