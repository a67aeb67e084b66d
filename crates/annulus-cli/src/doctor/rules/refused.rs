//! Rules for a missing ring: the obstacle, and how to remove it.

use crate::doctor::advice::{Findings, Rule, RuleReport, Severity::Blocks};
use crate::doctor::cause::{Cause, causes};
use crate::doctor::facts::Environment;
use crate::doctor::surroundings::ContainerKind;

pub(super) const RULES: &[Rule] = &[
    Rule::new("kernel-before-io-uring", kernel_before),
    Rule::new("kernel-too-old", kernel_too_old),
    Rule::new("not-built-in", not_built_in),
    Rule::new("sysctl-forbids", sysctl_forbids),
    Rule::new("sysctl-forbids-this-user", sysctl_forbids_user),
    Rule::new("seccomp-refuses", seccomp_refuses),
    Rule::new("seccomp-says-missing", seccomp_says_missing),
    Rule::new("seccomp-kills", seccomp_kills),
    Rule::new("seccomp-refuses-part", seccomp_refuses_part),
    Rule::new("security-module", security_module),
    Rule::new("sandbox", sandbox),
    Rule::new("memlock-no-ring", memlock),
    Rule::new("descriptors-no-ring", descriptors),
    Rule::new("refused-otherwise", otherwise),
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
            "io_uring exists since Linux 5.1, and Annulus needs 5.11 or later",
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
            Some(source) => {
                format!("io_uring_setup returns ENOSYS; {source} lacks CONFIG_IO_URING=y")
            }
            None => {
                "io_uring_setup returns ENOSYS, no filter is loaded, and the kernel is new enough"
                    .to_owned()
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
            "io_uring is disabled for all users of this machine, including root",
        )
        .next("as root: sysctl -w kernel.io_uring_disabled=0")
    })
}

fn sysctl_forbids_user(findings: &Findings<'_>) -> Option<RuleReport> {
    when(findings, Cause::SysctlForbidsUser, |env| {
        let group = env.policy.io_uring_group;
        let group_text = match group {
            Some(group) => format!("this user is not in group {group} (kernel.io_uring_group)"),
            None => "no group is exempt (kernel.io_uring_group is -1)".to_owned(),
        };
        let next = match group {
            Some(group) => format!(
                "add the user to group {group}, or as root: sysctl -w kernel.io_uring_disabled=0"
            ),
            None => "as root: sysctl -w kernel.io_uring_group=GID, or sysctl -w \
                     kernel.io_uring_disabled=0"
                .to_owned(),
        };
        let why = format!("only CAP_SYS_ADMIN or a group allows io_uring, and {group_text}");
        RuleReport::new(Blocks, "kernel.io_uring_disabled = 1", why).next(next)
    })
}

/// Returns how to allow the calls in the environment of this process.
fn allow(env: &Environment) -> String {
    const CALLS: &str = "io_uring_setup, io_uring_enter and io_uring_register";
    let kind = env.surroundings.container.as_ref().map(|one| one.kind);
    let how = match kind {
        Some(ContainerKind::Docker) => {
            "annulus doctor --profile docker >annulus.json, and docker run --security-opt seccomp=annulus.json"
        }
        Some(ContainerKind::Podman) => {
            "annulus doctor --profile podman >annulus.json, and podman run --security-opt seccomp=annulus.json"
        }
        Some(ContainerKind::Kubernetes) => {
            "annulus doctor --profile kubernetes prints the profile for the nodes, and the pod's seccompProfile"
        }
        Some(ContainerKind::Lxc) => {
            "lxc.seccomp.profile = PROFILE in the container's configuration"
        }
        Some(ContainerKind::SystemdNspawn) => {
            "systemd-nspawn --system-call-filter='io_uring_setup io_uring_enter io_uring_register'"
        }
        _ => {
            "for a systemd service, add SystemCallFilter=@aio (annulus doctor --profile systemd); for a container, \
             change its seccomp profile (--profile docker, podman or kubernetes)"
        }
    };
    format!("allow {CALLS}: {how}")
}

fn seccomp_refuses(findings: &Findings<'_>) -> Option<RuleReport> {
    when(findings, Cause::SeccompRefuses, |env| {
        let name = (env.surroundings.container.as_ref()).map_or("", |one| one.kind.name());
        let why = match name {
            "" => "the calls fail with EPERM, and this process has a seccomp filter".to_owned(),
            name => {
                format!(
                    "the calls fail with EPERM, and this process has a filter: probably the default profile of {name}"
                )
            }
        };
        RuleReport::new(Blocks, "a seccomp filter refuses io_uring", why).next(allow(env))
    })
}

fn seccomp_says_missing(findings: &Findings<'_>) -> Option<RuleReport> {
    when(findings, Cause::SeccompSaysMissing, |env| {
        let why = match (&env.kernel.configuration, env.policy.io_uring_disabled) {
            (Some(source), _) if env.kernel.has_io_uring_built_in == Some(true) => {
                format!("the calls fail with ENOSYS, but {source} has CONFIG_IO_URING=y, and a filter is loaded")
            }
            (_, Some(_)) => {
                "the calls fail with ENOSYS, but the kernel has the io_uring sysctl, and a filter is \
                             loaded"
                    .to_owned()
            }
            _ => "the calls fail with ENOSYS, but the kernel is new enough, and a filter is loaded".to_owned(),
        };
        let what = "a seccomp filter hides io_uring";
        RuleReport::new(Blocks, what, why).next(allow(env))
    })
}

fn seccomp_kills(findings: &Findings<'_>) -> Option<RuleReport> {
    when(findings, Cause::SeccompKills, |env| {
        let fatal: Vec<&str> = (env.ring.calls.iter())
            .filter(|call| call.kills)
            .map(|call| &*call.name)
            .collect();
        RuleReport::new(
            Blocks,
            format!(
                "a seccomp filter kills the process for {}",
                fatal.join(" and ")
            ),
            "a child that made the call was ended by SIGSYS, so Annulus does not make it",
        )
        .next(allow(env))
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
            "a ring can be created, but not used",
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
            true => "the loaded modules are not visible here".to_owned(),
            false => format!("loaded: {}", modules.join(", ")),
        };
        RuleReport::new(
            Blocks,
            "a security module refuses io_uring",
            format!(
                "only io_uring_setup fails, with EPERM or EACCES, and no sysctl or filter forbids it; {loaded}"
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
                "a sandbox between this process and the kernel",
                |_| "gVisor",
            );
        RuleReport::new(
            Blocks,
            format!("{name} has no io_uring"),
            "the calls fail with ENOSYS, but no seccomp filter is loaded, and the kernel may have io_uring",
        )
        .next("run outside the sandbox, or continue without io_uring")
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
                    "io_uring_setup fails with ENOMEM, and no limit of locked memory applies",
                )
                .next("free memory, or raise the memory limit of the cgroup");
            }
        };
        let why = "io_uring_setup fails with ENOMEM: this kernel counts rings against the locked memory of all processes of \
             the user";
        RuleReport::new(
            Blocks,
            format!("{limit} of locked memory are too little for a ring"),
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
            "no file descriptor is left for a ring",
            format!("io_uring_setup fails with EMFILE or ENFILE; RLIMIT_NOFILE is {limit}"),
        )
        .next("ulimit -n 65536; systemd: LimitNOFILE=65536")
    })
}

fn otherwise(findings: &Findings<'_>) -> Option<RuleReport> {
    when(findings, Cause::Unknown, |env| {
        let report = (env.ring.refusal.as_ref()).map_or("", |refusal| &*refusal.text);
        RuleReport::new(Blocks, "a ring cannot be created", report)
    })
}
