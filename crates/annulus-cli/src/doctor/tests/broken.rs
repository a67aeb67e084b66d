//! Twenty machines on which io_uring does not work, or works with restrictions. Each test checks the cause, the remedy,
//! the verdict and the exit code.

use std::time::SystemTime;

use super::machines::{as_user, good, in_container, probe_fact, refused};
use crate::doctor::advice::Verdict;
use crate::doctor::facts::RefusalKind::{self, Descriptors, Memlock, Missing, Refused, TooOld};
use crate::doctor::facts::{Environment, Seccomp, SetupMode, Version};
use crate::doctor::json::Report;
use crate::doctor::surroundings::ContainerKind;

const EPERM: i32 = 1;
const ENOMEM: i32 = 12;
const EACCES: i32 = 13;
const EINVAL: i32 = 22;
const ENFILE: i32 = 23;
const EMFILE: i32 = 24;
const ENOSYS: i32 = 38;

/// A machine, the rule that must be reported first, and a part of its remedy.
struct Broken {
    name: &'static str,
    env: Environment,
    rule: &'static str,
    hint: &'static str,
    verdict: Verdict,
}

fn broken(
    name: &'static str,
    mut env: Environment,
    change: impl FnOnce(&mut Environment),
    rule: &'static str,
    hint: &'static str,
) -> Broken {
    change(&mut env);
    Broken {
        name,
        verdict: match env.has_ring() {
            true => Verdict::Less,
            false => Verdict::NoIoUring,
        },
        env,
        rule,
        hint,
    }
}

fn version(env: &mut Environment, major: u32, minor: u32, patch: u32) {
    env.kernel.version = Version(major, minor, patch);
    env.kernel.release = format!("{major}.{minor}.{patch}");
}

fn unknown_configuration(env: &mut Environment) {
    env.kernel.has_io_uring_built_in = None;
    env.kernel.configuration = None;
    env.policy.io_uring_disabled = None;
}

fn filtered(env: &mut Environment) {
    env.policy.seccomp = Seccomp::Filter;
    env.policy.seccomp_filters = Some(1);
}

/// Machines whose kernel lacks io_uring, or a part of it.
fn kernels() -> Vec<Broken> {
    vec![
        broken(
            "Linux 4.19",
            refused(Missing, [ENOSYS; 3]),
            |env| {
                version(env, 4, 19, 0);
                unknown_configuration(env);
            },
            "kernel-before-io-uring",
            "boot Linux 6.12",
        ),
        broken(
            "Linux 5.4",
            refused(TooOld, [EINVAL, 0, 0]),
            |env| {
                version(env, 5, 4, 0);
                unknown_configuration(env);
            },
            "kernel-too-old",
            "boot Linux 5.11",
        ),
        broken(
            "Linux 5.10, whose rings lack a required feature",
            refused(TooOld, [0; 3]),
            |env| {
                version(env, 5, 10, 223);
                unknown_configuration(env);
            },
            "kernel-too-old",
            "boot Linux 5.11",
        ),
        broken(
            "a kernel whose configuration disables io_uring",
            refused(Missing, [ENOSYS; 3]),
            |env| {
                unknown_configuration(env);
                env.kernel.has_io_uring_built_in = Some(false);
                env.kernel.configuration = Some("/boot/config-7.3.1".into());
            },
            "not-built-in",
            "CONFIG_IO_URING=y",
        ),
        broken(
            "a kernel without io_uring and without a readable configuration",
            refused(Missing, [ENOSYS; 3]),
            unknown_configuration,
            "not-built-in",
            "CONFIG_IO_URING=y",
        ),
    ]
}

