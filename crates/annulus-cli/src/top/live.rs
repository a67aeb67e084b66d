//! The live view: the terminal, the keys, and when to look.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::flag;

use super::app::{App, KeyAction};
use super::observer::{Observation, Observed, Observer};
use super::report::Report;
use super::screen;
use crate::fault::Fault;

/// How soon a signal is noticed.
const SLICE: Duration = Duration::from_millis(100);

/// Why the view ended.
pub(super) enum End {
    /// A key, or a signal.
    Quit,
    /// The process has ended; what was seen of it last.
    Ended(Option<Box<Report>>),
}

/// The terminal as a screen of our own; dropped, it is what it was before.
struct Screen {
    terminal: DefaultTerminal,
}

impl Screen {
    /// A panic, too, puts it back, before it says anything.
    fn take() -> io::Result<Screen> {
        match ratatui::try_init() {
            Ok(terminal) => Ok(Screen { terminal }),
            Err(error) => {
                // It may have got half of the way.
                let _ = ratatui::try_restore();
                Err(error)
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that has gone can't be put back.
        let _ = self.terminal.show_cursor();
        let _ = ratatui::try_restore();
    }
}

pub(super) fn run<L: Observed>(looker: &mut Observer<L>, interval: Duration) -> Result<End, Fault> {
    let failed = |error: io::Error| Fault::failed(format!("the terminal: {error}"));
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
        flag::register(signal, stop.clone()).map_err(failed)?;
    }
    let mut app = App::new(interval, screen::use_colours());
    let mut screen = Screen::take().map_err(failed)?;
    let mut next = Instant::now() + app.interval;
    loop {
        screen
            .terminal
            .draw(|frame| screen::draw(frame, &app))
            .map_err(failed)?;
        match keys(&mut app, looker, next, &stop).map_err(failed)? {
            KeyAction::Quit => return Ok(End::Quit),
            KeyAction::Nothing => {}
            KeyAction::Interval => next = Instant::now() + app.interval,
            KeyAction::Switch(released) => {
                app.refused = looker.switch(released).err().map(|error| error.to_string());
                app.released = looker.is_released();
            }
            KeyAction::GoOn => {
                looker.begin_anew()?;
                next = Instant::now() + app.interval;
            }
        }
        if !app.paused && next <= Instant::now() {
            match looker.look()? {
                Observation::Report(report) => {
                    app.show(report);
                    app.released = looker.is_released();
                }
                Observation::Ended => return Ok(End::Ended(app.report)),
            }
            next = Instant::now() + app.interval;
        }
    }
}

/// Waits until the next look is due, a key has been pressed, or the screen has another size.
fn keys<L: Observed>(
    app: &mut App,
    looker: &mut Observer<L>,
    next: Instant,
    stop: &AtomicBool,
) -> io::Result<KeyAction> {
    loop {
        if stop.load(Ordering::Relaxed) {
            return Ok(KeyAction::Quit);
        }
        let left = next.saturating_duration_since(Instant::now());
        let due = left.is_zero() && !app.paused;
        let wait = if app.paused { SLICE } else { left.min(SLICE) };
        if event::poll(wait)? {
            return Ok(match event::read()? {
                Event::Key(key) => app.key(key),
                _ => KeyAction::Nothing,
            });
        }
        if due {
            return Ok(KeyAction::Nothing);
        }
        if !app.paused {
            looker.renew();
        }
    }
}
