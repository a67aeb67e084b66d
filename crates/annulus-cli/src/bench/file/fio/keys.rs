//! The keys of a job file: a table with the effect of each key.
//!
//! A key is used, accepted with a warning if it has no effect, or refused if a run without it would measure something
//! else. Any other key is an error, and the message suggests the nearest name. docs/reference/job-files.md shows the
//! table of used keys, and a test compares the two.

use super::options::{Engine, Hint, Kind, Options, SyncFlag};
use super::parse::{Complaint, Entry, Section, shown};
use super::unused_keys::{Group, MISTAKEN, NO_EFFECT, REFUSED, is_switched_off};
use super::value::{self, Base};
use crate::bench::file::verify::Verify;

/// A key that has an effect.
pub(super) struct Key {
    /// The name used here, followed by fio's aliases.
    pub(super) names: &'static [&'static str],
    /// An example of a value.
    pub(super) example: &'static str,
    /// The meaning, and any difference from fio.
    pub(super) meaning: &'static str,
    set: fn(&mut Options, &RawValue<'_>) -> Result<(), String>,
}

/// An unparsed value, and the base of its units.
struct RawValue<'a> {
    text: Option<&'a str>,
    base: Base,
}

impl RawValue<'_> {
    fn text(&self) -> Result<&str, String> {
        self.text.ok_or_else(|| "needs a value".to_string())
    }

    fn flag(&self) -> Result<bool, String> {
        value::flag(self.text)
    }

    fn bytes(&self) -> Result<u64, String> {
        value::bytes(self.text()?, self.base)
    }

    fn count(&self, least: u64, most: u64) -> Result<u64, String> {
        value::count(self.text()?, least, most)
    }
}

/// The longest name that is compared with known keys. No key has a longer name.
const NAME_BYTES_MAX: usize = 40;
/// The largest depth of a ring.
const DEPTH_MAX: u64 = 32_768;
/// The largest number of clones. Each one is a thread.
const JOBS_MAX: u64 = 1024;
/// The largest number of files per clone. All of them are open at once.
const FILES_MAX: u64 = 4096;
const LOOPS_MAX: u64 = 1 << 32;

macro_rules! keys {
    ($($names:expr, $example:literal, $meaning:literal, $set:expr;)*) => {
        &[$(Key { names: &$names, example: $example, meaning: $meaning, set: $set }),*]
    };
}

