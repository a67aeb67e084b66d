//! Disks that are full, or fill up.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::command::{command, json, mount, names, result_of, run, with_own_mounts};

/// The options of a short run.
const SHORT: [&str; 8] = [
    "--runtime",
    "0.05",
    "--repeat",
    "1",
    "--depth",
    "2",
    "--variants",
    "pread",
];

fn file<'a>(args: &[&'a str]) -> Vec<&'a str> {
    [&["bench", "file"], args, &SHORT].concat()
}

/// Mounts an ext4 file system of 16 MiB at `disk`.
fn small_disk(folder: &Path) -> bool {
    let image = folder.join("image");
    fs::File::create_new(&image)
        .unwrap()
        .set_len(16 << 20)
        .unwrap();
    let made = Command::new("mkfs.ext4").arg("-qF").arg(&image).output();
    assert!(made.unwrap().status.success());
    fs::create_dir(folder.join("disk")).unwrap();
    let paths = [
        image.to_str().unwrap(),
        folder.join("disk").to_str().unwrap(),
    ]
    .map(String::from);
    mount(&["-o", "loop", &paths[0], &paths[1]])
}

#[test]
fn a_disk_that_is_too_small_is_refused_and_nothing_stays_on_it() {
    with_own_mounts(
        "disks::a_disk_that_is_too_small_is_refused_and_nothing_stays_on_it",
        |folder| {
            if !small_disk(folder) {
                return;
            }
            let refused = run(folder, &file(&["disk", "--size", "64M"]));
            refused.ends(1, "no space for a test file of 67108864 bytes in disk");
            refused.ends(
                1,
                "bytes are free; choose a smaller --size or another --dir",
            );
            let fits = run(folder, &file(&["disk", "--size", "1M"]));
            assert_eq!(fits.code, Some(0), "{}{}", fits.out, fits.err);
            assert_eq!(names(&folder.join("disk")), ["lost+found"]);
            // The disk has too little space for all of a sparse file.
            let sparse = fs::File::create_new(folder.join("disk/sparse")).unwrap();
            sparse.set_len(32 << 20).unwrap();
            let line = file(&["disk/sparse", "--rw", "randwrite", "--overwrite"]);
            let overwritten = run(folder, &line);
            overwritten.ends(1, "No space left on device");
            overwritten.ends(1, "there is not enough space: choose a smaller --size");
        },
    );
}

#[test]
fn a_report_that_cannot_be_written_is_still_printed() {
    with_own_mounts(
        "disks::a_report_that_cannot_be_written_is_still_printed",
        |folder| {
            fs::create_dir(folder.join("tiny")).unwrap();
            let tiny = folder.join("tiny");
            if !mount(&[
                "-t",
                "tmpfs",
                "-o",
                "size=4k",
                "tmpfs",
                tiny.to_str().unwrap(),
            ]) {
                return;
            }
            let full = run(folder, &file(&["--size", "1M", "--json", "tiny/out.json"]));
            full.ends(
                1,
                "annulus: writing --json tiny/out.json: No space left on device",
            );
            full.ends(1, "name a file on another disk");
            full.ends(1, "erdict: ");
            assert_eq!(names(&tiny), [""; 0]);
            // A report that cannot be printed is still written.
            let full = fs::File::options().write(true).open("/dev/full").unwrap();
            let mut command = command(folder, &file(&["--size", "1M", "--json", "out.json"]));
            let heading = result_of(command.stdout(full).output().unwrap());
            heading.ends(1, "annulus: printing: No space left on device");
        },
    );
}

#[test]
fn a_file_is_created_and_removed_on_an_overlay_and_in_memory() {
    with_own_mounts(
        "disks::a_file_is_created_and_removed_on_an_overlay_and_in_memory",
        |folder| {
            for name in ["lower", "upper", "work", "over", "shm", "read-only"] {
                fs::create_dir(folder.join(name)).unwrap();
            }
            let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
            let layers = format!(
                "lowerdir={},upperdir={},workdir={}",
                path("lower"),
                path("upper"),
                path("work")
            );
            if !mount(&["-t", "overlay", "-o", &layers, "overlay", &path("over")])
                || !mount(&["-t", "tmpfs", "tmpfs", &path("shm")])
            {
                return;
            }
            for disk in ["over", "shm"] {
                let line = file(&[disk, "--size", "1M", "--json", "out.json", "--replace"]);
                let done = run(folder, &line);
                assert_eq!(done.code, Some(0), "{disk}: {}{}", done.out, done.err);
                let report = json(&folder.join("out.json"));
                assert_eq!(report["runs"][0]["outcome"]["kind"], "measured", "{disk}");
                assert_eq!(names(&folder.join(disk)), [""; 0], "{disk}");
            }
            // A new mount, because a file that was just closed may keep the other one busy for a moment.
            assert!(mount(&[
                "-t",
                "tmpfs",
                "-o",
                "ro",
                "tmpfs",
                &path("read-only")
            ]));
            run(folder, &file(&["read-only", "--size", "1M"])).ends(2, "Read-only file system");
        },
    );
}
