//! Tests of reports on screens of several sizes, as text and as JSON.

use std::io;
use std::time::Duration;

use annulus::metrics::Snapshot;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Color;

use super::app::App;
use super::observer::{Observation, Observed, Observer};
use super::report::{ProcessFacts, Report};
use super::{json, screen, snapshots_for_tests, text};
use crate::bench::output::schema_is_current;

fn app(report: Report) -> App {
    let mut app = App::new(Duration::from_secs(2), true);
    app.show(Box::new(report));
    app
}

fn drawn(app: &App, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen::draw(frame, app)).unwrap();
    let buffer = terminal.backend().buffer();
    let rows = buffer.content.chunks(usize::from(width));
    rows.map(|row| {
        let line: String = row.iter().map(|cell| cell.symbol()).collect();
        line.trim_end().to_owned()
    })
    .collect()
}

/// Returns the only line with this beginning.
#[track_caller]
fn line<'a>(lines: &'a [String], begins: &str) -> &'a str {
    let mut matching = lines.iter().filter(|line| line.starts_with(begins));
    let first = matching.next();
    let first =
        first.unwrap_or_else(|| panic!("no line begins with {begins:?}:\n{}", lines.join("\n")));
    assert!(matching.next().is_none(), "{begins:?}: {lines:#?}");
    first
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

#[test]
fn page_pools_have_a_line_and_a_hint_if_loads_wait_for_frames() {
    let (before, mut now) = (snapshots_for_tests::earlier(), snapshots_for_tests::now());
    let mut pool = annulus::metrics::Source::default();
    pool.kind = annulus::metrics::SourceKind::Pool;
    (pool.counters.pool_hits, pool.counters.pool_misses) = (2048, 100);
    pool.counters.pool_waits = 20;
    now.sources.push(pool);
    let report = super::notes::report(snapshots_for_tests::facts(), &before, &now);
    let text = text::text(&report);
    let line = "page pools: 1024/s hits, 50.0/s misses, 0/s evictions, 10.0/s waits for a frame";
    assert!(text.contains(line), "{text}");
    assert!(text.contains("waited for a frame 10.0 times/s"), "{text}");
}

#[test]
fn a_screen_of_80_by_24_shows_the_whole_report() {
    let expected = "\
4321  up 1:02:03  annulus serve echo --addr 127.0.0.1:7000
io_uring
blocking threads, a fallback: io_uring is disabled by a sysctl
25.0k ops/s  2.00 errors/s  39 in flight  12.5 entries/enter  2 kernel workers

SOURCE       ops/s  flight  ent/enter  enters/s  wakes/s  ENOBUFS  CQovf
all          25.0k      39       12.5      1000     10.0       8+      0
core 1.0     25.0k      32       12.5      1000     10.0       8+      0
threads 2.0      0       7          -         0        0        0      0

OPERATION  ops/s  err/s     p50    p99    max   q p99  dev p99  p99 OVER TIME
recv       15.0k      0  20.5µs  918µs  918µs  90.1µs    819µs  ▅
send       10.0k      0       -      -      -       -        -  ·
read_at        0   2.00       -      -      -       -        -  ·
ERRORS  EIO 5+  ECONNRESET 3
! receives found no free buffer (ENOBUFS) 4.00 times/s, mostly core 1.0; give
  each core more receive buffers, or larger ones
! threads 2.0: 7 operations in flight, and none completed within the interval";
    let lines = drawn(&app(snapshots_for_tests::report()), 80, 24);
    assert_eq!(lines[..18].join("\n"), expected);
    assert_eq!(lines[18..23], [""; 5]);
    assert_eq!(
        lines[23],
        "q quit  p pause  s sort: ops/s  +- every 2s  ? help"
    );
}

