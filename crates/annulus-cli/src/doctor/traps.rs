//! Known traps of the running kernel, by version. Behaviour that can be probed is probed instead
//! (`Support::probe_behaviour`). The version of a distribution's kernel is less reliable than that of an upstream
//! kernel.

use serde::Serialize;

use super::facts::{Environment, Version};

/// A trap of the running version.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct TrapHere {
    pub(crate) name: String,
    pub(crate) what: String,
    /// The workaround of Annulus, or a remedy for the user.
    pub(crate) handling: String,
    /// `true` if the trap makes the kernel unfit for production.
    pub(crate) is_serious: bool,
    /// `false` if a distribution may have fixed it without a change of the version.
    pub(crate) is_certain: bool,
}

struct Trap {
    name: &'static str,
    /// The first affected version, and the first fixed one.
    ranges: &'static [(Version, Version)],
    /// Further conditions.
    applies: fn(&Environment) -> bool,
    what: &'static str,
    handling: &'static str,
    is_serious: bool,
}

const fn v(major: u32, minor: u32, patch: u32) -> Version {
    Version(major, minor, patch)
}

const TRAPS: [Trap; 12] = [
    Trap {
        name: "early bugs",
        ranges: &[(v(5, 13, 0), v(5, 15, 90)), (v(5, 16, 0), v(6, 1, 0))],
        applies: always,
        what: "io_uring has serious bugs in these versions; for example, files stay busy after they are closed",
        handling: "boot 5.15.90 or later of that series, or 6.1 or later",
        is_serious: true,
    },
    Trap {
        name: "rings are charged to locked memory",
        ranges: &[(v(5, 1, 0), v(5, 12, 0)), (v(6, 14, 0), v(7, 2, 0))],
        applies: |env| !env.limits.memlock_waived && env.limits.memlock_bytes.is_some(),
        what: "the memory of rings counts against RLIMIT_MEMLOCK, over all processes of the user",
        handling: "Annulus uses smaller rings, then blocking threads; raise the limit (ulimit -l 65536)",
        is_serious: false,
    },
    Trap {
        name: "registered files stay open",
        ranges: &[(v(5, 13, 0), v(6, 13, 0))],
        applies: always,
        what: "an unregistered file is closed only after every older request on any registered file",
        handling: "Annulus does not register sockets, and shuts them down before it closes them",
        is_serious: false,
    },
    Trap {
        name: "SQPOLL spins",
        ranges: &[(v(5, 1, 0), v(5, 10, 186))],
        applies: always,
        what: "an idle kernel thread of SQPOLL may use a whole processor",
        handling: "do not use SQPOLL",
        is_serious: false,
    },
    Trap {
        name: "SQPOLL needs privileges",
        ranges: &[(v(5, 1, 0), v(5, 13, 0))],
        applies: always,
        what: "SQPOLL needs root before 5.11 and CAP_SYS_NICE before 5.13",
        handling: "without the privilege, the engine works without SQPOLL and reports the reason",
        is_serious: false,
    },
    Trap {
        name: "linked timeouts lock up",
        ranges: &[(v(5, 5, 0), v(6, 15, 0))],
        applies: always,
        what: "LINK_TIMEOUT can lock up the kernel; fixed in 6.15 and in later stable releases of older series",
        handling: "Annulus does not use linked timeouts",
        is_serious: false,
    },
    Trap {
        name: "buffer groups starve",
        ranges: &[(v(6, 1, 7), v(6, 1, 8))],
        applies: always,
        what: "receives with a buffer group can stop, because the kernel loses count of the buffers",
        handling: "boot the next stable release",
        is_serious: true,
    },
    Trap {
        name: "spurious ENOMEM",
        ranges: &[
            (v(6, 1, 0), v(6, 6, 86)),
            (v(6, 7, 0), v(6, 12, 21)),
            (v(6, 13, 0), v(6, 13, 9)),
        ],
        applies: always,
        what: "single operations may fail with ENOMEM although there is memory",
        handling: "retry the operation; boot the current stable release",
        is_serious: false,
    },
    Trap {
        name: "ext4 direct writes use worker threads",
        ranges: &[(v(5, 1, 0), v(6, 12, 25))],
        applies: |env| has_filesystem(env, "ext4"),
        what: "every direct write on ext4 runs on a worker thread of the kernel",
        handling: "boot 6.12.25 or later, and allocate files before you write to them (File::allocate)",
        is_serious: false,
    },
    Trap {
        name: "polled writes hang",
        ranges: &[(v(5, 1, 0), v(5, 17, 0))],
        applies: always,
        what: "a polled direct write that extends a file on ext4 never completes",
        handling: "Annulus does not poll devices on these kernels",
        is_serious: false,
    },
    Trap {
        name: "RAID devices use worker threads",
        ranges: &[(v(5, 1, 0), v(5, 17, 0))],
        applies: |env| has_device(env, "md"),
        what: "operations on a RAID device run on worker threads of the kernel",
        handling: "boot 5.17 or later",
        is_serious: false,
    },
    Trap {
        name: "wrong accepted descriptors",
        ranges: &[(v(6, 6, 0), v(6, 8, 0))],
        applies: always,
        what: "multishot accept on a ring with deferred task work may return wrong descriptors",
        handling: "boot 6.8 or later",
        is_serious: false,
    },
];

