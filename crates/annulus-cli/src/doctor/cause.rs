//! Why there is no ring: told from which of the three system calls are refused, how, and what else is known.
//!
//! A seccomp filter forbids calls by number, so it also refuses an enter on something that is no ring; the sysctl and
//! the security modules are asked by the set-up alone. A kernel without io_uring and a filter that plays one answer the
//! same `ENOSYS`: there the kernel's configuration, its sysctl and its version decide.

use rustix::io::Errno;
use schemars::JsonSchema;
use serde::Serialize;

use super::facts::{Environment, RefusalKind, Seccomp, Version};
use super::surroundings::ContainerKind;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Cause {
    /// Before io_uring came.
    KernelBefore,
    /// With an io_uring that lacks what Annulus can't do without.
    KernelTooOld,
    NotBuiltIn,
    SeccompSaysMissing,
    SeccompRefuses,
    /// The set-up is allowed, another call is not.
    SeccompRefusesPart,
    SysctlForbids,
    SysctlForbidsUser,
    SecurityModule,
    Sandbox,
    Memlock,
    Descriptors,
    Unknown,
}

/// The first Linux with io_uring.
const FIRST: Version = Version(5, 1, 0);

/// Everything that has to change before there is a ring; empty where there is one. The first is named as the cause.
pub(crate) fn causes(env: &Environment) -> Vec<Cause> {
    let Some(refusal) = &env.ring.refusal else {
        return Vec::new();
    };
    let answer = |call| env.answer(call).map(Errno::from_raw_os_error);
    let set_up = answer("io_uring_setup");
    let others = [answer("io_uring_enter"), answer("io_uring_register")];
    match set_up {
        Some(Errno::NOSYS) => vec![missing(env)],
        Some(Errno::PERM | Errno::ACCESS) => refused(env, others.iter().any(|one| is_denial(*one))),
        Some(Errno::NOMEM) => vec![Cause::Memlock],
        Some(Errno::MFILE | Errno::NFILE) => vec![Cause::Descriptors],
        Some(Errno::INVAL) => vec![Cause::KernelTooOld],
        _ if others.iter().any(Option::is_some) => vec![Cause::SeccompRefusesPart],
        // A ring can be made, and not the one that Annulus needs.
        _ => vec![match refusal.kind {
            RefusalKind::TooOld => Cause::KernelTooOld,
            RefusalKind::Memlock => Cause::Memlock,
            RefusalKind::Descriptors => Cause::Descriptors,
            _ => Cause::Unknown,
        }],
    }
}

fn is_denial(answer: Option<Errno>) -> bool {
    matches!(answer, Some(Errno::PERM | Errno::ACCESS | Errno::NOSYS))
}

/// `ENOSYS`.
fn missing(env: &Environment) -> Cause {
    let container = env.surroundings.container.as_ref();
    if container.is_some_and(|one| one.kind == ContainerKind::GVisor) {
        return Cause::Sandbox;
    }
    let filtered = env.policy.seccomp == Seccomp::Filter;
    let built_in = match env.kernel.has_io_uring_built_in {
        // The sysctl is there only where io_uring is.
        _ if env.policy.io_uring_disabled.is_some() => Some(true),
        configured => configured,
    };
    match (built_in, filtered) {
        (Some(true), true) => Cause::SeccompSaysMissing,
        // The kernel has it and no filter hides it: something between us and the kernel answers.
        (Some(true), false) => Cause::Sandbox,
        _ if env.kernel.version < FIRST => Cause::KernelBefore,
        (Some(false), _) => Cause::NotBuiltIn,
        (None, true) => Cause::SeccompSaysMissing,
        (None, false) => Cause::NotBuiltIn,
    }
}

/// `EPERM` or `EACCES`; `others_too`: the calls that only a filter refuses are refused as well.
fn refused(env: &Environment, others_too: bool) -> Vec<Cause> {
    let mut causes = Vec::new();
    let filtered = env.policy.seccomp == Seccomp::Filter;
    match env.policy.io_uring_disabled {
        Some(2) => causes.push(Cause::SysctlForbids),
        Some(1) if !is_spared(env) => causes.push(Cause::SysctlForbidsUser),
        _ => {}
    }
    if filtered && (others_too || causes.is_empty()) {
        causes.push(Cause::SeccompRefuses);
    }
    if causes.is_empty() {
        causes.push(Cause::SecurityModule);
    }
    causes
}

/// By a sysctl of 1: root, and members of the group.
fn is_spared(env: &Environment) -> bool {
    let capable = env
        .policy
        .capabilities
        .iter()
        .any(|one| one == "CAP_SYS_ADMIN");
    env.policy.is_in_group || (capable && env.policy.is_initial_user_namespace)
}
