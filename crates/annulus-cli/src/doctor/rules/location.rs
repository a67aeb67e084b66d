//! Rules for the file system and the device of PATH.

use crate::doctor::advice::{Findings, Rule, RuleReport, Severity};
use crate::doctor::device::Device;
use crate::doctor::location::Location;

/// The least number of requests. With fewer, operations of a deep queue wait above the device.
const REQUESTS_LEAST: u64 = 64;
/// The alignment that the library assumes by default, and that all its buffers have.
const ALIGN_BYTES: usize = 4096;

pub(super) const RULES: &[Rule] = &[
    Rule::new("in-memory", in_memory),
    Rule::new("overlay", overlay),
    Rule::new("fuse", fuse),
    Rule::new("network-file-system", network),
    Rule::new("no-direct", no_direct),
    Rule::new("not-tested", not_tested),
    Rule::new("alignment", alignment),
    Rule::new("buffered-writes", buffered_writes),
    Rule::new("scheduler", scheduler),
    Rule::new("nr-requests", nr_requests),
    Rule::new("write-cache", write_cache),
    Rule::new("poll-queues", poll_queues),
    Rule::new("polled", polled),
    Rule::new("rotational", rotational),
    Rule::new("stacked", stacked),
];

fn filesystem<'a>(findings: &'a Findings<'_>) -> Option<(&'a Location, &'a str)> {
    let location = findings.env.location.as_ref()?;
    Some((location, location.filesystem.as_deref()?))
}

fn device<'a>(findings: &'a Findings<'_>) -> Option<&'a Device> {
    findings.env.location.as_ref()?.device.as_ref()
}

fn in_memory(findings: &Findings<'_>) -> Option<RuleReport> {
    let (location, name) = filesystem(findings)?;
    let what = format!("{} is in memory ({name})", location.path);
    let why = "reads do not wait for a device, so a plain read is fastest";
    ["tmpfs", "ramfs"].contains(&name).then(|| {
        RuleReport::new(Severity::Advice, what, why)
            .next("name a directory on a disk to see the effect of a ring")
    })
}

fn overlay(findings: &Findings<'_>) -> Option<RuleReport> {
    let (location, name) = filesystem(findings)?;
    let what = format!("{} is on overlayfs", location.path);
    let why =
        "on a container image, the first write copies the whole file, and the device is hidden";
    let next = "put data on a volume: docker run -v DIRECTORY:/data";
    (name == "overlay").then(|| RuleReport::new(Severity::Advice, what, why).next(next))
}

fn fuse(findings: &Findings<'_>) -> Option<RuleReport> {
    let (location, name) = filesystem(findings)?;
    let what = format!("{} is on {name}", location.path);
    let why = "a user process handles each operation and determines its speed; Annulus uses blocking threads, \
               because a ring may return wrong bytes at the end of such a file";
    name.starts_with("fuse")
        .then(|| RuleReport::new(Severity::Advice, what, why))
}

fn network(findings: &Findings<'_>) -> Option<RuleReport> {
    let (location, name) = filesystem(findings)?;
    let what = format!("{} is on a network file system ({name})", location.path);
    let why = "operations wait for the server, most of them on worker threads of the kernel; polling is not possible";
    [
        "nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "virtiofs", "afs",
    ]
    .contains(&name)
    .then(|| {
        RuleReport::new(Severity::Advice, what, why)
            .next("increase the depth rather than the number of threads")
    })
}

fn no_direct(findings: &Findings<'_>) -> Option<RuleReport> {
    let (location, name) = filesystem(findings)?;
    // Another rule reports these file systems.
    if ["tmpfs", "ramfs"].contains(&name) || location.direct.works != Some(false) {
        return None;
    }
    let what = format!("{name} has no direct I/O");
    let why = location.direct.why.clone().unwrap_or_default();
    Some(
        RuleReport::new(Severity::Advice, what, why)
            .next("use buffered files, or a file system such as ext4 or XFS"),
    )
}

/// Reports that direct I/O could not be tested, for example in a folder without write permission.
fn not_tested(findings: &Findings<'_>) -> Option<RuleReport> {
    let location = findings.env.location.as_ref()?;
    let why = location.direct.why.as_deref()?;
    let (why, next) = match why.split_once("; ") {
        Some((why, next)) => (why, Some(next)),
        None => (why, None),
    };
    let what = format!("direct I/O on {} was not tested", location.path);
    let report = RuleReport::new(Severity::Advice, what, why);
    location.direct.works.is_none().then(|| match next {
        Some(next) => report.next(format!("{next}: annulus doctor PATH")),
        None => report,
    })
}

fn alignment(findings: &Findings<'_>) -> Option<RuleReport> {
    let location = findings.env.location.as_ref()?;
    let needed = location
        .direct
        .offset_bytes?
        .max(location.direct.memory_bytes?);
    let what = format!("direct I/O needs an alignment of {needed} bytes");
    let why = "for smaller reads, Annulus reads a larger range and copies";
    (needed > ALIGN_BYTES).then(|| {
        RuleReport::new(Severity::Note, what, why)
            .next(format!("read and write multiples of {needed} bytes"))
    })
}

