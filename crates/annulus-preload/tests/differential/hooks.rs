//! Checks that each hooked call is exported, and that it has a case in which it uses a served descriptor and one in
//! which it uses another.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use annulus_testing::skip::skip;

use crate::cases::PROGRAMS;
use crate::library;
use crate::program::apps;

/// A call, and the cases that use it. The first uses it on a served connection or set, or in a process with one, and
/// makes the library increase the named counter (`-`: only the transcript is compared). The second uses it on other
/// descriptors.
type Hook = (&'static str, &'static str, &'static str, &'static str);

const READ: &str = "every_call_that_receives_takes_the_next_bytes";
const CHECKED: &str = "calls_with_checks_are_the_same_calls";
const WRITTEN: &str = "every_sending_call_keeps_its_order";
const NO_STREAM_READ: &str = "reads_of_other_descriptors_are_unchanged";
const NO_STREAM_WRITTEN: &str = "writes_to_other_descriptors_are_unchanged";
const DATAGRAMS: &str = "messages_of_datagrams_pass";
const BAD_SETS: &str = "wait_errors_are_unchanged";
const MASKED: &str = "a_mask_lets_a_signal_in_for_the_wait_only";
const TIMED: &str = "a_timeout_is_never_early";
const EMPTY_SET: &str = "an_empty_set_waits_for_its_timeout";
const DUPLICATES: &str = "a_duplicate_shares_the_stream";
const POLLED: &str = "a_served_socket_can_be_polled";
const SELECTED: &str = "a_served_socket_can_be_selected";
const POLLED_OTHERS: &str = "poll_and_select_of_others_are_untouched";
const FAILED_EXEC: &str = "an_exec_that_fails_changes_nothing";
const LAST_WORDS: &str = "exit_sends_written_bytes";
const CLOSED_RANGE: &str = "closing_a_range_sends_written_bytes";
const STDIO: &str = "a_number_that_a_stream_has_closed_is_the_next_owners";
const STDIO_WRITTEN: &str = "a_write_only_stream_leaves_received_bytes";
const STDIO_OTHERS: &str = "streams_of_other_files_are_untouched";
const SPAWNED: &str = "a_child_writes_to_a_connection_that_its_parent_has_closed";
const STARTED: &str = "every_way_to_start_a_program_works";
const CHILD_ENDS: &str = "a_killed_process_ends_its_connections_though_its_child_lives";

const ANY_CHILD: &str = "a_child_made_in_any_way_sends_nothing_of_its_parents";
const ANY_SERVER: &str = "a_child_made_in_any_way_may_serve";
const ANY_END: &str = "every_way_to_end_sends_written_bytes";
const NO_END: &str = "signals_that_do_not_end_the_process_are_unchanged";

const RAW: &str = "raw_sending_calls_keep_their_order";
const NAMES: &str = "functions_of_two_names_are_the_same";
const STREAM_NAMES: &str = "streams_and_children_of_other_names_are_the_same";
const PRINTED: &str = "printing_keeps_its_order";
const FLAGGED: &str = "vectors_with_flags_keep_their_order";
const TRACED: &str = "a_backtrace_keeps_its_order";
const UNDONE: &str = "a_dissolved_connection_passes_through";
const ASYNCHRONOUS: &str = "asynchronous_writes_keep_their_order";

