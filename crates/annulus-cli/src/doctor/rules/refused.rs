//! Who forbids io_uring, and how it is allowed.

use crate::doctor::advice::{Findings, Rule, RuleReport, Severity::Blocks};
use crate::doctor::cause::{Cause, causes};
use crate::doctor::facts::Environment;
use crate::doctor::surroundings::ContainerKind;

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "kernel-before-io-uring",
        check: kernel_before,
    },
    Rule {
        name: "kernel-too-old",
        check: kernel_too_old,
    },
    Rule {
        name: "not-built-in",
        check: not_built_in,
    },
    Rule {
        name: "sysctl-forbids",
        check: sysctl_forbids,
    },
    Rule {
        name: "sysctl-forbids-this-user",
        check: sysctl_forbids_user,
    },
    Rule {
        name: "seccomp-refuses",
        check: seccomp_refuses,
    },
    Rule {
        name: "seccomp-says-missing",
        check: seccomp_says_missing,
    },
    Rule {
        name: "seccomp-refuses-part",
        check: seccomp_refuses_part,
    },
    Rule {
        name: "security-module",
        check: security_module,
    },
    Rule {
        name: "sandbox",
        check: sandbox,
    },
    Rule {
        name: "memlock-no-ring",
        check: memlock,
    },
    Rule {
        name: "descriptors-no-ring",
        check: descriptors,
    },
    Rule {
        name: "refused-otherwise",
        check: otherwise,
    },
];

fn when(
    findings: &Findings<'_>,
    cause: Cause,
    report: impl FnOnce(&Environment) -> RuleReport,
) -> Option<RuleReport> {
    causes(findings.env)
        .contains(&cause)
        .then(|| report(findings.env))
}

fn kernel_before(findings: &Findings<'_>) -> Option<RuleReport> {
    when(findings, Cause::KernelBefore, |env| {
        RuleReport::new(
            Blocks,
            format!("Linux {} has no io_uring", env.kernel.release),
            "io_uring came with Linux 5.1, and Annulus uses it from 5.11 on",
        )
        .next("boot Linux 6.12 or later")
    })
}

fn kernel_too_old(findings: &Findings<'_>) -> Option<RuleReport> {
    when(findings, Cause::KernelTooOld, |env| {
        let lacks = env
            .ring
            .refusal
            .as_ref()
            .map(|refusal| refusal.text.clone());
        RuleReport::new(
            Blocks,
            format!("the io_uring of Linux {} is too old", env.kernel.release),
            lacks.unwrap_or_default(),
        )
        .next("boot Linux 5.11 or later; 6.12 or later is recommended")
    })
}

fn not_built_in(findings: &Findings<'_>) -> Option<RuleReport> {
    when(findings, Cause::NotBuiltIn, |env| {
        let why = match &env.kernel.configuration {
            Some(source) => format!("ENOSYS; {source} lacks CONFIG_IO_URING=y"),
            None => {
                "ENOSYS, no filter is loaded, and the kernel's version would have it".to_owned()
            }
        };
        let what = format!("Linux {} was built without io_uring", env.kernel.release);
        RuleReport::new(Blocks, what, why).next("boot a kernel built with CONFIG_IO_URING=y")
    })
}

fn sysctl_forbids(findings: &Findings<'_>) -> Option<RuleReport> {
    when(findings, Cause::SysctlForbids, |_| {
        RuleReport::new(
            Blocks,
            "kernel.io_uring_disabled = 2",
            "EPERM for everybody on this machine, root included",
        )
        .next("as root: sysctl -w kernel.io_uring_disabled=0")
    })
}

fn sysctl_forbids_user(findings: &Findings<'_>) -> Option<RuleReport> {
    when(findings, Cause::SysctlForbidsUser, |env| {
        let group = env.policy.io_uring_group;
        let group_text = match group {
            Some(group) => format!("this user is not in group {group} (kernel.io_uring_group)"),
            None => "no group is spared (kernel.io_uring_group is -1)".to_owned(),
        };
        let next = match group {
            Some(group) => format!(
                "add the user to group {group}, or as root: sysctl -w kernel.io_uring_disabled=0"
            ),
            None => "as root: sysctl -w kernel.io_uring_group=GID, or sysctl -w \
                     kernel.io_uring_disabled=0"
                .to_owned(),
        };
        let why = format!("EPERM without CAP_SYS_ADMIN, and {group_text}");
        RuleReport::new(Blocks, "kernel.io_uring_disabled = 1", why).next(next)
    })
}

/// How the calls are allowed where this process runs.
fn allow(env: &Environment) -> String {
    const CALLS: &str = "io_uring_setup, io_uring_enter and io_uring_register";
    let kind = env.surroundings.container.as_ref().map(|one| one.kind);
    let how = match kind {
        Some(ContainerKind::Docker) => "docker run --security-opt seccomp=PROFILE.json",
        Some(ContainerKind::Podman) => "podman run --security-opt seccomp=PROFILE.json",
        Some(ContainerKind::Kubernetes) => {
            "the pod's securityContext.seccompProfile: type Localhost, localhostProfile PROFILE.json"
        }
        Some(ContainerKind::Lxc) => {
            "lxc.seccomp.profile = PROFILE in the container's configuration"
        }
        Some(ContainerKind::SystemdNspawn) => {
            "systemd-nspawn --system-call-filter='io_uring_setup io_uring_enter io_uring_register'"
        }
        _ => {
            "a systemd service: SystemCallFilter=@aio beside what it has; a container: its seccomp \
             profile"
        }
    };
    format!("allow {CALLS}: {how}")
}

