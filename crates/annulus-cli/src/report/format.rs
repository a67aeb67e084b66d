//! Formats numbers for a report.

/// Formats a duration with three significant digits and a unit.
pub(super) fn duration(ns: u64) -> String {
    let ns = ns as f64;
    let (value, unit) = match ns {
        _ if ns < 1e3 => (ns, "ns"),
        _ if ns < 1e6 => (ns / 1e3, "µs"),
        _ if ns < 1e9 => (ns / 1e6, "ms"),
        _ => (ns / 1e9, "s"),
    };
    format!("{} {unit}", digits(value))
}

/// Formats a count, with k, M or G from a thousand on.
pub(super) fn count(value: f64) -> String {
    match value {
        _ if value >= 999_500_000.0 => format!("{}G", digits(value / 1e9)),
        _ if value >= 999_500.0 => format!("{}M", digits(value / 1e6)),
        _ if value >= 999.5 => format!("{}k", digits(value / 1e3)),
        _ => digits(value),
    }
}

fn digits(value: f64) -> String {
    let decimals = match value.abs() {
        size if size >= 99.95 => 0,
        size if size >= 9.995 => 1,
        _ => 2,
    };
    let text = format!("{value:.decimals$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_string(),
        false => text,
    }
}

/// Formats a share: `99.9 %`.
pub(super) fn percent_text(share: f64) -> String {
    let text = format!("{:.3}", share * 100.0);
    format!("{} %", text.trim_end_matches('0').trim_end_matches('.'))
}

/// Formats seconds since 1970 as UTC.
pub(super) fn moment(unix_s: u64) -> String {
    let (days, second) = ((unix_s / 86_400) as i64, unix_s % 86_400);
    // Counting days from 1 March of the year 0 puts leap days at the end of a year. An era has 400 years.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    let (hour, minute) = (second / 3_600, second / 60 % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

/// Quotes an argument for a shell.
pub(super) fn quoted(argument: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=,+@%".contains(c);
    match !argument.is_empty() && argument.chars().all(plain) {
        true => argument.to_string(),
        false => format!("'{}'", argument.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_have_a_unit() {
        assert_eq!(duration(999), "999 ns");
        assert_eq!(duration(1_500), "1.5 µs");
        assert_eq!(duration(10_000_000), "10 ms");
        assert_eq!(duration(3_600_000_000_000), "3600 s");
        assert_eq!(count(1_234_567.0), "1.23M");
        assert_eq!(count(950.0), "950");
        assert_eq!(count(0.25), "0.25");
        assert_eq!(percent_text(0.9999), "99.99 %");
    }

    #[test]
    fn moments_are_days_of_the_calendar() {
        assert_eq!(moment(0), "1970-01-01 00:00 UTC");
        assert_eq!(moment(951_827_696), "2000-02-29 12:34 UTC");
        assert_eq!(moment(1_795_285_859), "2026-11-21 18:30 UTC");
    }

    #[test]
    fn a_command_can_be_pasted_into_a_shell() {
        assert_eq!(quoted("--bs=4k"), "--bs=4k");
        assert_eq!(quoted("a b'c"), "'a b'\\''c'");
        assert_eq!(quoted(""), "''");
    }
}
