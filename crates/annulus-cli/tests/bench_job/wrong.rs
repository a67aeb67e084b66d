//! Bad input: the message, the exit code, and the unchanged folder.

use crate::command::Workspace;

/// Asserts that the command fails with code 2 and this message, and creates no file.
fn refuses(workspace: &Workspace, args: &[&str], text: &str) {
    let before = workspace.names();
    let output = workspace.run(args);
    assert_eq!(
        output.code,
        Some(2),
        "{args:?}: {}{}",
        output.out,
        output.err
    );
    assert!(
        output.err.contains(text),
        "{args:?} expected {text:?} in:\n{}",
        output.err
    );
    assert_eq!(workspace.names(), before, "{args:?}");
}

#[test]
fn an_invalid_job_file_is_refused_with_all_wrong_lines() {
    let workspace = Workspace::new();
    refuses(
        &workspace,
        &[],
        "cannot read the job file job.fio: No such file or directory",
    );
    workspace.job("[a]\niodept=4\nsize=1M\nrandom_distribution=zipf\n");
    refuses(
        &workspace,
        &[],
        "job.fio: line 2: unknown key `iodept`; did you mean `iodepth`?",
    );
    refuses(
        &workspace,
        &[],
        "job.fio: line 4: `random_distribution` is not supported",
    );
    workspace.job(b"[a]\nbs=\xff\xfe\n");
    refuses(&workspace, &[], "line 2: not UTF-8");
    workspace.job(vec![b'#'; (1 << 20) + 1]);
    refuses(&workspace, &[], "a job file has at most 1048576");
    std::fs::remove_file(workspace.path().join("job.fio")).unwrap();
    std::fs::create_dir(workspace.path().join("job.fio")).unwrap();
    refuses(
        &workspace,
        &[],
        "--job job.fio is a directory; name a job file",
    );
}

#[test]
fn options_that_the_job_file_sets_are_refused() {
    let workspace = Workspace::new();
    workspace.job("[a]\nsize=1M\n");
    for args in [
        ["--bs", "4k"],
        ["--depth", "8"],
        ["--variants", "all"],
        ["--dir", "."],
    ] {
        refuses(&workspace, &args, "cannot be used with");
    }
    refuses(
        &workspace,
        &["--repeat", "0"],
        "'--repeat <N>': from 1 to 1000",
    );
    refuses(
        &workspace,
        &["--json", "no/where.json"],
        "the directory no does not exist",
    );
    refuses(
        &workspace,
        &["--json", "job.fio"],
        "job.fio exists; --replace replaces it",
    );
}

#[test]
fn a_users_file_is_written_and_extended_only_with_overwrite() {
    let workspace = Workspace::new();
    workspace.file("precious", 65536);
    workspace.job("[a]\nfilename=precious\nrw=randwrite\n");
    refuses(
        &workspace,
        &[],
        "precious exists and [a] would write to it; --overwrite allows that",
    );
    workspace.job("[a]\nfilename=precious\nrw=read\nsize=1M\n");
    refuses(
        &workspace,
        &[],
        "precious has 65536 bytes and [a] needs 1048576; --overwrite lets it grow",
    );
    let content = std::fs::read(workspace.path().join("precious")).unwrap();
    assert_eq!(content.len(), 65536);
}

#[test]
fn unusable_paths_and_sizes_are_refused() {
    let workspace = Workspace::new();
    workspace.job("[a]\ndirectory=missing\nsize=1M\n");
    refuses(
        &workspace,
        &[],
        "cannot make missing/a.0.0: No such file or directory",
    );
    workspace.job("[a]\nfilename=nothing\nrw=read\n");
    refuses(
        &workspace,
        &[],
        "nothing does not exist, and there is no `size` in bytes for a new file",
    );
    workspace.job("[a]\nfilename=/dev/null\nsize=1M\n");
    refuses(
        &workspace,
        &[],
        "/dev/null is neither a file nor a block device",
    );
    workspace.job("[a]\nsize=1k\nbs=4k\n");
    refuses(
        &workspace,
        &[],
        "1024 bytes of each file are used, less than a block of 4096",
    );
    workspace.job("[a]\nsize=1M\noffset=100\ndirect=1\n");
    refuses(&workspace, &[], "a multiple of 512 bytes there");
}
