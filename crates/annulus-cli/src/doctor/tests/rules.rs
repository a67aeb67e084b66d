//! Every rule on a machine where it speaks, and on one where it is silent. (Those of `refused.rs` are in `broken.rs`,
//! too, where they must be the first to speak.)

use std::collections::BTreeSet;

use super::cases::{Case, Change, FIGURES, LIMITS, MACHINE, PLACE, REFUSED, disk};
use super::machines::{figures, good, set};
use crate::doctor::advice::{Findings, Severity, advice};
use crate::doctor::figures::What;
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
        let says = format!("{}: {}{}", one.what, one.why, text(one.next));
        (one.rule, one.severity, says)
    })
    .collect()
}

fn check(cases: &[Case]) {
    for (rule, fires, part, severity, silent) in cases {
        let all = reports(*fires);
        let matching = all.iter().find(|(name, ..)| name == rule);
        let (_, as_severe, says) = matching.unwrap_or_else(|| panic!("{rule} is silent: {all:?}"));
        assert_eq!(as_severe, severity, "{rule}: {says}");
        assert!(
            says.contains(part),
            "{rule} should say {part:?}, says: {says}"
        );
        let others = reports(*silent);
        assert!(
            others.iter().all(|(name, ..)| name != rule),
            "{rule} is not silent: {others:?}"
        );
    }
}

#[test]
fn who_refuses_is_distinguished_from_who_does_not() {
    check(&REFUSED);
}

#[test]
fn limits_speak_where_they_are_short() {
    check(&LIMITS);
}

#[test]
fn the_machine_speaks_where_it_matters() {
    check(&MACHINE);
}

#[test]
fn file_systems_and_devices_speak_for_themselves() {
    check(&PLACE);
}

#[test]
fn figures_are_drawn_conclusions_from() {
    check(&FIGURES);
}

#[test]
fn every_rule_is_tried_and_no_other() {
    let covered: BTreeSet<&str> = [&REFUSED[..], &LIMITS, &MACHINE, &PLACE, &FIGURES]
        .concat()
        .iter()
        .map(|case| case.0)
        .collect();
    let there: Vec<&str> = rules::all().map(|rule| rule.name).collect();
    assert_eq!(covered, there.iter().copied().collect());
    assert_eq!(covered.len(), there.len(), "two rules of one name");
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
fn the_other_side_of_a_comparison_is_reported_as_well() {
    let says = |rule: &str, change: Change| {
        let all = reports(change);
        let matching = all.into_iter().find(|(name, ..)| name == rule);
        matching.map_or(String::new(), |(.., says)| says)
    };
    let direct = says("backend-direct", |_, _| {});
    assert!(direct.contains("the ring, at any depth"), "{direct}");
    let alike = says("backend-direct", |_, figures| {
        set(figures, What::DirectHop, 82_000.0)
    });
    assert!(alike.contains("does not matter who asks"), "{alike}");
    let network = says("backend-network", |_, _| {});
    assert!(
        network.starts_with("for small messages: the ring"),
        "{network}"
    );
    let alike = says("backend-network", |_, figures| {
        set(figures, What::EchoRing, 9100.0)
    });
    assert!(alike.contains("are alike"), "{alike}");
    let buffers = says("buffers", |_, _| {});
    assert!(buffers.contains("make no difference"), "{buffers}");
    let depth = says("depth", |_, figures| {
        set(figures, What::DirectRing8, 79_000.0);
        set(figures, What::DirectRing32, 78_000.0);
    });
    assert!(depth.contains("keep 1 in flight"), "{depth}");
    let sqpoll = says("sqpoll", |_, figures| set(figures, What::Enter, 2000.0));
    assert!(sqpoll.contains("may pay"), "{sqpoll}");
    let sqpoll = says("sqpoll", |_, _| {});
    assert!(sqpoll.contains("would not pay"), "{sqpoll}");
    let polled = says("polled", |env, _| {
        disk(env, "nvme0n1").has_poll_queues = true;
        if let Some(location) = &mut env.location {
            location.can_poll = Some(false);
            location.poll_refusal = Some("the kernel answered EOPNOTSUPP".into());
        }
    });
    assert!(polled.contains("EOPNOTSUPP"), "{polled}");
}
