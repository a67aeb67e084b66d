//! The contents of a report on `bench file`.

use super::model::{Comparison, Group, Repeat, VariantRuns, bytes, embed};
use crate::bench::file::json::{Report, Run, Sample};
use crate::bench::file::stats::Row;
use crate::bench::file::table::{Column, OF_DEPTH, cells, remarks_on};
use crate::bench::file::variant::Side;
use crate::bench::machine::Machine;
use crate::trace::AtDepth;

impl Comparison {
    /// Prepares the report on a comparison of `bench file`.
    pub(crate) fn of_files(report: &Report, budget_bytes: usize) -> serde_json::Result<Comparison> {
        let load = &report.load;
        Ok(Comparison {
            kind: "file",
            title: format!(
                "{}, {}, blocks of {}",
                load.rw,
                load.cache,
                bytes(load.block_bytes)
            ),
            verdict: report.verdict.clone(),
            checks: report.checks_line().trim_end().to_string(),
            warnings: report.warnings.clone(),
            notes: report.notes.clone(),
            load: load_facts(report),
            machine: machine_facts(&report.machine),
            header: report.header.clone(),
            variants: (report.variants.iter())
                .map(|one| (one.name.clone(), one.about.clone()))
                .collect(),
            groups: load
                .depths
                .iter()
                .map(|depth| group(report, *depth))
                .collect(),
            latency: "from the submission of an operation to its completion",
            unit: "ops",
            no_calls: None,
            json: embed(report, budget_bytes)?,
        })
    }
}

fn load_facts(report: &Report) -> Vec<(&'static str, String)> {
    let load = &report.load;
    let list: Vec<String> = load.depths.iter().map(usize::to_string).collect();
    let mut facts = vec![
        ("Operation", load.rw.clone()),
        ("Block", bytes(load.block_bytes)),
        ("Outstanding", list.join(", ")),
        ("Page cache", load.cache.clone()),
        ("File", load.file.clone()),
        ("Used part", bytes(load.size_bytes)),
    ];
    if load.files > 1 {
        facts.push(("Files", load.files.to_string()));
    }
    facts.extend(load.name.clone().map(|name| ("Load", name)));
    facts.extend(
        load.memory_limit_bytes
            .map(|limit| ("Memory limit", bytes(limit))),
    );
    facts.extend(load.threads.map(|threads| ("Threads", threads.to_string())));
    if load.durable {
        facts.push((
            "Writes",
            "each on stable storage before it completes".into(),
        ));
    }
    facts.push((
        "Measured",
        format!("{} s × {} repeats", load.runtime_seconds, load.repeats),
    ));
    facts.push(("Seed", report.seed.to_string()));
    facts
}

/// Returns names and values of the machine.
pub(super) fn machine_facts(machine: &Machine) -> Vec<(&'static str, String)> {
    let mut facts = vec![
        (
            "Kernel",
            format!("Linux {} ({})", machine.kernel, machine.architecture),
        ),
        ("Processors", machine.processors.to_string()),
    ];
    facts.extend(machine.processor.clone().map(|name| ("Processor", name)));
    if !machine.mitigations.is_empty() {
        facts.push(("Mitigations", machine.mitigations.join(", ")));
    }
    let memory = machine.memory_bytes;
    facts.extend(memory.map(|bytes| {
        (
            "Memory",
            format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64),
        )
    }));
    facts.extend(machine.filesystem.clone().map(|name| ("File system", name)));
    if let Some(disk) = &machine.disk {
        let model = disk
            .model
            .as_ref()
            .map_or(String::new(), |model| format!(" ({model})"));
        facts.push(("Disk", format!("{}{model}", disk.name)));
        let polled = if disk.has_poll_queues { "yes" } else { "no" };
        facts.push(("Queues to poll", polled.into()));
        facts.extend(disk.scheduler.clone().map(|name| ("Scheduler", name)));
        facts.extend(
            disk.queue_requests
                .map(|count| ("Queue", format!("{count} requests"))),
        );
    }
    facts
}

fn group(report: &Report, depth: usize) -> Group {
    let rows = report.rows.iter().filter(|row| row.place.depth == depth);
    let rows: Vec<&Row<AtDepth>> = rows.collect();
    Group {
        title: format!("depth {depth}"),
        variants: rows.iter().map(|row| variant(&report.runs, row)).collect(),
        ..table_of(&OF_DEPTH, &rows, |row| row.variant.clone())
    }
}

/// Returns the table of rows, without a title.
pub(super) fn table_of<P>(
    columns: &[Column<P>],
    rows: &[&Row<P>],
    name: fn(&Row<P>) -> String,
) -> Group {
    let remarks = rows.iter().flat_map(|row| {
        let texts = remarks_on(row).into_iter();
        texts.map(|text| format!("{}: {text}", name(row)))
    });
    Group {
        title: String::new(),
        headings: columns.iter().map(|column| (column.0, column.1)).collect(),
        rows: rows.iter().filter_map(|row| cells(columns, row)).collect(),
        remarks: remarks.collect(),
        variants: rows.iter().map(|row| without_runs(row)).collect(),
    }
}

/// Returns a variant without its runs.
fn without_runs<P>(row: &Row<P>) -> VariantRuns {
    VariantRuns {
        name: row.variant.clone(),
        null: row.side == Side::Null,
        speed: row.medians.as_ref().map(|medians| medians.ops_per_second),
        samples: row.samples,
        p99_us: row.medians.as_ref().and_then(|medians| medians.p99_us),
        repeats: Vec::new(),
    }
}

fn variant(runs: &[Run], row: &Row<AtDepth>) -> VariantRuns {
    let own = runs
        .iter()
        .enumerate()
        .filter(|(_, run)| run.depth == row.place.depth && run.variant == row.variant);
    let repeats = own.filter_map(|(index, run)| Some(repeat(index, run, run.outcome.sample()?)));
    VariantRuns {
        repeats: repeats.collect(),
        ..without_runs(row)
    }
}

fn repeat(index: usize, run: &Run, sample: &Sample) -> Repeat {
    Repeat {
        run: index,
        number: run.repeat,
        per_second: sample.ops_per_second,
        timeline: sample.timeline.clone(),
    }
}
