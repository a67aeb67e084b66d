//! Tests of the parsers for the output of perf 6.1, and of the reports made from it.

use std::path::Path;

use syscalls::Sysno;

use super::calls::Counted;
use super::report::{AtDepth, Traced, tables, verdict_on};
use super::{flame, labelled, perf};

/// Output of `perf stat` for a program with two threads. Each makes 500 reads and opens seven missing files.
const PERF: &str = "Events disabled\nEvents enabled\n1070,,raw_syscalls:sys_enter,1993214,100.00,,\n\
    1000,,raw_syscalls:sys_enter,1993214,100.00,,\n0,,raw_syscalls:sys_exit,1993214,100.00,,\n\
    14,,raw_syscalls:sys_enter,1993214,100.00,,\n14,,raw_syscalls:sys_exit,1993214,100.00,,\n\
    14,,raw_syscalls:sys_enter,1993214,100.00,,\n0,,raw_syscalls:sys_exit,1993214,100.00,,\n\
    0,,raw_syscalls:sys_enter,1993214,100.00,,\n0,,raw_syscalls:sys_exit,1993214,100.00,,\n";
const PERF_NAMES: [Sysno; 4] = [Sysno::pread64, Sysno::openat, Sysno::futex, Sysno::read];
/// Output of `perf stat` for a user without permission.
const PERF_REFUSED: &str = "event syntax error: 'raw_syscalls:sys_enter'
                     \\___ can't access trace events

Error:\tNo permissions to read /sys/kernel/tracing/events/raw_syscalls/sys_enter
";
/// Output of `perf script` with two samples.
const SCRIPT: &str = "\
run pread-1  8717/8718   24238.114735: cpu-clock: 
\tffffffff81589ca4 filemap_get_read_batch+0x1f4 ([kernel.kallsyms])
\tffffffff821ecc51 do_syscall_64+0x71 ([kernel.kallsyms])
\t          101829 pread64+0x19 (/usr/lib/x86_64-linux-gnu/libc.so.6)
\t          230ad4 annulus_baselines::blocking::Pread::run+0x614 (/target/release/annulus)
\t          1098eb clone3+0x2b (/usr/lib/x86_64-linux-gnu/libc.so.6)

run pread-1  8717/8718   24238.128097: cpu-clock: 
\t          230ad4 annulus_baselines::blocking::Pread::run+0x614 (/target/release/annulus)
\t          1098eb clone3+0x2b (/usr/lib/x86_64-linux-gnu/libc.so.6)

";

fn entry(name: &str, count: u64, errors: u64) -> (String, u64, u64) {
    (name.to_string(), count, errors)
}

#[test]
fn perfs_counters_are_read_in_the_order_of_the_request() {
    let counted = perf::read(PERF, &PERF_NAMES).unwrap();
    let names = vec![
        entry("pread64", 1000, 0),
        entry("futex", 14, 0),
        entry("openat", 14, 14),
    ];
    assert_eq!(counted, Counted::new(1070, names));
    // Calls that are not counted by name form one entry.
    let calls = counted.per_op(1000);
    let order: Vec<(&str, u64)> = (calls.iter())
        .map(|calls| (calls.name.as_str(), calls.count))
        .collect();
    assert_eq!(
        order,
        [
            ("pread64", 1000),
            ("(others)", 42),
            ("futex", 14),
            ("openat", 14)
        ]
    );
    assert_eq!((calls[0].per_op, calls[3].errors), (1.0, 14));
}

#[test]
fn what_is_no_count_of_perfs_is_reported_in_its_words() {
    let refusal = perf::read(PERF_REFUSED, &PERF_NAMES).unwrap_err();
    assert!(
        refusal.contains("event syntax error") && refusal.contains("run as root"),
        "{refusal}"
    );
    // The number of counters does not match the names, so they cannot be assigned.
    assert!(perf::read(PERF, &PERF_NAMES[..3]).is_err());
    assert!(
        perf::read("", &[])
            .unwrap_err()
            .contains("it printed nothing")
    );
}

#[test]
fn a_flame_graph_counts_samples_and_tells_the_kernels_functions() {
    let folded = flame::fold_text(SCRIPT.as_bytes()).unwrap();
    let mut lines: Vec<&str> = folded.stacks.lines().collect();
    lines.sort_unstable();
    let stack = "run_pread-1;clone3;annulus_baselines::blocking::Pread::run";
    let inside = format!("{stack};pread64;do_syscall_64_[k];filemap_get_read_batch_[k] 1");
    assert_eq!(lines, [format!("{stack} 1"), inside]);
    let (drawn, picture) = flame::draw(&folded, "pread, depth 1").unwrap();
    assert_eq!((drawn.samples, drawn.note), (2, None));
    assert!(picture.contains("annulus_baselines::blocking::Pread::run (2 samples, 100.00%)"));
    assert!(
        flame::draw(&flame::fold_text(b"").unwrap(), "nothing")
            .err()
            .unwrap()
            .contains("no sample")
    );
}

#[test]
fn without_a_frame_of_the_kernel_that_is_reported() {
    // Frames in the vDSO are not kernel frames.
    let mut script = SCRIPT.replace("([kernel.kallsyms])", "([vdso])");
    script.truncate(script.find("\n\n").unwrap() + 2);
    let folded = flame::fold_text(script.as_bytes()).unwrap();
    let (drawn, picture) = flame::draw(&folded, "pread").unwrap();
    let note = drawn.note.unwrap();
    assert!(note.contains("kernel"), "{note}");
    assert!(picture.contains(&note));
}

#[test]
fn a_label_stands_before_the_ending() {
    assert_eq!(
        labelled(Path::new("a/b.svg"), "pread-8"),
        Path::new("a/b-pread-8.svg")
    );
    assert_eq!(labelled(Path::new("graph"), "x"), Path::new("graph-x"));
}

#[test]
fn the_table_names_what_matters_and_says_why_something_is_missing() {
    let at = AtDepth { depth: 8 };
    let mut pread = Traced::new("pread", at);
    pread.counted(perf::read(PERF, &PERF_NAMES).map(|counted| (counted, 1000)));
    let mut idle = Traced::new("mmap", at);
    idle.counted(Err("not applicable: because".into()));
    let label = |case: &AtDepth| format!("depth {}", case.depth);
    let text = tables(&[pread, idle], label);
    let line =
        "pread        1.07  pread64 1.00, (others) 0.0420, futex 0.0140, openat 0.0140 [14]\n";
    assert!(text.contains(line), "{text}");
    assert!(
        text.contains("mmap     not applicable: because\n"),
        "{text}"
    );
    // If counting failed for every variant, the reason is printed once.
    let mut refused = Traced::new("pread", at);
    refused.counted(Err("not available: because".into()));
    let text = tables(&[refused.clone(), refused], label);
    assert_eq!(text, "\nsystem calls, depth 8: not available: because\n");
}

#[test]
fn a_graph_that_is_missing_is_a_failure_and_one_that_was_not_asked_for_is_none() {
    let mut one = Traced::new("pread", AtDepth { depth: 8 });
    assert!(verdict_on(std::slice::from_ref(&one)).is_ok());
    one.drawn(Path::new("x.svg"), Err("no sample".into()));
    let fault = verdict_on(&[one]).unwrap_err();
    assert!(fault.to_string().contains("pread"));
}
