//! Kinds of PATH: files, directories, file systems and devices.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use annulus_testing::child_process::own_user;
use annulus_testing::skip::{root_or_skip, skip};
use serde_json::Value;

use crate::below::below;
use crate::command::{command, output, report, rules};

fn location(path: &str) -> Value {
    report(command(&[path, "--quick", "--json"]))
}

fn folder() -> tempfile::TempDir {
    // The build directory is on a disk.
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

#[test]
fn a_path_that_is_missing_or_not_a_file_is_refused() {
    for (path, text) in [
        (
            "/nowhere/at/all",
            "annulus: cannot inspect /nowhere/at/all: No such file or directory",
        ),
        (
            "/dev/null",
            "annulus: /dev/null is not a file, a directory or a block device",
        ),
    ] {
        let output = output(command(&[path]));
        assert_eq!(output.code, Some(2), "{}", output.err);
        assert!(output.err.starts_with(text), "{}", output.err);
        assert!(output.out.is_empty(), "{}", output.out);
    }
}

#[test]
fn a_file_is_read_if_it_is_long_enough_and_never_written() {
    let dir = folder();
    let path = dir.path().join("data");
    let shown = path.to_str().unwrap();
    let content = vec![7; 1 << 20];
    fs::write(&path, &content).unwrap();
    let long = location(shown);
    assert_eq!(long["environment"]["location"]["kind"], "file");
    assert_eq!(long["environment"]["location"]["sample"], shown);
    assert!(fs::read(&path).unwrap() == content);
    fs::write(&path, &content[1..]).unwrap();
    let short = location(shown);
    let why = short["environment"]["location"]["no_sample"]
        .as_str()
        .unwrap();
    assert!(
        why.contains("has 1048575 bytes, but the measurement needs 1 MiB"),
        "{why}"
    );
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn an_unreadable_file_is_described_and_not_measured() {
    if !root_or_skip("a file that another user may not read") {
        return;
    }
    let dir = folder();
    let path = dir.path().join("secret");
    fs::write(&path, [7; 100]).unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o000)).unwrap();
    let mut command = command(&["secret", "--quick", "--json"]);
    command
        .current_dir(dir.path())
        .uid(own_user())
        .gid(own_user());
    if let Err(error) = command.output() {
        return skip(format_args!(
            "cannot run the command as another user: {error}"
        ));
    }
    let report = report(command);
    let why = report["environment"]["location"]["no_sample"]
        .as_str()
        .unwrap();
    assert!(
        why.starts_with("cannot open secret: Permission denied"),
        "{why}"
    );
    assert!(report["environment"]["location"]["filesystem"].is_string());
}

#[test]
fn a_folder_without_write_permission_is_named_and_says_nothing_about_direct_io() {
    if !root_or_skip("a folder that another user may not write") {
        return;
    }
    let dir = folder();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let mut command = command(&["--quick", "--json"]);
    command
        .current_dir(dir.path())
        .uid(own_user())
        .gid(own_user());
    if let Err(error) = command.output() {
        return skip(format_args!(
            "cannot run the command as another user: {error}"
        ));
    }
    let report = report(command);
    let direct = &report["environment"]["location"]["direct"];
    assert!(direct["works"].is_null(), "{direct}");
    let why = direct["why"].as_str().unwrap();
    assert!(
        why.starts_with("this user cannot write in . (Permission denied"),
        "{why}"
    );
    let rules = rules(&report);
    assert!(rules.contains(&"not-tested"), "{}", report["advice"]);
    assert!(!rules.contains(&"no-direct"), "{}", report["advice"]);
    let next = report["next"].as_str().unwrap();
    assert!(next.starts_with("annulus bench file --dir DIR"), "{next}");
}

#[test]
fn a_file_system_in_memory_is_distinguished_from_a_disk() {
    let report = location("/dev/shm");
    let location = &report["environment"]["location"];
    if location["filesystem"] != "tmpfs" {
        return skip("needs a tmpfs at /dev/shm");
    }
    assert!(
        rules(&report).contains(&"in-memory"),
        "{}",
        report["advice"]
    );
    assert_eq!(location["direct"]["works"], false);
    assert!(location["device"].is_null());
    // The severity is not `less`.
    let advice = report["advice"].as_array().unwrap().iter();
    let one = advice.filter(|one| one["rule"] == "in-memory");
    assert_eq!(
        one.map(|one| &one["severity"]).collect::<Vec<_>>(),
        ["advice"]
    );
    let proc = self::location("/proc/version");
    assert_eq!(proc["environment"]["location"]["filesystem"], "proc");
    assert!(rules(&proc).contains(&"no-direct"), "{}", proc["advice"]);
}

#[test]
fn an_overlay_is_identified_by_its_type() {
    if !root_or_skip("mounting an overlay") {
        return;
    }
    let dir = folder();
    let path = dir.path().to_str().unwrap();
    // In a separate mount namespace, which ends with the command.
    let script =
        "set -e; cd \"$1\"; mount -t tmpfs none .; cd \"$1\"; mkdir lower upper work merged
        mount -t overlay none -o lowerdir=lower,upperdir=upper,workdir=work merged || exit 3
        exec \"$2\" doctor merged --quick --json";
    let mut command = Command::new("unshare");
    command.args([
        "--mount",
        "sh",
        "-c",
        script,
        "sh",
        path,
        env!("CARGO_BIN_EXE_annulus"),
    ]);
    if command.output().unwrap().status.code() == Some(3) {
        return skip("this kernel mounts no overlay");
    }
    let report = report(command);
    assert_eq!(report["environment"]["location"]["filesystem"], "overlay");
    assert!(rules(&report).contains(&"overlay"), "{}", report["advice"]);
    assert!(report["environment"]["location"]["device"].is_null());
}

/// A loop device, which is detached when it is dropped.
struct Loop(String);

impl Loop {
    fn of(file: &std::path::Path) -> Option<Loop> {
        let output = Command::new("losetup")
            .args(["--find", "--show"])
            .arg(file)
            .output()
            .ok()?;
        let name = String::from_utf8(output.stdout).ok()?;
        output
            .status
            .success()
            .then(|| Loop(name.trim().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

#[test]
fn a_block_device_is_reported_with_its_queue() {
    if !root_or_skip("a block device") {
        return;
    }
    let dir = folder();
    let file = dir.path().join("disk");
    fs::write(&file, vec![7; 2 << 20]).unwrap();
    let Some(device) = Loop::of(&file) else {
        return skip("needs a loop device");
    };
    let report = location(&device.0);
    let location = &report["environment"]["location"];
    assert_eq!(location["kind"], "block-device");
    assert_eq!(location["sample"], *device.0);
    let facts = &location["device"];
    assert_eq!(
        format!("/dev/{}", facts["name"].as_str().unwrap()),
        device.0
    );
    assert!(
        facts["scheduler"].is_string() && facts["nr_requests"].is_u64(),
        "{facts}"
    );
    assert!(rules(&report).contains(&"stacked"), "{}", report["advice"]);
    // A user without read access still gets its facts.
    let mut command = below(&["env"], &[&device.0, "--quick", "--json"]);
    command.uid(own_user()).gid(own_user()).current_dir("/");
    if command
        .output()
        .is_ok_and(|output| output.status.code() != Some(126))
    {
        let report = self::report(command);
        assert!(report["environment"]["location"]["no_sample"].is_string());
        assert_eq!(
            report["environment"]["location"]["device"]["name"],
            facts["name"]
        );
    }
    assert!(fs::read(&file).unwrap() == vec![7; 2 << 20]);
}