/// Machines where a sysctl or a security module forbids io_uring.
fn policies() -> Vec<Broken> {
    vec![
        broken(
            "the sysctl at 2",
            refused(Refused, [EPERM, 0, 0]),
            |env| {
                env.policy.io_uring_disabled = Some(2);
            },
            "sysctl-forbids",
            "kernel.io_uring_disabled=0",
        ),
        broken(
            "the sysctl at 1, for a user, without a group",
            refused(Refused, [EPERM, 0, 0]),
            |env| {
                as_user(env);
                env.policy.io_uring_disabled = Some(1);
            },
            "sysctl-forbids-this-user",
            "kernel.io_uring_group=GID",
        ),
        broken(
            "the sysctl at 1, for a user outside of the group",
            refused(Refused, [EPERM, 0, 0]),
            |env| {
                as_user(env);
                env.policy.io_uring_disabled = Some(1);
                env.policy.io_uring_group = Some(977);
            },
            "sysctl-forbids-this-user",
            "add the user to group 977",
        ),
        broken(
            "SELinux",
            refused(Refused, [EACCES, 0, 0]),
            |env| {
                env.policy.security_modules = vec!["capability".into(), "selinux".into()];
            },
            "security-module",
            "policy",
        ),
    ]
}

/// Machines where a seccomp filter refuses io_uring.
fn filters() -> Vec<Broken> {
    vec![
        broken(
            "the default profile of Docker",
            refused(Refused, [EPERM; 3]),
            |env| {
                filtered(env);
                in_container(env, ContainerKind::Docker);
            },
            "seccomp-refuses",
            "docker run --security-opt seccomp=",
        ),
        broken(
            "a pod's default profile",
            refused(Refused, [EPERM; 3]),
            |env| {
                filtered(env);
                in_container(env, ContainerKind::Kubernetes);
            },
            "seccomp-refuses",
            "seccompProfile",
        ),
        broken(
            "the filter of a service that returns EACCES",
            refused(Refused, [EACCES; 3]),
            filtered,
            "seccomp-refuses",
            "SystemCallFilter=@aio",
        ),
    ]
}

/// Machines with a filter that is harder to identify, or a sandbox.
fn odd_filters() -> Vec<Broken> {
    vec![
        broken(
            "a filter that imitates an old kernel",
            refused(Missing, [ENOSYS; 3]),
            |env| {
                filtered(env);
                in_container(env, ContainerKind::Podman);
            },
            "seccomp-says-missing",
            "podman run --security-opt",
        ),
        broken(
            "a filter that imitates an old kernel, where only the sysctl shows io_uring",
            refused(Missing, [ENOSYS; 3]),
            |env| {
                filtered(env);
                unknown_configuration(env);
                env.policy.io_uring_disabled = Some(0);
            },
            "seccomp-says-missing",
            "io_uring_setup",
        ),
        broken(
            "a filter that allows only the set-up call",
            refused(Refused, [0, EPERM, EPERM]),
            filtered,
            "seccomp-refuses-part",
            "io_uring_enter",
        ),
        broken(
            "gVisor",
            refused(Missing, [ENOSYS; 3]),
            |env| {
                version(env, 4, 19, 0);
                unknown_configuration(env);
                in_container(env, ContainerKind::GVisor);
            },
            "sandbox",
            "outside the sandbox",
        ),
    ]
}

/// Machines where a limit prevents a ring.
fn starved() -> Vec<Broken> {
    vec![
        broken(
            "no locked memory, on a kernel that counts rings against it",
            refused(Memlock, [ENOMEM, 0, 0]),
            |env| {
                version(env, 6, 18, 44);
                as_user(env);
                env.limits.memlock_bytes = Some(0);
            },
            "memlock-no-ring",
            "ulimit -l 65536",
        ),
        broken(
            "no descriptor left",
            refused(Descriptors, [EMFILE, 0, 0]),
            |env| {
                env.limits.descriptors = Some(8);
            },
            "descriptors-no-ring",
            "ulimit -n 65536",
        ),
        broken(
            "no descriptor left on the machine",
            refused(Descriptors, [ENFILE, 0, 0]),
            |_| {},
            "descriptors-no-ring",
            "LimitNOFILE",
        ),
    ]
}

