//! The running kernel: its upstream version, its vendor and its configuration.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;

use super::facts::{Kernel, Version};

/// The limit for a kernel configuration, which has about 300 KiB.
const CONFIGURATION_BYTES_MAX: u64 = 8 << 20;

impl Kernel {
    /// Returns the running kernel. Its files are read below `root`.
    pub(crate) fn below(root: &Path) -> Kernel {
        let uname = rustix::system::uname();
        let release = uname.release().to_string_lossy().into_owned();
        let build = uname.version().to_string_lossy();
        let signature = crate::proc_files::text(&root.join("proc/version_signature"));
        let (version, vendor) = upstream(&release, &build, signature.as_deref());
        let (has_io_uring_built_in, configuration) = configured(root, &release).unzip();
        Kernel {
            release,
            version,
            vendor,
            has_io_uring_built_in,
            configuration,
        }
    }
}

/// Returns the first three numbers of a text.
fn numbers(text: &str) -> Version {
    let mut numbers = text
        .split(|c: char| !c.is_ascii_digit())
        .map(|number| number.parse().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    Version(next(), next(), next())
}

/// Returns the upstream version and the vendor. `build` is `uname -v`; `signature` is the content of Ubuntu's
/// `/proc/version_signature`.
fn upstream(release: &str, build: &str, signature: Option<&str>) -> (Version, Option<String>) {
    // `Ubuntu 6.8.0-45.45-generic 6.8.12`
    if let Some(version) = signature.and_then(|line| line.split_whitespace().nth(2)) {
        return (numbers(version), Some("Ubuntu".to_owned()));
    }
    // `#1 SMP PREEMPT_DYNAMIC Debian 6.1.119-1 (2024-11-22)`. The release only has 6.1.0-28.
    if let Some((_, version)) = build.split_once("Debian ") {
        return (numbers(version), Some("Debian".to_owned()));
    }
    let vendor = [
        (".el", "Red Hat"),
        ("-Ubuntu", "Ubuntu"),
        (".amzn", "Amazon Linux"),
        ("-default", "SUSE"),
        (".fc", "Fedora"),
        ("-microsoft", "Microsoft"),
        ("uek", "Oracle"),
    ]
    .into_iter()
    .find_map(|(sign, vendor)| {
        (release.contains(sign) || build.contains(sign)).then(|| vendor.to_owned())
    });
    (numbers(release), vendor)
}

/// Returns whether the kernel's configuration enables io_uring, and the path of the configuration.
fn configured(root: &Path, release: &str) -> Option<(bool, String)> {
    let packed = root.join("proc/config.gz");
    if let Ok(file) = File::open(&packed) {
        let mut text = String::new();
        let mut limited = GzDecoder::new(file).take(CONFIGURATION_BYTES_MAX);
        if limited.read_to_string(&mut text).is_ok() {
            return Some((is_enabled(&text), "/proc/config.gz".to_owned()));
        }
    }
    [
        format!("boot/config-{release}"),
        format!("lib/modules/{release}/config"),
        format!("usr/lib/modules/{release}/config"),
    ]
    .into_iter()
    .find_map(|path| {
        let text = fs::read_to_string(root.join(&path)).ok()?;
        Some((is_enabled(&text), format!("/{path}")))
    })
}

fn is_enabled(configuration: &str) -> bool {
    configuration
        .lines()
        .any(|line| line == "CONFIG_IO_URING=y")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn the_upstream_version_is_derived_from_that_of_the_distribution() {
        let debian = "#1 SMP PREEMPT_DYNAMIC Debian 6.1.119-1 (2024-11-22)";
        for (release, build, signature, version, vendor) in [
            (
                "6.1.0-28-cloud-amd64",
                debian,
                None,
                Version(6, 1, 119),
                Some("Debian"),
            ),
            (
                "6.8.0-45-generic",
                "#45-Ubuntu SMP",
                Some("Ubuntu 6.8.0-45.45-generic 6.8.12"),
                Version(6, 8, 12),
                Some("Ubuntu"),
            ),
            (
                "6.8.0-45-generic",
                "#45-Ubuntu SMP",
                None,
                Version(6, 8, 0),
                Some("Ubuntu"),
            ),
            (
                "5.14.0-427.el9.x86_64",
                "#1 SMP",
                None,
                Version(5, 14, 0),
                Some("Red Hat"),
            ),
            ("6.18.44", "#1 SMP", None, Version(6, 18, 44), None),
            ("7.2-rc1", "#1 SMP", None, Version(7, 2, 0), None),
            ("odd", "", None, Version(0, 0, 0), None),
        ] {
            let result = upstream(release, build, signature);
            assert_eq!(result, (version, vendor.map(str::to_owned)), "{release}");
        }
    }

    #[test]
    fn the_configuration_is_read_compressed_and_plain() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(configured(root.path(), "6.1"), None);
        fs::create_dir_all(root.path().join("boot")).unwrap();
        let plain = root.path().join("boot/config-6.1");
        fs::write(&plain, "# CONFIG_IO_URING is not set\nCONFIG_AIO=y\n").unwrap();
        let result = configured(root.path(), "6.1");
        assert_eq!(result, Some((false, "/boot/config-6.1".to_owned())));
        fs::create_dir_all(root.path().join("proc")).unwrap();
        let file = File::create(root.path().join("proc/config.gz")).unwrap();
        let mut packer = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
        packer
            .write_all(b"CONFIG_AIO=y\nCONFIG_IO_URING=y\n")
            .unwrap();
        packer.finish().unwrap();
        let result = configured(root.path(), "6.1");
        assert_eq!(result, Some((true, "/proc/config.gz".to_owned())));
    }
}
