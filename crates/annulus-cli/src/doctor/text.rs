//! The report as text: the facts, the measurements, the advice, the verdict, and the command to run next.

use std::fmt::Write;

use super::advice::Severity;
use super::device::Device;
use super::facts::{
    Environment, FeatureFact, Limits, Mechanism, Policy, ProbeFact, RingFacts, Seccomp, SetupMode,
    Version,
};
use super::figures::Figures;
use super::json::Report;
use super::location::{Kind, Location};
use crate::bench::all::parts::Part;
use crate::bench::numbers::short;

/// The width of the labels.
const LABEL_COLUMNS: usize = 16;
/// The width of the report.
const COLUMNS: usize = 100;
/// The library's name of this registration.
pub(crate) const BUFFER_GROUPS: &str = "buffer groups";
/// The first version with buffers that several receives fill (incremental mode).
const INCREMENTAL_SINCE: Version = Version(6, 12, 0);

/// Returns the report as text.
pub(crate) fn text(report: &Report) -> String {
    let mut lines = Lines::default();
    let env = &report.environment;
    kernel(&mut lines, env);
    ring(&mut lines, &env.ring);
    lines.row("servers", &servers(env));
    lines.row("policy", &policy(&env.policy));
    lines.row("locked memory", &locked_memory(&env.limits));
    lines.row("descriptors", &descriptors(&env.limits));
    lines.row("processors", &processors(&env.limits));
    lines.row("host", &host(env));
    if let Some(location) = &env.location {
        location_facts(&mut lines, location);
    }
    lines.row("bench all", &benchmark(&report.benchmark));
    for trap in &report.traps {
        let unsure = match trap.is_certain {
            true => "",
            false => " (unless the distribution has fixed it)",
        };
        lines.row(
            "trap",
            &format!("{}: {}; {}{unsure}", trap.name, trap.what, trap.handling),
        );
    }
    if let Some(figures) = &report.figures {
        measured(&mut lines, figures);
    }
    for advice in &report.advice {
        let label = match advice.severity {
            Severity::Blocks => "refused",
            Severity::Less => "lacking",
            Severity::Advice => "advice",
            Severity::Note => "note",
        };
        lines.row(label, &format!("{}: {}", advice.what, advice.why));
        if let Some(next) = &advice.next {
            lines.row("", &format!("→ {next}"));
        }
    }
    let condition = match report.exit_code {
        77 => ", after the changes above; annulus bench file also works without io_uring",
        _ => "",
    };
    let sentence = report.verdict.sentence();
    lines.row(
        "verdict",
        &format!("{sentence}. Next: {}{condition}", report.next),
    );
    lines.0
}

/// Rows of a label and a fact, in columns.
#[derive(Default)]
pub(crate) struct Lines(pub(crate) String);

impl Lines {
    /// Appends a row. Text that does not fit on the line continues on the next one, indented.
    pub(crate) fn row(&mut self, label: &str, fact: &str) {
        let _ = write!(self.0, "{label:<LABEL_COLUMNS$}");
        let mut column = LABEL_COLUMNS;
        for (index, word) in fact.split(' ').enumerate() {
            let columns = word.chars().count() + 1;
            if index > 0 && column + columns > COLUMNS {
                let _ = write!(self.0, "\n{:LABEL_COLUMNS$}", "");
                column = LABEL_COLUMNS;
            } else if index > 0 {
                self.0.push(' ');
            }
            self.0.push_str(word);
            column += columns;
        }
        self.0.push('\n');
    }
}

fn kernel(lines: &mut Lines, env: &Environment) {
    let mut fact = format!("Linux {}", env.kernel.release);
    if let Some(vendor) = &env.kernel.vendor {
        fact += &format!(" (by {vendor}, based on {})", env.kernel.version);
    }
    match (env.kernel.has_io_uring_built_in, &env.kernel.configuration) {
        (Some(true), Some(source)) => fact += &format!("; built with io_uring ({source})"),
        (Some(false), Some(source)) => fact += &format!("; built without io_uring ({source})"),
        _ => {}
    }
    lines.row("kernel", &fact);
}

fn ring(lines: &mut Lines, ring: &RingFacts) {
    let Some(setup_mode) = ring.setup_mode else {
        let refusal = ring.refusal.as_ref().map_or("", |refusal| &*refusal.text);
        lines.row(
            "io_uring",
            refusal.strip_prefix("io_uring ").unwrap_or(refusal),
        );
        lines.row("calls", &calls(ring));
        lines.row("operations", "all on blocking threads");
        return;
    };
    lines.row("io_uring", "works");
    lines.row(
        "ring",
        match setup_mode {
            SetupMode::Deferred => "single issuer, deferred task work",
            SetupMode::Cooperative => "cooperative task work",
            SetupMode::Plain => "plain",
        },
    );
    if let Some(engine) = &ring.engine {
        lines.row("engine", &engine.backend);
    }
    lines.row("set-up flags", &probe_list(&ring.setup_flags));
    lines.row("features", &has(&ring.features));
    lines.row("opcodes", &opcodes(&ring.opcodes));
    lines.row("operations", &operations(ring));
    lines.row("registrations", &probe_list(&ring.registrations));
    for quirk in &ring.quirks {
        let result = match quirk.works {
            Some(true) => "yes",
            Some(false) => "no",
            None => "unknown",
        };
        lines.row(
            "probe",
            &format!("{}: {result}; {}", quirk.name, quirk.meaning),
        );
    }
}

