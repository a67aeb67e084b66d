//! The date in the formats of responses and logs. Each core has one, and formats the
//! date once per second.

use std::cell::{Cell, RefCell};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use http::HeaderValue;
use httpdate::HttpDate;

/// `Date: Sun, 06 Nov 1994 08:49:37 GMT` and the end of the line.
pub(crate) const DATE_LINE_BYTES: usize = 37;

const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

pub(crate) struct Clock {
    now: Cell<Instant>,
    second: Cell<u64>,
    line: Cell<[u8; DATE_LINE_BYTES]>,
    value: RefCell<HeaderValue>,
    log: RefCell<LogTime>,
}

/// The time in the formats of the logs.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogTime {
    /// `06/Nov/1994:08:49:37 +0000`
    pub(crate) common: String,
    /// `1994-11-06T08:49:37Z`
    pub(crate) iso: String,
}

impl Clock {
    pub(crate) fn new() -> Clock {
        let clock = Clock {
            now: Cell::new(Instant::now()),
            second: Cell::new(u64::MAX),
            line: Cell::new([b' '; DATE_LINE_BYTES]),
            value: RefCell::new(HeaderValue::from_static("")),
            log: RefCell::default(),
        };
        clock.refresh();
        clock
    }

    /// Reads the clocks, and formats the date if the second has changed.
    pub(crate) fn refresh(&self) {
        self.now.set(Instant::now());
        let now = SystemTime::now();
        let second = now
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs());
        if self.second.replace(second) == second {
            return;
        }
        let date = HttpDate::from(now).to_string();
        let line = format!("Date: {date}\r\n");
        if let Ok(line) = <[u8; DATE_LINE_BYTES]>::try_from(line.as_bytes()) {
            self.line.set(line);
        }
        self.log.replace(LogTime::of(&date));
        if let Ok(value) = HeaderValue::try_from(date) {
            self.value.replace(value);
        }
    }

    /// Returns the time of the last `refresh`.
    pub(crate) fn now(&self) -> Instant {
        self.now.get()
    }

    pub(crate) fn date_line(&self) -> [u8; DATE_LINE_BYTES] {
        self.line.get()
    }

    /// Returns the date as a field value.
    pub(crate) fn date(&self) -> HeaderValue {
        self.value.borrow().clone()
    }

    pub(crate) fn with_log_time<T>(&self, act: impl FnOnce(&LogTime) -> T) -> T {
        act(&self.log.borrow())
    }
}

impl LogTime {
    /// Converts a date of HTTP, whose parts have fixed positions.
    fn of(date: &str) -> LogTime {
        let part = |from: usize, to: usize| date.get(from..to).unwrap_or_default();
        let (day, month, year, time) = (part(5, 7), part(8, 11), part(12, 16), part(17, 25));
        let number = MONTHS
            .iter()
            .position(|name| *name == month)
            .unwrap_or_default()
            + 1;
        LogTime {
            common: format!("{day}/{month}/{year}:{time} +0000"),
            iso: format!("{year}-{number:02}-{day}T{time}Z"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_have_the_formats_of_responses_and_logs() {
        let log = LogTime::of("Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(log.common, "06/Nov/1994:08:49:37 +0000");
        assert_eq!(log.iso, "1994-11-06T08:49:37Z");
        let clock = Clock::new();
        let line = clock.date_line();
        assert!(line.starts_with(b"Date: ") && line.ends_with(b" GMT\r\n"));
    }
}
