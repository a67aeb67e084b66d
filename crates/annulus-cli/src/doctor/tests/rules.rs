//! Applies every rule to a machine where it reports something, and to one where it does not. The rules of `refused.rs`
//! are also tested in `broken.rs`, where their report must be the first one.

use std::collections::BTreeSet;

use super::cases::{Case, Change, FIGURES, LIMITS, LOCATION, MACHINE, REFUSED, disk};
use super::machines::{figures, good, set};
use crate::doctor::advice::{Findings, Severity, advice};
use crate::doctor::figures::Measurement;
use crate::doctor::rules;

fn reports(change: Change) -> Vec<(String, Severity, String)> {
    let (mut env, mut figures) = (good(), figures());
    change(&mut env, &mut figures);
    let findings = Findings {
        env: &env,
        figures: Some(&figures),
    };
    let text = |next: Option<String>| next.map_or(String::new(), |next| format!(" → {next}"));
    let all = advice(&findings).into_iter();
    all.map(|one| {
        let report = format!("{}: {}{}", one.what, one.why, text(one.next));
        (one.rule, one.severity, report)
    })
    .collect()
}

fn check(cases: &[Case]) {
    for (rule, fires, part, severity, silent) in cases {
        let all = reports(*fires);
        let matching = all.iter().find(|(name, ..)| name == rule);
        let (_, actual, report) = matching.unwrap_or_else(|| panic!("{rule} is silent: {all:?}"));
        assert_eq!(actual, severity, "{rule}: {report}");
        assert!(report.contains(part), "{rule} lacks {part:?}: {report}");
        let others = reports(*silent);
        assert!(
            others.iter().all(|(name, ..)| name != rule),
            "{rule} is not silent: {others:?}"
        );
    }
}

#[test]
fn the_rules_for_a_missing_ring_distinguish_the_obstacles() {
    check(&REFUSED);
}

#[test]
fn the_rules_for_limits_report_low_limits() {
    check(&LIMITS);
}

#[test]
fn the_rules_for_the_machine_apply_to_their_machines() {
    check(&MACHINE);
}

#[test]
fn the_rules_for_file_systems_and_devices_apply_to_their_locations() {
    check(&LOCATION);
}

#[test]
fn the_rules_for_figures_apply_to_their_figures() {
    check(&FIGURES);
}

#[test]
fn every_rule_has_a_test_case() {
    let covered: BTreeSet<&str> = [&REFUSED[..], &LIMITS, &MACHINE, &LOCATION, &FIGURES]
        .concat()
        .iter()
        .map(|case| case.0)
        .collect();
    let names: Vec<&str> = rules::all().map(|rule| rule.name).collect();
    assert_eq!(covered, names.iter().copied().collect());
    assert_eq!(covered.len(), names.len(), "two rules of one name");
}

#[test]
fn the_document_lists_every_rule() {
    let document = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/reference/doctor.md"
    );
    let document = std::fs::read_to_string(document).unwrap();
    for rule in rules::all() {
        let row = format!("| `{}` |", rule.name);
        assert!(
            document.contains(&row),
            "no row {row} in docs/reference/doctor.md"
        );
    }
}

#[test]
fn a_comparison_reports_either_outcome() {
    let report = |rule: &str, change: Change| {
        let all = reports(change);
        let matching = all.into_iter().find(|(name, ..)| name == rule);
        matching.map_or(String::new(), |(.., report)| report)
    };
    let direct = report("backend-direct", |_, _| {});
    assert!(direct.contains("use the ring for direct reads"), "{direct}");
    let alike = report("backend-direct", |_, figures| {
        set(figures, Measurement::DirectHop, 82_000.0)
    });
    assert!(alike.contains("equally fast"), "{alike}");
    let network = report("backend-network", |_, _| {});
    assert!(
        network.starts_with("for small messages, a ring is faster"),
        "{network}"
    );
    let alike = report("backend-network", |_, figures| {
        set(figures, Measurement::EchoRing, 9100.0)
    });
    assert!(alike.contains("are equally fast"), "{alike}");
    let buffers = report("buffers", |_, _| {});
    assert!(buffers.contains("make no difference"), "{buffers}");
    let depth = report("depth", |_, figures| {
        set(figures, Measurement::DirectRing8, 79_000.0);
        set(figures, Measurement::DirectRing32, 78_000.0);
    });
    assert!(depth.contains("keep 1 in flight"), "{depth}");
    let sqpoll = report("sqpoll", |_, figures| {
        set(figures, Measurement::Enter, 2000.0)
    });
    assert!(sqpoll.contains("may pay"), "{sqpoll}");
    let sqpoll = report("sqpoll", |_, _| {});
    assert!(sqpoll.contains("would not pay"), "{sqpoll}");
    let polled = report("polled", |env, _| {
        disk(env, "nvme0n1").has_poll_queues = true;
        if let Some(location) = &mut env.location {
            location.can_poll = Some(false);
            location.poll_refusal = Some("the kernel returned EOPNOTSUPP".into());
        }
    });
    assert!(polled.contains("EOPNOTSUPP"), "{polled}");
}
