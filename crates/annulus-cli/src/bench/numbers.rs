//! Numbers as text.

/// Formats a number with three significant digits, or all digits of a large number.
pub(crate) fn short(value: f64) -> String {
    match value {
        _ if value >= 99.95 => grouped(value),
        _ if value >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Formats a whole number with thousands separators.
pub(crate) fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.max(0.0));
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_grouped() {
        assert_eq!(grouped(1234567.4), "1,234,567");
        assert_eq!(grouped(999.0), "999");
        assert_eq!(short(0.5), "0.50");
        assert_eq!(short(12.34), "12.3");
        assert_eq!(short(1234.5), "1,234");
    }
}
