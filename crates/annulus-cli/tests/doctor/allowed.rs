//! The machine without restrictions.

use annulus::support::Support;

use crate::command::{command, output, report, rules};

#[test]
fn the_report_has_facts_figures_and_a_verdict_and_no_file_remains() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().to_str().unwrap();
    let report = report(command(&[path, "--json"]));
    assert_eq!(std::fs::read_dir(path).unwrap().count(), 0);

    let support = Support::detect();
    let has_ring = support.ring().is_ok();
    assert_eq!(report["verdict"] != "no-io-uring", has_ring);
    assert_eq!(report["exit_code"] != 77, has_ring);
    let environment = &report["environment"];
    assert_eq!(environment["kernel"]["release"], support.kernel_release());
    assert_eq!(environment["location"]["path"], path);
    assert_eq!(environment["location"]["kind"], "directory");
    let calls = environment["ring"]["calls"].as_array().unwrap();
    assert_eq!(calls.iter().all(|call| call["errno"].is_null()), has_ring);

    // Each measurement has a figure, or a reason for its absence.
    let list = |name: &str| report["figures"][name].as_array().unwrap().clone();
    let (figures, missing) = (list("figures"), list("missing"));
    assert_eq!(figures.len() + missing.len(), 15, "{missing:?}");
    for figure in &figures {
        let ns = &figure["ns"];
        let value = |name: &str| ns[name].as_f64().unwrap();
        assert!(value("min") > 0.0, "{figure}");
        assert!(
            value("min") <= value("median") && value("median") <= value("max"),
            "{figure}"
        );
    }
    let has = |what: &str| figures.iter().any(|figure| figure["what"] == what);
    assert!(has("echo-epoll"), "{missing:?}");
    assert_eq!(has("nop32"), has_ring, "{missing:?}");
    let direct = environment["location"]["direct"]["works"] == true;
    let sampled = environment["location"]["sample"].is_string();
    assert_eq!(has("cached-pread"), sampled, "{missing:?}");
    assert_eq!(has("direct-pread"), sampled && direct, "{missing:?}");
    assert_eq!(
        has("direct-ring32"),
        sampled && direct && has_ring,
        "{missing:?}"
    );
    if has_ring {
        // On a busy machine the figures give no advice.
        let rules = rules(&report);
        assert_ne!(
            rules.contains(&"sqpoll"),
            rules.contains(&"disturbed"),
            "{rules:?}"
        );
    }
}

#[test]
fn the_text_ends_with_one_verdict_and_one_command() {
    let output = output(command(&["--quick"]));
    assert!(output.err.is_empty(), "{}", output.err);
    for label in [
        "kernel",
        "io_uring",
        "policy",
        "locked memory",
        "path",
        "direct I/O",
    ] {
        let row = format!("\n{label:<16}");
        assert!(
            format!("\n{}", output.out).contains(&row),
            "no {label:?} in:\n{}",
            output.out
        );
    }
    assert_eq!(
        output.out.matches("\nverdict  ").count(),
        1,
        "{}",
        output.out
    );
    let verdict = output.out.split("\nverdict  ").nth(1).unwrap();
    assert_eq!(verdict.matches("Next: annulus ").count(), 1, "{verdict}");
    assert!(!output.out.contains("\nmeasured"), "{}", output.out);
    assert!(matches!(output.code, Some(0 | 1 | 77)), "{:?}", output.code);
}
