//! What `annulus doctor` knows about a machine: plain data, so that a rule can be shown any machine there is.
//!
//! [`Environment`] is all of it; `gather.rs` fills it from this machine, tests from their imagination.

use schemars::JsonSchema;
use serde::Serialize;

use super::location::Location;
use super::surroundings::Surroundings;

/// The machine as this process sees it.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Environment {
    pub(crate) kernel: Kernel,
    pub(crate) ring: RingFacts,
    pub(crate) policy: Policy,
    pub(crate) limits: Limits,
    pub(crate) surroundings: Surroundings,
    /// Of PATH; absent where nothing can be said about it.
    pub(crate) location: Option<Location>,
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Kernel {
    /// As `uname -r` prints it.
    pub(crate) release: String,
    /// The version of the upstream kernel, as far as it can be told.
    pub(crate) version: Version,
    /// Who changed that kernel; features and fixes may have been ported back.
    pub(crate) vendor: Option<String>,
    /// `CONFIG_IO_URING` in the kernel's configuration, where that can be read.
    pub(crate) has_io_uring_built_in: Option<bool>,
    /// Where that was read.
    pub(crate) configuration: Option<String>,
}

/// Three numbers; the last is 0 where it is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
pub(crate) struct Version(pub(crate) u32, pub(crate) u32, pub(crate) u32);

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// What was tried with io_uring.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct RingFacts {
    /// The three system calls, each made once.
    pub(crate) calls: Vec<Call>,
    /// Why there is no ring; absent if there is one.
    pub(crate) refusal: Option<Refusal>,
    /// The newest set-up mode; absent without a ring.
    pub(crate) setup_mode: Option<SetupMode>,
    pub(crate) setup_flags: Vec<ProbeFact>,
    pub(crate) features: Vec<FeatureFact>,
    pub(crate) opcodes: Vec<FeatureFact>,
    pub(crate) operations: Vec<OperationFact>,
    pub(crate) registrations: Vec<ProbeFact>,
    /// What kernels of the same version do differently.
    pub(crate) quirks: Vec<Quirk>,
    /// What an engine with all its defaults came to.
    pub(crate) engine: Option<EngineFact>,
}

#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(crate) struct Call {
    pub(crate) name: String,
    /// What it answered; absent if it works.
    pub(crate) errno: Option<i32>,
}

/// The library's own words.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(crate) struct Refusal {
    pub(crate) kind: RefusalKind,
    pub(crate) text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RefusalKind {
    Missing,
    Refused,
    TooOld,
    Memlock,
    Descriptors,
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum SetupMode {
    Plain,
    Cooperative,
    Deferred,
}

/// Something that was tried on a ring of its own.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(crate) struct ProbeFact {
    pub(crate) name: String,
    /// The first kernel that is known to have it.
    pub(crate) since: String,
    pub(crate) works: bool,
    /// Why not.
    pub(crate) why: Option<String>,
    /// It was refused for lack of locked memory.
    pub(crate) is_starved: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(crate) struct FeatureFact {
    pub(crate) name: String,
    pub(crate) is_there: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(crate) struct OperationFact {
    pub(crate) name: String,
    /// The opcode by the kernel's name, where io_uring has one.
    pub(crate) opcode: Option<String>,
    pub(crate) mechanism: Mechanism,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Mechanism {
    Ring,
    BlockingThread,
    Clock,
}

#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(crate) struct Quirk {
    pub(crate) name: String,
    /// Absent where it could not be tried.
    pub(crate) works: Option<bool>,
    pub(crate) meaning: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(crate) struct EngineFact {
    /// In its own words.
    pub(crate) backend: String,
    /// Entries of its submission queue: asked for, and got.
    pub(crate) entries_requested: u32,
    pub(crate) entries_got: Option<u32>,
}

/// Who may forbid what.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Policy {
    /// `kernel.io_uring_disabled`; absent before Linux 6.6, and where io_uring is not built in.
    pub(crate) io_uring_disabled: Option<u32>,
    /// `kernel.io_uring_group`, if it names one.
    pub(crate) io_uring_group: Option<u32>,
    pub(crate) is_in_group: bool,
    pub(crate) seccomp: Seccomp,
    /// How many filters are loaded, where the kernel tells (5.9).
    pub(crate) seccomp_filters: Option<u32>,
    pub(crate) no_new_privileges: bool,
    pub(crate) user: u32,
    /// Those that matter here: of the effective ones.
    pub(crate) capabilities: Vec<String>,
    /// Not in a user namespace of a container: capabilities count for the whole machine.
    pub(crate) is_initial_user_namespace: bool,
    /// As `/sys/kernel/security/lsm` lists them.
    pub(crate) security_modules: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Seccomp {
    Off,
    Strict,
    Filter,
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Limits {
    /// `RLIMIT_MEMLOCK`; absent: unlimited.
    pub(crate) memlock_bytes: Option<u64>,
    pub(crate) memlock_hard_bytes: Option<u64>,
    /// By `CAP_IPC_LOCK` in the initial user namespace.
    pub(crate) memlock_waived: bool,
    /// `RLIMIT_NOFILE`; absent: unlimited.
    pub(crate) descriptors: Option<u64>,
    pub(crate) descriptors_hard: Option<u64>,
    /// Processors this process may use, and those that are online.
    pub(crate) processors: usize,
    pub(crate) processors_online: usize,
    /// Processors' worth of time that the cgroup allows, if it sets a bound.
    pub(crate) processor_quota: Option<f64>,
    pub(crate) memory_bytes: Option<u64>,
}

impl Environment {
    /// What one of the calls answered.
    pub(crate) fn answer(&self, call: &str) -> Option<i32> {
        self.ring.calls.iter().find(|one| one.name == call)?.errno
    }

    pub(crate) fn has_ring(&self) -> bool {
        self.ring.refusal.is_none()
    }

    pub(crate) fn has_feature(&self, name: &str) -> bool {
        let feature = self.ring.features.iter().find(|one| one.name == name);
        feature.is_some_and(|one| one.is_there)
    }

    /// The processors' worth of time there is.
    pub(crate) fn processors_to_use(&self) -> f64 {
        let may = self.limits.processors as f64;
        self.limits
            .processor_quota
            .map_or(may, |quota| quota.min(may))
    }
}