/// The keys that have an effect.
pub(super) const USED: &[Key] = keys![
    ["rw", "readwrite"], "randread", "read, write, rw, randread, randwrite, randrw; no trims, no `:N`", |o, v| rw(o, v);
    ["rwmixread"], "70", "of mixed loads, the reads in percent", |o, v| {
        v.count(0, 100).map(|percent| o.read_percent = percent as u8)
    };
    ["rwmixwrite"], "30", "of mixed loads, the writes in percent", |o, v| {
        v.count(0, 100).map(|percent| o.read_percent = 100 - percent as u8)
    };
    ["bs", "blocksize"], "4k,8k", "length of reads, of writes", |o, v| {
        value::pair(v.text()?, &mut o.lengths, |text| value::fixed(text, v.base))
    };
    ["bsrange", "blocksize_range"], "1k-4k", "lengths: multiples of the first, up to the second", |o, v| {
        value::pair(v.text()?, &mut o.lengths, |text| value::range(text, v.base))
    };
    ["bssplit"], "4k/60:64k/40", "lengths, each with its share", |o, v| {
        value::pair(v.text()?, &mut o.lengths, |text| value::split(text, v.base))
    };
    ["size"], "1g", "of all files of a job; `50%` of files that exist", |o, v| {
        value::size(v.text()?, v.base).map(|size| o.size = Some(size))
    };
    ["filesize"], "64m", "of each file; one value, no range", |o, v| v.bytes().map(|size| o.filesize = Some(size));
    ["io_size", "io_limit"], "2g", "end after so much, instead of after `size`", |o, v| {
        v.bytes().map(|size| o.io_size = (size > 0).then_some(size))
    };
    ["number_ios"], "1000", "end after N operations", |o, v| {
        v.count(1, u64::MAX).map(|count| o.number_ios = Some(count))
    };
    ["loops"], "2", "as if `io_size` were N times `size`", |o, v| v.count(1, LOOPS_MAX).map(|n| o.loops = n);
    ["offset", "fileoffset"], "1m", "where the used part of each file begins; bytes or a share", |o, v| {
        value::size(v.text()?, v.base).map(|offset| o.offset = offset)
    };
    ["offset_increment"], "64m", "added to `offset` for each clone of `numjobs`", |o, v| {
        v.bytes().map(|bytes| o.offset_increment = bytes)
    };
    ["filename"], "data:more", "files, separated by colons; `\\:` is a colon of a name; all clones share them", |o, v| {
        o.filenames = value::names(v.text()?);
        match o.filenames.iter().any(|name| name == "-") {
            true => Err("`-` is standard input or output in fio, which is not supported; a file of this name is `./-`".into()),
            false if o.filenames.is_empty() => Err("names no file".into()),
            false => Ok(()),
        }
    };
    ["directory"], ".", "where the files are; one directory; `\\:` is a colon of its name", |o, v| {
        let mut names = value::names(v.text()?);
        if names.len() > 1 {
            return Err("several directories are not supported; write a colon of a name as `\\:`".into());
        }
        o.directory = Some(names.pop().ok_or("names no directory")?);
        Ok(())
    };
    ["nrfiles", "nr_files"], "4", "files of each clone, `size` shared among them, used in turn", |o, v| {
        v.count(1, FILES_MAX).map(|count| o.nrfiles = count as u32)
    };
    ["ioengine"], "io_uring", "psync, sync, vsync, pvsync, pvsync2: positional calls; libaio; io_uring; mmap", |o, v| {
        engine(o, v)
    };
    ["direct"], "1", "past the page cache", |o, v| v.flag().map(|flag| o.direct = flag);
    ["buffered"], "0", "the opposite of `direct`", |o, v| v.flag().map(|flag| o.direct = !flag);
    ["sync"], "dsync", "0, none; 1, sync: O_SYNC; dsync: O_DSYNC", |o, v| {
        o.sync = match v.text.unwrap_or("1") {
            "0" | "none" => SyncFlag::None,
            "1" | "sync" => SyncFlag::Sync,
            "dsync" => SyncFlag::Dsync,
            other => return Err(format!("`{}` is neither none, sync nor dsync", shown(other))),
        };
        Ok(())
    };
    ["end_fsync"], "1", "fsync when a clone is done, outside its measured time", |o, v| {
        v.flag().map(|flag| o.end_fsync = flag)
    };
    ["invalidate"], "1", "the files' pages leave the page cache before the job (the default)", |o, v| {
        v.flag().map(|flag| o.invalidate = flag)
    };
    ["fadvise_hint"], "1", "tell the kernel whether blocks come at random (default); 0, random, sequential", |o, v| {
        o.hint = match v.text.unwrap_or("1") {
            "0" | "none" => Hint::None,
            "1" => Hint::AsOrdered,
            "random" => Hint::Random,
            "sequential" => Hint::Sequential,
            other => return Err(format!("`{}` is none of 0, 1, random, sequential", shown(other))),
        };
        Ok(())
    };
    ["iodepth"], "128", "operations outstanding per clone; positional calls and mmap have one", |o, v| {
        v.count(1, DEPTH_MAX).map(|depth| o.iodepth = depth as usize)
    };
    ["iodepth_batch", "iodepth_batch_submit"], "16", "submit after N (default 1); 0: as `iodepth`", |o, v| {
        v.count(0, DEPTH_MAX).map(|count| o.batch_submit = count as usize)
    };
    ["iodepth_batch_complete_min", "iodepth_batch_complete"], "8", "wait for N completions (default 1)", |o, v| {
        v.count(0, DEPTH_MAX).map(|count| o.batch_min = count as usize)
    };
    ["iodepth_batch_complete_max"], "16", "of libaio, take at most N (default: the minimum)", |o, v| {
        v.count(0, DEPTH_MAX).map(|count| o.batch_max = Some(count as usize))
    };
    ["iodepth_low"], "4", "refill the queue only when no more than this many are outstanding", |o, v| {
        v.count(0, DEPTH_MAX).map(|count| o.iodepth_low = Some(count as usize))
    };
    ["sqthread_poll"], "1", "io_uring: a kernel thread takes the submissions", |o, v| {
        v.flag().map(|flag| o.sqthread_poll = flag)
    };
    ["hipri"], "1", "io_uring: the device is polled for completions", |o, v| v.flag().map(|flag| o.hipri = flag);
    ["fixedbufs"], "1", "io_uring: buffers are registered", |o, v| v.flag().map(|flag| o.fixedbufs = flag);
    ["registerfiles"], "1", "io_uring: files are registered", |o, v| v.flag().map(|flag| o.registerfiles = flag);
    ["numjobs"], "4", "clones of a job; always threads", |o, v| v.count(1, JOBS_MAX).map(|n| o.numjobs = n as usize);
    ["thread"], "1", "clones are threads; they always are here, so it changes nothing", |o, v| {
        v.flag().map(|flag| o.thread = flag)
    };
    ["stonewall", "wait_for_previous"], "1", "wait until all jobs above are done", |o, v| {
        v.flag().map(|flag| o.stonewall = flag)
    };
    ["group_reporting"], "1", "only fio (--with-fio) reports a group as one", |o, v| {
        v.flag().map(|flag| o.group_reporting = flag)
    };
    ["new_group"], "1", "a group of reports begins", |o, v| v.flag().map(|flag| o.new_group = flag);
    ["runtime", "timeout"], "15", "end after this time; without `time_based` perhaps earlier", |o, v| {
        value::time(v.text()?).map(|time| o.runtime = (!time.is_zero()).then_some(time))
    };
    ["time_based"], "1", "begin again until `runtime` is over", |o, v| v.flag().map(|flag| o.time_based = flag);
    ["ramp_time"], "2", "time under load before the measurement", |o, v| {
        value::time(v.text()?).map(|time| o.ramp_time = time)
    };
    ["rate"], "10m,5m", "bytes per second of reads, of writes, per clone", |o, v| {
        value::pair(v.text()?, &mut o.rate, |text| value::bytes(text, v.base))
    };
    ["rate_iops"], "1000", "operations (of the shortest length) per second of reads, of writes, per clone", |o, v| {
        value::pair(v.text()?, &mut o.rate_iops, |text| value::bytes(text, Base::Binary))
    };
    ["percentile_list"], "99:99.5:99.99", "percentiles of the table and of --json", |o, v| {
        value::percentiles(v.text()?).map(|list| o.percentiles = list)
    };
    ["verify"], "crc32c", "crc32c, xxhash, pattern: all that was written is read back and checked", |o, v| verify(o, v);
    ["do_verify"], "1", "read back after writing (the default)", |o, v| v.flag().map(|flag| o.do_verify = flag);
    ["verify_pattern"], "0xdeadbeef", "of verify=pattern: hex, a number or \"text\", repeated", |o, v| {
        value::pattern(v.text()?).map(|pattern| o.pattern = pattern)
    };
    ["norandommap"], "1", "each block is drawn independently, so blocks may repeat", |o, v| {
        v.flag().map(|flag| o.norandommap = flag)
    };
    ["randrepeat", "allrandrepeat"], "1", "the same order in every run (the default)", |o, v| {
        v.flag().map(|flag| o.randrepeat = flag)
    };
    ["randseed"], "42", "seed of all that is random", |o, v| v.bytes().map(|seed| o.randseed = Some(seed));
    ["unlink"], "1", "files that we made go at the end; see --keep-files", |o, v| v.flag().map(|flag| o.unlink = flag);
    ["kb_base"], "1000", "1024: k is 1024 and ki is 1000; 1000: the other way round", |_, v| match v.text()? {
        "1024" | "1000" => Ok(()),
        other => Err(format!("`{}` is neither 1024 nor 1000", shown(other))),
    };
    ["name"], "nightly", "name of the job in results, instead of that in brackets, which still names its files", |o, v| {
        match v.text()? {
            "" => return Err("is empty".into()),
            text => o.name = Some(text.to_string()),
        }
        Ok(())
    };
    ["description"], "nightly", "for readers of the file", |_, v| v.text().map(drop);
];

