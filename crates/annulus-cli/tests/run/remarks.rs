//! What is reported of a program before it runs, and that it runs.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;
use std::thread;

use annulus_testing::skip::{root_or_skip, skip};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

use crate::command::{compiled, folder, output, quiet, run};

/// Says what it was given of the library, and who it is.
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

/// One line about the program that has these words in it, and the program ran.
#[track_caller]
fn remarked(program: &Path, words: &[&str], out: &str) {
    let output = output(run(&["--", program.to_str().unwrap()]));
    assert_eq!(output.err.lines().count(), 1, "{}", output.err);
    let begins = format!("annulus: {} ", program.display());
    assert!(output.err.starts_with(&begins), "{}", output.err);
    for word in words {
        assert!(output.err.contains(word), "{word}: {}", output.err);
    }
    assert_eq!((output.out.as_str(), output.code), (out, Some(0)));
}

#[test]
fn of_an_ordinary_program_and_of_its_script_nothing_is_reported() {
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
fn of_a_static_program_and_of_its_script_it_is_reported_that_nothing_can_be_put_into_it() {
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

/// The loader of ordinary programs here.
fn loader() -> Option<&'static str> {
    let known = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"];
    known.into_iter().find(|path| Path::new(path).exists())
}

#[test]
fn a_program_of_another_c_library_runs_without_the_library() {
    let dir = folder();
    let program = dir.path().join("program");
    let musl = dir.path().join("ld-musl-x86_64.so.1");
    let Some(loader) = loader() else {
        return skip("no loader of glibc where it is known to lie");
    };
    // By its name; with glibc's own loader behind it, the program runs.
    fs::copy(loader, &musl).unwrap();
    let flag = format!("-Wl,--dynamic-linker={}", musl.display());
    compiled(&program, PROGRAM, &[&flag]);
    let user = rustix::process::geteuid().as_raw();
    let words = ["linked to musl", "ld-musl-x86_64.so.1", "glibc"];
    remarked(&program, &words, &format!("unset {user}\n"));
    fs::remove_file(&musl).unwrap();
    let output = output(run(&["--", program.to_str().unwrap()]));
    assert_eq!(output.code, Some(127), "{}", output.err);
    assert!(
        output
            .err
            .contains("ld-musl-x86_64.so.1, which is not there")
    );
}

#[test]
fn a_program_that_gets_more_rights_is_reported_to_ignore_the_library() {
    if !root_or_skip("giving a program to another user") {
        return;
    }
    let dir = folder();
    let program = dir.path().join("program");
    compiled(&program, PROGRAM, &[]);
    chown(&program, Some(65534), Some(65534)).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    // The loader takes such variables away.
    remarked(
        &program,
        &["(setuid)", "ignores LD_PRELOAD"],
        "unset 65534\n",
    );
    fs::set_permissions(&program, fs::Permissions::from_mode(0o2755)).unwrap();
    remarked(&program, &["(setgid)"], "unset 0\n");
}

#[test]
fn of_a_go_program_it_is_reported_that_its_calls_are_its_own() {
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
    let words = ["AddressSanitizer", "libasan.so"];
    remarked(&program, &words, &format!("set {user}\n"));
}

#[test]
fn a_program_for_another_processor_is_not_given_the_library() {
    let dir = folder();
    let program = dir.path().join("program");
    compiled(&program, PROGRAM, &[]);
    let mut bytes = fs::read(&program).unwrap();
    // e_machine, a processor that nobody has here.
    const MACHINE: usize = 18;
    const SPARC: u8 = 2;
    bytes[MACHINE] = SPARC;
    fs::write(&program, bytes).unwrap();
    let output = output(run(&["--", program.to_str().unwrap()]));
    assert!(
        output.err.contains("is for machine 2 of ELF's list"),
        "{}",
        output.err
    );
    // The shell is asked to run it, as by execvp, and can't.
    assert!(
        ![Some(0), Some(101)].contains(&output.code),
        "{:?}",
        output.code
    );
}

/// Runs `body` in a thread in which io_uring is refused, and in the processes that it starts.
pub(crate) fn without_io_uring<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    const CALLS: [i64; 3] = [425, 426, 427];
    const EPERM: u32 = 1;
    let rules = CALLS.into_iter().map(|call| (call, Vec::new())).collect();
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let answer = SeccompAction::Errno(EPERM);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, answer, arch).unwrap();
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
fn where_io_uring_is_refused_that_is_reported_with_a_hint_and_the_program_runs_as_it_is() {
    let dir = folder();
    let program = dir.path().join("program");
    compiled(&program, PROGRAM, &[]);
    let user = rustix::process::geteuid().as_raw();
    let words = ["runs as it is", "io_uring refused by", "seccomp"];
    without_io_uring(|| remarked(&program, &words, &format!("unset {user}\n")));
}

#[test]
fn where_processors_are_few_sqpoll_is_warned_of() {
    let command = run(&["--sqpoll", "--", "sh", "-c", "echo $ANNULUS_SQPOLL"]);
    let mut bound = Command::new("taskset");
    bound.args(["-c", "0"]);
    bound.arg(command.get_program()).args(command.get_args());
    bound.env_remove("LD_PRELOAD");
    let output = output(bound);
    assert_eq!((output.out.as_str(), output.code), ("1\n", Some(0)));
    assert_eq!(output.err.lines().count(), 1, "{}", output.err);
    assert!(output.err.contains("--sqpoll: this "), "{}", output.err);
    assert!(output.err.contains("leave it out"), "{}", output.err);
}

#[test]
fn a_name_that_is_no_text_is_a_name() {
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
