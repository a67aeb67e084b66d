//! The screen: a report, as much of it as there is room for.

use std::env;

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::app::App;
use super::grid::{Grid, Piece, Tone};
use super::preload;
use super::report::Report;
use super::rows;

const HELP: &str = "\
q Esc Ctrl-C  quit                p    pause: the screen stays as it is
s             sort operations     + -  a longer, a shorter interval
r  under `annulus run`: all back to the kernel, or served again (asks)

ops/s      answers                err/s    those that are errors
flight     with the kernel or a blocking thread, right now
ent/enter  entries that an io_uring_enter submits; 1 is no batching
enters/s   io_uring_enter calls   waits/s  those that might sleep
wakes/s    system calls of other threads to wake the driver
sqwk/s     times the kernel's polling thread (SQPOLL) was woken
ENOBUFS, CQovf, short, cancels, timeouts: since the start
+          behind a number: it grew within the interval
p50 p99    from submission to completion, within the interval
q p99      until the kernel had it; dev p99: from then on
p99 OVER TIME  a block an interval; one higher is four times longer:
               ▁ to 4µs ▂ 16µs ▃ 64µs ▄ 256µs ▅ 1ms ▆ 4ms ▇ 16ms █
kernel workers: threads of the kernel's, for what would block
";

/// Of a process that has been handed back.
const RELEASED: &str = "handed back to the kernel by an operator; r serves it again";

/// Below that many lines, blank ones are left out.
const TALL: u16 = 16;
const BACKENDS_MAX: usize = 2;
const NOTES_MAX: usize = 4;

/// By the convention of https://no-color.org.
pub(super) fn use_colours() -> bool {
    env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

pub(super) fn draw(frame: &mut Frame, app: &App) {
    let area = frame.area();
    if area.is_empty() {
        return;
    }
    let mut lines = match &app.report {
        _ if app.help => HELP.lines().map(Line::raw).collect(),
        None => vec![Line::raw(format!(
            "the first numbers come after {:?}",
            app.interval
        ))],
        Some(report) => body(report, app, area),
    };
    lines.truncate(usize::from(area.height) - 1);
    let body = Rect {
        height: area.height - 1,
        ..area
    };
    let foot = Rect {
        y: area.y + area.height - 1,
        height: 1,
        ..area
    };
    frame.render_widget(Paragraph::new(lines), body);
    let foot_line = line(&[(footer(app), Tone::Heading)], app.colours);
    frame.render_widget(Paragraph::new(foot_line), foot);
}

fn footer(app: &App) -> String {
    let every = app.interval;
    if app.confirms {
        let what = match app.released {
            Some(true) => "serve this process again",
            _ => "hand all of this process back to the kernel",
        };
        return format!("{what}? y: yes, any other key: no");
    }
    let state = if app.paused { "PAUSED" } else { "p pause" };
    let switch = match app.released {
        None => "",
        Some(false) => "  r release",
        Some(true) => "  r resume",
    };
    format!(
        "q quit  {state}  s sort: {}  +- every {every:?}{switch}  ? help",
        app.sort.name()
    )
}

fn body(report: &Report, app: &App, area: Rect) -> Vec<Line<'static>> {
    let width = usize::from(area.width);
    let tall = area.height >= TALL;
    let mut head = vec![vec![(rows::process(report), Tone::Heading)]];
    let backends = rows::backends(report).into_iter().take(BACKENDS_MAX);
    head.extend(backends.map(|piece| vec![piece]));
    head.push(vec![(rows::summary(report), Tone::Plain)]);
    let mut tail = preload::lines(report);
    let errors = rows::errors(report);
    if !errors.is_empty() {
        let title = ("ERRORS  ".to_owned(), Tone::Heading);
        tail.push([vec![title], errors].concat());
    }
    let alerts = rows::alerts(report).into_iter().take(NOTES_MAX);
    tail.extend(alerts.map(|alert| vec![alert]));
    let switched =
        (app.refused.clone()).or_else(|| (app.released == Some(true)).then(|| RELEASED.to_owned()));
    let notes = switched.iter().chain(&report.notes);
    let notes = notes.flat_map(|note| wrapped(note, width));
    let notes = notes.take(if tall { NOTES_MAX } else { 1 });
    tail.extend(notes.map(|note| vec![(note, Tone::Attention)]));
    let sources = rows::sources(report);
    let operations = rows::operations(report, app.sort, Some(&app.history));
    let blanks = if tall { 2 } else { 0 };
    let footer = 1;
    let fixed = head.len() + tail.len() + footer + blanks;
    let height = usize::from(area.height).saturating_sub(fixed);
    // With the headings.
    let lines_needed = [&sources, &operations].map(|grid| grid.rows.len() + 1);
    let (for_sources, for_operations) = shares(height, lines_needed[0], lines_needed[1]);
    let blank = || tall.then(Vec::new);
    let mut lines = head;
    lines.extend(blank());
    lines.extend(table(&sources, width, for_sources, "sources"));
    lines.extend(blank());
    lines.extend(table(&operations, width, for_operations, "operations"));
    lines.extend(tail);
    let lines = lines.iter();
    lines.map(|pieces| line(pieces, app.colours)).collect()
}

/// How many lines each of two tables gets: half of the room is each one's, and what the other leaves. Where that
/// is no row for both, the second one gets all: what the first says is in the summary.
fn shares(height: usize, first: usize, second: usize) -> (usize, usize) {
    const WORTH_IT: usize = 2;
    let of_first = first.min((height / 2).max(height.saturating_sub(second)));
    let of_first = if of_first < WORTH_IT { 0 } else { of_first };
    (of_first, second.min(height - of_first))
}

/// The heading, and as many rows as there is room for; if some are left out, the last line says how many.
fn table(grid: &Grid, width: usize, height: usize, of_what: &str) -> Vec<Vec<Piece>> {
    let mut lines = grid.lines(width);
    if lines.len() > height {
        // A row is worth more than to know how many there are.
        let says_more = height > 2;
        lines.truncate(if says_more { height - 1 } else { height });
        if says_more {
            let more = grid.rows.len() + 1 - lines.len();
            lines.push(vec![(format!("… {more} more {of_what}"), Tone::Plain)]);
        }
    }
    lines
}

/// A note in lines, its mark in front of the first.
fn wrapped(note: &str, width: usize) -> Vec<String> {
    let mut lines = vec!["!".to_owned()];
    for word in note.split_whitespace() {
        let last = lines.len() - 1;
        if lines[last].chars().count() + 1 + word.chars().count() <= width {
            lines[last] += &format!(" {word}");
        } else {
            lines.push(format!("  {word}"));
        }
    }
    lines
}

fn line(pieces: &[Piece], colours: bool) -> Line<'static> {
    let spans = pieces.iter();
    spans
        .map(|(text, tone)| Span::styled(text.clone(), style(*tone, colours)))
        .collect::<Vec<_>>()
        .into()
}

/// Blue, cyan and yellow differ for every kind of colour vision; red and green would not.
fn style(tone: Tone, colours: bool) -> Style {
    let (colour, modifier) = match tone {
        Tone::Plain => return Style::new(),
        Tone::Heading => (Color::Cyan, Modifier::BOLD),
        Tone::Attention => (Color::Yellow, Modifier::BOLD),
        Tone::Strip => (Color::LightBlue, Modifier::empty()),
    };
    let style = Style::new().add_modifier(modifier);
    if colours { style.fg(colour) } else { style }
}
