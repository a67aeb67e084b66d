//! `annulus run --explain`: what is reported of a program that is not started.

use std::fs;

use annulus_testing::skip;

use crate::command::{MARK, compiled, folder, library, output, run};
use crate::remarks::without_io_uring;

const PROGRAM: &str = "int main(void) { return 7; }\n";

/// What is reported of a program, which must not run.
#[track_caller]
fn explained(words: &[&str], variables: &[(&str, &str)]) -> (String, i32) {
    let dir = folder();
    let mark = dir.path().join("mark");
    let mut command = run(&[&["--explain"], words].concat());
    for name in ["ANNULUS_DISABLE", "ANNULUS_PASS_PORTS", "ANNULUS_LOG"] {
        command.env_remove(name);
    }
    command.env(MARK, &mark).envs(variables.iter().copied());
    let output = output(command);
    assert_eq!(output.err, "", "{}", output.out);
    assert!(!mark.exists(), "it was started: {}", output.out);
    // Lines are broken where they are full.
    let mut says = output.out.split_whitespace().collect::<Vec<_>>().join(" ");
    says.insert(output.out.lines().next().unwrap().len(), '\n');
    (says, output.code.unwrap())
}

#[test]
fn a_program_that_can_be_served_is_reported_as_served_with_all_that_matters() {
    let (says, code) = explained(&["--", "sh", "-c", "exit 7"], &[]);
    if code == 3 {
        return skip::skip(says);
    }
    assert_eq!(code, 0, "{says}");
    assert!(says.starts_with("sh will be served"), "{says}");
    let library = library().to_str().unwrap();
    for words in [
        "program /",
        "loaded by /",
        &format!("library {library}, build "),
        "deferred task work",
        &format!("LD_PRELOAD={library}"),
        "descriptors",
        "LimitNOFILE=",
        "several threads",
    ] {
        assert!(says.contains(words), "{words}: {says}");
    }
}

#[test]
fn what_keeps_a_program_from_being_served_is_reported_first() {
    let dir = folder();
    let program = dir.path().join("program");
    compiled(&program, PROGRAM, &["-static"]);
    let program = program.to_str().unwrap();
    let sh = ["--", "sh"];
    for (words, variables, reason) in [
        (&["--", program][..], &[][..], "is linked statically"),
        (&sh, &[("ANNULUS_DISABLE", "1")], "everything pass through"),
        (&sh, &[("ANNULUS_PASS_PORTS", "http")], "can't be read"),
    ] {
        let (says, code) = explained(words, variables);
        assert_eq!(code, 3, "{says}");
        let first = says.lines().next().unwrap();
        assert!(first.contains(" will not be served: "), "{says}");
        assert!(first.contains(reason), "{reason}: {says}");
    }
    let (says, code) = without_io_uring(|| explained(&sh, &[]));
    assert_eq!(code, 3, "{says}");
    assert!(says.lines().next().unwrap().contains("seccomp"), "{says}");
}

#[test]
fn options_are_explained_as_the_library_would_get_them_and_leave_nothing_behind() {
    let dir = folder();
    let log = dir.path().join("log");
    let named = log.to_str().unwrap();
    let words = ["--log", named, "--pass-port", "80,6000-6010", "--", "sh"];
    let (says, _) = explained(&words, &[]);
    assert!(says.contains(&format!("ANNULUS_LOG={named}")), "{says}");
    assert!(
        says.contains("ANNULUS_PASS_PORTS=80,6000-6010: listeners there"),
        "{says}"
    );
    assert!(fs::metadata(&log).is_err(), "the log was made");
}

#[test]
fn a_command_that_is_not_there_cannot_be_explained() {
    let output = output(run(&["--explain", "--", "no-such-command"]));
    assert_eq!(
        (output.code, output.out.as_str()),
        (Some(127), ""),
        "{}",
        output.err
    );
}