fn seccomp_refuses(findings: &Findings<'_>) -> Option<RuleReport> {
    when(findings, Cause::SeccompRefuses, |env| {
        let name = (env.surroundings.container.as_ref()).map_or("", |one| one.kind.name());
        let why = match name {
            "" => "EPERM, and a filter is loaded into this process".to_owned(),
            name => {
                format!("EPERM, and a filter is loaded: the default profile of {name}, most likely")
            }
        };
        RuleReport::new(Blocks, "a seccomp filter refuses io_uring", why).next(allow(env))
    })
}

fn seccomp_says_missing(findings: &Findings<'_>) -> Option<RuleReport> {
    when(findings, Cause::SeccompSaysMissing, |env| {
        let why = match (&env.kernel.configuration, env.policy.io_uring_disabled) {
            (Some(source), _) if env.kernel.has_io_uring_built_in == Some(true) => {
                format!("ENOSYS, although {source} has CONFIG_IO_URING=y, and a filter is loaded")
            }
            (_, Some(_)) => {
                "ENOSYS, although the kernel has the sysctl of io_uring, and a filter is \
                             loaded"
                    .to_owned()
            }
            _ => "ENOSYS, the kernel's version should have it, and a filter is loaded".to_owned(),
        };
        let what = "a seccomp filter answers as if the kernel had no io_uring";
        RuleReport::new(Blocks, what, why).next(allow(env))
    })
}

fn seccomp_refuses_part(findings: &Findings<'_>) -> Option<RuleReport> {
    when(findings, Cause::SeccompRefusesPart, |env| {
        let refused: Vec<&str> = (env.ring.calls.iter())
            .filter(|call| call.errno.is_some())
            .map(|call| &*call.name)
            .collect();
        RuleReport::new(
            Blocks,
            format!("a seccomp filter refuses {}", refused.join(" and ")),
            "a ring can be set up and not be used",
        )
        .next(allow(env))
    })
}

fn security_module(findings: &Findings<'_>) -> Option<RuleReport> {
    when(findings, Cause::SecurityModule, |env| {
        let modules: Vec<&str> = ["selinux", "apparmor", "smack", "bpf", "landlock"]
            .into_iter()
            .filter(|name| env.policy.security_modules.iter().any(|one| one == name))
            .collect();
        let loaded = match modules.is_empty() {
            true => "which are loaded is not visible here".to_owned(),
            false => format!("loaded: {}", modules.join(", ")),
        };
        RuleReport::new(
            Blocks,
            "a security module refuses io_uring",
            format!(
                "EPERM or EACCES from the set-up alone, with no sysctl or filter to blame; {loaded}"
            ),
        )
        .next("allow io_uring for this program in its policy (SELinux: the class io_uring)")
    })
}

fn sandbox(findings: &Findings<'_>) -> Option<RuleReport> {
    when(findings, Cause::Sandbox, |env| {
        let name = (env.surroundings.container.as_ref())
            .filter(|one| one.kind == ContainerKind::GVisor)
            .map_or(
                "something between this process and the kernel",
                |_| "gVisor",
            );
        RuleReport::new(
            Blocks,
            format!("{name} has no io_uring"),
            "ENOSYS, although the kernel below may have it and no seccomp filter is loaded",
        )
        .next("run outside the sandbox, or go on without io_uring")
    })
}

fn memlock(findings: &Findings<'_>) -> Option<RuleReport> {
    when(findings, Cause::Memlock, |env| {
        let limit = match env.limits.memlock_bytes {
            Some(bytes) if !env.limits.memlock_waived => format!("{} KiB", bytes >> 10),
            _ => {
                return RuleReport::new(
                    Blocks,
                    "the kernel has no memory for a ring",
                    "ENOMEM, and no limit of locked memory counts here",
                )
                .next("free memory, or raise the memory limit of the cgroup");
            }
        };
        let why =
            "ENOMEM: this kernel charges rings to the user's locked memory, over all processes";
        RuleReport::new(
            Blocks,
            format!("{limit} of locked memory hold no ring"),
            why,
        )
        .next("ulimit -l 65536; systemd: LimitMEMLOCK=64M; docker run --ulimit memlock=67108864")
    })
}

fn descriptors(findings: &Findings<'_>) -> Option<RuleReport> {
    when(findings, Cause::Descriptors, |env| {
        let limit =
            (env.limits.descriptors).map_or("unlimited".to_owned(), |count| count.to_string());
        RuleReport::new(
            Blocks,
            "no descriptor is left for a ring",
            format!("EMFILE or ENFILE; RLIMIT_NOFILE is {limit}"),
        )
        .next("ulimit -n 65536; systemd: LimitNOFILE=65536")
    })
}

fn otherwise(findings: &Findings<'_>) -> Option<RuleReport> {
    when(findings, Cause::Unknown, |env| {
        let report = (env.ring.refusal.as_ref()).map_or("", |refusal| &*refusal.text);
        RuleReport::new(Blocks, "a ring could not be made", report)
    })
}
