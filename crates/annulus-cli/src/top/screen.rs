//! Draws a report on the screen, as far as it fits.

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
q Esc Ctrl-C  quit                p    pause the screen
s             sort operations     + -  lengthen or shorten the interval
r             release a process under `annulus run`, or resume it

ops/s      completions            err/s    completions with an error
flight     operations in the kernel or on a blocking thread
ent/enter  entries per io_uring_enter; 1 means no batching
enters/s   io_uring_enter calls   waits/s  calls that may sleep
wakes/s    system calls of other threads that wake the driver
sqwk/s     wake-ups of the kernel's polling thread (SQPOLL)
ENOBUFS, CQovf, short, cancels, timeouts: since the start
+          after a number: it grew within the interval
p50 p99    from submission to completion, within the interval
q p99      until the kernel takes it; dev p99: after that
p99 OVER TIME  a block per interval; each step is four times longer:
               ▁ to 4µs ▂ 16µs ▃ 64µs ▄ 256µs ▅ 1ms ▆ 4ms ▇ 16ms █
kernel workers: kernel threads for operations that would block
";

/// The hint about a released process.
const RELEASED: &str = "released to the kernel by an operator; r resumes it";

/// The least height with blank lines.
const TALL: u16 = 16;
const BACKENDS_MAX: usize = 2;
const NOTES_MAX: usize = 4;

/// Returns whether to use colours, by the convention of <https://no-color.org>.
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
            "the first figures appear after {:?}",
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
        let action = match app.released {
            Some(true) => "resume this process",
            _ => "release this process to the kernel",
        };
        return format!("{action}? y: yes, any other key: no");
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
    head.extend(rows::pool(report).map(|pool| vec![(pool, Tone::Plain)]));
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
    // Including the headings.
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

/// Returns the numbers of lines of two tables. Each gets half of the height, and unused lines of the other one. If that
/// leaves no row for the first, the second gets all lines: the summary replaces the first.
fn shares(height: usize, first: usize, second: usize) -> (usize, usize) {
    const LEAST_LINES: usize = 2;
    let of_first = first.min((height / 2).max(height.saturating_sub(second)));
    let of_first = if of_first < LEAST_LINES { 0 } else { of_first };
    (of_first, second.min(height - of_first))
}

/// Returns the heading and the rows that fit. If rows are left out, the last line has their number.
fn table(grid: &Grid, width: usize, height: usize, noun: &str) -> Vec<Vec<Piece>> {
    let mut lines = grid.lines(width);
    if lines.len() > height {
        // A row is worth more than to know how many there are.
        let is_truncated = height > 2;
        lines.truncate(if is_truncated { height - 1 } else { height });
        if is_truncated {
            let more = grid.rows.len() + 1 - lines.len();
            lines.push(vec![(format!("… {more} more {noun}"), Tone::Plain)]);
        }
    }
    lines
}

/// Wraps a hint to lines. The first one starts with a mark.
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

/// Blue, cyan and yellow are distinguishable for every kind of colour vision, unlike red and green.
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