const HOOKS: [Hook; 118] = [
    ("read", READ, "served:read", NO_STREAM_READ),
    ("readv", READ, "served:readv", NO_STREAM_READ),
    ("recv", READ, "served:recv", NO_STREAM_READ),
    ("recvfrom", READ, "served:recv", DATAGRAMS),
    ("recvmsg", READ, "served:recvmsg", NO_STREAM_READ),
    ("recvmmsg", READ, "served:recvmsg", DATAGRAMS),
    ("__read_chk", CHECKED, "served:read", CHECKED),
    ("__recv_chk", CHECKED, "served:recv", DATAGRAMS),
    ("__recvfrom_chk", CHECKED, "served:recv", DATAGRAMS),
    ("write", WRITTEN, "served:write", NO_STREAM_WRITTEN),
    ("writev", WRITTEN, "served:writev", NO_STREAM_WRITTEN),
    ("send", WRITTEN, "served:send", NO_STREAM_WRITTEN),
    (
        "sendto",
        WRITTEN,
        "served:send",
        "members_of_all_kinds_are_reported_together",
    ),
    ("sendmsg", WRITTEN, "served:sendmsg", DATAGRAMS),
    ("sendmmsg", WRITTEN, "served:sendmsg", DATAGRAMS),
    (
        "sendfile",
        "files_are_sent_in_order",
        "served:sendfile",
        NO_STREAM_WRITTEN,
    ),
    (
        "sendfile64",
        "files_are_sent_in_order",
        "served:sendfile",
        NO_STREAM_WRITTEN,
    ),
    (
        "splice",
        "splices_keep_their_order_in_both_directions",
        "back:unknown_flags",
        NO_STREAM_WRITTEN,
    ),
    (
        "accept",
        "accept_returns_the_peers_address",
        "-",
        "accept_errors_are_unchanged",
    ),
    (
        "accept4",
        "connections_open_and_close",
        "served:read",
        "accept_errors_are_unchanged",
    ),
    (
        "socket",
        "connections_open_and_close",
        "served:read",
        "a_socket_that_never_connected_hangs_up",
    ),
    (
        "close",
        "written_bytes_arrive_before_the_end",
        "served:close",
        "a_closed_number_is_bad_in_every_call",
    ),
    ("close_range", CLOSED_RANGE, "served:close", CLOSED_RANGE),
    (
        "closefrom",
        "a_set_works_on_though_all_other_numbers_were_closed",
        "served:close",
        "a_set_works_on_though_all_other_numbers_were_closed",
    ),
    ("dup", DUPLICATES, "back:duplicated", DATAGRAMS),
    ("dup2", DUPLICATES, "back:duplicated", DATAGRAMS),
    ("dup3", DUPLICATES, "back:duplicated", DATAGRAMS),
    (
        "fcntl",
        DUPLICATES,
        "back:duplicated",
        "a_client_that_connected_first_is_served",
    ),
    ("fcntl64", DUPLICATES, "back:duplicated", DATAGRAMS),
    (
        "ioctl",
        "queries_of_queue_lengths_succeed",
        "served:read",
        DATAGRAMS,
    ),
    (
        "shutdown",
        "both_ends_shut_is_a_hang_up",
        "served:shutdown",
        DATAGRAMS,
    ),
    (
        "setsockopt",
        "options_that_add_control_bytes_are_honoured",
        "back:unknown_option",
        DATAGRAMS,
    ),
    (
        "sockatmark",
        "the_urgent_mark_is_found_after_the_first_query",
        "back:unknown_flags",
        "urgent_bytes_of_a_listener_that_wants_them_inline_are_inline",
    ),
    (
        "getsockopt",
        "the_error_of_a_reset_can_be_queried_once",
        "served:getsockopt",
        "a_connect_that_fails_is_an_error",
    ),
    ("poll", POLLED, "back:polled_otherwise", POLLED_OTHERS),
    ("ppoll", POLLED, "back:polled_otherwise", POLLED_OTHERS),
    ("__poll_chk", POLLED, "back:polled_otherwise", POLLED_OTHERS),
    (
        "__ppoll_chk",
        POLLED,
        "back:polled_otherwise",
        POLLED_OTHERS,
    ),
    ("select", SELECTED, "back:polled_otherwise", POLLED_OTHERS),
    ("pselect", SELECTED, "back:polled_otherwise", POLLED_OTHERS),
    ("epoll_create", BAD_SETS, "-", BAD_SETS),
    ("epoll_create1", MASKED, "served:epoll_wait", BAD_SETS),
    (
        "epoll_ctl",
        "oneshot_is_silent_until_it_is_armed_again",
        "served:epoll_ctl",
        "control_errors_are_unchanged",
    ),
    ("epoll_wait", TIMED, "served:epoll_wait", BAD_SETS),
    ("epoll_pwait", MASKED, "served:epoll_wait", EMPTY_SET),
    ("epoll_pwait2", TIMED, "served:epoll_wait", EMPTY_SET),
    (
        "syscall",
        RAW,
        "served:write",
        "raw_calls_of_all_other_kinds_pass",
    ),
    ("__read", NAMES, "served:read", NAMES),
    ("__write", NAMES, "served:write", NAMES),
    ("__send", NAMES, "served:send", NAMES),
    ("__poll", NAMES, "back:polled_otherwise", NAMES),
    ("__select", NAMES, "back:polled_otherwise", NAMES),
    ("__close", NAMES, "-", NAMES),
    ("__dup2", NAMES, "-", NAMES),
    ("__fcntl", NAMES, "-", NAMES),
    ("_IO_fdopen", STREAM_NAMES, "back:stdio", STREAM_NAMES),
    ("_IO_fclose", STREAM_NAMES, "back:stdio", STREAM_NAMES),
    ("wordexp", STREAM_NAMES, "served:write", STREAM_NAMES),
    ("__backtrace_symbols_fd", TRACED, "back:stdio", TRACED),
    ("_IO_popen", STREAM_NAMES, "served:write", STREAM_NAMES),
    ("__vfork", STREAM_NAMES, "served:write", STREAM_NAMES),
    ("dprintf", PRINTED, "back:stdio", PRINTED),
    ("vdprintf", PRINTED, "back:stdio", PRINTED),
    ("__dprintf_chk", PRINTED, "back:stdio", PRINTED),
    ("__vdprintf_chk", PRINTED, "back:stdio", PRINTED),
    ("backtrace_symbols_fd", TRACED, "back:stdio", TRACED),
    ("preadv2", FLAGGED, "served:readv", FLAGGED),
    ("preadv64v2", FLAGGED, "served:readv", FLAGGED),
    ("pwritev2", FLAGGED, "served:writev", FLAGGED),
    ("pwritev64v2", FLAGGED, "served:writev", FLAGGED),
    ("connect", UNDONE, "back:unknown_flags", UNDONE),
    ("__connect", UNDONE, "back:unknown_flags", UNDONE),
    ("aio_read", ASYNCHRONOUS, "back:unknown_flags", ASYNCHRONOUS),
    (
        "aio_read64",
        ASYNCHRONOUS,
        "back:unknown_flags",
        ASYNCHRONOUS,
    ),
    (
        "aio_write",
        ASYNCHRONOUS,
        "back:unknown_flags",
        ASYNCHRONOUS,
    ),
    (
        "aio_write64",
        ASYNCHRONOUS,
        "back:unknown_flags",
        ASYNCHRONOUS,
    ),
    (
        "lio_listio",
        ASYNCHRONOUS,
        "back:unknown_flags",
        ASYNCHRONOUS,
    ),
    (
        "lio_listio64",
        ASYNCHRONOUS,
        "back:unknown_flags",
        ASYNCHRONOUS,
    ),
    ("fdopen", STDIO, "back:stdio", STDIO_OTHERS),
    ("fclose", STDIO, "back:stdio", STDIO_OTHERS),
    ("freopen", STDIO_WRITTEN, "back:duplicated", STDIO_OTHERS),
    ("freopen64", STDIO_WRITTEN, "back:duplicated", STDIO_OTHERS),
    ("vfork", STARTED, "served:read", STARTED),
    ("posix_spawn", SPAWNED, "served:write", STARTED),
    ("posix_spawnp", SPAWNED, "served:write", STARTED),
    ("system", SPAWNED, "served:write", STARTED),
    ("popen", SPAWNED, "served:write", STARTED),
    ("execv", FAILED_EXEC, "served:write", STARTED),
    ("execve", FAILED_EXEC, "served:write", FAILED_EXEC),
    ("execvp", FAILED_EXEC, "served:write", FAILED_EXEC),
    ("execvpe", FAILED_EXEC, "served:write", FAILED_EXEC),
    (
        "execl",
        LAST_WORDS,
        "served:write",
        "a_program_runs_under_an_earlier_filter",
    ),
    ("execlp", FAILED_EXEC, "served:write", STARTED),
    ("execle", FAILED_EXEC, "served:write", FAILED_EXEC),
    ("fexecve", FAILED_EXEC, "served:write", FAILED_EXEC),
    (
        "prctl",
        "a_program_runs_though_a_later_filter_refuses_rings",
        "back:filtered",
        "a_program_runs_though_a_filter_refuses_rings_from_the_start",
    ),
    ("_exit", LAST_WORDS, "served:write", CHILD_ENDS),
    ("_Exit", LAST_WORDS, "served:write", LAST_WORDS),
    (
        "abort",
        "abort_sends_written_bytes",
        "served:write",
        "an_abort_of_others_is_an_abort",
    ),
    ("_Fork", ANY_CHILD, "served:write", ANY_SERVER),
    ("clone", ANY_CHILD, "served:write", ANY_SERVER),
    ("__clone", ANY_CHILD, "served:write", ANY_SERVER),
    ("quick_exit", ANY_END, "served:write", ANY_END),
    ("__stack_chk_fail", ANY_END, "served:write", ANY_END),
    ("__chk_fail", ANY_END, "served:write", ANY_END),
    ("__assert_fail", ANY_END, "served:write", ANY_END),
    ("execveat", ANY_END, "served:write", NO_END),
    ("raise", ANY_END, "served:write", NO_END),
    ("gsignal", ANY_END, "served:write", NO_END),
    ("kill", ANY_END, "served:write", NO_END),
    ("killpg", ANY_END, "served:write", NO_END),
    ("tgkill", ANY_END, "served:write", NO_END),
    ("pthread_kill", ANY_END, "served:write", NO_END),
    ("sigqueue", ANY_END, "served:write", NO_END),
    ("pthread_sigqueue", ANY_END, "served:write", NO_END),
    ("exit", LAST_WORDS, "served:write", "exit_handlers_run"),
    (
        "pthread_cancel",
        "a_thread_that_sleeps_can_be_cancelled",
        "served:epoll_wait",
        "a_wait_for_a_pipe_is_ended_by_a_signal_or_a_cancel",
    ),
    (
        "sigsetjmp",
        "a_handler_may_jump_out_of_any_call_at_any_moment",
        "back:in_handler",
        "a_handler_may_jump_out_of_a_wait",
    ),
];

