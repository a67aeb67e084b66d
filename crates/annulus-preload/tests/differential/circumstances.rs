//! The same programs under other conditions: switched off, with excluded ports, with invalid variables, with a log that
//! cannot be written, linked statically, and with another user's privileges.

use std::os::unix::fs::{PermissionsExt, chown};

use annulus_testing::skip::root_or_skip;

use crate::cases::{
    CLOSING, DEFERRED_OUTPUT, ENTRY_POINTS, LOOPS, MEMBERS, OPTIONS, PROCESSES, SENDING, SEQUENCES,
    THREADS, TRIGGERS,
};
use crate::library;
use crate::program::{Built, Program, Run, With, scratch, shared};
use crate::{KNOWN, agree};

/// Exchanges over one connection of a listener; most of them are served.
const EXCHANGES: &str = "many_exchanges";

/// Runs a case with variables, and compares it with a run without the library.
#[track_caller]
fn with(program: &Program, case: &str, with: &With) -> Option<Run> {
    let built = program.built()?;
    let run = built.run(&[case], with);
    agree(
        program.name,
        case,
        &built.run(&[case], &With::nothing()),
        &run,
    );
    Some(run)
}

#[test]
fn a_process_that_is_switched_off_is_not_served() {
    for off in ["1", "yes"] {
        let off = With::library().set("ANNULUS_DISABLE", off);
        if let Some(run) = with(&TRIGGERS, EXCHANGES, &off) {
            assert_eq!(run.counts.all("served"), 0, "{:?}", run.counts);
        }
    }
}

#[test]
fn a_set_gets_its_ring_with_its_eighth_connection() {
    for (number, served, few) in [("", 9, 7), ("2", 9, 1), ("9", 9, 8), ("10", 0, 9)] {
        let settings = With::library().set("ANNULUS_MIN_CONNECTIONS", number);
        if let Some(run) = with(&MEMBERS, "connections_come_one_by_one", &settings) {
            let count = |name| run.counts.of(name);
            let found = (count("served:epoll_ctl"), count("passed:few_connections"));
            assert_eq!(found, (served, few), "{number}: {:?}", run.counts);
        }
    }
    let few = With::library().set("ANNULUS_MIN_CONNECTIONS", "2");
    let case = "connections_that_were_closed_do_not_count";
    if let Some(run) = with(&MEMBERS, case, &few) {
        assert_eq!(run.counts.all("served"), 0, "{:?}", run.counts);
    }
    // The first connection of each of two sets; the second one moves to another set with its bytes.
    let case = "a_member_moves_to_a_new_set_with_its_bytes";
    if let Some(run) = with(&MEMBERS, case, &few) {
        let count = |why| run.counts.of(why);
        let found = (
            count("passed:few_connections"),
            count("passed:several_sets"),
        );
        assert_eq!(found, (1, 1), "{:?}", run.counts);
    }
    // Two of the three connections get the ring.
    if let Some(run) = with(
        &THREADS,
        "another_thread_reads_before_there_is_a_ring",
        &few,
    ) {
        assert_eq!(run.counts.of("served:epoll_ctl"), 2, "{:?}", run.counts);
        assert_eq!(run.counts.of("passed:other_thread"), 1, "{:?}", run.counts);
    }
}

#[test]
fn connections_of_excluded_ports_pass_through() {
    let all = With::library().set("ANNULUS_PASS_PORTS", "7,1024-65535,80");
    if let Some(run) = with(&TRIGGERS, EXCHANGES, &all) {
        assert_eq!(run.counts.of("served:read"), 0, "{:?}", run.counts);
        assert!(run.counts.of("passed:port") > 0, "{:?}", run.counts);
    }
}

#[test]
fn connections_of_other_ports_are_served() {
    let others = With::library().set("ANNULUS_PASS_PORTS", "80,100-1000");
    if let Some(run) = with(&TRIGGERS, EXCHANGES, &others) {
        assert!(run.counts.of("served:read") > 0, "{:?}", run.counts);
    }
}

