//! Builds a plan from the sections: jobs with options, stages that run together, groups that are reported together.
//!
//! All errors that can be detected without access to the job's data files are detected here.

use super::keys;
use super::options::{Engine, Kind, Options};
use super::parse::{self, Complaint, Section};
use super::unused_keys;
use crate::bench::file::verify::Verify;

/// The smallest block that can be verified, in bytes. It must hold its header.
const VERIFY_BLOCK_MIN: u64 = 512;
/// The largest number of clones of a stage. They all run at once, each with one or two threads.
const CLONES_MAX: usize = 1024;

/// A job of the file.
#[derive(Clone, Debug)]
pub(super) struct Job {
    /// The name of the job's section, which its files have.
    pub(super) section: String,
    /// The name of the job in results.
    pub(super) name: String,
    /// The line of the section in the file.
    pub(super) line: usize,
    /// The options from the job's keys.
    pub(super) options: Options,
    /// The group of the job. Jobs of a group are reported together if they set `group_reporting`.
    pub(super) group: usize,
}

/// The jobs of a file and their order.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// The jobs in the order of the file.
    pub(super) jobs: Vec<Job>,
    /// The jobs that run together, as indices into `jobs`. Stages run one after the other.
    pub(super) stages: Vec<Vec<usize>>,
    /// Warnings for the user.
    pub(super) warnings: Vec<Complaint>,
    /// Lines with keys that fio refuses and this tool ignores.
    pub(super) mistaken_lines: Vec<usize>,
}

/// Builds the plan of a job file.
///
/// # Errors
///
/// Returns all errors of the job file, in the order of lines.
pub(super) fn plan(
    bytes: &[u8],
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<Plan, Vec<Complaint>> {
    let sections = parse::parse(bytes)?;
    let (mut jobs, mut warnings, mut errors) = (Vec::new(), Vec::new(), Vec::new());
    for section in &sections {
        match keys::read(section, variable) {
            Ok((options, about)) => {
                warnings.extend(about);
                check(section, &options, &mut warnings, &mut errors);
                jobs.push(Job {
                    section: section.name.clone(),
                    name: options.name.clone().unwrap_or(section.name.clone()),
                    line: section.line,
                    options,
                    group: 0,
                });
            }
            Err(about) => errors.extend(about),
        }
    }
    if !errors.is_empty() {
        return Err(tidy(errors));
    }
    if !jobs.iter().any(|job| job.options.thread) {
        let text = "no `thread`: fio would start processes; here every job is a thread";
        warnings.push(Complaint::new(0, text));
    }
    let stages = stages(&mut jobs);
    for stage in &stages {
        let clones: usize = stage.iter().map(|&job| jobs[job].options.numjobs).sum();
        if clones > CLONES_MAX {
            let line = jobs[stage[0]].line;
            let text = format!("{clones} jobs at once; at most {CLONES_MAX}");
            return Err(vec![Complaint::new(line, text)]);
        }
    }
    Ok(Plan {
        stages,
        mistaken_lines: mistaken_lines(&sections),
        warnings: tidy(warnings),
        jobs,
    })
}

fn mistaken_lines(sections: &[Section]) -> Vec<usize> {
    let entries = sections.iter().flat_map(|section| &section.entries);
    let mistaken = |key: &str| unused_keys::MISTAKEN.iter().any(|(name, _)| *name == key);
    let mut lines: Vec<usize> = entries
        .filter(|entry| mistaken(&entry.key))
        .map(|entry| entry.line)
        .collect();
    lines.sort_unstable();
    lines.dedup();
    lines
}

/// Sorts complaints by line and removes duplicates, which a line of `[global]` causes for every job.
fn tidy(mut complaints: Vec<Complaint>) -> Vec<Complaint> {
    complaints.sort_by(|a, b| a.line.cmp(&b.line).then(a.text.cmp(&b.text)));
    complaints.dedup();
    complaints
}

/// Splits the jobs into stages at each `stonewall`, and sets the group of each job.
fn stages(jobs: &mut [Job]) -> Vec<Vec<usize>> {
    let mut stages: Vec<Vec<usize>> = Vec::new();
    let mut group = 0;
    for (index, job) in jobs.iter_mut().enumerate() {
        let walled = job.options.stonewall;
        if index > 0 && (walled || job.options.new_group) {
            group += 1;
        }
        job.group = group;
        match stages.last_mut() {
            Some(stage) if !walled => stage.push(index),
            _ => stages.push(vec![index]),
        }
    }
    stages
}

/// Checks the combination of a job's keys.
fn check(
    section: &Section,
    options: &Options,
    warnings: &mut Vec<Complaint>,
    errors: &mut Vec<Complaint>,
) {
    let line = |key: &[&str]| {
        let entries = section.entries.iter().rev();
        entries
            .filter(|entry| key.contains(&entry.key.as_str()))
            .map(|entry| entry.line)
            .next()
            .unwrap_or(section.line)
    };
    for (keys, text) in contradictions(options) {
        errors.push(Complaint::new(
            line(keys),
            format!("[{}]: {text}", section.name),
        ));
    }
    for (keys, text) in without_effect(options) {
        warnings.push(Complaint::new(line(keys), text));
    }
}

type About = (&'static [&'static str], String);