/// Calls that may block. A program with a queued response makes each of them, and so does one that serves nothing.
const WAITS: [&str; 40] = [
    "nanosleep",
    "clock_nanosleep",
    "usleep",
    "sleep",
    "pause",
    "sigsuspend",
    "sigwait",
    "sigwaitinfo",
    "sigtimedwait",
    "wait",
    "waitpid",
    "wait3",
    "wait4",
    "waitid",
    "pclose",
    "flock",
    "lockf",
    "lockf64",
    "connect",
    "sem_wait",
    "sem_timedwait",
    "semop",
    "semtimedop",
    "msgrcv",
    "getaddrinfo",
    "fgets",
    "fgetc",
    "getc",
    "getchar",
    "fread",
    "getline",
    "getdelim",
    "__getdelim",
    "fgets_unlocked",
    "fread_unlocked",
    "__uflow",
    "__fgets_chk",
    "__fread_chk",
    "pthread_create",
    "thrd_create",
];
const WAITED: &str = "a_blocking_call_sends_the_response_first";
const WAITED_OTHERS: &str = "waits_of_a_program_that_serves_nothing_are_unchanged";
/// Calls that only a single-threaded process may make.
const SINGLE_THREAD: [&str; 2] = ["unshare", "setns"];
const NAMESPACES: &str = "a_server_may_leave_its_namespaces";