fn always(_: &Environment) -> bool {
    true
}

fn has_filesystem(env: &Environment, name: &str) -> bool {
    let location = env.location.as_ref();
    location.is_some_and(|location| location.filesystem.as_deref() == Some(name))
}

fn has_device(env: &Environment, kind: &str) -> bool {
    let device = env
        .location
        .as_ref()
        .and_then(|location| location.device.as_ref());
    device.is_some_and(|device| device.name.starts_with(kind))
}

/// Returns the traps of the running version. Without a ring, there are none.
pub(crate) fn of(env: &Environment) -> Vec<TrapHere> {
    if !env.has_ring() {
        return Vec::new();
    }
    let has = |trap: &&Trap| {
        let within =
            |(from, before): &(Version, Version)| (*from..*before).contains(&env.kernel.version);
        trap.ranges.iter().any(within) && (trap.applies)(env)
    };
    let here = |trap: &Trap| TrapHere {
        name: trap.name.to_owned(),
        what: trap.what.to_owned(),
        handling: trap.handling.to_owned(),
        is_serious: trap.is_serious,
        is_certain: env.kernel.vendor.is_none(),
    };
    TRAPS.iter().filter(has).map(here).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::tests::machines::{device, good, location};

    /// A machine to which all traps of this kernel version apply.
    fn with(version: Version) -> Environment {
        let mut env = good();
        env.kernel.version = version;
        env.limits.memlock_waived = false;
        env.limits.memlock_bytes = Some(8 << 20);
        let mut here = location("ext4");
        here.device = Some(device("md127"));
        env.location = Some(here);
        env
    }

    fn names(env: &Environment) -> Vec<String> {
        of(env).into_iter().map(|trap| trap.name).collect()
    }

    #[test]
    fn each_trap_applies_to_exactly_the_versions_of_its_ranges() {
        for trap in &TRAPS {
            let is_there = |version| names(&with(version)).iter().any(|name| name == trap.name);
            for &(from, before) in trap.ranges {
                assert!(from < before, "{}", trap.name);
                assert!(is_there(from), "{} in {from}", trap.name);
                assert!(!is_there(before), "{} in {before}", trap.name);
                let last = match before {
                    Version(major, minor, 0) if minor > 0 => v(major, minor - 1, 9999),
                    Version(major, 0, 0) => v(major - 1, 9999, 0),
                    Version(major, minor, patch) => v(major, minor, patch - 1),
                };
                assert!(is_there(last), "{} in {last}", trap.name);
            }
            assert!(
                !is_there(v(7, 3, 0)) && !is_there(v(4, 19, 0)),
                "{}",
                trap.name
            );
        }
    }

    #[test]
    fn known_kernels_have_their_known_traps() {
        let serious = |version| of(&with(version)).iter().any(|trap| trap.is_serious);
        for version in [
            v(5, 13, 0),
            v(5, 15, 89),
            v(5, 16, 0),
            v(6, 0, 19),
            v(6, 1, 7),
        ] {
            assert!(serious(version), "{version}");
        }
        for version in [
            v(5, 10, 223),
            v(5, 15, 90),
            v(6, 1, 192),
            v(6, 12, 117),
            v(6, 18, 44),
        ] {
            assert!(!serious(version), "{version}");
        }
        let charged = "rings are charged to locked memory".to_owned();
        assert!(names(&with(v(6, 18, 44))).contains(&charged));
        assert!(!names(&with(v(6, 12, 117))).contains(&charged));
        assert!(!names(&with(v(7, 2, 13))).contains(&charged));
    }

    #[test]
    fn a_trap_needs_its_conditions_and_is_uncertain_on_a_vendor_kernel() {
        let mut env = with(v(6, 1, 192));
        let on_ext4 = "ext4 direct writes use worker threads".to_owned();
        assert!(names(&env).contains(&on_ext4));
        assert!(of(&env).iter().all(|trap| trap.is_certain));
        env.kernel.vendor = Some("Debian".to_owned());
        assert!(of(&env).iter().all(|trap| !trap.is_certain));
        env.location = None;
        assert!(!names(&env).contains(&on_ext4));
        env.limits.memlock_waived = true;
        env.kernel.version = v(6, 18, 44);
        assert!(of(&env).is_empty(), "{:?}", names(&env));
    }
}
