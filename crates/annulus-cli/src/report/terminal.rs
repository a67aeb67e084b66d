//! Heat maps in a terminal: with colours two rows per character, without colours a ramp of characters.

use super::format::{count, duration};
use super::heatmap::{LEVELS, Map, Scale, colour};
use super::model::Comparison;

/// The most columns with cells; with the axis, they fit into 80 columns.
const COLUMNS_MAX: usize = 64;
/// The number of lines of a map.
const LINES: usize = 14;
/// The ramp for terminals without colours.
const SHADES: &[u8] = b" .:-=+*#%@";

/// The colours that the terminal supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Colours {
    None,
    /// The 6 × 6 × 6 cube of xterm.
    Some256,
    All,
}

impl Colours {
    /// Detects the colours from the environment; `get` returns a variable.
    pub(crate) fn of(is_terminal: bool, get: impl Fn(&str) -> Option<String>) -> Colours {
        let set = |name: &str| get(name).filter(|value| !value.is_empty());
        let term = set("TERM").unwrap_or_default();
        if !is_terminal || set("NO_COLOR").is_some() || term == "dumb" {
            return Colours::None;
        }
        match set("COLORTERM").as_deref() {
            Some("truecolor" | "24bit") => Colours::All,
            Some(_) => Colours::Some256,
            None if term.contains("256") => Colours::Some256,
            None => Colours::None,
        }
    }
}

/// Draws the typical repeat of every variant.
pub(crate) fn maps(comparison: &Comparison, scale: &Scale, colours: Colours) -> String {
    let mut text = format!(
        "\nLatency {}, {} over time\n",
        comparison.latency,
        duration(scale.length_ns)
    );
    for group in &comparison.groups {
        for variant in group.drawn() {
            let Some(timeline) = variant.timeline() else {
                continue;
            };
            text += &format!("\n{}, {}\n", variant.name, group.title);
            text += &map(
                &Map::of(&timeline.coarser(COLUMNS_MAX), scale),
                scale,
                colours,
            );
        }
    }
    text + &key(scale, comparison.unit, colours)
}

fn map(map: &Map, scale: &Scale, colours: Colours) -> String {
    let halves = match colours {
        Colours::None => 1,
        _ => 2,
    };
    let rows = shrunk(map, LINES * halves);
    let mut text = String::new();
    for (nth, line) in rows.chunks(halves).enumerate() {
        let label = match nth {
            0 => duration(scale.top_ns()),
            _ if nth == LINES / 2 => duration(middle(scale)),
            _ if nth == LINES - 1 => duration(scale.row_ns(0).0),
            _ => String::new(),
        };
        text += &format!("{label:>8} ");
        let (upper, lower) = (&line[0], &line[line.len() - 1]);
        for (upper, lower) in upper.iter().zip(lower) {
            text += &cell(*upper, *lower, colours);
        }
        if colours != Colours::None {
            text += "\x1b[0m";
        }
        text.truncate(text.trim_end_matches(' ').len());
        text.push('\n');
    }
    text
}

fn middle(scale: &Scale) -> u64 {
    scale
        .row_ns(scale.rows - scale.rows * (LINES / 2) / LINES - 1)
        .1
}

/// Reduces the map to N rows, each as bright as its brightest cell, so that rare completions stay visible.
fn shrunk(map: &Map, rows: usize) -> Vec<Vec<u8>> {
    let row = |nth: usize| {
        let from = nth * map.rows / rows;
        let until = ((nth + 1) * map.rows / rows).max(from + 1).min(map.rows);
        let cell = |column: usize| {
            let cells = (from..until).map(|row| map.cells[row * map.columns + column]);
            cells.max().unwrap_or(0)
        };
        (0..map.columns).map(cell).collect()
    };
    (0..rows).map(row).collect()
}

fn cell(upper: u8, lower: u8, colours: Colours) -> String {
    let code = |level: u8| {
        let [red, green, blue] = colour(level);
        match colours {
            Colours::All => format!("2;{red};{green};{blue}"),
            _ => {
                let part = |value: u8| (u16::from(value) * 5 + 127) / 255;
                format!("5;{}", 16 + 36 * part(red) + 6 * part(green) + part(blue))
            }
        }
    };
    match (colours, upper, lower) {
        (Colours::None, level, _) => shade(level).to_string(),
        (_, 0, 0) => "\x1b[0m ".into(),
        (_, 0, lower) => format!("\x1b[0;38;{}m▄", code(lower)),
        (_, upper, 0) => format!("\x1b[0;38;{}m▀", code(upper)),
        (_, upper, lower) => format!("\x1b[38;{};48;{}m▀", code(upper), code(lower)),
    }
}

fn shade(level: u8) -> char {
    let most = SHADES.len() - 1;
    let nth = match level {
        0 => 0,
        level => 1 + usize::from(level - 1) * (most - 1) / (LEVELS - 1),
    };
    char::from(SHADES[nth])
}

fn key(scale: &Scale, unit: &str, colours: Colours) -> String {
    let ramp: String = (1..=LEVELS as u8)
        .map(|level| cell(level, level, colours))
        .collect();
    let end = if colours == Colours::None {
        ""
    } else {
        "\x1b[0m"
    };
    format!(
        "\n{unit} per second in a cell: {} {ramp}{end} {}\n",
        count(scale.least),
        count(scale.most)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn colours(is_terminal: bool, variables: &[(&str, &str)]) -> Colours {
        Colours::of(is_terminal, |name| {
            let matched = variables.iter().find(|(known, _)| *known == name);
            matched.map(|(_, value)| value.to_string())
        })
    }

    #[test]
    fn colours_are_used_if_the_terminal_has_them_and_the_user_allows_them() {
        let xterm = ("TERM", "xterm-256color");
        assert_eq!(colours(true, &[xterm]), Colours::Some256);
        assert_eq!(
            colours(true, &[xterm, ("COLORTERM", "truecolor")]),
            Colours::All
        );
        assert_eq!(colours(true, &[xterm, ("NO_COLOR", "1")]), Colours::None);
        assert_eq!(colours(true, &[xterm, ("NO_COLOR", "")]), Colours::Some256);
        assert_eq!(
            colours(true, &[("TERM", "dumb"), ("COLORTERM", "1")]),
            Colours::None
        );
        assert_eq!(colours(false, &[xterm]), Colours::None);
    }

    #[test]
    fn a_rare_completion_stays_visible_in_a_small_map() {
        let mut cells = vec![0; 80 * 3];
        cells[3 * 41 + 1] = 1;
        let map = Map {
            columns: 3,
            rows: 80,
            cells,
            width: 1.0,
        };
        let rows = shrunk(&map, LINES);
        assert_eq!(rows.len(), LINES);
        assert_eq!(
            rows.iter().flatten().filter(|level| **level == 1).count(),
            1
        );
        assert_eq!((shade(0), shade(1), shade(LEVELS as u8)), (' ', '.', '@'));
    }
}