#[test]
fn invalid_ports_stop_no_program() {
    for ports in ["", "nonsense", "-", "70000", "9-1", "1-2-3", ",,", "80;90"] {
        let wrong = With::library().set("ANNULUS_PASS_PORTS", ports);
        let Some(built) = TRIGGERS.built() else {
            return;
        };
        let run = built.run(&[EXCHANGES], &wrong);
        let without = built.run(&[EXCHANGES], &With::nothing());
        assert_eq!((run.stdout, run.exit), (without.stdout, without.exit));
    }
}

#[test]
fn nothing_is_logged_unless_requested() {
    let Some(built) = TRIGGERS.built() else {
        return;
    };
    let quiet = built.run(&[EXCHANGES], &With::preloaded_only());
    let without = built.run(&[EXCHANGES], &With::nothing());
    agree("triggers", EXCHANGES, &without, &quiet);
    assert_eq!(quiet.stderr, "");
}

#[test]
fn counts_go_to_stderr_where_no_log_is_named() {
    let Some(built) = TRIGGERS.built() else {
        return;
    };
    let run = built.run(
        &[EXCHANGES],
        &With::preloaded_only().set("ANNULUS_STATS", "1"),
    );
    let lines: Vec<&str> = run.stderr.lines().collect();
    assert_eq!(lines.len(), 1, "{}", run.stderr);
    assert!(lines[0].starts_with("annulus: {\"pid\":"), "{}", run.stderr);
    assert!(!run.stdout.contains("annulus"));
}

/// A line for stderr must not reach the client that has its number, nor end the program.
#[test]
fn counts_go_to_no_other_file_with_the_number_of_stderr() {
    let Some(built) = PROCESSES.built() else {
        return;
    };
    let counted = With::preloaded_only().set("ANNULUS_STATS", "1");
    for case in [
        "a_program_without_a_stdout_is_not_written_to",
        "a_stderr_without_a_reader_ends_no_program",
    ] {
        let without = built.run(&[case], &With::nothing());
        agree("processes", case, &without, &built.run(&[case], &counted));
    }
}

#[test]
fn a_log_that_cannot_be_written_stops_no_program() {
    for log in ["/nonexistent/log", "/", "/dev/full", ""] {
        let Some(built) = TRIGGERS.built() else {
            return;
        };
        let run = built.run(&[EXCHANGES], &With::library().set("ANNULUS_LOG", log));
        let without = built.run(&[EXCHANGES], &With::nothing());
        assert_eq!((run.stdout, run.exit), (without.stdout, without.exit));
    }
}

#[test]
fn a_refusal_is_logged_in_one_line() {
    let Some(built) = PROCESSES.built() else {
        return;
    };
    let case = "a_program_runs_under_an_earlier_filter";
    let run = built.run(&[case], &With::preloaded_only());
    let library_lines: Vec<&str> = run
        .stderr
        .lines()
        .filter(|line| line.starts_with("annulus: "))
        .collect();
    assert_eq!(library_lines.len(), 1, "{}", run.stderr);
    assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
}

#[test]
fn a_polling_kernel_thread_changes_no_response() {
    for (program, case) in [
        (&TRIGGERS, EXCHANGES),
        (&SENDING, "large_and_small_writes_keep_their_order"),
        (&LOOPS, "an_edge_server_serves_all_its_clients"),
    ] {
        with(program, case, &With::library().set("ANNULUS_SQPOLL", "1"));
    }
}

/// The kernel thread takes an entry before the next one is pushed: a close must not overtake bytes sent before it.
#[test]
fn a_polling_kernel_thread_closes_nothing_before_its_last_bytes() {
    let polled = With::library().set("ANNULUS_SQPOLL", "1");
    with(
        &DEFERRED_OUTPUT,
        "many_closed_with_deferred_output_in_one_round_get_all_bytes",
        &polled,
    );
}

#[test]
fn a_program_that_loads_no_library_runs_as_before() {
    static STATIC: Program = Program::static_c("triggers");
    if let Some(run) = with(&STATIC, EXCHANGES, &With::library()) {
        assert_eq!(run.counts.processes, 0);
    }
}

