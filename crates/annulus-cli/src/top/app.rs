//! The state of the screen, and the effect of keys.

use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::heat::History;
use super::report::Report;
use super::rows::Sort;

/// The intervals that `+` and `-` select, in milliseconds.
const INTERVALS_MS: [u64; 10] = [
    100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 300_000,
];

pub(super) struct App {
    /// The last report; `None` in the first interval.
    pub(super) report: Option<Box<Report>>,
    pub(super) history: History,
    pub(super) interval: Duration,
    pub(super) sort: Sort,
    pub(super) paused: bool,
    pub(super) help: bool,
    pub(super) colours: bool,
    /// `true` if the process is released to the kernel; `None` if it does not support that.
    pub(super) released: Option<bool>,
    /// `true` if the next key confirms a switch.
    pub(super) confirms: bool,
    /// The error of the last switch.
    pub(super) refused: Option<String>,
}

/// The action that a key requests from the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyAction {
    Nothing,
    Quit,
    /// The interval has changed.
    Interval,
    /// The pause has ended, and a new interval starts.
    Resume,
    /// Release the process to the kernel, or resume it.
    Switch(bool),
}

impl App {
    pub(super) fn new(interval: Duration, colours: bool) -> App {
        App {
            report: None,
            history: History::default(),
            interval,
            sort: Sort::default(),
            paused: false,
            help: false,
            colours,
            released: None,
            confirms: false,
            refused: None,
        }
    }

    pub(super) fn show(&mut self, report: Box<Report>) {
        self.history.add(&report);
        self.report = Some(report);
    }

    pub(super) fn key(&mut self, key: KeyEvent) -> KeyAction {
        if key.kind == KeyEventKind::Release {
            return KeyAction::Nothing;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            let quits = matches!(key.code, KeyCode::Char('c' | 'd'));
            return if quits {
                KeyAction::Quit
            } else {
                KeyAction::Nothing
            };
        }
        if std::mem::take(&mut self.confirms) {
            return match (key.code, self.released) {
                (KeyCode::Char('y'), Some(released)) => KeyAction::Switch(!released),
                _ => KeyAction::Nothing,
            };
        }
        match key.code {
            KeyCode::Char('r') => self.confirms = self.released.is_some(),
            KeyCode::Esc if self.help => self.help = false,
            KeyCode::Char('q') | KeyCode::Esc => return KeyAction::Quit,
            KeyCode::Char('?' | 'h') => self.help = !self.help,
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Char('p' | ' ') => {
                self.paused = !self.paused;
                return if self.paused {
                    KeyAction::Nothing
                } else {
                    KeyAction::Resume
                };
            }
            KeyCode::Char('+' | '=') => return self.set_interval(longer(self.interval)),
            KeyCode::Char('-' | '_') => return self.set_interval(shorter(self.interval)),
            _ => {}
        }
        KeyAction::Nothing
    }

    fn set_interval(&mut self, interval: Option<Duration>) -> KeyAction {
        match interval {
            Some(interval) => {
                self.interval = interval;
                KeyAction::Interval
            }
            None => KeyAction::Nothing,
        }
    }
}

fn longer(than: Duration) -> Option<Duration> {
    let mut intervals = INTERVALS_MS.iter().map(|ms| Duration::from_millis(*ms));
    intervals.find(|interval| *interval > than)
}

fn shorter(than: Duration) -> Option<Duration> {
    let mut intervals = INTERVALS_MS
        .iter()
        .rev()
        .map(|ms| Duration::from_millis(*ms));
    intervals.find(|interval| *interval < than)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(app: &mut App, c: char) -> KeyAction {
        app.key(KeyEvent::new(KeyCode::Char(c), KeyModifiers::NONE))
    }

    fn app() -> App {
        App::new(Duration::from_secs(1), true)
    }

    #[test]
    fn q_escape_and_control_c_quit_and_escape_closes_the_help_first() {
        let mut app = app();
        assert_eq!(press(&mut app, 'q'), KeyAction::Quit);
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(app.key(control_c), KeyAction::Quit);
        let escape = KeyEvent::new(KeyCode::Esc, KeyModifiers::NONE);
        press(&mut app, '?');
        assert!(app.help);
        assert_eq!(app.key(escape), KeyAction::Nothing);
        assert!(!app.help);
        assert_eq!(app.key(escape), KeyAction::Quit);
        let released = KeyEvent {
            kind: KeyEventKind::Release,
            ..control_c
        };
        assert_eq!(app.key(released), KeyAction::Nothing);
        assert_eq!(press(&mut app, 'x'), KeyAction::Nothing);
    }

    #[test]
    fn a_pause_ends_with_a_new_interval() {
        let mut app = app();
        assert_eq!(press(&mut app, 'p'), KeyAction::Nothing);
        assert!(app.paused);
        assert_eq!(press(&mut app, 'p'), KeyAction::Resume);
        assert!(!app.paused);
    }

    #[test]
    fn the_interval_grows_and_shrinks_within_bounds() {
        let mut app = App::new(Duration::from_millis(700), true);
        assert_eq!(press(&mut app, '+'), KeyAction::Interval);
        assert_eq!(app.interval, Duration::from_secs(1));
        press(&mut app, '-');
        press(&mut app, '-');
        assert_eq!(app.interval, Duration::from_millis(200));
        press(&mut app, '-');
        assert_eq!(press(&mut app, '-'), KeyAction::Nothing);
        assert_eq!(app.interval, Duration::from_millis(100));
        for _ in 0..20 {
            press(&mut app, '+');
        }
        assert_eq!(app.interval, Duration::from_secs(300));
    }

    #[test]
    fn a_switch_needs_support_and_a_confirmation() {
        let mut app = app();
        assert_eq!(press(&mut app, 'r'), KeyAction::Nothing);
        assert!(!app.confirms, "the process has no switch");
        app.released = Some(false);
        for (key, action) in [
            ('n', KeyAction::Nothing),
            ('q', KeyAction::Nothing),
            ('y', KeyAction::Switch(true)),
        ] {
            assert_eq!(press(&mut app, 'r'), KeyAction::Nothing);
            assert!(app.confirms);
            assert_eq!(press(&mut app, key), action);
            assert!(!app.confirms);
        }
        assert_eq!(press(&mut app, 'y'), KeyAction::Nothing);
        app.released = Some(true);
        press(&mut app, 'r');
        assert_eq!(press(&mut app, 'y'), KeyAction::Switch(false));
    }

    #[test]
    fn the_sort_key_cycles_through_all_orders() {
        let mut app = app();
        let mut names = vec![app.sort.name()];
        loop {
            press(&mut app, 's');
            if app.sort == Sort::default() {
                break;
            }
            names.push(app.sort.name());
        }
        assert_eq!(names, ["ops/s", "p99", "max", "err/s", "name"]);
    }
}
