//! Rules for the processors, the virtual machine and the version of the kernel.

use crate::doctor::advice::{Findings, Rule, RuleReport, Severity};
use crate::doctor::surroundings::{ContainerKind, Mitigation};
use crate::doctor::traps;

pub(super) const RULES: &[Rule] = &[
    Rule::new("kernel-traps", kernel_traps),
    Rule::new("vendor-kernel", vendor_kernel),
    Rule::new("processor-quota", processor_quota),
    Rule::new("mitigations", mitigations),
    Rule::new("virtual-machine", virtual_machine),
    Rule::new("huge-pages", huge_pages),
    Rule::new("wsl", wsl),
];

/// Reports that the kernel has serious traps. The report lists each of them separately.
fn kernel_traps(findings: &Findings<'_>) -> Option<RuleReport> {
    let traps = traps::of(findings.env);
    let serious: Vec<&str> = (traps.iter())
        .filter(|trap| trap.is_serious)
        .map(|trap| &*trap.name)
        .collect();
    let what = format!(
        "do not use Linux {} in production",
        findings.env.kernel.release
    );
    let why = format!("known problems: {}", serious.join(", "));
    (!serious.is_empty()).then(|| {
        RuleReport::new(Severity::Advice, what, why)
            .next("boot Linux 6.12 or a later long-term kernel, with its current stable release")
    })
}

fn vendor_kernel(findings: &Findings<'_>) -> Option<RuleReport> {
    let vendor = findings.env.kernel.vendor.as_ref()?;
    let what = format!("this is a modified kernel of {vendor}");
    let why = "features and fixes may have been backported, so conclusions from the version are \
               uncertain; probed features are certain";
    // The kernels of Debian and Fedora follow the upstream stable releases.
    (!["Debian", "Fedora"].contains(&vendor.as_str()))
        .then(|| RuleReport::new(Severity::Note, what, why))
}

fn processor_quota(findings: &Findings<'_>) -> Option<RuleReport> {
    let limits = &findings.env.limits;
    let quota = limits.processor_quota?;
    let what = format!(
        "the cgroup allows the time of {quota:.1} of {} visible processors",
        limits.processors
    );
    let why = "with a thread per processor, the threads would be stopped for tens of milliseconds at a time";
    let threads = quota.floor().max(1.0);
    (quota < limits.processors as f64).then(|| {
        RuleReport::new(Severity::Advice, what, why).next(format!(
            "use RuntimeBuilder::cores({threads:.0}), and at most as many drivers of an engine"
        ))
    })
}

/// Reports mitigations that make every system call more expensive.
fn mitigations(findings: &Findings<'_>) -> Option<RuleReport> {
    const EXPENSIVE: [(&str, &str); 4] = [
        ("meltdown", "PTI"),
        ("retbleed", "IBRS"),
        ("retbleed", "untrained return thunk"),
        // "Enhanced / Automatic IBRS" is implemented by the processor, and cheap.
        ("spectre_v2", "IBRS"),
    ];
    let is_expensive = |one: &&Mitigation| {
        let method = one.content.strip_prefix("Mitigation: ").unwrap_or_default();
        EXPENSIVE
            .iter()
            .any(|(name, prefix)| one.name == *name && method.starts_with(prefix))
    };
    let expensive: Vec<&str> = (findings.env.surroundings.mitigations.iter())
        .filter(is_expensive)
        .map(|one| &*one.name)
        .collect();
    let what = format!(
        "the mitigations of {} slow down each system call",
        expensive.join(", ")
    );
    let why = "batches of operations save more than usual compared with a system call for each";
    (!expensive.is_empty()).then(|| RuleReport::new(Severity::Note, what, why))
}

fn virtual_machine(findings: &Findings<'_>) -> Option<RuleReport> {
    let name = findings.env.surroundings.hypervisor.as_ref()?;
    let what = format!("this is a virtual machine ({name})");
    let why = "sleeps and wake-ups cost more than on physical hardware, and other virtual machines may share \
               the disk: repeat measurements";
    Some(RuleReport::new(Severity::Note, what, why))
}

fn huge_pages(findings: &Findings<'_>) -> Option<RuleReport> {
    let never = findings.env.surroundings.huge_pages.as_deref() == Some("never");
    let what = "transparent huge pages are switched off";
    let why = "a buffer arena then consists of small pages, and takes longer to register";
    let next = "as root: echo madvise >/sys/kernel/mm/transparent_hugepage/enabled";
    never.then(|| RuleReport::new(Severity::Note, what, why).next(next))
}

fn wsl(findings: &Findings<'_>) -> Option<RuleReport> {
    let container = findings.env.surroundings.container.as_ref()?;
    let what = "this is Linux on Windows (WSL)";
    let why =
        "files below /mnt are accessed over a network protocol; other files are on a virtual disk";
    (container.kind == ContainerKind::Wsl).then(|| RuleReport::new(Severity::Note, what, why))
}
