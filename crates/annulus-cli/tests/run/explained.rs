//! Tests of `annulus run --explain`, which does not start the program.

use std::fs;

use annulus_testing::skip;

use crate::command::{MARK, compiled, folder, library, output, run};
use crate::remarks::{KILLS, REFUSES, filtered};

const PROGRAM: &str = "int main(void) { return 7; }\n";

/// Returns the report on one line after its head, and the exit code. The program must not run.
#[track_caller]
fn explained(args: &[&str], variables: &[(&str, &str)]) -> (String, i32) {
    let dir = folder();
    let mark = dir.path().join("mark");
    let mut command = run(&[&["--explain"], args].concat());
    for name in ["ANNULUS_DISABLE", "ANNULUS_PASS_PORTS", "ANNULUS_LOG"] {
        command.env_remove(name);
    }
    command.env(MARK, &mark).envs(variables.iter().copied());
    let output = output(command);
    assert_eq!(output.err, "", "{}", output.out);
    assert!(!mark.exists(), "the program was started: {}", output.out);
    // Long lines are wrapped.
    let mut report = output.out.split_whitespace().collect::<Vec<_>>().join(" ");
    report.insert(output.out.lines().next().unwrap().len(), '\n');
    (report, output.code.unwrap())
}

#[test]
fn the_report_about_a_served_program_lists_the_relevant_facts() {
    let dir = folder();
    let program = dir.path().join("redis-server");
    compiled(&program, PROGRAM, &[]);
    let program = program.to_str().unwrap();
    let (report, code) = explained(&["--", program], &[]);
    if code == 3 {
        return skip::skip(report);
    }
    assert_eq!(code, 0, "{report}");
    let head = format!("{program} will be served");
    assert!(report.starts_with(&head), "{report}");
    let library = library().to_str().unwrap();
    for part in [
        "program /",
        "loaded by /",
        &format!("library {library}, build "),
        "deferred task work",
        &format!("LD_PRELOAD={library}"),
        "descriptors",
        "LimitNOFILE=",
        "several threads",
        "system calls without libc",
    ] {
        assert!(report.contains(part), "{part}: {report}");
    }
}

#[test]
fn a_script_can_trust_the_exit_code() {
    let dir = folder();
    let waits = dir.path().join("waits");
    let text = "#include <sys/epoll.h>\nint main(void) { return epoll_wait(-1, 0, 0, 0); }\n";
    compiled(&waits, text, &[]);
    let plain = dir.path().join("plain");
    compiled(&plain, PROGRAM, &["-Wl,--no-as-needed", "-lm"]);
    let waits = waits.to_str().unwrap();
    for (program, expected, reason) in [
        (
            "/bin/ls",
            3,
            "will not be served: neither it nor its libraries",
        ),
        (plain.to_str().unwrap(), 3, "will not be served: neither it"),
        (waits, 4, "may be served in part: the tests have no program"),
        ("sh", 4, "may be served in part: the tests have no program"),
    ] {
        let (report, code) = explained(&["--", program], &[]);
        if report.contains("io_uring is") && code == 3 && expected == 4 {
            return skip::skip(report);
        }
        assert_eq!(code, expected, "{report}");
        assert!(report.contains(reason), "{report}");
    }
}

#[test]
fn the_report_names_the_tests_of_the_program() {
    let dir = folder();
    let program = dir.path().join("redis-server");
    compiled(&program, PROGRAM, &[]);
    let (report, _) = explained(&["--", program.to_str().unwrap()], &[]);
    assert!(report.contains("served exchanges: Redis "), "{report}");
    let (report, _) = explained(&["--", "sh"], &[]);
    assert!(report.contains("no program of this name"), "{report}");
}

#[test]
fn the_obstacle_is_in_the_first_line_of_the_report() {
    let dir = folder();
    let program = dir.path().join("program");
    compiled(&program, PROGRAM, &["-static"]);
    let program = program.to_str().unwrap();
    let sh = ["--", "sh"];
    for (args, variables, reason) in [
        (&["--", program][..], &[][..], "is linked statically"),
        (&sh, &[("ANNULUS_DISABLE", "1")], "turns the library off"),
        (
            &sh,
            &[("ANNULUS_PASS_PORTS", "http")],
            "is not a list of ports",
        ),
    ] {
        let (report, code) = explained(args, variables);
        assert_eq!(code, 3, "{report}");
        let first = report.lines().next().unwrap();
        assert!(first.contains(" will not be served: "), "{report}");
        assert!(first.contains(reason), "{reason}: {report}");
    }
    for (action, reason) in [(REFUSES, "filter (EPERM)"), (KILLS, "kills the process")] {
        let (report, code) = filtered(action, || explained(&sh, &[]));
        assert_eq!(code, 3, "{report}");
        let first = report.lines().next().unwrap();
        assert!(first.contains(reason), "{report}");
    }
}

#[test]
fn options_are_explained_as_variables_and_no_log_is_created() {
    let dir = folder();
    let log = dir.path().join("log");
    let named = log.to_str().unwrap();
    let args = ["--log", named, "--pass-port", "80,6000-6010", "--", "sh"];
    let (report, _) = explained(&args, &[]);
    assert!(report.contains(&format!("ANNULUS_LOG={named}")), "{report}");
    assert!(
        report.contains("ANNULUS_PASS_PORTS=80,6000-6010: listeners on these ports"),
        "{report}"
    );
    assert!(fs::metadata(&log).is_err(), "the log was created");
}

#[test]
fn a_missing_command_cannot_be_explained() {
    let output = output(run(&["--explain", "--", "no-such-command"]));
    assert_eq!(
        (output.code, output.out.as_str()),
        (Some(127), ""),
        "{}",
        output.err
    );
}