fn all_hooks() -> impl Iterator<Item = Hook> {
    let waits = WAITS.map(|hook| (hook, WAITED, "served:write", WAITED_OTHERS));
    let alone = SINGLE_THREAD.map(|hook| (hook, NAMESPACES, "served:write", NAMESPACES));
    HOOKS.into_iter().chain(waits).chain(alone)
}

/// Functions without a hook: glibc runs a list of exit handlers, to which the library adds one, and `sigsetjmp` is a
/// macro for `__sigsetjmp`.
const NOT_EXPORTED: [&str; 3] = ["exit", "quick_exit", "sigsetjmp"];

#[test]
fn every_hook_is_exported() {
    let listed = Command::new("nm")
        .args(["--dynamic", "--defined-only", "--format=posix"])
        .arg(library())
        .output();
    let Ok(listed) = listed else {
        return skip("no nm to list the library's symbols");
    };
    let listed = String::from_utf8(listed.stdout).unwrap();
    let defined: BTreeSet<&str> = listed
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    let hooks = all_hooks().map(|hook| hook.0);
    let missing: Vec<&str> = hooks
        .filter(|hook| !defined.contains(hook) && !NOT_EXPORTED.contains(hook))
        .collect();
    assert!(missing.is_empty(), "not exported: {missing:?}");
}

