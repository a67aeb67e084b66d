//! Any text as an alert rule: it is refused with a position inside the text, or its printed form is the same rule.

#![no_main]

use annulus_observe::alert::Rule;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match text.parse::<Rule>() {
        Ok(rule) => assert_eq!(rule.to_string().parse::<Rule>().as_ref(), Ok(&rule)),
        Err(error) => {
            assert!(error.column() <= text.chars().count());
            assert!(!error.to_string().is_empty());
        }
    }
});
