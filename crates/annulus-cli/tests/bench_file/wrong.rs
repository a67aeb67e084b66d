//! Bad input: the message, the exit code, and the unchanged folder.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;

use annulus_testing::child_process::own_user;
use annulus_testing::skip::skip;

use crate::command::Workspace;

/// Asserts that the command fails with this code and this message, and leaves the folder unchanged.
fn refuses(workspace: &Workspace, args: &[&str], code: i32, text: &str) {
    let before = workspace.files();
    let output = workspace.run(args);
    assert_eq!(
        output.code,
        Some(code),
        "{args:?}: {}{}",
        output.out,
        output.err
    );
    assert!(
        output.err.contains(text),
        "{args:?} expected {text:?} in:\n{}",
        output.err
    );
    assert!(
        output.out.is_empty(),
        "{args:?} printed results: {}",
        output.out
    );
    assert_eq!(
        workspace.files().len(),
        before.len(),
        "{args:?} changed the folder"
    );
    assert!(workspace.files() == before, "{args:?} changed a file");
}

#[test]
fn a_missing_file_is_refused() {
    refuses(
        &Workspace::new(),
        &["nowhere"],
        2,
        "annulus: cannot open nowhere: No such file or directory",
    );
}

#[test]
fn an_empty_file_is_refused() {
    let workspace = Workspace::new();
    workspace.file("empty", 0);
    refuses(
        &workspace,
        &["empty"],
        2,
        "annulus: empty is empty; choose a file with data",
    );
}

#[test]
fn an_unreadable_file_is_refused() {
    let workspace = Workspace::new();
    let path = workspace.file("secret", 65536);
    std::fs::set_permissions(workspace.path(), Permissions::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o000)).unwrap();
    let mut command = workspace.command(&["secret"]);
    if std::fs::File::open(&path).is_ok() {
        // Root may read every file; an ordinary user may not.
        command.uid(own_user()).gid(own_user());
    }
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => {
            return skip(format_args!(
                "cannot run the command as another user: {error}"
            ));
        }
    };
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{err}");
    assert!(
        err.contains("annulus: cannot open secret: Permission denied"),
        "{err}"
    );
}

#[test]
fn a_character_device_is_refused() {
    refuses(
        &Workspace::new(),
        &["/dev/null"],
        2,
        "/dev/null is not a file, a block device or a directory",
    );
}

#[test]
fn an_offset_beyond_the_end_is_refused() {
    let workspace = Workspace::new();
    workspace.file("small", 65536);
    let text = "--offset 65536 is beyond the end of small (65536 bytes)";
    refuses(&workspace, &["small", "--offset", "64k"], 2, text);
    refuses(
        &workspace,
        &["small", "--offset", "100"],
        2,
        "--offset 100 is not a multiple of --bs 4096",
    );
    refuses(
        &workspace,
        &["--offset", "64k"],
        2,
        "--offset needs a PATH that exists",
    );
}

#[test]
fn a_size_beyond_the_file_is_refused() {
    let workspace = Workspace::new();
    workspace.file("small", 65536);
    refuses(
        &workspace,
        &["small", "--size", "1M"],
        2,
        "--size 1048576 exceeds small: 65536 bytes",
    );
    refuses(
        &workspace,
        &["small", "--size", "5000"],
        2,
        "--size 5000 is not a multiple of --bs 4096; try --size 4096",
    );
    refuses(
        &workspace,
        &["small", "--size", "0"],
        2,
        "--size 0: it must be at least one block",
    );
}

#[test]
fn values_out_of_range_are_refused() {
    let workspace = Workspace::new();
    for (args, text) in [
        (["--depth", "0"], "'--depth <LIST>': from 1 to 32768"),
        (
            ["--depth", "8,50000"],
            "invalid value '50000' for '--depth <LIST>': from 1 to 32768",
        ),
        (["--files", "0"], "--files 0: from 1 to 4096"),
        (["--files", "5000"], "--files 5000: from 1 to 4096"),
        (["--drivers", "0"], "'--drivers <N>': from 1 to 256"),
        (
            ["--memory", "15M"],
            "--memory 15728640: the process itself needs at least 16 MiB",
        ),
        (
            ["--memory", "much"],
            "invalid value 'much' for '--memory <BYTES>'",
        ),
        (
            ["--load", "heavy"],
            "invalid value 'heavy' for '--load <NAME>'",
        ),
        (
            ["--sync", "often"],
            "invalid value 'often' for '--sync <WHEN>'",
        ),
        (["--sync", "each"], "--sync each: this load writes nothing"),
        (
            ["--depth", "many"],
            "invalid value 'many' for '--depth <LIST>'",
        ),
        (["--bs", "0"], "--bs 0: a block is a multiple of 512 bytes"),
        (
            ["--bs", "1000"],
            "--bs 1000: a block is a multiple of 512 bytes",
        ),
        (
            ["--bs", "4q"],
            "`q` is not a unit; write for example 4k, 1M or 8G",
        ),
        (["--repeat", "0"], "'--repeat <N>': from 1 to 1000"),
        (["--threads", "0"], "'--threads <N>': from 1 to 256"),
        (["--runtime", "0"], "the time must be from 1 ms to a day"),
        (
            ["--runtime", "soon"],
            "not a time; write for example 3, 0.5 or 200ms",
        ),
        (
            ["--rw", "randomly"],
            "invalid value 'randomly' for '--rw <RW>'",
        ),
        (
            ["--rwmixread", "101"],
            "invalid value '101' for '--rwmixread <PERCENT>'",
        ),
    ] {
        refuses(&workspace, &args, 2, text);
    }
}

