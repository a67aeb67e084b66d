//! The program inherits the environment of the caller, and its end is reported as without `annulus run`.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use annulus_testing::skip::skip;

use crate::command::{MARK, folder, library, output, quiet, run, run_by_shell};

#[test]
fn the_exit_status_is_that_of_the_command() {
    for code in [0, 1, 2, 77, 126, 127, 255] {
        let output = output(run(&["--", "sh", "-c", &format!("exit {code}")]));
        assert_eq!((output.code, output.err.as_str()), (Some(code), ""));
    }
}

#[test]
fn a_signal_that_ends_the_command_is_reported() {
    // SIGHUP is left out: the environment of the tests may ignore it, which children inherit.
    for (signal, number) in [("KILL", 9), ("TERM", 15), ("USR1", 10)] {
        let script = format!("kill -{signal} $$; sleep 60");
        let status = run(&["--", "sh", "-c", &script]).status().unwrap();
        assert_eq!(status.signal(), Some(number), "{signal}");
    }
}

#[test]
fn the_command_keeps_the_process_id() {
    // The separator `--` is optional.
    let child = run(&["sh", "-c", "echo $$"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id();
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        format!("{pid}\n")
    );
}

#[test]
fn bytes_go_in_and_out_unchanged() {
    let bytes: Vec<u8> = (0..=255).cycle().take(200_000).collect();
    let mut child = run(&["--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let sent = bytes.clone();
    let writer = std::thread::spawn(move || stdin.write_all(&sent).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success() && output.stdout == bytes);
}

/// Returns the variables of a program under `annulus run` with these arguments.
fn variables(args: &[&str], with: &[(&str, &str)]) -> BTreeMap<String, String> {
    let mut command = run(&[args, &["--", "env", "-0"]].concat());
    command.env_clear();
    command.env("PATH", "/usr/bin:/bin");
    command.envs(with.iter().copied());
    let out = quiet(command);
    let pairs = out
        .split_terminator('\0')
        .map(|pair| pair.split_once('=').unwrap());
    pairs
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

#[test]
fn the_environment_contains_the_library_and_the_options_and_is_otherwise_unchanged() {
    let library = library().to_str().unwrap();
    let expected = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        let pairs = pairs.iter().chain(&[("PATH", "/usr/bin:/bin")]);
        pairs
            .map(|&(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    };
    let odd = ("ODD", "a=b c\n\t=");
    let plain = expected(&[("LD_PRELOAD", library), odd, ("EMPTY", "")]);
    assert_eq!(variables(&[], &[odd, ("EMPTY", "")]), plain);

    let libc = Command::new("cc")
        .arg("-print-file-name=libm.so.6")
        .output()
        .unwrap();
    let libm = String::from_utf8(libc.stdout).unwrap();
    let libm = libm.trim_end();
    let both = format!("{library}:{libm}");
    let nested = expected(&[("LD_PRELOAD", &both), ("ANNULUS_STATS", "1")]);
    assert_eq!(variables(&["--stats"], &[("LD_PRELOAD", libm)]), nested);
    assert_eq!(variables(&["--stats"], &[("LD_PRELOAD", &both)]), nested);

    let dir = folder();
    let log = dir.path().join("log");
    let log = log.to_str().unwrap();
    let args = [
        "--stats",
        "--log",
        log,
        "--pass-port",
        "80,6000-6010",
        "--pass-port=443",
    ];
    let all = expected(&[
        ("LD_PRELOAD", library),
        ("ANNULUS_STATS", "1"),
        ("ANNULUS_LOG", log),
        ("ANNULUS_PASS_PORTS", "80,6000-6010,443"),
        ("ANNULUS_DISABLE", "1"),
    ]);
    let before = [("ANNULUS_DISABLE", "1"), ("ANNULUS_PASS_PORTS", "1")];
    assert_eq!(variables(&args, &before), all);
    assert_eq!(fs::read(log).unwrap(), b"", "the log exists and is empty");
}

#[test]
fn a_log_is_passed_by_its_absolute_path_and_keeps_its_content() {
    let dir = folder();
    fs::write(dir.path().join("log"), "before\n").unwrap();
    let mut command = run(&["--log", "log", "--", "sh", "-c", "echo $ANNULUS_LOG"]);
    command.current_dir(dir.path());
    let log = dir.path().join("log");
    assert_eq!(quiet(command).trim_end(), log.to_str().unwrap());
    assert_eq!(fs::read(log).unwrap(), b"before\n");
}

#[test]
fn the_library_is_loaded_into_the_command_and_its_children() {
    let dir = folder();
    let mark = dir.path().join("mark");
    let mut command = run(&["--", "sh", "-c", "/bin/true; exit 0"]);
    command.env(MARK, &mark);
    quiet(command);
    assert_eq!(fs::read_to_string(&mark).unwrap(), "loaded\nloaded\n");
    let mut command = run(&["--", "sh", "-c", "exit 0"]);
    command.env_remove(MARK);
    quiet(command);
}

/// The bit of SIGPIPE in the masks of `/proc/PID/status`.
const PIPE_BIT: u64 = 1 << 12;

#[test]
fn the_command_ignores_exactly_the_signals_that_the_caller_ignores() {
    let ignored = |script: &str| {
        let out = quiet(run_by_shell(script, &["--", "cat", "/proc/self/status"]));
        let line = out.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        u64::from_str_radix(line.unwrap().trim(), 16).unwrap()
    };
    // Rust ignores SIGPIPE in this test.
    let plain = ignored(r#"trap - PIPE; exec env --default-signal=PIPE "$@""#);
    assert_eq!(plain & PIPE_BIT, 0, "{plain:x}");
    let piped = ignored(r#"trap '' PIPE HUP; exec "$@""#);
    assert_eq!(piped & (PIPE_BIT | 1), PIPE_BIT | 1, "{piped:x}");
}

#[test]
fn a_closed_standard_output_stays_closed() {
    let check = ["--", "sh", "-c", "[ -e /proc/$$/fd/1 ]"];
    let code = |script: &str| output(run_by_shell(script, &check)).code;
    assert_eq!(code(r#"exec "$@""#), Some(0));
    assert_eq!(code(r#"exec "$@" >&-"#), Some(1));
    assert_eq!(code(r#"exec "$@" <&- >&-"#), Some(1));
}

#[test]
fn the_command_keeps_the_terminal() {
    let program = env!("CARGO_BIN_EXE_annulus");
    let library = library().display();
    let inner = "test -t 0 && test -t 1 && test -t 2 && stty size";
    let shell =
        format!("stty rows 31 cols 97; '{program}' run --library {library} -- sh -c '{inner}'");
    let script = Command::new("script")
        .args(["-qec", &shell, "/dev/null"])
        .env("SHELL", "/bin/sh")
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null())
        .output();
    match script {
        Err(error) => skip(format_args!("no terminal: `script` of util-linux: {error}")),
        Ok(output) => {
            let out = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && out.contains("31 97"), "{out}");
        }
    }
}

#[test]
fn a_file_without_an_interpreter_is_run_by_the_shell() {
    let dir = folder();
    let path = dir.path().join("plain");
    fs::write(&path, "echo \"$# $1\"; exit 5\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&path, mode).unwrap();
    let output = output(run(&["--", path.to_str().unwrap(), "one two", "three"]));
    assert_eq!((output.out.as_str(), output.code), ("2 one two\n", Some(5)));
    assert_eq!(output.err, "");
}