fn contradictions(options: &Options) -> Vec<About> {
    let mut list: Vec<About> = Vec::new();
    if options.time_based && options.runtime.is_none() {
        list.push((&["time_based"], "`time_based` needs a `runtime`".into()));
    }
    if options.rate != [0; 2] && options.rate_iops != [0; 2] {
        list.push((
            &["rate_iops"],
            "`rate` and `rate_iops`: use one of them".into(),
        ));
    }
    let odd = [options.block_least(), options.block_most()]
        .into_iter()
        .find(|bytes| options.direct && bytes % 512 != 0);
    if let Some(bytes) = odd.filter(|_| options.engine != Engine::Mmap) {
        let text = format!(
            "direct I/O in blocks of {bytes} bytes; a block is a multiple of 512 bytes there"
        );
        list.push((&["bs", "blocksize", "bsrange", "bssplit"], text));
    }
    if options.hipri && options.engine != Engine::IoUring {
        list.push((&["hipri"], "`hipri` needs ioengine=io_uring".into()));
    } else if options.hipri && !options.direct {
        list.push((
            &["hipri"],
            "`hipri` needs direct=1: only a device can be polled".into(),
        ));
    }
    if options.verify.is_some() {
        list.extend(verify_contradictions(options));
    }
    list
}

fn verify_contradictions(options: &Options) -> Vec<About> {
    let mut list: Vec<About> = Vec::new();
    if options.kind == Kind::Mixed {
        let text = "`verify` of a mixed load would read blocks that were not written; write first, then read";
        list.push((&["verify"], text.into()));
    }
    match options.uniform() {
        None => list.push((
            &["verify"],
            "`verify` needs blocks of one length: they may not overlap".into(),
        )),
        Some(bytes) if bytes < VERIFY_BLOCK_MIN => {
            let text = format!("`verify` needs blocks of at least {VERIFY_BLOCK_MIN} bytes");
            list.push((&["verify"], text));
        }
        Some(_) => {}
    }
    if options.verify == Some(Verify::Pattern) && options.pattern.is_empty() {
        list.push((
            &["verify"],
            "verify=pattern needs a `verify_pattern`".into(),
        ));
    }
    list
}

fn without_effect(options: &Options) -> Vec<About> {
    let mut list: Vec<About> = Vec::new();
    let name = &options.engine_name;
    let waits = matches!(options.engine, Engine::Calls | Engine::Mmap);
    if waits && options.iodepth > 1 {
        let text = format!(
            "`iodepth={}`: {name} has one operation at a time, in fio too",
            options.iodepth
        );
        list.push((&["iodepth"], text));
    }
    if options.engine == Engine::Mmap && options.direct {
        list.push((
            &["direct"],
            "`direct`: a map goes through the page cache".into(),
        ));
    }
    let of_rings: [(&'static [&'static str], bool); 3] = [
        (&["sqthread_poll"], options.sqthread_poll),
        (&["fixedbufs"], options.fixedbufs),
        (&["registerfiles"], options.registerfiles),
    ];
    for (key, is_set) in of_rings {
        if is_set && options.engine != Engine::IoUring {
            list.push((key, format!("`{}` is io_uring's; {name} has none", key[0])));
        }
    }
    list
}

#[cfg(test)]
mod tests;
