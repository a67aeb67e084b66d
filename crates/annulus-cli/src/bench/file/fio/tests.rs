//! Tests of the warnings about passes.

use super::report::{OWN, Run};

#[test]
fn a_pass_beside_other_work_is_warned_of() {
    let run = |repeat, variant: &str, others_busy| Run {
        repeat,
        position: 0,
        variant: variant.into(),
        job: "a".into(),
        job_index: 0,
        others_busy,
        stolen: 0.0,
        sample: None,
        reason: None,
        failed: false,
    };
    let quiet = run(1, OWN, 0.1);
    assert_eq!(super::disturbed(std::slice::from_ref(&quiet), 1), None);
    let warning = super::disturbed(&[quiet, run(1, "annulus", 0.9)], 1).unwrap();
    let start = "1 of 2 runs were disturbed (worst: annulus, all jobs, repeat 1: other processes or the kernel used 0.9";
    assert!(warning.starts_with(start), "{warning}");
    assert!(warning.ends_with("or use --repeat 3"), "{warning}");
}
