//! Short numbers: three significant digits and a unit.

/// Formats a number in at most five columns: `0`, `4.25`, `1234`, `12.3k`, `1.25M`.
pub(super) fn count(value: f64) -> String {
    const UNITS: [(f64, &str); 3] = [(1e9, "G"), (1e6, "M"), (1e4, "k")];
    if value == 0.0 {
        return "0".to_owned();
    }
    for (from, unit) in UNITS {
        // A number that is rounded up to the next unit is shown in that unit.
        if value >= from * 0.99995 {
            let scale = if unit == "k" { 1e3 } else { from };
            return digits(value / scale) + unit;
        }
    }
    if value >= 999.5 {
        return format!("{value:.0}");
    }
    digits(value)
}

/// Formats an integer in at most five columns: `7`, `1234`, `12.3k`.
pub(super) fn whole(value: u64) -> String {
    match value {
        0..10_000 => value.to_string(),
        _ => count(value as f64),
    }
}

/// Formats a duration in at most six columns: `850ns`, `12.5µs`, `1.25ms`, `2.00s`.
pub(super) fn duration(ns: u64) -> String {
    const UNITS: [(f64, &str); 3] = [(1e9, "s"), (1e6, "ms"), (1e3, "µs")];
    let ns = ns as f64;
    for (from, unit) in UNITS {
        if ns >= from * 0.9995 {
            return digits(ns / from) + unit;
        }
    }
    format!("{ns:.0}ns")
}

fn digits(value: f64) -> String {
    match value {
        _ if value >= 99.95 => format!("{value:.0}"),
        _ if value >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Formats an uptime: `0:42`, `1:02:03`, `12d 3:04:05`.
pub(super) fn uptime(seconds: f64) -> String {
    let seconds = seconds.max(0.0) as u64;
    let (days, hours) = (seconds / 86_400, seconds / 3600 % 24);
    let (minutes, rest) = (seconds / 60 % 60, seconds % 60);
    match (days, hours) {
        (0, 0) => format!("{minutes}:{rest:02}"),
        (0, _) => format!("{hours}:{minutes:02}:{rest:02}"),
        _ => format!("{days}d {hours}:{minutes:02}:{rest:02}"),
    }
}

/// Replaces control characters in the text of another process, so that it cannot control the terminal.
pub(super) fn without_escapes(text: &str) -> String {
    let shown = |c: char| if c.is_control() { '?' } else { c };
    text.chars().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_take_five_columns() {
        let cases = [
            (0.0, "0"),
            (0.004, "0.00"),
            (4.25, "4.25"),
            (9.999, "10.0"),
            (99.96, "100"),
            (999.7, "1000"),
            (9_999.0, "9999"),
            (9_999.7, "10.0k"),
            (12_345.0, "12.3k"),
            (999_600.0, "1000k"),
            (999_990.0, "1.00M"),
            (1_250_000.0, "1.25M"),
            (2.5e9, "2.50G"),
        ];
        for (value, text) in cases {
            assert_eq!(count(value), text, "{value}");
            assert!(text.len() <= 5);
        }
    }

    #[test]
    fn durations_take_six_columns() {
        let cases = [
            (0, "0ns"),
            (999, "999ns"),
            (1_000, "1.00µs"),
            (12_540, "12.5µs"),
            (999_400, "999µs"),
            (999_900, "1.00ms"),
            (137_000_000_000, "137s"),
        ];
        for (ns, text) in cases {
            assert_eq!(duration(ns), text, "{ns}");
            assert!(text.chars().count() <= 6);
        }
    }

    #[test]
    fn uptimes_have_days_only_after_a_day() {
        assert_eq!(uptime(42.9), "0:42");
        assert_eq!(uptime(3_723.0), "1:02:03");
        assert_eq!(uptime(1_047_845.0), "12d 3:04:05");
    }

    #[test]
    fn control_characters_are_replaced() {
        assert_eq!(without_escapes("a\u{1b}[31m\nb"), "a?[31m?b");
    }
}