/// For a setuid program the loader ignores a library that is named by a path.
#[test]
fn a_program_with_rights_of_another_user_runs_as_before() {
    let Some(built) = TRIGGERS
        .built()
        .filter(|_| root_or_skip("a setuid program"))
    else {
        return;
    };
    let copy = scratch("setuid");
    std::fs::copy(&built.command[0], &copy).unwrap();
    chown(&copy, Some(65534), Some(65534)).unwrap();
    std::fs::set_permissions(&copy, PermissionsExt::from_mode(0o4755)).unwrap();
    let setuid = Built {
        command: vec![copy.clone()],
    };
    let run = setuid.run(&[EXCHANGES], &With::library());
    let without = setuid.run(&[EXCHANGES], &With::nothing());
    agree("a setuid program", EXCHANGES, &without, &run);
    assert_eq!(run.counts.processes, 0);
    std::fs::remove_file(copy).unwrap();
}

#[test]
fn the_library_may_be_loaded_with_others_and_twice() {
    let path = library().display();
    for several in [
        format!("{path} {path}"),
        format!("{path}:libm.so.6"),
        format!("libm.so.6 {path}"),
    ] {
        let run = with(
            &TRIGGERS,
            EXCHANGES,
            &With::library().set("LD_PRELOAD", &several),
        );
        assert!(run.is_none_or(|run| run.counts.of("served:read") > 0));
    }
}

/// The other library has functions with the same names, which make their calls by `syscall`.
#[test]
fn another_library_with_the_same_functions_may_be_loaded_before_or_after() {
    let path = library().display();
    let Some(other) = shared("interposer") else {
        return;
    };
    let other = other.display();
    for several in [format!("{path}:{other}"), format!("{other}:{path}")] {
        for case in [
            "raw_sending_calls_keep_their_order",
            "raw_calls_that_receive_take_the_next_bytes",
            "a_raw_close_follows_written_bytes",
        ] {
            let loaded = With::library().set("LD_PRELOAD", &several);
            let run = with(&ENTRY_POINTS, case, &loaded);
            assert!(run.is_none_or(|run| run.counts.of("served:epoll_wait") > 0));
        }
    }
}

/// Cases whose reports differ in the order of members within a round when a set moves between ring and kernel.
const IN_ANOTHER_ORDER: [&str; 1] = ["the_order_of_single_arrivals_is_kept"];

/// Runs all cases of a program while the operator's switch changes: the results stay those of the kernel.
#[track_caller]
fn switched(program: &Program) {
    let (Some(built), Some(switched)) = (program.built(), With::switched()) else {
        return;
    };
    let mut released = 0;
    for case in program.cases() {
        let differs = [&KNOWN[..], &IN_ANOTHER_ORDER].concat();
        if differs.contains(&&*case.name) || (case.as_root && !root_or_skip(&case.name)) {
            continue;
        }
        let run = built.run(&[&case.name], &switched);
        let without = built.run(&[&case.name], &With::nothing());
        agree(program.name, &case.name, &without, &run);
        released += run.counts.of("passed:released");
    }
    assert!(released > 0, "{} was not switched", program.name);
}

#[test]
fn sent_bytes_arrive_while_the_switch_changes() {
    switched(&SENDING);
}

#[test]
fn ends_are_reported_while_the_switch_changes() {
    switched(&CLOSING);
}

#[test]
fn members_are_reported_while_the_switch_changes() {
    switched(&MEMBERS);
    switched(&SEQUENCES);
}

#[test]
fn threads_share_sets_and_sockets_while_the_switch_changes() {
    switched(&THREADS);
}

/// Returns the processes with a log line that contains `text`.
fn lines_with(log: &str, text: &str) -> Vec<String> {
    let lines = log.lines().filter(|line| line.contains(text));
    let process = |line: &str| {
        let remaining = line.strip_prefix("annulus: process ").unwrap();
        remaining.split(':').next().unwrap().to_owned()
    };
    lines.map(process).collect()
}

