//! Remarks about a program before it runs. The program runs nevertheless.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;
use std::thread;

use annulus_testing::skip::{root_or_skip, skip};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

use crate::command::{CommandOutput, compiled, folder, output, quiet, run};

/// Prints whether the library is set, and the user.
const PROGRAM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(void) {
    const char *library = getenv("LD_PRELOAD");
    printf("%s %d\n", library ? "set" : "unset", (int)geteuid());
    return 0;
}
"#;

/// Asserts that one line about the program with these parts is printed, and that the program runs.
#[track_caller]
fn remarked(program: &Path, parts: &[&str], out: &str) {
    let output = output(run(&["--", program.to_str().unwrap()]));
    assert_eq!(output.err.lines().count(), 1, "{}", output.err);
    let begins = format!("annulus: {} ", program.display());
    assert!(output.err.starts_with(&begins), "{}", output.err);
    for part in parts {
        assert!(output.err.contains(part), "{part}: {}", output.err);
    }
    assert_eq!((output.out.as_str(), output.code), (out, Some(0)));
}

#[test]
fn an_ordinary_program_and_a_script_cause_no_remark() {
    let dir = folder();
    let program = dir.path().join("program");
    compiled(&program, PROGRAM, &[]);
    let user = rustix::process::geteuid().as_raw();
    let expected = format!("set {user}\n");
    assert_eq!(quiet(run(&["--", program.to_str().unwrap()])), expected);
    let script = dir.path().join("script");
    fs::write(&script, format!("#!{}\n", program.display())).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(quiet(run(&["--", script.to_str().unwrap()])), expected);
}

#[test]
fn a_static_program_and_its_script_cause_a_remark() {
    let dir = folder();
    let program = dir.path().join("program");
    compiled(&program, PROGRAM, &["-static"]);
    let user = rustix::process::geteuid().as_raw();
    let expected = format!("set {user}\n");
    remarked(&program, &["linked statically"], &expected);
    let script = dir.path().join("script");
    fs::write(&script, format!("#! {} -x\n", program.display())).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    remarked(&script, &["linked statically"], &expected);
    let relocatable = dir.path().join("relocatable");
    compiled(&relocatable, PROGRAM, &["-static-pie"]);
    remarked(&relocatable, &["linked statically"], &expected);
}

/// Returns the loader of ordinary programs on this machine.
fn loader() -> Option<&'static str> {
    let known = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"];
    known.into_iter().find(|path| Path::new(path).exists())
}

#[test]
fn a_program_for_musl_runs_without_the_library() {
    let dir = folder();
    let program = dir.path().join("program");
    let musl = dir.path().join("ld-musl-x86_64.so.1");
    let Some(loader) = loader() else {
        return skip("the loader of glibc is not at a known path");
    };
    // The name decides. It is a copy of glibc's loader, so the program runs.
    fs::copy(loader, &musl).unwrap();
    let flag = format!("-Wl,--dynamic-linker={}", musl.display());
    compiled(&program, PROGRAM, &[&flag]);
    let user = rustix::process::geteuid().as_raw();
    let parts = ["linked to musl", "ld-musl-x86_64.so.1", "glibc"];
    remarked(&program, &parts, &format!("unset {user}\n"));
    // The static tool, alone in a container.
    let tool = dir.path().join("annulus");
    fs::copy(env!("CARGO_BIN_EXE_annulus"), &tool).unwrap();
    let alone = |options: &[&str]| {
        let mut command = Command::new(&tool);
        command.arg("run").args(options).arg("--").arg(&program);
        command.env_remove("LD_PRELOAD");
        output(command)
    };
    let started = alone(&[]);
    assert!(started.err.contains("is linked to musl"), "{}", started.err);
    assert_eq!(started.out, format!("unset {user}\n"));
    let CommandOutput { out, code, .. } = alone(&["--explain"]);
    for part in ["will not be served: is linked to musl", "none is installed"] {
        assert!(out.contains(part), "{part}: {out}");
    }
    assert_eq!(code, Some(3));
    fs::remove_file(&musl).unwrap();
    let output = output(run(&["--", program.to_str().unwrap()]));
    assert_eq!(output.code, Some(127), "{}", output.err);
    assert!(output.err.contains("ld-musl-x86_64.so.1 does not exist"));
}

#[test]
fn a_program_that_gets_more_rights_ignores_the_library() {
    if !root_or_skip("giving a program to another user") {
        return;
    }
    let dir = folder();
    let program = dir.path().join("program");
    compiled(&program, PROGRAM, &[]);
    chown(&program, Some(65534), Some(65534)).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    // The loader removes such variables.
    remarked(
        &program,
        &["(setuid)", "ignores LD_PRELOAD"],
        "unset 65534\n",
    );
    fs::set_permissions(&program, fs::Permissions::from_mode(0o2755)).unwrap();
    remarked(&program, &["(setgid)"], "unset 0\n");
}

