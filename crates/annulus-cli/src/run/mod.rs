//! `annulus run`: becomes another program, with the preload library in it.
//!
//! What is in the way of that is reported before, in a line each, and mostly is no reason not to go on: a program that
//! can't be helped runs as it would have run.

mod cores;
mod elf;
mod explain;
mod inspect;
mod library;
mod program;

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
use inspect::Remark;
use program::FindError;

/// What the loader puts in front of libc.
const PRELOAD: &str = "LD_PRELOAD";
/// What runs a file that is neither a program nor says who is to run it, as `execvp` has it.
const SHELL: &str = "/bin/sh";
/// The exit code of `--explain` for a program that would run and not be served.
const NOT_SERVED: u8 = 3;

pub(crate) fn run(args: &RunArgs) -> Result<ExitCode, Fault> {
    let Some(name) = args.command.first() else {
        return Err(Fault::usage("no command; write it behind `--`"));
    };
    let library = library::find(args.library.as_deref())?;
    let program = match program::find(name) {
        Ok(program) => program,
        Err(lost) => return Ok(lost_program(&lost)),
    };
    let obstacles = Obstacles::to(&program);
    let mut variables = Variables::inherited();
    if obstacles.is_set() {
        variables.prepend(PRELOAD, &library)?;
        for first in obstacles.remarks.iter().filter_map(Remark::loaded_first) {
            variables.put_first(PRELOAD, first);
        }
    }
    options(args, &mut variables)?;
    if args.explain {
        let (text, is_served) = explain::explain(&explain::Request {
            args,
            name,
            program: &program,
            library: &library,
            obstacles: &obstacles,
            variables: &variables,
        });
        // Nobody may read it; the exit code says the same.
        let _ = io::stdout().write_all(text.as_bytes());
        return Ok(ExitCode::from(if is_served { 0 } else { NOT_SERVED }));
    }
    if args.sqpoll
        && let Some(warning) = cores::warning()
    {
        say(&warning);
    }
    obstacles.say(name);
    let error = become_program(&program, &args.command, &variables.0);
    Ok(lost_program(&FindError::of(
        name,
        &program,
        io::Error::from(error),
    )))
}

/// What is in the way of the library in a program.
struct Obstacles {
    remarks: Vec<Remark>,
    /// Why there is no ring; not looked at where the library is not set anyhow.
    refused: Option<String>,
}

impl Obstacles {
    fn to(program: &Path) -> Obstacles {
        let remarks = inspect::at(program);
        let is_harmless = remarks.iter().all(Remark::is_harmless);
        let ring = || Support::detect().ring().err().map(ToString::to_string);
        Obstacles {
            remarks,
            refused: is_harmless.then(ring).flatten(),
        }
    }

    /// Whether the library is to be given to the program.
    fn is_set(&self) -> bool {
        self.remarks.iter().all(Remark::is_harmless) && self.refused.is_none()
    }

    /// A line for each.
    fn say(&self, name: &OsStr) {
        for remark in &self.remarks {
            say(&remark.sentence(name));
        }
        if let Some(error) = &self.refused {
            let name = name.display();
            say(&format!(
                "{name} runs as it is, without the library: {error}"
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

    /// In front of what others have put there.
    fn prepend(&mut self, name: &str, path: &Path) -> Result<(), Fault> {
        if path
            .as_os_str()
            .as_bytes()
            .iter()
            .any(|byte| b": ".contains(byte))
        {
            let path = path.display();
            return Err(Fault::usage(format!(
                "{PRELOAD} can't name {path}: it divides paths at colons and spaces; give a copy of it, or a link \
                 to it, elsewhere by --library"
            )));
        }
        let before = self.0.iter().find(|(known, _)| known == name);
        let mut value = path.as_os_str().to_owned();
        if let Some((_, before)) = before.filter(|(_, before)| !before.is_empty()) {
            let mut parts = before.as_bytes().split(|byte| b": ".contains(byte));
            // Another `annulus run` has been here.
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
    /// In front of all others, wherever it was before.
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

/// What the library is to know. A variable whose option is not given stays as it is.
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
            Fault::usage(format!(
                "--log {log} can't be written to: {error}; name a file in a folder that exists and is writable"
            ))
        };
        // The program may go to another folder before the library writes.
        let path = std::path::absolute(log).map_err(refused)?;
        let mut options = OpenOptions::new();
        options.append(true).create(true);
        // To explain leaves no file behind.
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

/// Returns only if it can't.
fn become_program(program: &Path, args: &[OsString], variables: &[(OsString, OsString)]) -> Errno {
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
        // Of text that holds a zero byte; what this process was given holds none.
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

fn lost_program(lost: &FindError) -> ExitCode {
    say(&lost.to_string());
    ExitCode::from(lost.exit_code())
}

/// A line on standard error; if that is closed, there is nobody left to tell.
fn say(line: &str) {
    let _ = writeln!(io::stderr(), "annulus: {line}");
}

#[cfg(test)]
mod tests;
