//! The cause of a missing ring, derived from the errors of the three system calls and from the environment.
//!
//! A seccomp filter matches system calls by number, so it also refuses `io_uring_enter` on a descriptor that is not a
//! ring. The sysctl and the security modules only affect the set-up call. A kernel without io_uring and a filter that
//! imitates one both return `ENOSYS`. In that case the kernel's configuration, its sysctl and its version decide.

use rustix::io::Errno;
use serde::Serialize;

use super::facts::{Environment, RefusalKind, Seccomp, Version};
use super::surroundings::ContainerKind;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Cause {
    /// The kernel is older than io_uring.
    KernelBefore,
    /// The kernel's io_uring lacks a feature that Annulus requires.
    KernelTooOld,
    NotBuiltIn,
    SeccompSaysMissing,
    SeccompRefuses,
    /// A filter ends the process for one of the calls.
    SeccompKills,
    /// A filter allows the set-up call and refuses another one.
    SeccompRefusesPart,
    SysctlForbids,
    SysctlForbidsUser,
    SecurityModule,
    Sandbox,
    Memlock,
    Descriptors,
    Unknown,
}

/// The first Linux version with io_uring.
const FIRST: Version = Version(5, 1, 0);

/// Returns every obstacle to a ring, the main cause first. Empty if there is a ring.
pub(crate) fn causes(env: &Environment) -> Vec<Cause> {
    let Some(refusal) = &env.ring.refusal else {
        return Vec::new();
    };
    if env.ring.calls.iter().any(|call| call.kills) {
        return vec![Cause::SeccompKills];
    }
    let errno = |call| env.errno(call).map(Errno::from_raw_os_error);
    let set_up = errno("io_uring_setup");
    let others = [errno("io_uring_enter"), errno("io_uring_register")];
    match set_up {
        Some(Errno::NOSYS) => vec![missing(env)],
        Some(Errno::PERM | Errno::ACCESS) => refused(env, others.iter().any(|one| is_denial(*one))),
        Some(Errno::NOMEM) => vec![Cause::Memlock],
        Some(Errno::MFILE | Errno::NFILE) => vec![Cause::Descriptors],
        Some(Errno::INVAL) => vec![Cause::KernelTooOld],
        _ if others.iter().any(Option::is_some) => vec![Cause::SeccompRefusesPart],
        // The calls work, but the ring that Annulus needs cannot be created.
        _ => vec![match refusal.kind {
            RefusalKind::TooOld => Cause::KernelTooOld,
            RefusalKind::Memlock => Cause::Memlock,
            RefusalKind::Descriptors => Cause::Descriptors,
            _ => Cause::Unknown,
        }],
    }
}

fn is_denial(errno: Option<Errno>) -> bool {
    matches!(errno, Some(Errno::PERM | Errno::ACCESS | Errno::NOSYS))
}

/// Returns the cause of `ENOSYS`.
fn missing(env: &Environment) -> Cause {
    let container = env.surroundings.container.as_ref();
    if container.is_some_and(|one| one.kind == ContainerKind::GVisor) {
        return Cause::Sandbox;
    }
    let filtered = env.policy.seccomp == Seccomp::Filter;
    let built_in = match env.kernel.has_io_uring_built_in {
        // The sysctl exists only if io_uring is built in.
        _ if env.policy.io_uring_disabled.is_some() => Some(true),
        configured => configured,
    };
    match (built_in, filtered) {
        (Some(true), true) => Cause::SeccompSaysMissing,
        // The kernel has io_uring and no filter is loaded: a sandbox handles the system calls.
        (Some(true), false) => Cause::Sandbox,
        _ if env.kernel.version < FIRST => Cause::KernelBefore,
        (Some(false), _) => Cause::NotBuiltIn,
        (None, true) => Cause::SeccompSaysMissing,
        (None, false) => Cause::NotBuiltIn,
    }
}

/// Returns the causes of `EPERM` or `EACCES`. `others_too`: the calls that only a filter refuses failed as well.
fn refused(env: &Environment, others_too: bool) -> Vec<Cause> {
    let mut causes = Vec::new();
    let filtered = env.policy.seccomp == Seccomp::Filter;
    match env.policy.io_uring_disabled {
        Some(2) => causes.push(Cause::SysctlForbids),
        Some(1) if !is_exempt(env) => causes.push(Cause::SysctlForbidsUser),
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

/// Returns whether a sysctl value of 1 exempts this process. Root and members of the group are exempt.
fn is_exempt(env: &Environment) -> bool {
    let capable = env
        .policy
        .capabilities
        .iter()
        .any(|one| one == "CAP_SYS_ADMIN");
    env.policy.is_in_group || (capable && env.policy.is_initial_user_namespace)
}