#[test]
fn every_hook_has_a_case_that_is_served_and_one_that_is_not() {
    let texts = texts();
    let mut wrong = Vec::new();
    for (hook, served, counted, others) in all_hooks() {
        for case in [served, others] {
            let Some((program, listed)) = find(case) else {
                wrong.push(format!("{hook}: the case {case} does not exist"));
                continue;
            };
            if !calls(&texts[program], case, hook) {
                wrong.push(format!("{hook}: {case} of {program}.c does not call it"));
            }
            let missing = counted != "-" && !listed.iter().any(|what| what == counted);
            if case == served && missing {
                wrong.push(format!("{hook}: {case} does not expect {counted}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// libc's `syscall` is a hook: a module that makes system calls takes `libc` from `raw_libc`.
#[test]
fn no_module_calls_the_hook_of_syscall() {
    let sources = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let folders = [sources.clone(), sources.join("hooks")];
    let files = folders
        .iter()
        .flat_map(|folder| std::fs::read_dir(folder).unwrap());
    let mut calls = 0;
    for file in files.map(|file| file.unwrap().path()) {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        if text.contains("libc::syscall(") {
            calls += 1;
            let takes_raw_libc = text.contains("use crate::raw_libc as libc;")
                || text.contains("use crate::raw_libc::{self as libc");
            assert!(
                takes_raw_libc,
                "{}: write `use crate::raw_libc as libc;`",
                file.display()
            );
        }
    }
    assert!(calls > 0);
}

/// Returns the program of a case, and the counters that it expects.
fn find(case: &str) -> Option<(&'static str, &'static [String])> {
    PROGRAMS.iter().find_map(|(program, _)| {
        let listed = program.cases().iter().find(|listed| listed.name == case)?;
        Some((program.name, &*listed.counted))
    })
}

/// Returns the functions of each C program, by name, with those of the common header.
fn texts() -> BTreeMap<&'static str, BTreeMap<String, String>> {
    let read = |name: &str| std::fs::read_to_string(apps().join(name)).unwrap_or_default();
    let header = functions(&read("app.h"));
    let of_program = |name: &'static str| {
        let mut all = functions(&read(&format!("{name}.c")));
        all.extend(header.clone());
        (name, all)
    };
    PROGRAMS
        .iter()
        .map(|(program, _)| of_program(program.name))
        .collect()
}

/// Returns the functions that a file defines. Each starts at a line that begins with `static` and ends at the next line
/// that is a brace, or on the same line.
fn functions(text: &str) -> BTreeMap<String, String> {
    let mut collected = BTreeMap::new();
    let mut remaining = text;
    while let Some(at) = remaining.find("static ") {
        let begins_line = at == 0 || remaining[..at].ends_with('\n');
        let from_here = &remaining[at..];
        let line = from_here.lines().next().unwrap_or_default();
        let name = line.split_once('(').map(|(before, _)| before);
        let name = name.and_then(|before| before.rsplit([' ', '*']).next());
        let body = if line.ends_with('}') {
            line
        } else {
            &from_here[..from_here
                .find("\n}\n")
                .map_or(from_here.len(), |end| end + 3)]
        };
        if let Some(name) = name.filter(|_| begins_line) {
            collected.insert(name.to_owned(), body.to_owned());
        }
        remaining = &from_here["static ".len()..];
    }
    collected
}

/// Returns whether a function calls another, directly or through functions that it calls.
fn calls(functions: &BTreeMap<String, String>, from: &str, hook: &str) -> bool {
    let mut next = vec![from.to_owned()];
    let mut covered = BTreeSet::new();
    while let Some(name) = next.pop() {
        let Some(body) = functions
            .get(&name)
            .filter(|_| covered.insert(name.clone()))
        else {
            continue;
        };
        for word in body.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
            if word == hook {
                return true;
            }
            if word != name && functions.contains_key(word) {
                next.push(word.to_owned());
            }
        }
    }
    false
}

#[test]
fn a_call_counts_only_in_the_code_of_a_case() {
    let text = "static void first(void) {\n    second(1);\n}\n\nstatic int second(int fd) { return read(fd); }\n\n\
                static void third(void) {\n    write(1);\n}\n";
    let functions = functions(text);
    assert!(calls(&functions, "first", "read"));
    assert!(!calls(&functions, "first", "write"));
    assert!(!calls(&functions, "missing", "read"));
}