fn buffered_writes(findings: &Findings<'_>) -> Option<RuleReport> {
    let (_, name) = filesystem(findings)?;
    let what = "buffered writes on ext4 go to worker threads of the kernel";
    let why = "ext4 takes a lock that may sleep; XFS (Linux 6.0) and btrfs write to the page cache directly";
    (name == "ext4" && findings.env.has_ring()).then(|| {
        RuleReport::new(Severity::Note, what, why)
            .next("for many writes, use OpenOptions::direct and allocated files")
    })
}

fn scheduler(findings: &Findings<'_>) -> Option<RuleReport> {
    let device = device(findings)?;
    let chosen = device.scheduler.as_deref()?;
    let slow = ["bfq", "cfq"].contains(&chosen) || (chosen == "mq-deadline" && device.is_nvme());
    let may = device.schedulers.iter().any(|one| one == "none");
    let quick = device.is_rotational == Some(false);
    let what = format!("{} uses the I/O scheduler {chosen}", device.name);
    let why = "an SSD does not benefit from sorted requests, and sorting costs processor time";
    (slow && may && quick).then(|| {
        RuleReport::new(Severity::Advice, what, why).next(format!(
            "as root: echo none >/sys/block/{}/queue/scheduler",
            device.name
        ))
    })
}

fn nr_requests(findings: &Findings<'_>) -> Option<RuleReport> {
    let device = device(findings)?;
    let count = device.nr_requests?;
    let quick = device.is_rotational == Some(false);
    let what = format!("{} accepts {count} requests at a time", device.name);
    let why = "without a free request, a submission blocks the submitting thread in the kernel";
    (count < REQUESTS_LEAST && quick).then(|| {
        let next = format!(
            "as root: echo 256 >/sys/block/{}/queue/nr_requests",
            device.name
        );
        RuleReport::new(Severity::Advice, what, why).next(next)
    })
}

fn write_cache(findings: &Findings<'_>) -> Option<RuleReport> {
    let device = device(findings)?;
    let what = format!("{} has a volatile write cache", device.name);
    let why =
        "each durable write flushes it; group commits, or use a drive with power-loss protection";
    (device.write_cache.as_deref() == Some("write back")).then(|| {
        RuleReport::new(Severity::Note, what, why)
            .next("annulus bench file --rw randwrite --sync each measures the cost")
    })
}

/// Reports an NVMe device without poll queues.
fn poll_queues(findings: &Findings<'_>) -> Option<RuleReport> {
    let location = findings.env.location.as_ref()?;
    let device = location.device.as_ref()?;
    let lacks = device.is_nvme() && !device.has_poll_queues;
    let what = format!("{} has no queues to poll", device.name);
    let why =
        "with them, EngineBuilder::iopoll saves an interrupt per read, but occupies a processor";
    lacks.then(|| {
        let steps = location
            .poll_refusal
            .as_deref()
            .and_then(|why| why.split_once("; "));
        let steps = steps.map_or("boot with nvme.poll_queues=1", |(_, steps)| steps);
        RuleReport::new(Severity::Note, what, why).next(steps)
    })
}

fn polled(findings: &Findings<'_>) -> Option<RuleReport> {
    let location = findings.env.location.as_ref()?;
    let device = location.device.as_ref()?;
    if !device.has_poll_queues {
        return None;
    }
    if location.can_poll == Some(false) {
        let what = format!(
            "{} has queues to poll, but this file cannot use them",
            device.name
        );
        let why = location.poll_refusal.clone().unwrap_or_default();
        return Some(RuleReport::new(Severity::Note, what, why));
    }
    let what = format!("{} has queues to poll", device.name);
    let why = "polled reads of direct files have less latency, but occupy a processor while any is in flight";
    Some(
        RuleReport::new(Severity::Note, what, why)
            .next("use EngineBuilder::iopoll(true) if a processor is free"),
    )
}

fn rotational(findings: &Findings<'_>) -> Option<RuleReport> {
    let device = device(findings)?;
    let what = format!("{} reports that it is a rotational disk", device.name);
    let why = "a rotating disk performs about a hundred random reads per second; a greater depth lets it sort them. \
               Virtual disks are often reported as rotational";
    (device.is_rotational == Some(true)).then(|| RuleReport::new(Severity::Note, what, why))
}

fn stacked(findings: &Findings<'_>) -> Option<RuleReport> {
    let device = device(findings)?;
    let kind = ["dm-", "md", "loop"]
        .into_iter()
        .find(|kind| device.name.starts_with(kind))?;
    let of = match (kind, device.made_of.is_empty()) {
        ("loop", _) => "a file".to_owned(),
        (_, true) => "other devices".to_owned(),
        (_, false) => device.made_of.join(", "),
    };
    let what = format!("{} is on top of {of}", device.name);
    let why = "the underlying device determines the scheduler, the queues and the write cache; most such devices do not \
               support polling";
    Some(RuleReport::new(Severity::Note, what, why))
}