/// Lists the parts of `bench all` that the machine can show, and the reasons of the others.
fn benchmark(parts: &[Part]) -> String {
    let (shown, missing): (Vec<&Part>, Vec<&Part>) =
        parts.iter().partition(|part| part.lacks.is_none());
    let shown: Vec<&str> = shown.iter().map(|part| part.name.as_str()).collect();
    let mut text = format!("can show {}", shown.join(", "));
    for part in missing {
        // Other rows have the remedy, which follows the reason.
        let why = part.lacks.as_deref().unwrap_or_default();
        let why = why.split("; ").next().unwrap_or(why);
        text += &format!("; not {}: {why}", part.name);
    }
    text
}

/// Describes whether the preload library can serve installed servers on this machine.
fn servers(env: &Environment) -> String {
    let group = env.ring.registrations.iter();
    let mut group = group.filter(|probe| probe.name == BUFFER_GROUPS);
    let lacks = match env.ring.setup_mode {
        None => "there is no ring",
        Some(SetupMode::Deferred) if group.all(|probe| probe.works) => {
            let restriction = match env.kernel.version >= INCREMENTAL_SINCE {
                true => "",
                false => ", with more receive memory than on Linux 6.12 and later",
            };
            return format!(
                "annulus run serves installed epoll servers through io_uring{restriction}"
            );
        }
        Some(SetupMode::Deferred) => "buffer groups are missing (Linux 5.19 and later)",
        Some(_) => "deferred task work is missing (Linux 6.1 and later)",
    };
    format!("annulus run starts installed servers unchanged: {lacks}")
}

fn calls(ring: &RingFacts) -> String {
    let one = |call: &super::facts::Call| match call.errno {
        None if call.kills => format!("{}: a filter kills the process", call.name),
        None => format!("{} is allowed", call.name),
        Some(errno) => format!(
            "{}: {}",
            call.name,
            std::io::Error::from_raw_os_error(errno)
        ),
    };
    ring.calls.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// Formats names as "A, B; not: C", where C is missing.
fn list<'a>(all: impl Iterator<Item = (&'a str, bool)>) -> String {
    let (available, missing): (Vec<_>, Vec<_>) = all.partition(|&(_, is_available)| is_available);
    let names = |these: &[(&str, bool)]| {
        let names: Vec<_> = these.iter().map(|(name, _)| *name).collect();
        names.join(", ")
    };
    match (available.is_empty(), missing.is_empty()) {
        (_, true) => names(&available),
        (true, false) => format!("none of {}", names(&missing)),
        (false, false) => format!("{}; not: {}", names(&available), names(&missing)),
    }
}

fn has(all: &[FeatureFact]) -> String {
    list(all.iter().map(|one| (&*one.name, one.is_there)))
}

/// Lists probes. A probe that lacked locked memory has no result.
fn probe_list(all: &[ProbeFact]) -> String {
    let known = list(
        all.iter()
            .filter(|one| !one.is_starved)
            .map(|one| (&*one.name, one.works)),
    );
    let starved: Vec<&str> = (all.iter().filter(|one| one.is_starved))
        .map(|one| &*one.name)
        .collect();
    match (known.is_empty(), starved.is_empty()) {
        (_, true) => known,
        (true, false) => format!(
            "not tried for lack of locked memory: {}",
            starved.join(", ")
        ),
        (false, false) => format!(
            "{known}; not tried for lack of locked memory: {}",
            starved.join(", ")
        ),
    }
}

fn opcodes(all: &[FeatureFact]) -> String {
    let missing: Vec<&str> = all
        .iter()
        .filter(|one| !one.is_there)
        .map(|one| &*one.name)
        .collect();
    match missing.is_empty() {
        true => format!("all {} that Annulus knows", all.len()),
        false => format!(
            "{} of {}; not: {}",
            all.len() - missing.len(),
            all.len(),
            missing.join(", ")
        ),
    }
}

