//! The container, the virtual machine and the processor mitigations around this process.
//!
//! Files are read below a root, which is `/` except in tests. These facts are hints and do not decide whether io_uring
//! works.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::proc_files::{chosen, text};

#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Surroundings {
    pub(crate) container: Option<Container>,
    /// The hypervisor, if this is a virtual machine.
    pub(crate) hypervisor: Option<String>,
    /// Processor vulnerabilities that the kernel mitigates, at a cost.
    pub(crate) mitigations: Vec<Mitigation>,
    /// The active value in `/sys/kernel/mm/transparent_hugepage/enabled`.
    pub(crate) huge_pages: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Container {
    pub(crate) kind: ContainerKind,
    /// The evidence for the container.
    pub(crate) sign: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ContainerKind {
    Docker,
    Podman,
    Kubernetes,
    Lxc,
    SystemdNspawn,
    GVisor,
    Wsl,
    Other,
}

impl ContainerKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            ContainerKind::Docker => "Docker",
            ContainerKind::Podman => "Podman",
            ContainerKind::Kubernetes => "Kubernetes",
            ContainerKind::Lxc => "LXC",
            ContainerKind::SystemdNspawn => "systemd-nspawn",
            ContainerKind::GVisor => "gVisor",
            ContainerKind::Wsl => "WSL",
            ContainerKind::Other => "a container",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Mitigation {
    /// The name of the file in `/sys/devices/system/cpu/vulnerabilities`.
    pub(crate) name: String,
    /// The content of the file.
    #[serde(rename = "says")]
    pub(crate) content: String,
}

impl Surroundings {
    /// Gathers the facts below `root`. `release` is the release of the kernel.
    pub(crate) fn below(root: &Path, release: &str) -> Surroundings {
        Surroundings {
            container: container(root, release),
            hypervisor: hypervisor(root),
            mitigations: mitigations(root),
            huge_pages: text(&root.join("sys/kernel/mm/transparent_hugepage/enabled"))
                .map(|line| chosen(&line).to_owned()),
        }
    }
}

fn container(root: &Path, release: &str) -> Option<Container> {
    let of = |kind, sign: &str| {
        Some(Container {
            kind,
            sign: sign.to_owned(),
        })
    };
    let lower = release.to_ascii_lowercase();
    if lower.contains("gvisor") {
        return of(ContainerKind::GVisor, "the kernel's release");
    }
    let exists = |path: &str| root.join(path).exists();
    // Before the others: a container of a pod also has signs of Docker or containerd.
    if exists("var/run/secrets/kubernetes.io") {
        return of(ContainerKind::Kubernetes, "/var/run/secrets/kubernetes.io");
    }
    if exists("run/.containerenv") {
        return of(ContainerKind::Podman, "/run/.containerenv");
    }
    if exists(".dockerenv") {
        return of(ContainerKind::Docker, "/.dockerenv");
    }
    // systemd and LXC set a variable, which only root can read.
    let environ = fs::read(root.join("proc/1/environ")).unwrap_or_default();
    let environ = environ.split(|&byte| byte == 0);
    let environ = environ.filter_map(|one| one.strip_prefix(b"container="));
    if let Some(name) = environ.map(String::from_utf8_lossy).next() {
        let kind = match &*name {
            "docker" => ContainerKind::Docker,
            "podman" => ContainerKind::Podman,
            "systemd-nspawn" => ContainerKind::SystemdNspawn,
            name if name.starts_with("lxc") => ContainerKind::Lxc,
            _ => ContainerKind::Other,
        };
        return of(kind, "container= in the environment of process 1");
    }
    by_cgroup(&text(&root.join("proc/1/cgroup")).unwrap_or_default()).or_else(|| {
        match lower.contains("microsoft") {
            true => of(ContainerKind::Wsl, "the kernel's release"),
            false => None,
        }
    })
}

/// Identifies a container by the path of its cgroup, which is visible without cgroup namespaces.
fn by_cgroup(text: &str) -> Option<Container> {
    let kind = [
        ("kubepods", ContainerKind::Kubernetes),
        ("libpod", ContainerKind::Podman),
        ("docker", ContainerKind::Docker),
        ("/lxc", ContainerKind::Lxc),
    ]
    .into_iter()
    .find_map(|(sign, kind)| text.contains(sign).then_some(kind))?;
    Some(Container {
        kind,
        sign: "/proc/1/cgroup".to_owned(),
    })
}

fn hypervisor(root: &Path) -> Option<String> {
    const KNOWN: [(&str, &str); 10] = [
        ("amazon ec2", "Amazon EC2"),
        ("google", "Google Compute Engine"),
        ("digitalocean", "DigitalOcean"),
        ("openstack", "OpenStack"),
        ("firecracker", "Firecracker"),
        ("qemu", "QEMU"),
        ("kvm", "KVM"),
        ("vmware", "VMware"),
        ("virtualbox", "VirtualBox"),
        ("microsoft corporation", "Hyper-V"),
    ];
    let dmi = |name: &str| text(&root.join("sys/class/dmi/id").join(name)).unwrap_or_default();
    let vendor = [
        dmi("sys_vendor"),
        dmi("product_name"),
        dmi("chassis_vendor"),
        text(&root.join("sys/hypervisor/type")).unwrap_or_default(),
    ];
    let vendor = vendor.join("\n").to_ascii_lowercase();
    if vendor.contains("xen") {
        return Some("Xen".to_owned());
    }
    let known = KNOWN.iter().find(|(sign, _)| vendor.contains(sign));
    if let Some((_, name)) = known {
        return Some((*name).to_owned());
    }
    // Small hypervisors have no DMI table. The processor flag remains.
    let processor = text(&root.join("proc/cpuinfo")).unwrap_or_default();
    let flags = processor
        .lines()
        .find(|line| line.starts_with("flags") || line.starts_with("Features"));
    flags
        .is_some_and(|line| line.split_whitespace().any(|flag| flag == "hypervisor"))
        .then(|| "a hypervisor".to_owned())
}

fn mitigations(root: &Path) -> Vec<Mitigation> {
    let folder = root.join("sys/devices/system/cpu/vulnerabilities");
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
        .iter()
        .filter_map(|path| {
            let content = text(path)?;
            let name = path.file_name()?.to_string_lossy().into_owned();
            content
                .starts_with("Mitigation")
                .then_some(Mitigation { name, content })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(files: &[(&str, &str)], release: &str) -> Surroundings {
        let root = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        Surroundings::below(root.path(), release)
    }

    #[test]
    fn containers_are_identified_by_their_files() {
        for (path, content, kind) in [
            (".dockerenv", "", ContainerKind::Docker),
            ("run/.containerenv", "", ContainerKind::Podman),
            (
                "var/run/secrets/kubernetes.io/serviceaccount/token",
                "",
                ContainerKind::Kubernetes,
            ),
            ("proc/1/environ", "A=b\0container=lxc\0", ContainerKind::Lxc),
            (
                "proc/1/environ",
                "container=systemd-nspawn\0",
                ContainerKind::SystemdNspawn,
            ),
            ("proc/1/environ", "container=oci\0", ContainerKind::Other),
            (
                "proc/1/cgroup",
                "12:pids:/kubepods/besteffort/pod1\n",
                ContainerKind::Kubernetes,
            ),
            ("proc/1/cgroup", "0::/docker/0123\n", ContainerKind::Docker),
        ] {
            let surroundings = with(&[(path, content)], "6.1.0").container;
            assert_eq!(
                surroundings.map(|one| one.kind),
                Some(kind),
                "{path} {content:?}"
            );
        }
        let pod = with(
            &[
                ("run/secrets", ""),
                (".dockerenv", ""),
                ("var/run/secrets/kubernetes.io/a", ""),
            ],
            "6.1.0",
        );
        assert_eq!(pod.container.unwrap().kind, ContainerKind::Kubernetes);
        let kind = |release| with(&[], release).container.map(|one| one.kind);
        assert_eq!(kind("4.19.0-gvisor"), Some(ContainerKind::GVisor));
        assert_eq!(
            kind("5.15.167.4-microsoft-standard-WSL2"),
            Some(ContainerKind::Wsl)
        );
        assert_eq!(kind("6.1.0"), None);
    }

    #[test]
    fn a_virtual_machine_is_identified_by_its_dmi_table_or_its_processor() {
        let of = |path: &str, content: &str| with(&[(path, content)], "").hypervisor;
        assert_eq!(
            of("sys/class/dmi/id/sys_vendor", "QEMU\n").as_deref(),
            Some("QEMU")
        );
        assert_eq!(
            of("sys/class/dmi/id/sys_vendor", "Amazon EC2\n").as_deref(),
            Some("Amazon EC2")
        );
        assert_eq!(of("sys/hypervisor/type", "xen\n").as_deref(), Some("Xen"));
        assert_eq!(
            of("proc/cpuinfo", "processor: 0\nflags\t: fpu hypervisor lm\n").as_deref(),
            Some("a hypervisor")
        );
        assert_eq!(of("proc/cpuinfo", "flags\t: fpu lm\n"), None);
        assert_eq!(of("sys/class/dmi/id/sys_vendor", "Dell Inc.\n"), None);
    }

    #[test]
    fn only_mitigated_vulnerabilities_are_listed() {
        let folder = "sys/devices/system/cpu/vulnerabilities";
        let surroundings = with(
            &[
                (&format!("{folder}/meltdown"), "Mitigation: PTI\n"),
                (&format!("{folder}/l1tf"), "Not affected\n"),
                (&format!("{folder}/mds"), "Vulnerable\n"),
            ],
            "",
        );
        let names: Vec<_> = surroundings
            .mitigations
            .iter()
            .map(|one| &*one.name)
            .collect();
        assert_eq!(names, ["meltdown"]);
        assert_eq!(surroundings.mitigations[0].content, "Mitigation: PTI");
    }
}
