//! Variants with flaws, and the checks that must detect them.

use std::path::Path;
use std::sync::Arc;

use annulus_baselines::{Bench, Failure, Finished, Job, Memory, Op, Pread, Variant, Worker};
use clap::Parser;

use std::os::unix::fs::FileExt;

use super::json::{Outcome, Sample};
use super::plan::Plan;
use super::run::AnyVariant;
use super::single;
use super::testfile::TestFile;
use crate::args::{Args, BenchTarget, Command};

/// A variant with one operation at a time and a flaw.
struct Flawed {
    /// Performs the operation. Returns the length, or an error.
    call: fn(&Job, &Op, &mut [u8]) -> std::io::Result<usize>,
}

impl<B: Bench> Variant<B> for Flawed {
    fn name(&self) -> &str {
        "flawed"
    }

    fn about(&self) -> &str {
        "for tests"
    }

    fn run(&self, job: &Job, bench: &B) -> Result<Finished, Failure> {
        let mut memory = Memory::new(1, job.block_bytes)?;
        let mut worker = bench.worker();
        bench.go();
        while let Some(op) = worker.next() {
            let bytes = memory.only();
            if op.write {
                worker.fill(&op, bytes);
            }
            let result = (self.call)(job, &op, bytes);
            worker.finish(op, result, &*bytes);
        }
        bench.done(worker);
        Ok(Finished::default())
    }
}

/// A variant that fails before it issues an operation.
struct Broken(Ending);

type Ending = fn() -> Result<Finished, Failure>;

impl<B: Bench> Variant<B> for Broken {
    fn name(&self) -> &str {
        "broken"
    }

    fn about(&self) -> &str {
        "for tests"
    }

    fn run(&self, _job: &Job, _bench: &B) -> Result<Finished, Failure> {
        (self.0)()
    }
}

fn plan(line: &[&str], dir: &Path, runtime: &str) -> Plan {
    let dir = dir.to_str().unwrap();
    let always = [
        "annulus",
        "bench",
        "file",
        dir,
        "--buffered",
        "--hot",
        "--runtime",
        runtime,
    ];
    let size = match line.contains(&"--size") {
        true => &[][..],
        false => &["--size", "1M"],
    };
    let args = Args::try_parse_from(always.iter().chain(size).chain(line)).unwrap();
    let Command::Bench(bench) = args.command else {
        panic!("{line:?}")
    };
    let BenchTarget::File(args) = bench.target else {
        panic!("{line:?}")
    };
    Plan::all(&args).unwrap().remove(0)
}

/// Repeats a run with a longer time until it has enough completions to judge. On a busy machine a short run may have
/// none.
fn with_enough_time(run: impl Fn(&str) -> Outcome) -> Outcome {
    for runtime in ["200ms", "1", "5"] {
        let outcome = run(runtime);
        let few = matches!(&outcome, Outcome::Measured(sample) if sample.checks.completions < 1000);
        if !few {
            return outcome;
        }
    }
    run("25")
}

/// Returns the outcome of a run on a created file, after `before` has changed the file.
fn run_with(line: &[&str], variant: AnyVariant, before: fn(&TestFile)) -> Outcome {
    with_enough_time(|runtime| run_once(line, &variant, before, runtime))
}

fn run_once(line: &[&str], variant: &AnyVariant, before: fn(&TestFile), runtime: &str) -> Outcome {
    let dir = tempfile::tempdir().unwrap();
    let plan = plan(line, dir.path(), runtime);
    let file = TestFile::open(&plan).unwrap();
    assert_eq!(
        std::fs::read_dir(dir.path()).unwrap().count(),
        0,
        "the file has no name"
    );
    before(&file);
    single::run(&plan, &file, variant, 2, 0).unwrap().outcome
}

fn run(line: &[&str], call: fn(&Job, &Op, &mut [u8]) -> std::io::Result<usize>) -> Outcome {
    run_with(line, Arc::new(Flawed { call }), |_| {})
}

fn failure(outcome: Outcome) -> (String, Option<Box<Sample>>) {
    match outcome {
        Outcome::Failed { reason, sample } => (reason, sample),
        other => panic!("{other:?}"),
    }
}

fn honest(job: &Job, op: &Op, bytes: &mut [u8]) -> std::io::Result<usize> {
    if op.write {
        job.file(op).write_at(bytes, op.offset)
    } else {
        job.file(op).read_at(bytes, op.offset)
    }
}

#[test]
fn an_honest_variant_passes_and_every_result_is_counted() {
    for rw in ["randread", "read", "randwrite", "write", "randrw"] {
        let sample = match run(&["--rw", rw], honest) {
            Outcome::Measured(sample) => sample,
            other => panic!("{rw}: {other:?}"),
        };
        let checks = &sample.checks;
        assert!(
            checks.completions > 0 && checks.correct == checks.completions,
            "{rw}: {checks:?}"
        );
        assert_eq!(
            (checks.wrong, checks.errors, checks.wrong_afterwards),
            (0, 0, 0)
        );
        assert_eq!(
            checks.compared_afterwards > 0,
            rw.contains('w'),
            "{rw}: writes are read back"
        );
        assert!(sample.ops <= checks.completions);
    }
}

#[test]
fn a_flipped_byte_in_the_file_is_detected() {
    let (reason, sample) = failure(run_with(&["--rw", "read"], Arc::new(Pread), |file| {
        let mut byte = [0];
        file.buffered[0].read_exact_at(&mut byte, 40960).unwrap();
        file.buffered[0]
            .write_all_at(&[byte[0] ^ 1], 40960)
            .unwrap();
    }));
    assert!(
        reason.contains("offset 40960: the bytes are not those of this offset"),
        "{reason}"
    );
    let checks = sample.unwrap().checks;
    assert!(
        checks.wrong >= 1 && checks.correct + checks.wrong == checks.completions,
        "{checks:?}"
    );
}

