//! The processors, the virtual machine, the kernel's version.

use crate::doctor::advice::{Findings, Rule, RuleReport, Severity};
use crate::doctor::surroundings::{ContainerKind, Mitigation};
use crate::doctor::traps;

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "kernel-traps",
        check: kernel_traps,
    },
    Rule {
        name: "vendor-kernel",
        check: vendor_kernel,
    },
    Rule {
        name: "processor-quota",
        check: processor_quota,
    },
    Rule {
        name: "mitigations",
        check: mitigations,
    },
    Rule {
        name: "virtual-machine",
        check: virtual_machine,
    },
    Rule {
        name: "huge-pages",
        check: huge_pages,
    },
    Rule {
        name: "wsl",
        check: wsl,
    },
];

/// Only that there are some: each stands in a list of its own.
fn kernel_traps(findings: &Findings<'_>) -> Option<RuleReport> {
    let traps = traps::of(findings.env);
    let serious: Vec<&str> = (traps.iter())
        .filter(|trap| trap.is_serious)
        .map(|trap| &*trap.name)
        .collect();
    let what = format!(
        "Linux {} is not for production",
        findings.env.kernel.release
    );
    let why = format!("known: {}", serious.join(", "));
    (!serious.is_empty()).then(|| {
        RuleReport::new(Severity::Advice, what, why)
            .next("boot Linux 6.12 or a later long-term kernel, with its current stable release")
    })
}

fn vendor_kernel(findings: &Findings<'_>) -> Option<RuleReport> {
    let vendor = findings.env.kernel.vendor.as_ref()?;
    let what = format!("{vendor} changes this kernel");
    let why = "features and fixes may have been ported back: what was tried here counts, what is \
               told from the version is a guess";
    // Debian and Fedora follow the stable releases of the kernel.
    (!["Debian", "Fedora"].contains(&vendor.as_str()))
        .then(|| RuleReport::new(Severity::Note, what, why))
}

fn processor_quota(findings: &Findings<'_>) -> Option<RuleReport> {
    let limits = &findings.env.limits;
    let quota = limits.processor_quota?;
    let what = format!(
        "the cgroup allows {quota:.1} processors' worth of time of {} visible",
        limits.processors
    );
    let why = "a thread per processor would be stopped again and again, each time for tens of milliseconds";
    let threads = quota.floor().max(1.0);
    (quota < limits.processors as f64).then(|| {
        RuleReport::new(Severity::Advice, what, why).next(format!(
            "RuntimeBuilder::threads({threads:.0}), and as many drivers of an engine at most"
        ))
    })
}

/// Those that make every system call dearer, by what their files say.
fn mitigations(findings: &Findings<'_>) -> Option<RuleReport> {
    const DEAR: [(&str, &str); 4] = [
        ("meltdown", "PTI"),
        ("retbleed", "IBRS"),
        ("retbleed", "untrained return thunk"),
        // "Enhanced / Automatic IBRS" is the processor's own, and cheap.
        ("spectre_v2", "IBRS"),
    ];
    let is_dear = |one: &&Mitigation| {
        let how = one.says.strip_prefix("Mitigation: ").unwrap_or_default();
        DEAR.iter()
            .any(|(name, sign)| one.name == *name && how.starts_with(sign))
    };
    let dear: Vec<&str> = (findings.env.surroundings.mitigations.iter())
        .filter(is_dear)
        .map(|one| &*one.name)
        .collect();
    let what = format!("each system call pays for {}", dear.join(", "));
    let why = "the more operations an enter carries, the more a ring saves over one call for each";
    (!dear.is_empty()).then(|| RuleReport::new(Severity::Note, what, why))
}

fn virtual_machine(findings: &Findings<'_>) -> Option<RuleReport> {
    let name = findings.env.surroundings.hypervisor.as_ref()?;
    let what = format!("a virtual machine ({name})");
    let why = "sleeping and waking cost more than on the bare machine, and the neighbours share the disk: \
               repeat what you measure";
    Some(RuleReport::new(Severity::Note, what, why))
}

fn huge_pages(findings: &Findings<'_>) -> Option<RuleReport> {
    let never = findings.env.surroundings.huge_pages.as_deref() == Some("never");
    let what = "transparent huge pages are switched off";
    let why = "an arena of buffers is made of small pages, and registering it takes longer";
    let next = "as root: echo madvise >/sys/kernel/mm/transparent_hugepage/enabled";
    never.then(|| RuleReport::new(Severity::Note, what, why).next(next))
}

fn wsl(findings: &Findings<'_>) -> Option<RuleReport> {
    let container = findings.env.surroundings.container.as_ref()?;
    let what = "a Linux on Windows (WSL)";
    let why = "files below /mnt are on Windows' side of a network protocol; those of this Linux are on a \
               virtual disk";
    (container.kind == ContainerKind::Wsl).then(|| RuleReport::new(Severity::Note, what, why))
}
