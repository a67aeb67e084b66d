//! The live view: the terminal, the keys and the intervals.

use std::env;
use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{self, EnterAlternateScreen};
use ratatui::layout::Rect;
use ratatui::{DefaultTerminal, TerminalOptions, Viewport};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::flag;

use super::app::{App, KeyAction};
use super::observer::{Observation, Observed, Observer};
use super::report::Report;
use super::screen;
use crate::fault::Fault;

/// The interval at which signals are checked.
const SLICE: Duration = Duration::from_millis(100);

/// The largest part of a terminal that is used. Every cell takes memory, and a terminal may claim 65,535 × 65,535.
const COLUMNS_MAX: u16 = 300;
const ROWS_MAX: u16 = 100;

/// The reason for the end of the view.
pub(super) enum End {
    /// A key, or a signal.
    Quit,
    /// The process has ended. Contains its last report.
    Ended(Option<Box<Report>>),
}

/// The terminal with an alternate screen. It is restored when this is dropped.
struct Screen {
    terminal: DefaultTerminal,
}

impl Screen {
    /// Switches to the alternate screen. A panic also restores the terminal, before its message.
    fn open() -> io::Result<Screen> {
        let open = || {
            let viewport = Viewport::Fixed(area()?);
            let terminal = ratatui::try_init_with_options(TerminalOptions { viewport })?;
            execute!(io::stdout(), EnterAlternateScreen)?;
            Ok(Screen { terminal })
        };
        open().inspect_err(|_| {
            // The set-up may be incomplete.
            let _ = ratatui::try_restore();
        })
    }

    fn draw(&mut self, app: &App) -> io::Result<()> {
        let area = area()?;
        if self.terminal.get_frame().area() != area {
            self.terminal.resize(area)?;
        }
        self.terminal.draw(|frame| screen::draw(frame, app))?;
        Ok(())
    }
}

/// Returns the part of the terminal that is used.
fn area() -> io::Result<Rect> {
    let (columns, rows) = terminal::size()?;
    Ok(Rect::new(
        0,
        0,
        columns.min(COLUMNS_MAX),
        rows.min(ROWS_MAX),
    ))
}

impl Drop for Screen {
    fn drop(&mut self) {
        // This fails if the terminal is closed.
        let _ = self.terminal.show_cursor();
        let _ = ratatui::try_restore();
    }
}

/// Returns whether standard input and output are a terminal that supports a screen.
pub(super) fn is_possible() -> bool {
    let dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
    io::stdin().is_terminal() && io::stdout().is_terminal() && !dumb
}

pub(super) fn run<L: Observed>(
    observer: &mut Observer<L>,
    interval: Duration,
) -> Result<End, Fault> {
    let failed = |error: io::Error| failed!("cannot use the terminal: {error}");
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
        flag::register(signal, stop.clone()).map_err(failed)?;
    }
    let mut app = App::new(interval, screen::use_colours());
    let mut screen = Screen::open().map_err(failed)?;
    let mut next = Instant::now() + app.interval;
    loop {
        screen.draw(&app).map_err(failed)?;
        match keys(&mut app, observer, next, &stop).map_err(failed)? {
            KeyAction::Quit => return Ok(End::Quit),
            KeyAction::Nothing => {}
            KeyAction::Interval => next = Instant::now() + app.interval,
            KeyAction::Switch(released) => {
                app.refused = observer
                    .switch(released)
                    .err()
                    .map(|error| error.to_string());
                app.released = observer.is_released();
            }
            KeyAction::Resume => {
                observer.restart()?;
                next = Instant::now() + app.interval;
            }
        }
        if !app.paused && next <= Instant::now() {
            match observer.observe()? {
                Observation::Report(report) => {
                    app.show(report);
                    app.released = observer.is_released();
                }
                Observation::Ended => return Ok(End::Ended(app.report)),
            }
            next = Instant::now() + app.interval;
        }
    }
}

/// Waits for the end of the interval, a key, or a change of the screen's size.
fn keys<L: Observed>(
    app: &mut App,
    observer: &mut Observer<L>,
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
            observer.renew();
        }
    }
}
