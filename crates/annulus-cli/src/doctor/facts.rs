//! The facts about a machine, as plain data, so that tests can apply the rules to any machine.
//!
//! [`Environment`] holds all facts. `gather.rs` fills it from this machine, and tests simulate other machines.

use serde::Serialize;

use super::location::Location;
use super::surroundings::Surroundings;

/// The machine, as visible to this process.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Environment {
    pub(crate) kernel: Kernel,
    pub(crate) ring: RingFacts,
    pub(crate) policy: Policy,
    pub(crate) limits: Limits,
    pub(crate) surroundings: Surroundings,
    /// The installed servers that `bench all` measures.
    pub(crate) servers: Vec<String>,
    /// The facts about PATH; absent if it could not be inspected.
    pub(crate) location: Option<Location>,
}

#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Kernel {
    /// The output of `uname -r`.
    pub(crate) release: String,
    /// The version of the upstream kernel, as far as it is known.
    pub(crate) version: Version,
    /// The vendor of a modified kernel. Features and fixes may have been backported.
    pub(crate) vendor: Option<String>,
    /// `CONFIG_IO_URING` in the kernel's configuration, if that can be read.
    pub(crate) has_io_uring_built_in: Option<bool>,
    /// The path of the configuration.
    pub(crate) configuration: Option<String>,
}

/// A kernel version. The last number is 0 if it is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Version(pub(crate) u32, pub(crate) u32, pub(crate) u32);

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// The results of the io_uring probes.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct RingFacts {
    /// The three system calls, each called once.
    pub(crate) calls: Vec<Call>,
    /// The reason for a missing ring; absent if there is one.
    pub(crate) refusal: Option<Refusal>,
    /// The newest set-up mode; absent without a ring.
    pub(crate) setup_mode: Option<SetupMode>,
    pub(crate) setup_flags: Vec<ProbeFact>,
    pub(crate) features: Vec<FeatureFact>,
    pub(crate) opcodes: Vec<FeatureFact>,
    pub(crate) operations: Vec<OperationFact>,
    pub(crate) registrations: Vec<ProbeFact>,
    /// Behaviour that differs between kernels of the same version.
    pub(crate) quirks: Vec<Quirk>,
    /// The result of building an engine with its defaults.
    pub(crate) engine: Option<EngineFact>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Call {
    pub(crate) name: String,
    /// The error that it returned; absent if it works.
    pub(crate) errno: Option<i32>,
    /// True if a seccomp filter ends the process for it.
    pub(crate) kills: bool,
}

/// The error of the library.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Refusal {
    pub(crate) kind: RefusalKind,
    pub(crate) text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RefusalKind {
    Missing,
    Refused,
    TooOld,
    Memlock,
    Descriptors,
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum SetupMode {
    Plain,
    Cooperative,
    Deferred,
}

/// The result of a probe on a separate ring.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ProbeFact {
    pub(crate) name: String,
    /// The first kernel that is known to have it.
    pub(crate) since: String,
    pub(crate) works: bool,
    /// The reason if it does not work.
    pub(crate) why: Option<String>,
    /// `true` if the probe failed for lack of locked memory.
    pub(crate) is_starved: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct FeatureFact {
    pub(crate) name: String,
    pub(crate) is_there: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct OperationFact {
    pub(crate) name: String,
    /// The kernel's name of the opcode, if io_uring has one.
    pub(crate) opcode: Option<String>,
    pub(crate) mechanism: Mechanism,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Mechanism {
    Ring,
    BlockingThread,
    Clock,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Quirk {
    pub(crate) name: String,
    /// Absent if the probe could not run.
    pub(crate) works: Option<bool>,
    pub(crate) meaning: String,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct EngineFact {
    /// The description that the engine gives.
    pub(crate) backend: String,
    /// The requested number of entries of the submission queue.
    pub(crate) entries_requested: u32,
    /// The actual number.
    pub(crate) entries_got: Option<u32>,
}

/// The policies that can forbid io_uring.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Policy {
    /// `kernel.io_uring_disabled`; absent before Linux 6.6, and if io_uring is not built in.
    pub(crate) io_uring_disabled: Option<u32>,
    /// `kernel.io_uring_group`, if it names one.
    pub(crate) io_uring_group: Option<u32>,
    pub(crate) is_in_group: bool,
    pub(crate) seccomp: Seccomp,
    /// The number of loaded filters (Linux 5.9 and later).
    pub(crate) seccomp_filters: Option<u32>,
    pub(crate) no_new_privileges: bool,
    pub(crate) user: u32,
    /// The effective capabilities that are relevant to io_uring.
    pub(crate) capabilities: Vec<String>,
    /// `true` if this is the initial user namespace, in which capabilities apply to the whole machine.
    pub(crate) is_initial_user_namespace: bool,
    /// The list in `/sys/kernel/security/lsm`.
    pub(crate) security_modules: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Seccomp {
    Off,
    Strict,
    Filter,
}

#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Limits {
    /// `RLIMIT_MEMLOCK`; absent if unlimited.
    pub(crate) memlock_bytes: Option<u64>,
    pub(crate) memlock_hard_bytes: Option<u64>,
    /// `true` if `CAP_IPC_LOCK` in the initial user namespace waives the limit.
    pub(crate) memlock_waived: bool,
    /// `RLIMIT_NOFILE`; absent if unlimited.
    pub(crate) descriptors: Option<u64>,
    pub(crate) descriptors_hard: Option<u64>,
    /// The number of processors that this process may use.
    pub(crate) processors: usize,
    /// The number of processors that are online.
    pub(crate) processors_online: usize,
    /// The processor time that the cgroup allows, in processors; absent without a limit.
    pub(crate) processor_quota: Option<f64>,
    pub(crate) memory_bytes: Option<u64>,
}

impl Environment {
    /// Returns the error of a system call.
    pub(crate) fn errno(&self, call: &str) -> Option<i32> {
        self.ring.calls.iter().find(|one| one.name == call)?.errno
    }

    pub(crate) fn has_ring(&self) -> bool {
        self.ring.refusal.is_none()
    }

    pub(crate) fn has_feature(&self, name: &str) -> bool {
        let feature = self.ring.features.iter().find(|one| one.name == name);
        feature.is_some_and(|one| one.is_there)
    }

    /// Returns the processor time that is available, in processors.
    pub(crate) fn processors_to_use(&self) -> f64 {
        let may = self.limits.processors as f64;
        self.limits
            .processor_quota
            .map_or(may, |quota| quota.min(may))
    }
}