/// Machines with a ring that has restrictions.
fn restricted() -> Vec<Broken> {
    vec![
        broken(
            "64 KiB of locked memory",
            good(),
            |env| {
                version(env, 6, 18, 44);
                as_user(env);
                env.limits.memlock_bytes = Some(64 << 10);
                if let Some(engine) = &mut env.ring.engine {
                    engine.entries_got = Some(128);
                }
            },
            "memlock-short",
            "ulimit -l 65536",
        ),
        broken(
            "Linux 5.15",
            good(),
            |env| {
                version(env, 5, 15, 180);
                env.ring.setup_mode = Some(SetupMode::Plain);
            },
            "setup-mode",
            "6.1",
        ),
        broken(
            "a kernel before buffer groups",
            good(),
            |env| {
                let mut groups = probe_fact("buffer groups", "5.19");
                groups.works = false;
                env.ring.registrations = vec![groups];
            },
            "registrations",
            "boot Linux 5.19",
        ),
        broken(
            "32 descriptors",
            good(),
            |env| env.limits.descriptors = Some(32),
            "descriptors-short",
            "ulimit -n 65536",
        ),
    ]
}

#[test]
fn broken_machines_are_identified_by_their_cause_and_its_hint() {
    let all = [kernels, policies, filters, odd_filters, starved, restricted].map(|some| some());
    let all: Vec<Broken> = all.into_iter().flatten().collect();
    assert!(all.len() >= 20, "{}", all.len());
    for one in all {
        let report = Report::new(one.env, None, SystemTime::UNIX_EPOCH);
        let first = report.advice.first();
        let first = first.unwrap_or_else(|| panic!("{}: nothing is reported", one.name));
        assert_eq!(first.rule, one.rule, "{}: {first:?}", one.name);
        let next = first.next.as_deref().unwrap_or_default();
        assert!(next.contains(one.hint), "{}: {next}", one.name);
        assert_eq!(report.verdict, one.verdict, "{}", one.name);
        // Exactly one cause: a second one would mislead the user.
        let causes = report.causes.len();
        assert_eq!(
            causes,
            usize::from(one.verdict == Verdict::NoIoUring),
            "{}",
            one.name
        );
        assert_eq!(
            report.exit_code,
            if causes == 1 { 77 } else { 1 },
            "{}",
            one.name
        );
    }
}

#[test]
fn two_causes_are_both_reported_and_the_sysctl_first() {
    let mut env = refused(RefusalKind::Refused, [EPERM; 3]);
    filtered(&mut env);
    env.policy.io_uring_disabled = Some(2);
    let report = Report::new(env, None, SystemTime::UNIX_EPOCH);
    let rules: Vec<&str> = report.advice.iter().map(|one| &*one.rule).collect();
    assert_eq!(rules[..2], ["sysctl-forbids", "seccomp-refuses"]);
}

#[test]
fn a_sysctl_of_one_exempts_root_and_the_group() {
    let mut env = refused(RefusalKind::Refused, [EPERM, 0, 0]);
    env.policy.io_uring_disabled = Some(1);
    let first = |env: &Environment| {
        Report::new(env.clone(), None, SystemTime::UNIX_EPOCH).advice[0]
            .rule
            .clone()
    };
    // Root is exempt, so there must be another cause.
    assert_eq!(first(&env), "security-module");
    as_user(&mut env);
    assert_eq!(first(&env), "sysctl-forbids-this-user");
    env.policy.is_in_group = true;
    assert_eq!(first(&env), "security-module");
    env.policy.is_in_group = false;
    env.policy.capabilities = vec!["CAP_SYS_ADMIN".into()];
    env.policy.is_initial_user_namespace = false;
    assert_eq!(first(&env), "sysctl-forbids-this-user");
}

#[test]
fn advice_does_not_change_the_verdict_of_a_good_machine() {
    let report = Report::new(good(), None, SystemTime::UNIX_EPOCH);
    assert!(report.advice.is_empty(), "{:?}", report.advice);
    assert_eq!((report.verdict, report.exit_code), (Verdict::Good, 0));
    let mut env = good();
    let mut here = super::machines::location("ext4");
    here.device = Some(super::machines::device("nvme0n1"));
    if let Some(device) = &mut here.device {
        device.scheduler = Some("bfq".into());
    }
    env.location = Some(here);
    let report = Report::new(env, None, SystemTime::UNIX_EPOCH);
    assert!(report.advice.iter().any(|one| one.rule == "scheduler"));
    assert_eq!((report.verdict, report.exit_code), (Verdict::Good, 0));
    assert_eq!(report.next, "annulus bench file /data");
}
