//! File systems whose calls do not return.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::mount::{MntFlags, MsFlags, mount, umount2};

/// A FUSE whose process reads no request. Dropping it ends the calls with an error. The file system stays mounted until
/// the mount namespace of the test ends.
pub struct HungFs {
    _device: File,
}

impl HungFs {
    /// Mounts a file system at `folder`.
    pub fn mount(folder: &Path) -> io::Result<HungFs> {
        let device = File::options().read(true).write(true).open("/dev/fuse")?;
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0",
            device.as_raw_fd()
        );
        mount(
            Some("fuse"),
            folder,
            Some("fuse"),
            MsFlags::empty(),
            Some(options.as_str()),
        )?;
        Ok(HungFs { _device: device })
    }
}

/// An ext4 in a file, on which changes wait while it is frozen (`fsfreeze`). Dropping it unmounts it.
pub struct FrozenFs {
    folder: PathBuf,
}

/// A file system that is frozen until this is dropped.
pub struct Frozen<'a>(&'a FrozenFs);

impl FrozenFs {
    /// Mounts a file system at `folder`. `image` becomes its file.
    pub fn mount(folder: &Path, image: &Path) -> io::Result<FrozenFs> {
        File::create(image)?.set_len(64 << 20)?;
        run(Command::new("mkfs.ext4").arg("-q").arg(image))?;
        run(Command::new("mount")
            .args(["-o", "loop"])
            .args([image, folder]))?;
        let folder = folder.to_owned();
        Ok(FrozenFs { folder })
    }

    /// Freezes it.
    pub fn freeze(&self) -> io::Result<Frozen<'_>> {
        self.set("--freeze").map(|()| Frozen(self))
    }

    fn set(&self, state: &str) -> io::Result<()> {
        run(Command::new("fsfreeze").arg(state).arg(&self.folder))
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        let _ = self.0.set("--unfreeze");
    }
}

impl Drop for FrozenFs {
    fn drop(&mut self) {
        let _ = umount2(&self.folder, MntFlags::MNT_DETACH);
    }
}

fn run(command: &mut Command) -> io::Result<()> {
    match command.status()? {
        status if status.success() => Ok(()),
        status => Err(io::Error::other(format!("{command:?}: {status}"))),
    }
}