fn operations(ring: &RingFacts) -> String {
    let on = |mechanism| {
        let matching = ring
            .operations
            .iter()
            .filter(move |one| one.mechanism == mechanism);
        matching.map(|one| &*one.name).collect::<Vec<_>>()
    };
    let threads = on(Mechanism::BlockingThread);
    let count = on(Mechanism::Ring).len();
    match threads.is_empty() {
        true => format!("{count} through the ring"),
        false => format!(
            "{count} through the ring; on blocking threads: {}",
            threads.join(", ")
        ),
    }
}

fn policy(policy: &Policy) -> String {
    let sysctl = match (policy.io_uring_disabled, policy.io_uring_group) {
        (None, _) => "no sysctl kernel.io_uring_disabled".to_owned(),
        (Some(1), Some(group)) => {
            let member = if policy.is_in_group { "is" } else { "is not" };
            format!(
                "kernel.io_uring_disabled = 1 except for group {group}; this user {member} in it"
            )
        }
        (Some(value), _) => format!("kernel.io_uring_disabled = {value}"),
    };
    let seccomp = match (policy.seccomp, policy.seccomp_filters) {
        (Seccomp::Off, _) => "no seccomp filter".to_owned(),
        (Seccomp::Strict, _) => "seccomp strict mode".to_owned(),
        (Seccomp::Filter, Some(count)) if count > 1 => format!("{count} seccomp filters"),
        (Seccomp::Filter, _) => "a seccomp filter".to_owned(),
    };
    let mut parts = vec![sysctl, seccomp, format!("user {}", policy.user)];
    parts.push(match policy.capabilities.is_empty() {
        true => "no relevant capability".to_owned(),
        false => policy.capabilities.join(", "),
    });
    if !policy.is_initial_user_namespace {
        parts.push("in a user namespace".to_owned());
    }
    if policy.no_new_privileges {
        parts.push("no new privileges".to_owned());
    }
    if !policy.security_modules.is_empty() {
        parts.push(format!(
            "security modules {}",
            policy.security_modules.join(", ")
        ));
    }
    parts.join("; ")
}

fn locked_memory(limits: &Limits) -> String {
    let limit = match limits.memlock_bytes {
        Some(bytes) => format!("{} KiB per user", bytes >> 10),
        None => "unlimited".to_owned(),
    };
    let waived = match limits.memlock_waived {
        true => ", waived by CAP_IPC_LOCK",
        false => "",
    };
    format!("{limit} (RLIMIT_MEMLOCK){waived}")
}

fn descriptors(limits: &Limits) -> String {
    let number =
        |count: Option<u64>| count.map_or("unlimited".to_owned(), |count| count.to_string());
    format!(
        "{} per process (RLIMIT_NOFILE), up to {} on request",
        number(limits.descriptors),
        number(limits.descriptors_hard)
    )
}

fn processors(limits: &Limits) -> String {
    let mut fact = format!(
        "{} of {} online",
        limits.processors, limits.processors_online
    );
    if let Some(quota) = limits.processor_quota {
        fact += &format!("; the cgroup allows the time of {quota:.1}");
    }
    if let Some(bytes) = limits.memory_bytes {
        let gib = bytes as f64 / (1u64 << 30) as f64;
        fact += &format!("; {gib:.1} GiB memory");
    }
    fact
}

fn host(env: &Environment) -> String {
    let surroundings = &env.surroundings;
    let mut parts = vec![match &surroundings.container {
        Some(container) => format!("{} ({})", container.kind.name(), container.sign),
        None => "no sign of a container".to_owned(),
    }];
    parts.push(match &surroundings.hypervisor {
        Some(name) => format!("a virtual machine ({name})"),
        None => "no sign of a virtual machine".to_owned(),
    });
    parts.push(match surroundings.mitigations.is_empty() {
        true => "no mitigated processor vulnerability".to_owned(),
        false => {
            let names: Vec<&str> = surroundings
                .mitigations
                .iter()
                .map(|one| &*one.name)
                .collect();
            format!("mitigated: {}", names.join(", "))
        }
    });
    if let Some(pages) = &surroundings.huge_pages {
        parts.push(format!("transparent huge pages: {pages}"));
    }
    parts.join("; ")
}

fn location_facts(lines: &mut Lines, location: &Location) {
    let kind = match location.kind {
        Kind::Directory => "a directory",
        Kind::File => "a file",
        Kind::BlockDevice => "a block device",
    };
    let mut fact = format!("{}, {kind}", location.path);
    if let (Some(name), Some(point)) = (&location.filesystem, &location.mount_point) {
        fact += &format!(" on {name} ({point})");
    }
    lines.row("path", &fact);
    let direct = &location.direct;
    let fact = match (direct.works, direct.memory_bytes, direct.offset_bytes) {
        (Some(true), Some(memory), Some(offset)) => {
            format!("memory aligned to {memory} bytes, offsets and lengths to {offset}")
        }
        (Some(true), ..) => "works; the required alignment is unknown".to_owned(),
        (Some(false), ..) => format!("no: {}", direct.why.as_deref().unwrap_or_default()),
        (None, ..) => format!("unknown: {}", direct.why.as_deref().unwrap_or_default()),
    };
    lines.row("direct I/O", &fact);
    match &location.device {
        Some(one) => lines.row("device", &device(one)),
        None => lines.row("device", "the file system reports no block device"),
    }
    match (location.can_poll, &location.poll_refusal) {
        (Some(true), _) => lines.row("polling", "reads and writes can be polled"),
        (Some(false), Some(why)) => lines.row("polling", &format!("no: {why}")),
        _ => {}
    }
    if let Some(why) = &location.no_sample {
        lines.row("not measured", &format!("reads: {why}"));
    }
}

