//! Runs programs with the preload library and without it, and compares the bytes, the errno values and their order.
//!
//! The programs are in `tests/apps`, one topic each. Each lists its cases, with the counters that the library must
//! increase in each (served, passed through, handed back). Each case is a test here: it runs without the library, then
//! with it. The two transcripts, exit codes and outputs on stderr must be equal byte for byte. A case prints nothing
//! that the kernel is free to choose, and no measured time.

// Private modules of a `cdylib`, which no crate can import and whose own tests are off (`test = false`).
#[path = "../../src/accept_burst.rs"]
mod accept_burst;
#[allow(dead_code, reason = "its own tests do without some of it")]
#[path = "../../src/batching.rs"]
mod batching;
mod cases;
mod circumstances;
mod errors;
#[allow(dead_code, reason = "its own tests do without some of it")]
#[path = "../../src/events.rs"]
mod events;
mod exports;
mod hooks;
#[allow(dead_code, reason = "its own tests do without some of it")]
#[path = "../../src/inbound.rs"]
mod inbound;
#[path = "../../src/member.rs"]
mod member;
mod options;
#[allow(dead_code, reason = "its own tests do without some of it")]
#[path = "../../src/outbound.rs"]
mod outbound;
mod program;
#[path = "../../src/send_errors.rs"]
mod send_errors;
#[path = "../../src/sockopt_effects.rs"]
mod sockopt_effects;
// Miri has no `poll`.
#[cfg(not(miri))]
mod tcp_poll;
#[allow(dead_code, reason = "its own tests do without some of it")]
#[path = "../../src/token.rs"]
mod token;

use std::path::Path;
use std::time::{Duration, Instant};

use annulus_testing::preload_counts::Counts;
use annulus_testing::{preload_library, skip};
use program::{Program, Run, With};

/// Cases that differ if a ring takes over the first connections later: an edge may be reported once more, and the log's
/// descriptor counts towards a limit that the program lowers before it has a ring.
const KNOWN_LATER: [&str; 2] = [
    "a_change_after_a_hand_back_is_reported",
    "files_get_the_last_numbers_of_a_busy_server",
];

/// Cases that differ, each with a line in docs/reference/preload.md, "Differences from a plain run".
const KNOWN: [&str; 17] = [
    "bytes_before_a_reset_are_read_first",
    "bytes_that_were_reported_are_read_by_one_of_two_processes",
    "reading_into_unmapped_memory_fails_and_loses_no_bytes",
    "writing_from_unmapped_memory_fails",
    "exec_passes_on_buffered_bytes",
    "a_socket_passed_on_brings_its_bytes",
    "a_set_lists_its_members_in_proc",
    "a_oneshot_member_of_an_inherited_set_is_reported_by_one_process",
    "a_oneshot_member_whose_number_another_file_has_is_reported_once",
    "a_closed_number_is_reported_while_a_child_has_its_connection",
    "urgent_bytes_that_the_program_never_announced_are_skipped",
    "urgent_bytes_are_reported_separately",
    "an_option_that_is_set_late_applies_from_then_on",
    "an_option_that_another_process_sets_on_a_listener_later_is_missed",
    "writability_of_a_large_send_buffer_keeps_no_reserve",
    "a_set_that_a_ring_polls_reports_its_members",
    "a_program_may_lock_all_its_memory_within_a_limit",
];

/// Returns the path of the preload library, which the first test of a run builds.
fn library() -> &'static Path {
    preload_library::library(Path::new(env!("CARGO_TARGET_TMPDIR")))
}

/// Runs a case with and without the library, and compares the two runs.
#[track_caller]
fn compare(program: &Program, case: &str) {
    let Some(built) = program.built() else {
        return;
    };
    let expected = program
        .cases()
        .iter()
        .find(|known| known.name == case)
        .unwrap_or_else(|| panic!("{} has no case {case}", program.name));
    if expected.as_root && !skip::root_or_skip(case) {
        return;
    }
    let without = built.run(&[case], &With::nothing());
    let library = match program.name {
        "single_thread" => With::as_it_is(),
        _ => With::library(),
    };
    // For ci/long: only transcripts, of sets whose ring takes over the first connections later.
    if let Ok(number) = std::env::var("MIN_CONNECTIONS") {
        let with = built.run(&[case], &library.set("ANNULUS_MIN_CONNECTIONS", &number));
        if !KNOWN.contains(&case) && !KNOWN_LATER.contains(&case) {
            agree(program.name, case, &without, &with);
        }
        return;
    }
    let with = built.run(&[case], &library);
    if KNOWN.contains(&case) {
        let differs = without.stdout != with.stdout || without.exit != with.exit;
        assert!(
            differs,
            "{case} no longer differs: remove it from KNOWN and from docs/reference/preload.md"
        );
        return;
    }
    agree(program.name, case, &without, &with);
    // `epoll_ctl` counts the connections that a ring takes.
    assert!(
        with.counts.of("served:epoll_ctl") > 0 || expected.passes,
        "{} {case}: vacuous, as no connection is served; serve one, or mark the case `passes`; the library counted {:?}",
        program.name,
        with.counts
    );
    let wrong = with.counts.missing(&expected.counted);
    assert!(
        wrong.is_empty(),
        "{} {case}: the transcripts agree, but the library did not count {}; it counted {:?}",
        program.name,
        wrong.join(", "),
        with.counts
    );
}

/// Compares two runs. A library whose rings are refused reports it in one line on stderr.
#[track_caller]
fn agree(program: &str, case: &str, without: &Run, with: &Run) {
    let complaints = if with.counts.of("passed:refused") > 0 {
        with.stderr_without_library()
    } else {
        with.stderr.clone()
    };
    if without.stdout == with.stdout && without.exit == with.exit && without.stderr == complaints {
        return;
    }
    let first = without
        .stdout
        .lines()
        .zip(with.stdout.lines())
        .position(|(a, b)| a != b)
        .unwrap_or(
            without
                .stdout
                .lines()
                .count()
                .min(with.stdout.lines().count()),
        );
    panic!(
        "{program} {case} differs under the library, first in line {}\n\
         -- without it: {}\n{}{}\n-- with it: {}\n{}{}\n{:?}\n{}",
        first + 1,
        without.exit,
        without.stdout,
        without.stderr,
        with.exit,
        with.stdout,
        with.stderr,
        with.counts,
        with.log
    );
}