#[test]
fn a_program_under_the_preload_library_is_shown_with_its_served_and_passed_calls() {
    let report = snapshots_for_tests::report_of_preload();
    let expected = "\
4321  up 1:02:03  redis-server *:6379
io_uring (deferred task work)
20.5k ops/s  3.00 errors/s  301 in flight  20.0 entries/enter  0 kernel workers

SOURCE       ops/s  flight  ent/enter  enters/s  wakes/s  ENOBUFS  CQovf
preload 1.0  20.5k     301       20.0       500        0        0      0

OPERATION  ops/s  err/s  p50  p99  max  q p99  dev p99  p99 OVER TIME
read       10.0k      0    -    -    -      -        -  ·
write      10.0k   3.00    -    -    -      -        -  ·
SERVED  300 connections on 1 ring, 30 of 32 buffers free
PASSED  not_a_stream 6+  port 2
HANDED BACK  duplicated 4+
ERRORS  EPIPE 3+
! 4.00 connections/s are handed back to the kernel: duplicated";
    let lines = drawn(&app(report.clone()), 80, 24);
    assert_eq!(lines[..15].join("\n"), expected);
    let text = text::text(&report);
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    assert_eq!(
        line(&lines, "PASSED"),
        "PASSED  not_a_stream 6+  port 2",
        "{text}"
    );
    let json: serde_json::Value = serde_json::from_str(&json(&report)).unwrap();
    let preload = &json["total"]["preload"];
    assert_eq!(preload["connections"], 300);
    assert_eq!(preload["passed"][0]["reason"], "not_a_stream");
    assert_eq!(preload["passed"][0]["per_second"], 1.0);
    assert_eq!(preload["handed_back"][0]["since_start"], 4);
    assert_eq!(json["sources"][1]["preload"]["rings"], 0);
    let other: serde_json::Value =
        serde_json::from_str(&self::json(&snapshots_for_tests::report())).unwrap();
    assert!(other["total"]["preload"].is_null());
}

#[test]
fn sets_that_are_left_to_the_kernel_are_reported_with_reason_and_count() {
    let mut report = snapshots_for_tests::report_of_preload();
    let preload = report.total.preload.as_mut().unwrap();
    preload.passed[0].reason = "several_threads".to_owned();
    preload.passed[0].since_start = 2;
    preload.handed_back[0].reason = "several_threads".to_owned();
    let notes = super::preload::notes(&report);
    let note = "2 epoll sets are left to the kernel: several threads wait on it (several_threads); 4 connections were \
                handed back for it";
    assert_eq!(notes[0], note);
}

#[test]
fn listeners_that_are_left_to_the_kernel_are_reported_with_reason_and_count() {
    let mut report = snapshots_for_tests::report_of_preload();
    let preload = report.total.preload.as_mut().unwrap();
    let mut left = preload.handed_back[0].clone();
    (left.reason, left.since_start) = ("port".to_owned(), 1);
    preload.listeners_left = vec![left];
    let note = "1 listener is left to the kernel: the operator excluded its port (port); its connections pass through";
    let notes = super::preload::notes(&report);
    assert!(notes.iter().any(|one| one == note), "{notes:?}");
}

#[test]
fn a_program_without_a_ring_is_reported_with_the_reasons() {
    let mut report = snapshots_for_tests::report_of_preload();
    let preload = report.total.preload.as_mut().unwrap();
    preload.rings = 0;
    let notes = super::preload::notes(&report);
    let note = "no ring serves the program any more; reasons: not_a_stream, port";
    assert_eq!(notes[0], note);
}

#[test]
fn a_wider_screen_has_more_columns() {
    let lines = drawn(&app(snapshots_for_tests::report()), 120, 40);
    let heading = "SOURCE       ops/s  flight  ent/enter  enters/s  waits/s  wakes/s  sqwk/s  ENOBUFS  CQovf  short  \
                   cancels  timeouts";
    assert_eq!(line(&lines, "SOURCE"), heading);
    let core = "core 1.0 25.0k 32 12.5 1000 250 10.0 0 8+ 0 3 0 0";
    assert_eq!(words(line(&lines, "core 1.0")).join(" "), core);
    assert!(line(&lines, "! receives").contains("give each core more receive"));
    assert!(lines[39].starts_with("q quit"));
}

