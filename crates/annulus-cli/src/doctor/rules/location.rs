//! The file system and the device of PATH.

use crate::doctor::advice::{Findings, Rule, RuleReport, Severity};
use crate::doctor::device::Device;
use crate::doctor::location::Location;

/// Fewer, and a deep queue of operations waits above the device instead of in it.
const REQUESTS_LEAST: u64 = 64;
/// What the library assumes where nobody tells, and every buffer here has.
const ALIGN_BYTES: usize = 4096;

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "in-memory",
        check: in_memory,
    },
    Rule {
        name: "overlay",
        check: overlay,
    },
    Rule {
        name: "fuse",
        check: fuse,
    },
    Rule {
        name: "network-file-system",
        check: network,
    },
    Rule {
        name: "no-direct",
        check: no_direct,
    },
    Rule {
        name: "alignment",
        check: alignment,
    },
    Rule {
        name: "buffered-writes",
        check: buffered_writes,
    },
    Rule {
        name: "scheduler",
        check: scheduler,
    },
    Rule {
        name: "nr-requests",
        check: nr_requests,
    },
    Rule {
        name: "write-cache",
        check: write_cache,
    },
    Rule {
        name: "poll-queues",
        check: poll_queues,
    },
    Rule {
        name: "polled",
        check: polled,
    },
    Rule {
        name: "rotational",
        check: rotational,
    },
    Rule {
        name: "stacked",
        check: stacked,
    },
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
    let what = format!("{} is in memory ({name})", location.path.display());
    let why = "there is no device and nothing to wait for: a plain read is the fastest there is";
    ["tmpfs", "ramfs"].contains(&name).then(|| {
        RuleReport::new(Severity::Advice, what, why)
            .next("name a directory on a disk, to see what a ring saves")
    })
}

fn overlay(findings: &Findings<'_>) -> Option<RuleReport> {
    let (location, name) = filesystem(findings)?;
    let what = format!("{} is on overlayfs", location.path.display());
    let why = "the image of a container: the first write copies the whole file, and which device it is on is hidden";
    let next = "put data on a volume: docker run -v DIRECTORY:/data";
    (name == "overlay").then(|| RuleReport::new(Severity::Advice, what, why).next(next))
}

fn fuse(findings: &Findings<'_>) -> Option<RuleReport> {
    let (location, name) = filesystem(findings)?;
    let what = format!("{} is on {name}", location.path.display());
    let why = "each operation goes to a process and back, from a blocking thread, because a ring may give wrong \
               bytes at the end of such a file: that process decides how fast it is";
    name.starts_with("fuse")
        .then(|| RuleReport::new(Severity::Advice, what, why))
}

fn network(findings: &Findings<'_>) -> Option<RuleReport> {
    let (location, name) = filesystem(findings)?;
    let what = format!(
        "{} is on a network file system ({name})",
        location.path.display()
    );
    let why = "operations wait for the server, most on worker threads of the kernel; nothing is polled for";
    [
        "nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "virtiofs", "afs",
    ]
    .contains(&name)
    .then(|| {
        RuleReport::new(Severity::Advice, what, why)
            .next("raise the depth rather than the number of threads")
    })
}

fn no_direct(findings: &Findings<'_>) -> Option<RuleReport> {
    let (location, name) = filesystem(findings)?;
    // Said by a rule of its own.
    if ["tmpfs", "ramfs"].contains(&name) || location.direct.works != Some(false) {
        return None;
    }
    let what = format!("no direct I/O on {name}");
    let why = location.direct.why.clone().unwrap_or_default();
    Some(
        RuleReport::new(Severity::Advice, what, why)
            .next("use buffered files there, or ext4 or XFS"),
    )
}

fn alignment(findings: &Findings<'_>) -> Option<RuleReport> {
    let location = findings.env.location.as_ref()?;
    let needed = location
        .direct
        .offset_bytes?
        .max(location.direct.memory_bytes?);
    let what = format!("direct I/O needs an alignment of {needed} bytes");
    let why = "reads of less are read around and copied";
    (needed > ALIGN_BYTES).then(|| {
        RuleReport::new(Severity::Note, what, why)
            .next(format!("read and write multiples of {needed} bytes"))
    })
}

fn buffered_writes(findings: &Findings<'_>) -> Option<RuleReport> {
    let (_, name) = filesystem(findings)?;
    let what = "buffered writes on ext4 go to worker threads of the kernel";
    let why = "its page cache is written to with a lock that may sleep; XFS (6.0) and btrfs do it at once";
    (name == "ext4" && findings.env.has_ring()).then(|| {
        RuleReport::new(Severity::Note, what, why)
            .next("for many writes: OpenOptions::direct into allocated files")
    })
}

fn scheduler(findings: &Findings<'_>) -> Option<RuleReport> {
    let device = device(findings)?;
    let chosen = device.scheduler.as_deref()?;
    let slow = ["bfq", "cfq"].contains(&chosen) || (chosen == "mq-deadline" && device.is_nvme());
    let may = device.schedulers.iter().any(|one| one == "none");
    let quick = device.is_rotational == Some(false);
    let what = format!("{} has the scheduler {chosen}", device.name);
    let why =
        "it sorts what an SSD answers in any order, and costs processor time for each request";
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
    let what = format!("{} takes {count} requests at a time", device.name);
    let why = "a submission that finds no free request sleeps in the kernel, with the thread that made it";
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
    let why = "a durable write flushes it each time: group commits, or use a drive with power-loss protection";
    (device.write_cache.as_deref() == Some("write back")).then(|| {
        RuleReport::new(Severity::Note, what, why)
            .next("annulus bench file --sync each shows what it costs")
    })
}

/// NVMe could have them and has none.
fn poll_queues(findings: &Findings<'_>) -> Option<RuleReport> {
    let location = findings.env.location.as_ref()?;
    let device = location.device.as_ref()?;
    let lacks = device.is_nvme() && !device.has_poll_queues;
    let what = format!("{} has no queues to poll", device.name);
    let why =
        "EngineBuilder::iopoll would spare an interrupt per read, for a processor's whole time";
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
            "{} has queues to poll, and this file can't use them",
            device.name
        );
        let why = location.poll_refusal.clone().unwrap_or_default();
        return Some(RuleReport::new(Severity::Note, what, why));
    }
    let what = format!("{} has queues to poll", device.name);
    let why = "reads of direct files can be polled for: less latency, for a processor's whole time while any \
               is in flight";
    Some(
        RuleReport::new(Severity::Note, what, why)
            .next("EngineBuilder::iopoll(true), where a processor is to spare"),
    )
}

fn rotational(findings: &Findings<'_>) -> Option<RuleReport> {
    let device = device(findings)?;
    let what = format!("{} reports that it is a rotational disk", device.name);
    let why = "a disk with an arm does some hundred random reads a second, whatever asks: depth lets it sort them. \
               Virtual disks often say so, and don't";
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
    let what = format!("{} is made of {of}", device.name);
    let why = "scheduler, queues and write cache are those of what lies below; most such devices can't be polled";
    Some(RuleReport::new(Severity::Note, what, why))
}
