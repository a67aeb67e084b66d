//! Tests of refusals and their exit codes.

use std::fs;
use std::process::Command;

use crate::command::{folder, output, run};

#[track_caller]
fn refused(command: Command, code: i32, text: &str) {
    let output = output(command);
    assert_eq!(output.code, Some(code), "{}", output.err);
    assert!(output.err.contains(text), "{}", output.err);
    assert!(!output.err.contains("panicked"), "{}", output.err);
    assert_eq!(output.out, "");
}

#[test]
fn a_missing_command_exits_with_127_and_an_unusable_one_with_126() {
    refused(
        run(&["--", "no-such-command"]),
        127,
        "no-such-command in PATH",
    );
    refused(run(&["./no-such-file"]), 127, "there is no file");
    refused(run(&["--", ""]), 127, "no name");
    refused(run(&["--", "/etc/passwd"]), 126, "chmod");
    refused(run(&["--", "/etc"]), 126, "it is a directory");
    let dir = folder();
    let script = dir.path().join("script");
    fs::write(&script, "#!/no/such/shell\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&script, mode).unwrap();
    let script = script.to_str().unwrap();
    refused(run(&["--", script]), 127, "/no/such/shell does not exist");
}

#[test]
fn wrong_options_are_refused_with_exit_code_2() {
    refused(run(&[]), 2, "COMMAND");
    refused(run(&["--pass-port", "0", "--", "true"]), 2, "not a port");
    refused(run(&["--pass-port", "9-8", "--", "true"]), 2, "write 8-9");
    refused(
        run(&["--pass-port", "80,,81", "--", "true"]),
        2,
        "--pass-port",
    );
    refused(run(&["--log", "/no/folder/log", "--", "true"]), 2, "--log");
    refused(run(&["--log", "/etc", "--", "true"]), 2, "--log /etc");
    refused(run(&["--sqpol", "--", "true"]), 2, "--sqpoll");
    let named = |path: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_annulus"));
        command.args(["run", "--library", path, "--", "true"]);
        command
    };
    refused(named("/no/such.so"), 2, "cannot read");
    refused(named("/etc/passwd"), 2, "not a shared library");
    refused(named("/bin/sh"), 2, "is a program");
}

#[test]
fn a_library_path_with_a_space_is_refused() {
    let dir = folder();
    let path = dir.path().join("with space.so");
    fs::copy(crate::command::library(), &path).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_annulus"));
    command.arg("run").arg("--library").arg(&path);
    command.args(["--", "true"]);
    refused(command, 2, "colons and spaces");
}

#[test]
fn the_message_about_a_missing_library_lists_all_paths_and_one_next_to_the_program_is_used() {
    let dir = folder();
    let program = dir.path().join("annulus");
    fs::copy(env!("CARGO_BIN_EXE_annulus"), &program).unwrap();
    let alone = || {
        let mut command = Command::new(&program);
        command.args(["run", "--", "sh", "-c", "echo $LD_PRELOAD"]);
        command.env_remove("LD_PRELOAD");
        command
    };
    refused(alone(), 1, "/usr/lib/annulus/libannulus_preload.so");
    refused(alone(), 1, "--library FILE");
    // The second name is the one that cargo installs, which comes first.
    for name in ["libannulus_preload.so", "libannulus_preload"] {
        let sibling = dir.path().join(name);
        fs::copy(crate::command::library(), &sibling).unwrap();
        let located = output(alone());
        assert_eq!(located.out.trim_end(), sibling.to_str().unwrap());
        assert_eq!((located.err.as_str(), located.code), ("", Some(0)));
    }
}
