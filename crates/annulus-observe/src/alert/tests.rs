//! Rules parsed and formatted, and alerts raised and cleared by constructed snapshots.

use std::collections::BTreeSet;
use std::sync::mpsc::channel;
use std::time::Duration;

use annulus::metrics::{OperationCounts, Source, SourceKind};

use super::rule::operations;
use super::*;

const SECOND: u64 = 1_000_000_000;

fn rule(text: &str) -> Rule {
    match text.parse() {
        Ok(rule) => rule,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn rules_are_parsed_and_formatted_in_one_form() {
    for (typed, written) in [
        ("read.p99>500us for 5s", "read.p99 > 500us for 5s"),
        ("p50 >= 1.5ms", "p50 >= 1.5ms"),
        ("all.p99.9<2s", "p99.9 < 2s"),
        (
            "  fsync.device.p99.99 > 100 ns  for  5m ",
            "fsync.device.p99.99 > 100ns for 300s",
        ),
        ("queue.mean <= 0.25µs", "queue.mean <= 250ns"),
        (
            "write.max > 1234567ns for 1.5h",
            "write.max > 1.234567ms for 5400s",
        ),
        ("errors > 0.1%", "errors > 0.1%"),
        (
            "send.errors>=100 % for 500ms",
            "send.errors >= 100% for 500ms",
        ),
        ("recv.error_rate > 5/s", "recv.error_rate > 5/s"),
        ("rate < 1000.5/s", "rate < 1000.5/s"),
        ("request.rate < 1 /s for 1m", "request.rate < 1/s for 60s"),
        ("in_flight > 100", "in_flight > 100"),
        ("in_flight>100 for 2s", "in_flight > 100 for 2s"),
        ("p99 > 0ns", "p99 > 0ns"),
    ] {
        let read = rule(typed);
        assert_eq!(read.to_string(), written, "{typed}");
        assert_eq!(rule(written), read, "{typed}");
    }
}

/// A text, the column of its mistake, and a part of the message.
const MISTAKES: &[(&str, usize, &str)] = &[
    ("", 0, "a rule needs a measure"),
    ("   > 5us", 3, "a rule needs a measure"),
    (
        "raed.p99 > 5us",
        0,
        "unknown operation `raed` (did you mean `read`?)",
    ),
    ("reads.p99 > 5us", 0, "did you mean `read`?"),
    (
        "zzz.p99 > 5us",
        0,
        "unknown operation `zzz`; use one of all, read",
    ),
    (
        "read.p98 > 5us",
        5,
        "unknown measure `p98` (did you mean `p9",
    ),
    (
        "p99.5 > 5us",
        0,
        "unknown measure `p99.5` (did you mean `p99",
    ),
    ("queue.p1 > 5us", 6, "unknown measure `p1`"),
    ("read > 5us", 0, "unknown measure `read`"),
    (
        "read.in_flight > 5",
        0,
        "write `in_flight` without a prefix",
    ),
    ("read.queue.rate > 5/s", 0, "apply to latencies only"),
    ("p99", 3, "expected one of >, >=, <, <= after `p99`"),
    ("p99 = 5us", 4, "expected one of >"),
    ("p99 == 5us", 4, "expected one of >"),
    ("p99 => 5us", 4, "expected one of >"),
    ("p99 over 5us", 4, "expected one of >"),
    ("p99 > ", 6, "expected a number, for example `500us`"),
    ("p99 > much", 6, "expected a number"),
    ("p99 > -5us", 6, "expected a number"),
    ("p99 > 1.2.3us", 6, "expected a number"),
    (
        "p99 > 5",
        7,
        "a time needs a unit, one of ns, us, ms, s, for example `500us`",
    ),
    ("p99 > 5 for 5s", 7, "a time needs a unit"),
    ("p99 > 5m", 7, "a time needs a unit"),
    ("p99 > 0.5ns", 6, "a resolution of 1 ns"),
    ("p99 > 138s", 6, "latencies of 137 s and more"),
    ("p99 > 1234567890123456ns", 6, "at most 15 digits"),
    ("errors > 5", 10, "needs the unit %, for example `0.1%`"),
    ("errors > 101%", 9, "cannot exceed 100%"),
    (
        "rate > 5",
        8,
        "a rate needs the unit /s, for example `1000/s`",
    ),
    ("in_flight > 5%", 13, "has no unit"),
    ("p99 > 5us 5s", 10, "only `for` and a time may follow"),
    ("p99 > 5us for", 13, "expected a number, for example `5s`"),
    ("p99 > 5us for 0s", 14, "omit `for`"),
    ("p99 > 5us for 25h", 14, "must not exceed one day"),
    ("p99 > 5us for 5s, p50 > 1us", 15, "a time needs a unit"),
    (
        "p99 > 5us for 5s p50 > 1us",
        17,
        "give each rule separately",
    ),
];

#[test]
fn a_mistake_is_explained_and_its_position_marked() {
    for &(typed, column, part) in MISTAKES {
        let Err(error) = typed.parse::<Rule>() else {
            panic!("`{typed}` is parsed as a rule");
        };
        let message = error.to_string();
        assert!(message.contains(part), "`{typed}`: {message}");
        assert_eq!(error.column(), column, "`{typed}`: {message}");
        let marks = message.lines().last().unwrap_or_default();
        assert_eq!(marks.find('^'), Some(column + 2), "{message}");
    }
}

#[test]
fn any_text_is_a_marked_error_or_a_rule_that_can_be_parsed_again() {
    const PIECES: [&str; 34] = [
        "read",
        "write",
        "all",
        "fsync",
        ".",
        "queue",
        "device",
        "p99",
        "p99.9",
        "mean",
        "max",
        "errors",
        "rate",
        "error_rate",
        "in_flight",
        ">",
        ">=",
        "<",
        "=",
        " ",
        "500",
        "0.1",
        "99999999999999",
        "us",
        "ms",
        "s",
        "%",
        "/s",
        "for",
        "5s",
        "µs",
        "\n",
        "\u{1F300}",
        "-",
    ];
    let mut rng = fastrand::Rng::with_seed(20261121);
    let mut taken = 0;
    for _ in 0..20_000 {
        let text: String = match rng.u8(..4) {
            0 => (0..rng.usize(..12)).map(|_| rng.char(..)).collect(),
            1 => (0..rng.usize(..12))
                .map(|_| PIECES[rng.usize(..PIECES.len())])
                .collect(),
            // Nearly valid.
            _ => {
                let mut pick = |from: &[&'static str]| from[rng.usize(..from.len())];
                let operations = pick(&["", "read.", "all.", "send.", "wr."]);
                let part = pick(&["", "", "queue.", "device."]);
                let measure = pick(&["p50", "p99.99", "mean", "errors", "rate", "in_flight"]);
                let comparison = pick(&[">", " <= ", "<", "!"]);
                let value = pick(&["7us", "0.125ms", "3%", "12.5/s", "9", "1.000001s"]);
                let lasting = pick(&["", " for 5s", "for 1m", " for"]);
                format!("{operations}{part}{measure}{comparison}{value}{lasting}")
            }
        };
        match text.parse::<Rule>() {
            Ok(read) => {
                taken += 1;
                assert_eq!(rule(&read.to_string()), read, "`{text}`");
            }
            Err(error) => assert!(error.to_string().contains('^'), "`{text}`"),
        }
    }
    assert!(taken > 500, "only {taken} were right");
}

#[test]
fn an_alert_can_name_each_operation_of_the_reference() {
    let list = include_str!("../../../../docs/reference/kernels.md");
    let rows = list.lines().filter_map(|line| line.strip_prefix("| `"));
    let names = rows.filter_map(|row| Some(row.split_once("` |")?.0));
    // The other tables list flags, in capitals, and settings.
    let is_operation = |name: &&str| name.chars().all(|c| c == '_' || c.is_ascii_lowercase());
    let listed: BTreeSet<&str> = names.filter(is_operation).collect();
    let known: BTreeSet<&str> = operations().filter(|name| *name != "request").collect();
    assert_eq!(listed, known);
    assert!(rule("read.p99 > 1us").concerns("read_vectored_at"));
    assert!(!rule("read.p99 > 1us").concerns("read_dir"));
    assert!(rule("p99 > 1us").concerns("splice"));
}

fn source(kind: SourceKind, owner: u64) -> Source {
    let mut source = Source::default();
    (source.kind, source.owner) = (kind, owner);
    source
}

/// A process whose counters the test sets, second by second.
struct Planted {
    now: Snapshot,
    alerts: Alerts,
}

impl Planted {
    fn new(rules: &[&str]) -> Planted {
        let mut now = Snapshot::default();
        (now.process, now.at_ns) = (7, 1000 * SECOND);
        now.sources = vec![source(SourceKind::Driver, 1)];
        let mut alerts = Alerts::new(rules.iter().map(|text| rule(text)));
        assert_eq!(alerts.look(&now), []);
        Planted { now, alerts }
    }

    /// A second in which `count` operations `name` complete after `ns` each, `failed` of them with
    /// errors.
    fn second(&mut self, name: &'static str, count: u64, failed: u64, ns: u64) -> Vec<String> {
        let source = &mut self.now.sources[0];
        if source.operation(name).is_none() {
            let mut operation = OperationCounts::default();
            operation.name = name;
            source.operations.push(operation);
        }
        for operation in source.operations.iter_mut().filter(|one| one.name == name) {
            operation.completed += count;
            operation.failed += failed;
            for _ in 0..count {
                operation.latency.record(ns);
                operation.device.record(ns - ns / 4);
                operation.queue.record(ns / 4);
            }
        }
        source.counters.completed += count;
        self.look()
    }

    fn look(&mut self) -> Vec<String> {
        self.now.at_ns += SECOND;
        let events = self.alerts.look(&self.now);
        let seconds = |ns: u64| i64::try_from(ns / SECOND).unwrap() - 1000;
        let text = |event: &Event| {
            let sign = if event.change == Change::Raised {
                '+'
            } else {
                '-'
            };
            format!("{sign}{}@{}", event.rule, seconds(event.since_ns))
        };
        events.iter().map(text).collect()
    }

    fn in_flight(&mut self, count: u64) {
        self.now.sources[0].counters.in_flight = count;
    }
}

#[test]
fn without_a_duration_an_alert_is_raised_and_cleared_immediately() {
    let mut planted = Planted::new(&["read.p99 > 500us", "write.p99 > 500us"]);
    assert_eq!(planted.second("read_at", 10, 0, 100_000), [""; 0]);
    assert_eq!(
        planted.second("read_at", 10, 0, 600_000),
        ["+read.p99 > 500us@1"]
    );
    assert_eq!(planted.second("read_at", 10, 0, 600_000), [""; 0]);
    assert_eq!(
        planted.second("read_at", 10, 0, 100_000),
        ["-read.p99 > 500us@3"]
    );
    assert_eq!(
        planted.second("write_vectored_at", 1, 0, 600_000),
        ["+write.p99 > 500us@4"]
    );
}

#[test]
fn with_a_duration_single_intervals_neither_raise_nor_clear_an_alert() {
    let mut planted = Planted::new(&["p99 > 500us for 3s"]);
    let (slow, fast) = (600_000, 100_000);
    let mut changes = Vec::new();
    for ns in [
        slow, slow, fast, slow, slow, slow, slow, fast, slow, fast, fast, fast, fast,
    ] {
        let events = planted.second("read_at", 5, 0, ns);
        changes.push(events.join(" "));
    }
    let mut expected = vec![String::new(); 13];
    // The condition holds from the start of the fourth second and fails from the start of the
    // tenth.
    expected[5] = "+p99 > 500us for 3s@3".to_owned();
    expected[11] = "-p99 > 500us for 3s@9".to_owned();
    assert_eq!(changes, expected);
}

#[test]
fn a_stall_clears_no_alert_and_an_idle_process_does() {
    let mut planted = Planted::new(&[
        "read.p50 > 500us for 2s",
        "read.rate < 1/s",
        "read.errors > 50%",
    ]);
    assert_eq!(
        planted.second("read_at", 5, 4, 600_000),
        ["+read.errors > 50%@0"]
    );
    planted.in_flight(3);
    assert_eq!(
        planted.look(),
        ["+read.rate < 1/s@1"],
        "operations are in flight and none completes"
    );
    let resumed = planted.second("read_at", 5, 4, 600_000);
    assert_eq!(
        resumed,
        ["+read.p50 > 500us for 2s@0", "-read.rate < 1/s@2"]
    );
    for _ in 0..5 {
        planted.look();
    }
    let raised: Vec<bool> = (planted.alerts.states())
        .map(|state| state.is_raised)
        .collect();
    assert_eq!(raised, [true, true, true]);
    planted.in_flight(0);
    assert_eq!(planted.look(), ["-read.errors > 50%@8"]);
    assert_eq!(planted.look(), ["-read.p50 > 500us for 2s@8"]);
}

#[test]
fn operations_of_other_sources_in_flight_are_not_a_stall() {
    let mut planted = Planted::new(&["read.p50 > 500us"]);
    planted.now.sources.push(source(SourceKind::Core, 2));
    planted.now.sources[1].counters.in_flight = 100;
    assert_eq!(
        planted.second("read_at", 5, 0, 600_000),
        ["+read.p50 > 500us@0"]
    );
    assert_eq!(planted.look(), ["-read.p50 > 500us@1"]);
}

#[test]
fn shares_rates_parts_and_counts_are_distinguished() {
    let mut planted = Planted::new(&[
        "errors >= 10%",
        "error_rate > 9/s",
        "rate > 99/s",
        "in_flight >= 3",
        "device.max > 160us",
        "queue.max > 60us",
        "mean <= 200us",
    ]);
    planted.in_flight(3);
    let events = planted.second("read_at", 100, 10, 200_000);
    let raised: Vec<&str> = events
        .iter()
        .map(|event| event.trim_end_matches("@0"))
        .collect();
    assert_eq!(
        raised,
        [
            "+errors >= 10%",
            "+error_rate > 9/s",
            "+rate > 99/s",
            "+in_flight >= 3",
            "+mean <= 200us"
        ]
    );
}

#[test]
fn a_restarted_process_starts_with_a_first_interval() {
    let mut planted = Planted::new(&["p99 > 500us for 2s", "rate > 4/s"]);
    assert_eq!(planted.second("read_at", 5, 0, 600_000), ["+rate > 4/s@0"]);
    // A lower count means that the process was restarted.
    planted.now.sources[0].counters.completed = 1;
    assert_eq!(planted.look(), [""; 0], "nothing is cleared or raised");
    assert_eq!(
        planted.second("read_at", 5, 0, 600_000),
        [""; 0],
        "the period starts here"
    );
    planted.now.process += 1;
    assert_eq!(planted.second("read_at", 5, 0, 600_000), [""; 0]);
    assert_eq!(planted.second("read_at", 5, 0, 600_000), [""; 0]);
    assert_eq!(
        planted.second("read_at", 5, 0, 600_000),
        ["+p99 > 500us for 2s@4"]
    );
    planted.now.at_ns -= SECOND;
    assert_eq!(planted.look(), [""; 0], "no time passed");
    planted.now.at_ns -= 5 * SECOND;
    assert_eq!(planted.look(), [""; 0], "the clock went back");
}

#[test]
fn a_process_that_does_nothing_raises_no_alert() {
    let mut planted = Planted::new(&["p99 > 1ns", "errors >= 0%", "mean < 2s", "in_flight > 0"]);
    for _ in 0..3 {
        assert_eq!(planted.look(), [""; 0]);
    }
}

#[test]
fn an_event_is_formatted_as_a_log_line() {
    let mut alerts = Alerts::new([rule("p50 > 1us for 1s")]);
    let mut planted = Planted::new(&[]);
    alerts.look(&planted.now);
    planted.second("read_at", 5, 0, 1_500_000);
    let events = alerts.look(&planted.now);
    let line = events[0].to_string();
    assert!(
        line.starts_with("alert raised: p50 > 1us for 1s: 1.5"),
        "{line}"
    );
    assert!(line.ends_with("ms, for the last 1.0 s"), "{line}");
}

#[test]
fn states_returns_all_alerts_of_the_process() {
    let state_of = |text: &str| {
        let states = states();
        states
            .iter()
            .find(|state| state.rule.to_string() == text)
            .map(|state| state.is_raised)
    };
    let text = "read.max > 987654ns";
    let written = rule(text).to_string();
    assert_eq!(state_of(&written), None);
    let mut planted = Planted::new(&[text]);
    let other = Planted::new(&[text]);
    assert_eq!(state_of(&written), Some(false));
    planted.second("read_at", 1, 0, 2_000_000);
    assert_eq!(state_of(&written), Some(true), "raised in one of the two");
    drop(planted);
    assert_eq!(state_of(&written), Some(false));
    drop(other);
    assert_eq!(state_of(&written), None);
}

#[test]
fn alerts_are_checked_until_the_guard_is_dropped_even_if_a_callback_panics() {
    let (sender, events) = channel();
    // Both conditions hold in every interval.
    let rules = [rule("in_flight >= 0"), rule("rate >= 0/s")];
    let running = Alerts::new(rules).run(Duration::from_millis(1), move |event| {
        sender.send(event.rule.to_string()).unwrap();
        panic!("planted");
    });
    let running = running.unwrap();
    assert_eq!(events.recv().unwrap(), "in_flight >= 0");
    assert_eq!(events.recv().unwrap(), "rate >= 0/s");
    drop(running);
    assert!(events.recv().is_err(), "the callback has been dropped");
    let never = Alerts::new([]).run(Duration::ZERO, |_| {});
    assert_eq!(
        never.map(drop).unwrap_err().kind(),
        io::ErrorKind::InvalidInput
    );
}
