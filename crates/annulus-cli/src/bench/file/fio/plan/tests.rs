//! Tests of the plan: inheritance, stonewalls, contradictory keys and arbitrary input.

use super::*;

fn plan_of(text: &str) -> Plan {
    plan(text.as_bytes(), &|_| None).unwrap()
}

fn errors(text: &[u8]) -> String {
    let list = plan(text, &|_| None).unwrap_err();
    list.iter()
        .map(Complaint::to_string)
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn a_job_inherits_preceding_globals_and_overrides_them() {
    let plan = plan_of(
        "\u{feff}; a comment\r\n[global]\r\nbs=8k\r\niodepth=4\r\n[a]\r\nbs=16k\r\n# more\r\n\
         [global]\r\nIOdepth = 8\r\n[b]\r\n",
    );
    let blocks: Vec<u64> = plan
        .jobs
        .iter()
        .map(|job| job.options.block_least())
        .collect();
    let depths: Vec<usize> = plan.jobs.iter().map(|job| job.options.iodepth).collect();
    assert_eq!((blocks, depths), (vec![16384, 8192], vec![4, 8]));
}

#[test]
fn a_stonewall_ends_a_stage_and_a_group() {
    let plan = plan_of("[a]\n[b]\n[c]\nstonewall\n[d]\nnew_group\n[e]\nwait_for_previous=1\n");
    assert_eq!(plan.stages, [vec![0, 1], vec![2, 3], vec![4]]);
    let groups: Vec<usize> = plan.jobs.iter().map(|job| job.group).collect();
    assert_eq!(groups, [0, 0, 1, 2, 3]);
}

#[test]
fn a_key_of_global_is_warned_about_once() {
    let plan = plan_of("[global]\nthreads=8\n[a]\nthread\n[b]\n");
    assert_eq!(plan.warnings.len(), 1, "{:?}", plan.warnings);
    assert_eq!(
        (plan.warnings[0].line, &plan.mistaken_lines[..]),
        (2, &[2][..])
    );
}

#[test]
fn malformed_files_are_refused_with_their_lines() {
    for (text, expected) in [
        (
            &b"bs=4k\n[a]\n"[..],
            "line 1: `bs` is before the first [global] or [job]",
        ),
        (b"[a\n", "line 1: `[a` has no closing bracket"),
        (b"[]\n", "line 1: a job without a name"),
        (b"[a] b\n", "line 1: `b` behind the bracket"),
        (
            b"[a]\nsome words here\n",
            "line 2: `some words here` is neither",
        ),
        (b"[a]\n=4k\n", "line 2: `=4k` is neither"),
        (
            b"[a]\ninclude other.fio\n",
            "line 2: `include` is not supported",
        ),
        (b"[a]\nbs=\xff\n", "line 2: not UTF-8 from byte 4 on"),
        (b"[a]\nbs=\x004k\n", "line 2: contains a zero byte"),
        (b"", "it has no job"),
        (b"[global]\nbs=4k\n", "it has no job"),
        (b"[a]\nbs=${X\n", "without its }"),
        (b"[a]\nbs=\n", "line 2: `bs`: has no value"),
        (b"[a]\nbs\n", "line 2: `bs`: needs a value"),
    ] {
        let errors = errors(text);
        assert!(errors.contains(expected), "{text:?}: {errors}");
    }
    let all = errors(b"[a]\nfoo=1\nbs=x\n[b]\nbar\n");
    assert_eq!(all.lines().count(), 3, "all of them at once: {all}");
    assert!(errors(format!("[a]\n{}=1\n", "x".repeat(9000)).as_bytes()).contains("at most 8192"));
}

#[test]
fn keys_that_contradict_each_other_are_refused_at_their_line() {
    for (text, expected) in [
        (
            "[a]\nrw=read\ntime_based\n",
            "line 3: [a]: `time_based` needs a `runtime`",
        ),
        (
            "[a]\nrate=1m\nrate_iops=5\n",
            "line 3: [a]: `rate` and `rate_iops`",
        ),
        (
            "[a]\nbs=1000\ndirect=1\n",
            "line 2: [a]: direct I/O in blocks of 1000 bytes",
        ),
        ("[a]\nhipri\n", "needs ioengine=io_uring"),
        ("[a]\nioengine=io_uring\nhipri\n", "needs direct=1"),
        (
            "[a]\nrw=randrw\nverify=crc32c\n",
            "line 3: [a]: `verify` of a mixed load",
        ),
        (
            "[a]\nrw=write\nbsrange=4k-8k\nverify=crc32c\n",
            "blocks of one length",
        ),
        (
            "[a]\nrw=write\nbs=256\nverify=crc32c\n",
            "at least 512 bytes",
        ),
        (
            "[a]\nrw=write\nverify=pattern\n",
            "needs a `verify_pattern`",
        ),
        (
            "[a]\nnumjobs=1000\n[b]\nnumjobs=1000\n",
            "2000 jobs at once",
        ),
    ] {
        let errors = errors(text.as_bytes());
        assert!(errors.contains(expected), "{text:?}: {errors}");
    }
}

#[test]
fn a_key_without_effect_causes_a_warning() {
    let plan = plan_of(
        "[a]\nthread\nioengine=psync\niodepth=32\nfixedbufs\n[b]\nioengine=mmap\ndirect=1\n",
    );
    let texts: Vec<String> = plan.warnings.iter().map(Complaint::to_string).collect();
    assert_eq!(texts.len(), 3, "{texts:?}");
    assert!(texts[0].starts_with("line 4: `iodepth=32`: psync has one operation at a time"));
    assert!(texts[1].contains("`fixedbufs` is io_uring's"));
    assert!(texts[2].contains("a map goes through the page cache"));
}

/// A short form of the fuzz target: mutates a typical job file in a few thousand seeded ways.
#[test]
fn broken_job_files_never_panic() {
    const INPUTS: usize = 2000;
    let good = [
        include_bytes!("../../../../../jobs/random-reads-libaio.fio").as_slice(),
        include_bytes!("../../../../../jobs/random-reads-io_uring.fio"),
        b"[global]\nbssplit=4k/60:64k/40,1k/:2k\nrate=1m,2m,\n[a]\nverify_pattern=0xff\"a\"12\nrw=write\nsize=1%\n",
    ];
    let pieces: [&[u8]; 12] = [
        b"=",
        b"\n",
        b"[",
        b"]",
        b"/",
        b":",
        b",",
        b"${",
        b"}",
        b"%",
        b"\xff",
        b"18446744073709551615",
    ];
    let mut rng = fastrand::Rng::with_seed(7);
    let mut refused = 0;
    for _ in 0..INPUTS {
        let mut text = good[rng.usize(..good.len())].to_vec();
        for _ in 0..rng.usize(1..6) {
            let at = rng.usize(..=text.len());
            match rng.u8(..3) {
                0 => drop(text.drain(at..text.len().min(at + rng.usize(1..20)))),
                1 => drop(text.splice(at..at, pieces[rng.usize(..pieces.len())].iter().copied())),
                _ => {
                    if let Some(byte) = text.get_mut(at) {
                        *byte = rng.u8(..);
                    }
                }
            }
        }
        match plan(&text, &|_| None) {
            Ok(plan) => assert!(plan.jobs.iter().all(|job| job.options.block_least() > 0)),
            Err(complaints) => {
                assert!(!complaints.is_empty());
                refused += 1;
            }
        }
    }
    assert!(
        (INPUTS / 10..INPUTS).contains(&refused),
        "{refused} of {INPUTS} refused"
    );
}