#[test]
fn each_process_logs_its_build_and_its_first_ring() {
    let daemon = "a_daemon_goes_on_serving";
    for (program, case) in [(&TRIGGERS, EXCHANGES), (&PROCESSES, daemon)] {
        let Some(run) = with(program, case, &With::library()) else {
            return;
        };
        let version = env!("CARGO_PKG_VERSION");
        let path = library().display();
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let builds = lines_with(
            &run.log,
            &format!("under libannulus_preload {version}, build "),
        );
        let whole = format!(", {path}, Linux {}", release.trim_end());
        assert_eq!(lines_with(&run.log, &whole), builds, "{}", run.log);
        let rings = lines_with(&run.log, "created its first ring: io_uring");
        let none = lines_with(&run.log, "created no ring");
        let serving = lines_with(
            &run.log,
            "all is well: io_uring serves the first connection",
        );
        assert_eq!(serving, rings, "{}", run.log);
        assert!(!rings.is_empty(), "{}", run.log);
        for ring in rings {
            let times = builds.iter().filter(|build| **build == ring).count();
            assert_eq!((times, none.contains(&ring)), (1, false), "{}", run.log);
        }
    }
}

#[test]
fn the_log_reports_what_is_left_to_the_kernel_with_reason_and_count() {
    let ports = With::library().set("ANNULUS_PASS_PORTS", "1024-65535");
    for (program, case, with, lines) in [
        (
            &THREADS,
            "several_threads_may_share_a_set",
            With::library(),
            [
                " passes through from now on: several_threads",
                "left to the kernel: epoll sets: several_threads ",
            ],
        ),
        (
            &OPTIONS,
            "control_data_enabled_on_a_listener_comes_with_its_connections",
            With::library(),
            [
                "connections of a listener pass through from now on: unknown_option",
                "listeners: unknown_option ",
            ],
        ),
        (
            &TRIGGERS,
            EXCHANGES,
            ports,
            [
                "connections of a listener pass through from now on: port",
                "created no ring: port ",
            ],
        ),
    ] {
        let Some(built) = program.built() else { return };
        let log = built.run(&[case], &with).log;
        for line in lines {
            assert!(!lines_with(&log, line).is_empty(), "{line}: {log}");
        }
    }
}

#[test]
fn the_log_states_why_there_is_no_ring() {
    let ports = With::library().set("ANNULUS_PASS_PORTS", "1024-65535");
    let off = With::library().set("ANNULUS_DISABLE", "1");
    let wrong = With::library().set("ANNULUS_PASS_PORTS", "http");
    let refused = "a_program_runs_under_an_earlier_filter";
    for (program, case, with, lines) in [
        (
            &TRIGGERS,
            EXCHANGES,
            ports,
            &[
                "no ring yet: the first connection passes through: port",
                "created no ring: ",
            ][..],
        ),
        (
            &TRIGGERS,
            EXCHANGES,
            off,
            &["switched off by ANNULUS_DISABLE"],
        ),
        (
            &TRIGGERS,
            EXCHANGES,
            wrong,
            &["switched off, everything passes through: ANNULUS_PASS_PORTS cannot be parsed"],
        ),
    ] {
        let Some(built) = program.built() else { return };
        let log = built.run(&[case], &with).log;
        for line in lines {
            assert_eq!(lines_with(&log, line).len(), 1, "{line}: {log}");
        }
        assert_eq!(lines_with(&log, "first ring"), [""; 0], "{log}");
    }
    let Some(built) = PROCESSES.built() else {
        return;
    };
    let log = built.run(&[refused], &With::library()).log;
    assert!(log.contains("annulus: io_uring is not used: "), "{log}");
    let reason = "created no ring: io_uring refused by a seccomp filter (EPERM)";
    assert_eq!(lines_with(&log, reason).len(), 1, "{log}");
    let words = built.run(&["--cases"], &With::library()).log;
    assert_eq!(
        lines_with(&words, "created no ring: the process created no epoll set").len(),
        1
    );
}
