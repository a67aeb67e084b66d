//! Simulated machines.

use crate::bench::spread::Spread;
use crate::doctor::device::Device;
use crate::doctor::facts::{
    Call, EngineFact, Environment, FeatureFact, Kernel, Limits, Mechanism, OperationFact, Policy,
    ProbeFact, Quirk, Refusal, RefusalKind, RingFacts, Seccomp, SetupMode, Version,
};
use crate::doctor::figures::{Figure, Figures, Measurement};
use crate::doctor::location::{Direct, Kind, Location};
use crate::doctor::surroundings::{Container, ContainerKind, Surroundings};

/// A physical machine with a current kernel, as root and without limits. No rule applies to it.
pub(in crate::doctor) fn good() -> Environment {
    Environment {
        kernel: Kernel {
            release: "7.3.1".into(),
            version: Version(7, 3, 1),
            vendor: None,
            has_io_uring_built_in: Some(true),
            configuration: Some("/proc/config.gz".into()),
        },
        ring: ring(),
        policy: Policy {
            io_uring_disabled: Some(0),
            io_uring_group: None,
            is_in_group: false,
            seccomp: Seccomp::Off,
            seccomp_filters: Some(0),
            no_new_privileges: false,
            user: 0,
            capabilities: vec!["CAP_IPC_LOCK".into(), "CAP_SYS_ADMIN".into()],
            is_initial_user_namespace: true,
            security_modules: Vec::new(),
        },
        limits: Limits {
            memlock_bytes: None,
            memlock_hard_bytes: None,
            memlock_waived: true,
            descriptors: Some(65_536),
            descriptors_hard: Some(65_536),
            processors: 8,
            processors_online: 8,
            processor_quota: None,
            memory_bytes: Some(16 << 30),
        },
        surroundings: Surroundings {
            container: None,
            hypervisor: None,
            mitigations: Vec::new(),
            huge_pages: Some("madvise".into()),
        },
        servers: vec!["nginx".into()],
        location: None,
    }
}

fn ring() -> RingFacts {
    let call = |name: &str| Call {
        name: name.into(),
        errno: None,
        kills: false,
    };
    RingFacts {
        calls: ["io_uring_setup", "io_uring_enter", "io_uring_register"]
            .map(call)
            .into(),
        refusal: None,
        setup_mode: Some(SetupMode::Deferred),
        setup_flags: vec![probe_fact("DEFER_TASKRUN", "6.1")],
        features: vec![FeatureFact {
            name: "NO_IOWAIT".into(),
            is_there: true,
        }],
        opcodes: Vec::new(),
        operations: vec![OperationFact {
            name: "read_at".into(),
            opcode: Some("READ".into()),
            mechanism: Mechanism::Ring,
        }],
        registrations: vec![
            probe_fact("registered buffers", "5.1"),
            probe_fact("buffer groups", "5.19"),
        ],
        quirks: vec![Quirk {
            name: "completions beyond the queue are kept and delivered".into(),
            works: Some(true),
            meaning: String::new(),
        }],
        engine: Some(EngineFact {
            backend: "io_uring".into(),
            entries_requested: 256,
            entries_got: Some(256),
        }),
    }
}

pub(in crate::doctor) fn probe_fact(name: &str, since: &str) -> ProbeFact {
    ProbeFact {
        name: name.into(),
        since: since.into(),
        works: true,
        why: None,
        is_starved: false,
    }
}

/// The good machine without a ring: `kind` is the error of the library, and `errnos` are those of the three calls.
pub(in crate::doctor) fn refused(kind: RefusalKind, errnos: [i32; 3]) -> Environment {
    let mut env = good();
    env.ring.refusal = Some(Refusal {
        kind,
        text: "the error of the library".into(),
    });
    env.ring.setup_mode = None;
    for (call, errno) in env.ring.calls.iter_mut().zip(errnos) {
        call.errno = (errno != 0).then_some(errno);
    }
    for list in [&mut env.ring.registrations, &mut env.ring.setup_flags] {
        list.clear();
    }
    env.ring.quirks.clear();
    env
}

/// Removes the privileges of root.
pub(in crate::doctor) fn as_user(env: &mut Environment) {
    env.policy.user = 1000;
    env.policy.capabilities.clear();
    env.limits.memlock_waived = false;
    env.limits.memlock_bytes = Some(8 << 20);
}

pub(in crate::doctor) fn in_container(env: &mut Environment, kind: ContainerKind) {
    env.surroundings.container = Some(Container {
        kind,
        sign: "a file".into(),
    });
}

/// A directory on a file system, with direct I/O and without a device.
pub(in crate::doctor) fn location(filesystem: &str) -> Location {
    Location {
        path: "/data".into(),
        kind: Kind::Directory,
        filesystem: Some(filesystem.into()),
        mount_point: Some("/data".into()),
        direct: Direct {
            works: Some(true),
            why: None,
            memory_bytes: Some(512),
            offset_bytes: Some(512),
        },
        can_poll: None,
        poll_refusal: None,
        device: None,
        sample: None,
        no_sample: None,
    }
}

/// An SSD to which no rule applies.
pub(in crate::doctor) fn device(name: &str) -> Device {
    Device {
        name: name.into(),
        model: None,
        scheduler: Some("none".into()),
        schedulers: ["none", "mq-deadline", "bfq"].map(str::to_owned).into(),
        nr_requests: Some(1023),
        queues: Some(8),
        is_rotational: Some(false),
        logical_block_bytes: Some(512),
        physical_block_bytes: Some(4096),
        write_cache: Some("write through".into()),
        has_poll_queues: false,
        made_of: Vec::new(),
    }
}

/// Steady figures of a fast machine.
pub(in crate::doctor) fn figures() -> Figures {
    let all = [
        (Measurement::Enter, 200.0),
        (Measurement::Nop1, 300.0),
        (Measurement::Nop8, 90.0),
        (Measurement::Nop32, 60.0),
        (Measurement::CachedPread, 900.0),
        (Measurement::CachedRing, 1400.0),
        (Measurement::CachedHop, 6000.0),
        (Measurement::DirectPread, 80_000.0),
        (Measurement::DirectRing, 81_000.0),
        (Measurement::DirectHop, 95_000.0),
        (Measurement::DirectRing8, 11_000.0),
        (Measurement::DirectRing32, 3500.0),
        (Measurement::DirectPlain32, 3600.0),
        (Measurement::EchoEpoll, 9000.0),
        (Measurement::EchoRing, 7000.0),
    ];
    let mut figures = Figures {
        samples: 5,
        ..Figures::default()
    };
    for (what, ns) in all {
        figures.figures.push(Figure {
            what,
            about: what.name().into(),
            ns: steady(ns),
        });
    }
    figures
}

fn steady(ns: f64) -> Spread {
    Spread {
        median: ns,
        min: ns * 0.97,
        max: ns * 1.05,
    }
}

/// Changes a figure.
pub(in crate::doctor) fn set(figures: &mut Figures, what: Measurement, ns: f64) {
    for figure in figures
        .figures
        .iter_mut()
        .filter(|figure| figure.what == what)
    {
        figure.ns = steady(ns);
    }
}

/// Removes a figure.
pub(in crate::doctor) fn without(figures: &mut Figures, what: Measurement) {
    figures.figures.retain(|figure| figure.what != what);
}