#[test]
fn a_go_program_causes_a_remark() {
    let dir = folder();
    let program = dir.path().join("program");
    let section = r#"__attribute__((section(".go.buildinfo"), used)) char built[] = "by go";"#;
    let source = format!("{section}\n{PROGRAM}");
    compiled(&program, &source, &[]);
    let user = rustix::process::geteuid().as_raw();
    let expected = format!("set {user}\n");
    remarked(&program, &["is a Go program"], &expected);
    compiled(&program, &source, &["-static"]);
    remarked(&program, &["is a Go program"], &expected);
}

#[test]
fn a_program_with_address_sanitizer_starts_and_reports_the_preload_order() {
    let dir = folder();
    let program = dir.path().join("program");
    let mut compiler = Command::new("cc");
    compiler.args(["-fsanitize=address", "-o"]);
    let source = dir.path().join("program.c");
    fs::write(&source, PROGRAM).unwrap();
    let built = compiler.arg(&program).arg(&source).output();
    if !built.is_ok_and(|built| built.status.success()) {
        return skip("no compiler with AddressSanitizer");
    }
    let user = rustix::process::geteuid().as_raw();
    let parts = ["AddressSanitizer", "libasan.so"];
    remarked(&program, &parts, &format!("set {user}\n"));
}

#[test]
fn a_program_for_another_processor_does_not_get_the_library() {
    let dir = folder();
    let program = dir.path().join("program");
    compiled(&program, PROGRAM, &[]);
    let mut bytes = fs::read(&program).unwrap();
    // e_machine: a processor that this machine does not have.
    const MACHINE: usize = 18;
    const SPARC: u8 = 2;
    bytes[MACHINE] = SPARC;
    fs::write(&program, bytes).unwrap();
    let output = output(run(&["--", program.to_str().unwrap()]));
    assert!(
        output.err.contains("is for ELF machine 2"),
        "{}",
        output.err
    );
    // As in execvp, the shell tries to run it, and fails.
    assert!(
        ![Some(0), Some(101)].contains(&output.code),
        "{:?}",
        output.code
    );
}

/// A filter that makes the calls of io_uring fail.
pub(crate) const REFUSES: SeccompAction = SeccompAction::Errno(1);
/// A filter that ends a process which makes one of these calls.
pub(crate) const KILLS: SeccompAction = SeccompAction::KillProcess;

/// Runs `body` on a thread with a filter on the calls of io_uring, which its child processes inherit.
pub(crate) fn filtered<T: Send>(action: SeccompAction, body: impl FnOnce() -> T + Send) -> T {
    const CALLS: [i64; 3] = [425, 426, 427];
    let rules = CALLS.into_iter().map(|call| (call, Vec::new())).collect();
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, action, arch).unwrap();
    let filter = BpfProgram::try_from(filter).unwrap();
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            seccompiler::apply_filter(&filter).unwrap();
            body()
        });
        thread.join().unwrap()
    })
}

#[test]
fn without_io_uring_the_reason_is_printed_and_the_program_runs_unchanged() {
    let dir = folder();
    let program = dir.path().join("program");
    compiled(&program, PROGRAM, &[]);
    let user = rustix::process::geteuid().as_raw();
    let parts = ["runs unchanged", "io_uring", "seccomp"];
    for action in [REFUSES, KILLS] {
        filtered(action, || {
            remarked(&program, &parts, &format!("unset {user}\n"))
        });
    }
}

#[test]
fn with_few_processors_sqpoll_causes_a_warning() {
    let command = run(&["--sqpoll", "--", "sh", "-c", "echo $ANNULUS_SQPOLL"]);
    let mut bound = Command::new("taskset");
    bound.args(["-c", "0"]);
    bound.arg(command.get_program()).args(command.get_args());
    bound.env_remove("LD_PRELOAD");
    let output = output(bound);
    assert_eq!((output.out.as_str(), output.code), ("1\n", Some(0)));
    assert_eq!(output.err.lines().count(), 1, "{}", output.err);
    assert!(
        output
            .err
            .contains("--sqpoll makes the program slower here: this "),
        "{}",
        output.err
    );
    assert!(output.err.contains("Leave it out"), "{}", output.err);
}

#[test]
fn a_name_that_is_not_utf8_is_supported() {
    let dir = folder();
    let program = dir.path().join(OsStr::from_bytes(b"a\xffb"));
    fs::copy("/bin/true", &program).unwrap();
    let mut command = run(&["--"]);
    command.arg(&program);
    quiet(command);
    let mut command = run(&["--"]);
    command.arg(program.join("below"));
    assert_eq!(output(command).code, Some(127));
}