/// Returns the options from the keys of a section, and warnings for the user.
///
/// # Errors
///
/// Returns all keys that are unknown or refused, and all values that are invalid.
pub(super) fn read(
    section: &Section,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<(Options, Vec<Complaint>), Vec<Complaint>> {
    let mut options = Options::default();
    let (mut warnings, mut errors) = (Vec::new(), Vec::new());
    let base = match last(section, "kb_base") {
        Some("1000") => Base::Decimal,
        _ => Base::Binary,
    };
    for entry in &section.entries {
        match apply(&mut options, entry, base, variable) {
            Ok(None) => {}
            Ok(Some(warning)) => warnings.push(Complaint::new(entry.line, warning)),
            Err(error) => errors.push(Complaint::new(entry.line, error)),
        }
    }
    match errors.is_empty() {
        true => Ok((options, warnings)),
        false => Err(errors),
    }
}

fn last<'a>(section: &'a Section, key: &str) -> Option<&'a str> {
    let entries = section.entries.iter().rev();
    entries
        .filter(|entry| entry.key == key)
        .find_map(|entry| entry.value.as_deref())
}

fn apply(
    options: &mut Options,
    entry: &Entry,
    base: Base,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<Option<String>, String> {
    let name = entry.key.as_str();
    let expanded = match &entry.value {
        Some(value) => Some(expand(value, variable).map_err(|text| format!("`{name}`: {text}"))?),
        None => None,
    };
    if let Some(key) = USED.iter().find(|key| key.names.contains(&name)) {
        let raw = RawValue {
            text: expanded.as_deref(),
            base,
        };
        let example = key.example;
        return (key.set)(options, &raw).map(|()| None).map_err(|text| {
            format!(
                "`{name}`: {text}. It means: {}; for example {name}={example}",
                key.meaning
            )
        });
    }
    if let Some((_, meant)) = MISTAKEN.iter().find(|(mistaken, _)| *mistaken == name) {
        return Ok(Some(format!("`{name}`: {meant}")));
    }
    let has = |group: &&Group| group.names().any(|one| one == name);
    if let Some(group) = NO_EFFECT.iter().find(has) {
        return Ok(Some(format!("`{name}` has no effect here: {}", group.why)));
    }
    match REFUSED.iter().find(has) {
        Some(_) if is_switched_off(name, expanded.as_deref()) => Ok(None),
        Some(group) => Err(format!("`{name}` is not supported: {}", group.why)),
        None => Err(unknown(name)),
    }
}

fn unknown(name: &str) -> String {
    if name.len() > NAME_BYTES_MAX {
        return format!("unknown key `{}`; it is longer than every key", shown(name));
    }
    let used = USED.iter().flat_map(|key| key.names.iter().copied());
    let other = NO_EFFECT.iter().chain(REFUSED).flat_map(Group::names);
    let nearest = used
        .chain(other)
        .map(|known| (strsim::damerau_levenshtein(known, name), known))
        .min_by_key(|(distance, _)| *distance);
    match nearest {
        // A third of a short name would be another word: `name` is not `rate`.
        Some((distance, known)) if distance <= (name.len() / 3).max(1) => {
            format!("unknown key `{}`; did you mean `{known}`?", shown(name))
        }
        _ => format!(
            "unknown key `{}`; docs/reference/job-files.md lists the keys",
            shown(name)
        ),
    }
}

/// Replaces `${NAME}` with the value of the environment variable, as in fio.
fn expand(text: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut rest = text;
    let mut whole = String::new();
    while let Some((before, after)) = rest.split_once("${") {
        let (name, behind) = after
            .split_once('}')
            .ok_or_else(|| format!("`{}` has a ${{ without its }}", shown(text)))?;
        let value = variable(name)
            .ok_or_else(|| format!("the environment has no variable `{}`", shown(name)))?;
        whole += before;
        whole += &value;
        rest = behind;
    }
    Ok(whole + rest)
}

fn rw(options: &mut Options, raw: &RawValue<'_>) -> Result<(), String> {
    let text = raw.text()?.to_ascii_lowercase();
    if text.contains("trim") {
        return Err("trims are not supported; they destroy what a device holds".into());
    }
    if text.contains(':') {
        return Err("a number or offset behind the colon is not supported".into());
    }
    (options.kind, options.random) = match text.as_str() {
        "read" => (Kind::Read, false),
        "write" => (Kind::Write, false),
        "rw" | "readwrite" => (Kind::Mixed, false),
        "randread" => (Kind::Read, true),
        "randwrite" => (Kind::Write, true),
        "randrw" => (Kind::Mixed, true),
        _ => {
            return Err(format!(
                "`{}` is none of read, write, rw, randread, randwrite, randrw",
                shown(&text)
            ));
        }
    };
    Ok(())
}

fn engine(options: &mut Options, raw: &RawValue<'_>) -> Result<(), String> {
    let text = raw.text()?;
    options.engine = match text {
        "psync" | "sync" | "vsync" | "pvsync" | "pvsync2" => Engine::Calls,
        "libaio" => Engine::LinuxAio,
        "io_uring" => Engine::IoUring,
        "mmap" => Engine::Mmap,
        _ => {
            return Err(format!(
                "the engine `{}` is none of: psync, sync, vsync, pvsync, pvsync2, libaio, io_uring, mmap",
                shown(text)
            ));
        }
    };
    options.engine_name = text.to_string();
    Ok(())
}

fn verify(options: &mut Options, raw: &RawValue<'_>) -> Result<(), String> {
    options.verify = match raw.text()? {
        "0" => None,
        "crc32c" | "crc32c-intel" => Some(Verify::Crc32c),
        "xxhash" => Some(Verify::Xxhash),
        "pattern" => Some(Verify::Pattern),
        other => {
            return Err(format!(
                "`{}` is not supported; there are crc32c, xxhash and pattern",
                shown(other)
            ));
        }
    };
    Ok(())
}

#[cfg(test)]
mod tests;
