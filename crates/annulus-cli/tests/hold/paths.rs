//! Paths of every kind: refused with a message, or measured.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use annulus_testing::child_process::own_user;
use annulus_testing::skip::skip;

use crate::command::{CommandOutput, command, folder, is_root, result_of, run};

fn bench(folder: &Path, args: &[&str]) -> CommandOutput {
    let short = [
        "--runtime",
        "0.05",
        "--repeat",
        "1",
        "--depth",
        "1",
        "--variants",
        "pread",
    ];
    run(folder, &[&["bench", "file"], args, &short].concat())
}

#[test]
fn paths_without_data_are_refused() {
    let dir = folder();
    let path = dir.path();
    let _socket = UnixListener::bind(path.join("socket")).unwrap();
    let pipe = Command::new("mkfifo").arg(path.join("pipe")).status();
    assert!(pipe.unwrap().success());
    symlink("nowhere", path.join("dead")).unwrap();
    fs::write(path.join("short"), b"three").unwrap();
    for name in ["socket", "pipe", "/dev/null", "/dev/zero", "/dev/tty"] {
        let message = format!("{name} is not a file, a block device or a directory");
        bench(path, &[name]).ends(2, &message);
    }
    for name in ["/proc/version", "/proc/self/mem"] {
        bench(path, &[name]).ends(2, "cannot determine the length of");
    }
    bench(path, &["/proc/self/status"]).ends(2, "");
    bench(path, &["dead"]).ends(2, "it is a link to nowhere, which does not exist");
    bench(path, &["--dir", "dead"]).ends(2, "it is a link to nowhere");
    bench(path, &["short"]).ends(
        2,
        "short has 5 bytes, 5 from --offset 0: less than one block of 4096",
    );
    bench(path, &["short/er"]).ends(2, "Not a directory");
    // Opening a FIFO would block until a writer opens it.
    bench(path, &["--dir", "pipe"]).ends(2, "--dir pipe is not a directory");
    bench(path, &["pipe", "--json", "pipe", "--replace"]).ends(2, "");
}

#[test]
fn a_folder_without_permission_is_refused() {
    if !is_root() {
        return skip("becoming another user needs root");
    }
    let dir = folder();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = command(dir.path(), &["bench", "file", "--size", "1M"]);
    let refused = match command.uid(own_user()).gid(own_user()).output() {
        Ok(output) => result_of(output),
        Err(error) => {
            return skip(format_args!(
                "cannot run the command as another user: {error}"
            ));
        }
    };
    refused.ends(
        2,
        "Permission denied (os error 13); run as a user with permission, or choose another folder",
    );
}

#[test]
fn a_block_device_is_written_to_only_with_overwrite() {
    if !is_root() {
        return skip("a loop device needs root");
    }
    let dir = folder();
    let image = dir.path().join("image");
    fs::write(&image, vec![7; 1 << 20]).unwrap();
    let attached = Command::new("losetup")
        .args(["--find", "--show"])
        .arg(&image)
        .output();
    let attached = result_of(attached.unwrap());
    if attached.code != Some(0) {
        return skip(format_args!("losetup: {}", attached.err));
    }
    let device = attached.out.trim();
    let results = [
        bench(dir.path(), &[device]),
        bench(dir.path(), &[device, "--rw", "randwrite"]),
        bench(dir.path(), &[device, "--rw", "randwrite", "--overwrite"]),
    ];
    let detached = Command::new("losetup").args(["--detach", device]).status();
    assert!(detached.unwrap().success());
    let [read, refused, written] = results;
    assert_eq!(read.code, Some(0), "{}{}", read.out, read.err);
    refused.ends(2, "--overwrite allows that and destroys its contents");
    assert_eq!(written.code, Some(0), "{}{}", written.out, written.err);
    assert_ne!(fs::read(&image).unwrap(), [7; 1 << 20]);
}