fn device(device: &Device) -> String {
    let mut parts = vec![match &device.model {
        Some(model) => format!("{} ({model})", device.name),
        None => device.name.clone(),
    }];
    if let Some(scheduler) = &device.scheduler {
        parts.push(format!("scheduler {scheduler}"));
    }
    if let Some(count) = device.nr_requests {
        parts.push(format!("nr_requests {count}"));
    }
    if let Some(count) = device.queues {
        parts.push(format!("hardware queues: {count}"));
    }
    if let Some(cache) = &device.write_cache {
        parts.push(format!("write cache: {cache}"));
    }
    if let (Some(logical), Some(physical)) =
        (device.logical_block_bytes, device.physical_block_bytes)
    {
        parts.push(format!("blocks of {logical} bytes (physical {physical})"));
    }
    parts.push(match device.is_rotational {
        Some(true) => "rotational".to_owned(),
        _ => "not rotational".to_owned(),
    });
    parts.push(match device.has_poll_queues {
        true => "queues to poll".to_owned(),
        false => "no queues to poll".to_owned(),
    });
    parts.join("; ")
}

fn measured(lines: &mut Lines, figures: &Figures) {
    let on = figures.reads_on.as_deref();
    let on = on.map_or(String::new(), |on| format!("; reads on {on}"));
    lines.row(
        "measured",
        &format!(
            "{:.1} s, medians of {} samples (min–max), ns per operation{on}",
            figures.seconds, figures.samples
        ),
    );
    for figure in &figures.figures {
        let cell = format!(
            "{:<44}{:>9}  ({}–{})",
            figure.about,
            short(figure.ns.median),
            short(figure.ns.min),
            short(figure.ns.max)
        );
        let _ = writeln!(lines.0, "{:LABEL_COLUMNS$}{cell}", "");
    }
    let mut printed: Vec<&str> = Vec::new();
    for missing in &figures.missing {
        // A reason that applies to several measurements is printed once.
        if !printed.contains(&&*missing.why) {
            printed.push(&missing.why);
            lines.row(
                "not measured",
                &format!("{}: {}", missing.what.name(), missing.why),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::facts::RefusalKind;
    use crate::doctor::tests::machines::{good, refused};

    #[test]
    fn the_benchmark_row_lists_what_the_machine_can_show_and_the_reason_for_the_rest() {
        let part = |name: &str, lacks: Option<&str>| Part {
            name: name.into(),
            lacks: lacks.map(str::to_owned),
        };
        let parts = [
            part("direct files", None),
            part("network", None),
            part(
                "polled files",
                Some("vda has no queues to poll; boot with …"),
            ),
        ];
        let row = "can show direct files, network; not polled files: vda has no queues to poll";
        assert_eq!(benchmark(&parts), row);
    }

    #[test]
    fn the_servers_row_reports_whether_installed_servers_can_be_served_and_what_is_missing() {
        let row = |change: &dyn Fn(&mut Environment)| {
            let mut env = good();
            change(&mut env);
            servers(&env)
        };
        let groups = |env: &mut Environment| -> usize {
            let mut registrations = env.ring.registrations.iter();
            let groups = registrations.position(|probe| probe.name == BUFFER_GROUPS);
            groups.unwrap()
        };
        let can = "annulus run serves installed epoll servers through io_uring";
        assert_eq!(row(&|env| env.kernel.version = Version(6, 12, 0)), can);
        let older = row(&|env| env.kernel.version = Version(6, 11, 9));
        assert!(older.starts_with(can) && older.contains("6.12"), "{older}");
        for (lacks, row) in [
            (
                "Linux 5.19",
                row(&|env| {
                    let groups = groups(env);
                    env.ring.registrations[groups].works = false;
                }),
            ),
            (
                "Linux 6.1",
                row(&|env| env.ring.setup_mode = Some(SetupMode::Plain)),
            ),
            (
                "no ring",
                servers(&refused(RefusalKind::Missing, [38, 38, 38])),
            ),
        ] {
            assert!(row.contains("installed servers unchanged"), "{row}");
            assert!(row.contains(lacks), "{row}");
        }
    }
}