#[test]
fn too_few_blocks_for_the_depth_are_refused() {
    let workspace = Workspace::new();
    workspace.file("small", 65536);
    refuses(
        &workspace,
        &["small", "--depth", "32"],
        2,
        "65536 bytes have 16 blocks of 4096, fewer than --depth 32",
    );
}

#[test]
fn more_files_than_blocks_are_refused() {
    let workspace = Workspace::new();
    refuses(
        &workspace,
        &["--files", "300", "--size", "1M"],
        2,
        "--files 300: --size 1048576 has fewer blocks of 4096 bytes than that",
    );
    workspace.file("mine", 1 << 20);
    refuses(
        &workspace,
        &["mine", "--files", "2"],
        2,
        "--files 2 creates its own files: give a directory, not mine",
    );
}

#[test]
fn buffers_larger_than_the_memory_are_refused() {
    refuses(
        &Workspace::new(),
        &[
            "--depth", "32768", "--bs", "64M", "--size", "2048G", "--direct",
        ],
        1,
        "no space for a test file",
    );
    let workspace = Workspace::new();
    // Sparse, so that it takes no space on the disk.
    let file = std::fs::File::create_new(workspace.path().join("sparse")).unwrap();
    file.set_len(1 << 40).unwrap();
    let output = workspace.run(&["sparse", "--depth", "16384", "--bs", "64M"]);
    assert_eq!(output.code, Some(2), "{}{}", output.out, output.err);
    let text = "--depth 16384 of --bs 67108864 needs 1099511627776 bytes of buffers";
    assert!(output.err.contains(text), "{}", output.err);
}

#[test]
fn a_memory_limit_without_permission_is_refused() {
    let workspace = Workspace::new();
    std::fs::set_permissions(workspace.path(), Permissions::from_mode(0o777)).unwrap();
    let mut command = workspace.command(&["--memory", "64M"]);
    if is_root() {
        command.uid(own_user()).gid(own_user());
    }
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => {
            return skip(format_args!(
                "cannot run the command as another user: {error}"
            ));
        }
    };
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{err}");
    let texts = [
        "--memory needs root: cannot create the cgroup",
        "no cgroup with the memory controller",
    ];
    assert!(texts.iter().any(|text| err.contains(text)), "{err}");
    assert!(workspace.files().is_empty(), "{:?}", workspace.files());
}

/// Returns whether the tests run as root.
fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|meta| meta.uid() == 0)
}

#[test]
fn an_unknown_variant_is_refused_with_the_list() {
    let workspace = Workspace::new();
    refuses(
        &workspace,
        &["--variants", "bsae"],
        2,
        "unknown variant `bsae`; did you mean `base`?",
    );
    refuses(
        &workspace,
        &["--variants", ""],
        2,
        "--variants: the list is empty; see --list",
    );
    refuses(
        &workspace,
        &["--variants", "nobody"],
        2,
        "There are: default, all, annulus",
    );
}

#[test]
fn options_that_contradict_each_other_are_refused() {
    let workspace = Workspace::new();
    refuses(&workspace, &["--direct", "--hot"], 2, "cannot be used with");
    refuses(&workspace, &["--hot", "--cold"], 2, "cannot be used with");
    refuses(
        &workspace,
        &["--direct", "--buffered"],
        2,
        "cannot be used with",
    );
    refuses(
        &workspace,
        &["--dir", ".", "somewhere"],
        2,
        "cannot be used with",
    );
}

#[test]
fn an_existing_file_is_written_to_only_with_overwrite() {
    let workspace = Workspace::new();
    workspace.file("precious", 1 << 20);
    for rw in ["write", "randwrite", "readwrite", "randrw"] {
        refuses(
            &workspace,
            &["precious", "--rw", rw],
            2,
            "--overwrite allows that and destroys its contents",
        );
    }
}

#[test]
fn a_size_beyond_the_free_space_is_a_failure() {
    refuses(
        &Workspace::new(),
        &["--size", "1000T"],
        1,
        "no space for a test file of 1099511627776000 bytes in .",
    );
}

#[test]
fn an_unusable_path_for_the_json_is_refused_before_the_measurement() {
    let workspace = Workspace::new();
    workspace.file("old.json", 10);
    refuses(
        &workspace,
        &["--json", "old.json"],
        2,
        "--json old.json exists; --replace replaces it",
    );
    refuses(
        &workspace,
        &["--json", "no/where.json"],
        2,
        "the directory no does not exist",
    );
    refuses(
        &workspace,
        &["--json", ".", "--replace"],
        2,
        "is a directory; name a file",
    );
    refuses(
        &workspace,
        &["--replace"],
        2,
        "required arguments were not provided",
    );
}

#[test]
fn a_wrong_directory_is_refused() {
    let workspace = Workspace::new();
    workspace.file("plain", 10);
    refuses(
        &workspace,
        &["--dir", "plain"],
        2,
        "--dir plain is not a directory",
    );
    refuses(
        &workspace,
        &["--dir", "missing"],
        2,
        "cannot open directory missing: No such file or directory",
    );
}

#[test]
fn direct_io_in_memory_is_refused_if_requested() {
    if !std::path::Path::new("/dev/shm").is_dir() {
        skip("no /dev/shm");
        return;
    }
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let dir = memory.path().to_str().unwrap();
    refuses(
        &Workspace::new(),
        &["--direct", "--dir", dir, "--size", "1M"],
        2,
        "--direct: this file system",
    );
    assert_eq!(std::fs::read_dir(dir).unwrap().count(), 0);
}