#[test]
fn a_result_from_another_offset_is_wrong() {
    let call = |job: &Job, op: &Op, bytes: &mut [u8]| {
        job.file(op)
            .read_at(bytes, (op.offset + 4096) % job.size_bytes)
    };
    let (reason, _) = failure(run(&[], call));
    assert!(reason.contains("are not those of this offset"), "{reason}");
}

#[test]
fn a_result_without_a_read_is_detected() {
    let (reason, _) = failure(run(&[], |_, _, bytes| Ok(bytes.len())));
    assert!(reason.contains("are not those of this offset"), "{reason}");
}

#[test]
fn a_short_result_is_wrong() {
    let call =
        |job: &Job, op: &Op, bytes: &mut [u8]| job.file(op).read_at(&mut bytes[..512], op.offset);
    let (reason, _) = failure(run(&[], call));
    assert!(reason.contains("512 bytes instead of 4096"), "{reason}");
}

#[test]
fn an_error_is_counted_and_shown() {
    let (reason, sample) = failure(run(&[], |_, _, _| {
        Err(std::io::Error::from_raw_os_error(5))
    }));
    assert!(reason.contains("Input/output error"), "{reason}");
    assert!(sample.unwrap().checks.errors > 0);
}

#[test]
fn a_write_that_did_not_happen_is_detected_afterwards() {
    let (reason, sample) = failure(run(&["--rw", "randwrite"], |_, _, bytes| Ok(bytes.len())));
    assert!(reason.contains("is not what was written"), "{reason}");
    assert!(sample.unwrap().checks.wrong_afterwards > 0);
}

#[test]
fn a_write_to_another_offset_is_detected_afterwards() {
    let call =
        |job: &Job, op: &Op, bytes: &mut [u8]| job.file(op).write_at(bytes, op.offset ^ 4096);
    let (reason, _) = failure(run(&["--rw", "randwrite"], call));
    assert!(reason.contains("is not what was written"), "{reason}");
}

#[test]
fn the_right_block_of_the_wrong_file_is_detected() {
    let call = |job: &Job, op: &Op, bytes: &mut [u8]| {
        job.files[1 - op.file as usize].read_at(bytes, op.offset)
    };
    let (reason, _) = failure(run(&["--files", "2"], call));
    assert!(
        reason.contains(" of file ") && reason.contains("not those of this offset"),
        "{reason}"
    );
    let call = |job: &Job, op: &Op, bytes: &mut [u8]| {
        job.files[1 - op.file as usize].write_at(bytes, op.offset)
    };
    let (reason, _) = failure(run(&["--files", "2", "--rw", "randwrite"], call));
    assert!(reason.contains("is not what was written"), "{reason}");
    let Outcome::Measured(sample) =
        run(&["--files", "3", "--size", "3M", "--rw", "randrw"], honest)
    else {
        panic!()
    };
    assert_eq!(sample.checks.correct, sample.checks.completions);
}

#[test]
fn reads_of_unknown_content_are_compared_by_sample() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    let mut bytes = vec![0; 1 << 20];
    fastrand::fill(&mut bytes);
    std::fs::write(&path, &bytes).unwrap();
    let corrupting = |job: &Job, op: &Op, bytes: &mut [u8]| {
        let result = job.file(op).read_at(bytes, op.offset);
        bytes[100] ^= 1;
        result
    };
    let outcomes = [honest, corrupting].map(|call| {
        let variant: AnyVariant = Arc::new(Flawed { call });
        with_enough_time(|runtime| {
            let plan = plan(&[], &path, runtime);
            let file = TestFile::open(&plan).unwrap();
            single::run(&plan, &file, &variant, 2, 0).unwrap().outcome
        })
    });
    let [Outcome::Measured(sample), wrong] = outcomes else {
        panic!()
    };
    assert!(sample.checks.compared_afterwards > 0);
    let (reason, _) = failure(wrong);
    assert!(
        reason.contains("differs from what pread returns"),
        "{reason}"
    );
    assert_eq!(
        std::fs::read(&path).unwrap(),
        bytes,
        "the user's file is unchanged"
    );
}

#[test]
fn a_variant_that_fails_has_a_failed_row() {
    let broken: [(Ending, &str); 3] = [
        (|| panic!("overboard"), "panicked: overboard"),
        (|| Ok(Finished::default()), "ended without starting"),
        (|| Err(Failure::Failed("no luck".into())), "no luck"),
    ];
    for (call, text) in broken {
        let (reason, sample) = failure(run_with(&[], Arc::new(Broken(call)), |_| {}));
        assert!(reason.contains(text) && sample.is_none(), "{reason}");
    }
}

#[test]
fn a_variant_that_is_not_available_has_a_row_with_the_reason() {
    let outcome = run_with(
        &[],
        Arc::new(Broken(|| Err(Failure::Unavailable("no ring".into())))),
        |_| {},
    );
    assert!(
        matches!(&outcome, Outcome::Unavailable { reason } if reason == "no ring"),
        "{outcome:?}"
    );
}

#[test]
fn the_smallest_blocks_are_checked() {
    let Outcome::Measured(sample) = run(&["--bs", "512"], honest) else {
        panic!()
    };
    assert_eq!(sample.checks.correct, sample.checks.completions);
}