#[test]
fn a_process_with_a_switch_shows_the_key_and_its_state() {
    let mut app = app(snapshots_for_tests::report_of_preload());
    app.released = Some(false);
    let foot = |app: &App| drawn(app, 80, 24)[23].clone();
    assert_eq!(
        foot(&app),
        "q quit  p pause  s sort: ops/s  +- every 2s  r release  ? help"
    );
    app.confirms = true;
    assert!(foot(&app).starts_with("release this process to the kernel? y: yes"));
    (app.confirms, app.released) = (false, Some(true));
    assert!(foot(&app).contains("r resume"));
    let screen = drawn(&app, 80, 24).join("\n");
    assert!(
        screen.contains("! released to the kernel by an operator; r resumes it"),
        "{screen}"
    );
    app.refused = Some("process 7 is not accessible".to_owned());
    assert!(
        drawn(&app, 80, 24)
            .join("\n")
            .contains("! process 7 is not accessible")
    );
}

#[test]
fn a_small_screen_shows_the_operations_and_their_latencies() {
    let lines = drawn(&app(snapshots_for_tests::report()), 40, 10);
    let expected = [
        "4321  up 1:02:03  annulus serve echo --a",
        "io_uring",
        "blocking threads, a fallback: io_uring i",
        "25.0k ops/s  2.00 errors/s  39 in flight",
        "OPERATION  ops/s     p50    p99    max",
        "recv       15.0k  20.5µs  918µs  918µs",
        "… 2 more operations",
        "ERRORS  EIO 5+  ECONNRESET 3",
        "! receives found no free buffer",
        "q quit  p pause  s sort: ops/s  +- every",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn every_size_of_the_screen_is_supported() {
    for (width, height) in [(1, 1), (1, 24), (3, 2), (80, 1), (80, 5), (300, 100)] {
        for cores in [1, 200] {
            let mut app = app(snapshots_for_tests::report_of_many(cores));
            drawn(&app, width, height);
            app.help = true;
            drawn(&app, width, height);
            app.report = None;
            app.help = false;
            drawn(&app, width, height);
        }
    }
}

#[test]
fn many_sources_leave_lines_for_the_operations() {
    let lines = drawn(&app(snapshots_for_tests::report_of_many(64)), 80, 24);
    assert!(line(&lines, "all ").contains("1.60M"), "{lines:#?}");
    assert!(line(&lines, "… ").ends_with("more sources"));
    for operation in ["recv ", "send ", "read_at "] {
        line(&lines, operation);
    }
    // All cores share one hint.
    assert!(line(&lines, "! receives").contains("256 times/s, mostly core"));
}

#[test]
fn keys_change_the_screen() {
    let mut app = self::app(snapshots_for_tests::report());
    let press = |app: &mut App, c| app.key(KeyEvent::new(KeyCode::Char(c), KeyModifiers::NONE));
    let order = |app: &App| -> Vec<String> {
        let lines = drawn(app, 80, 24);
        let heading = lines.iter().position(|line| line.starts_with("OPERATION"));
        let first = heading.unwrap() + 1;
        lines[first..first + 3]
            .iter()
            .map(|line| words(line)[0].to_owned())
            .collect()
    };
    assert_eq!(order(&app), ["recv", "send", "read_at"]);
    let report = app.report.as_mut().unwrap();
    report.total.operations[1].completed_per_second = 15_100.0;
    assert_eq!(
        order(&app)[0],
        "recv",
        "about equal rates do not change order"
    );
    let report = app.report.as_mut().unwrap();
    report.total.operations[1].completed_per_second = 30_000.0;
    assert_eq!(order(&app)[0], "send");
    app = self::app(snapshots_for_tests::report());
    for _ in 0..3 {
        press(&mut app, 's');
    }
    assert!(drawn(&app, 80, 24)[23].contains("s sort: err/s"));
    assert_eq!(order(&app), ["read_at", "recv", "send"]);
    press(&mut app, 's');
    assert_eq!(order(&app), ["read_at", "recv", "send"], "by name");
    press(&mut app, 'p');
    assert!(drawn(&app, 80, 24)[23].contains("PAUSED"));
    press(&mut app, '?');
    let help = drawn(&app, 80, 24);
    assert!(help[0].starts_with("q Esc Ctrl-C  quit"), "{help:#?}");
    let last = line(&help, "kernel workers");
    assert!(last.ends_with("would block"), "the help fits in 80 columns");
    press(&mut app, '?');
    press(&mut app, '+');
    assert!(drawn(&app, 80, 24)[23].contains("every 5s"));
}

#[test]
fn the_text_is_the_same_without_colours() {
    let coloured = |colours| {
        let mut app = app(snapshots_for_tests::report());
        app.colours = colours;
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        terminal.draw(|frame| screen::draw(frame, &app)).unwrap();
        let cells = &terminal.backend().buffer().content;
        (
            drawn(&app, 80, 24),
            cells.iter().any(|cell| cell.fg != Color::Reset),
        )
    };
    let (with, has_colour) = coloured(true);
    let (without, still_has_colour) = coloured(false);
    assert!(has_colour && !still_has_colour);
    assert_eq!(with, without);
}

#[test]
fn text_has_every_column_and_json_every_counter() {
    let report = snapshots_for_tests::report();
    let text = text::text(&report);
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    assert_eq!(
        lines[0],
        "process 4321  up 1:02:03  annulus serve echo --addr 127.0.0.1:7000"
    );
    assert!(lines[3].starts_with("within 2.00s: 25.0k ops/s"), "{text}");
    assert!(line(&lines, "SOURCE").ends_with("timeouts"));
    let read = line(&lines, "read_at");
    assert_eq!(
        words(read),
        ["read_at", "0", "2.00", "-", "-", "-", "-", "-"]
    );
    assert!(line(&lines, "errors since").ends_with("EIO 5+  ECONNRESET 3"));
    let json: serde_json::Value = serde_json::from_str(&json(&report)).unwrap();
    assert_eq!(json["interval_seconds"], 2.0);
    assert_eq!(json["total"]["per_second"]["completed"], 25_000.0);
    assert_eq!(json["sources"][0]["since_start"]["completed"], 51_000);
    assert_eq!(json["sources"][0]["operations"][0]["latency"]["samples"], 3);
    assert_eq!(json["sources"][1]["errors"][0]["name"], "EIO");
    let counters = json["total"]["since_start"].as_object().unwrap();
    let all = annulus::metrics::Counts::default().fields().count();
    // All except the gauges, which are separate.
    assert_eq!(counters.len(), all - 2);
    assert_eq!(json["total"]["in_flight"], 39);
    assert_eq!(json["total"]["pool_held"], 0);
}

#[test]
fn the_end_of_a_process_is_distinguished_from_an_error() {
    struct Ends {
        snapshots: usize,
        is_alive: bool,
    }
    impl Observed for Ends {
        fn snapshot(&mut self) -> io::Result<Snapshot> {
            self.snapshots += 1;
            match self.snapshots {
                1 => Ok(snapshots_for_tests::earlier()),
                2 => Ok(snapshots_for_tests::now()),
                _ => Err(io::Error::other("another version of the layout")),
            }
        }
        fn is_alive(&self) -> bool {
            self.is_alive
        }
        fn facts(&self) -> ProcessFacts {
            snapshots_for_tests::facts()
        }
    }
    let rules = ["recv.p99 > 500us", "rate < 1/s"].map(|rule| rule.parse().unwrap());
    for is_alive in [true, false] {
        let mut observer = Observer::new(
            Ends {
                snapshots: 0,
                is_alive,
            },
            &rules,
        )
        .ok()
        .unwrap();
        let Ok(Observation::Report(report)) = observer.observe() else {
            panic!("the second snapshot gives a report");
        };
        assert_eq!(report.total.rate("completed"), 25_000.0);
        let alerts: Vec<_> = report.alerts.iter().map(|alert| alert.raised).collect();
        assert_eq!(alerts, [true, false]);
        let lines = drawn(&app(*report), 80, 24);
        assert!(
            line(&lines, "ALERT ").starts_with("ALERT recv.p99 > 500us (9"),
            "{lines:#?}"
        );
        assert_eq!(line(&lines, "quiet "), "quiet rate < 1/s");
        match observer.observe() {
            Ok(Observation::Ended) => assert!(!is_alive),
            Err(fault) => {
                assert!(is_alive);
                assert!(fault.to_string().contains("another version"), "{fault}");
            }
            Ok(Observation::Report(_)) => panic!("the third snapshot fails"),
        }
    }
}

#[test]
fn the_schema_in_the_repository_matches_the_structs() {
    schema_is_current("top.json", &schemars::schema_for!(Report));
}
