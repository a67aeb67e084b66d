//! Cells in columns, for text and for the screen: where there is no room for all, the least important columns
//! are left out.

/// How a piece of text is to be shown. What it says never depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    Plain,
    Heading,
    /// Worth a second look; the text says so, too.
    Attention,
    /// Latencies over time.
    Strip,
}

/// Text in one tone.
pub(super) type Piece = (String, Tone);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Align {
    Left,
    Right,
    /// Takes the room that is left, its end shown if that is too little.
    Rest,
}

pub(super) struct Column {
    pub(super) heading: &'static str,
    pub(super) align: Align,
    /// Where room is short, columns of the highest number go first.
    pub(super) rank: u8,
}

/// A heading and rows below it.
pub(super) struct Grid {
    pub(super) columns: Vec<Column>,
    pub(super) rows: Vec<Vec<Piece>>,
}

/// Between columns.
const GAP: usize = 2;
/// A column that takes the rest needs that much.
const REST_MIN: usize = 8;

impl Grid {
    /// The heading and the rows, in at most `width` columns of text (but for the first column, which stays).
    pub(super) fn lines(&self, width: usize) -> Vec<Vec<Piece>> {
        let shown = self.shown(width);
        let headings = self.columns.iter();
        let headings: Vec<Piece> = headings
            .map(|column| (column.heading.to_owned(), Tone::Heading))
            .collect();
        let rows = std::iter::once(&headings).chain(&self.rows);
        rows.map(|row| {
            let cells = shown
                .iter()
                .map(|&(index, width)| self.cell(row, index, width));
            let mut line = Vec::new();
            for (text, tone) in cells {
                if !line.is_empty() {
                    line.push((" ".repeat(GAP), Tone::Plain));
                }
                line.push((text, tone));
            }
            line
        })
        .collect()
    }

    /// The columns that there is room for, and how wide they are.
    fn shown(&self, width: usize) -> Vec<(usize, usize)> {
        let mut widths: Vec<(usize, usize)> = (0..self.columns.len())
            .map(|i| (i, self.width(i)))
            .collect();
        let needed = |widths: &[(usize, usize)]| {
            let cells: usize = widths.iter().map(|(_, width)| width).sum();
            cells + GAP * widths.len().saturating_sub(1)
        };
        while widths.len() > 1 && needed(&widths) > width {
            // Of equals the one further to the right, never the first.
            let last = (1..widths.len()).max_by_key(|&at| self.columns[widths[at].0].rank);
            let Some(last) = last else { break };
            widths.remove(last);
        }
        let left = width.saturating_sub(needed(&widths));
        for (index, width) in &mut widths {
            if self.columns[*index].align == Align::Rest {
                *width += left.min(self.longest(*index).saturating_sub(*width));
            }
        }
        widths
    }

    fn width(&self, index: usize) -> usize {
        match self.columns[index].align {
            Align::Rest => REST_MIN.max(self.columns[index].heading.chars().count()),
            Align::Left | Align::Right => self.longest(index),
        }
    }

    fn longest(&self, index: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(index));
        let cells = cells.map(|(text, _)| text.chars().count());
        cells
            .chain([self.columns[index].heading.chars().count()])
            .max()
            .unwrap_or(0)
    }

    fn cell(&self, row: &[Piece], index: usize, width: usize) -> Piece {
        let (text, tone) = match row.get(index) {
            Some((text, tone)) => (text.as_str(), *tone),
            None => ("", Tone::Plain),
        };
        let text = match self.columns[index].align {
            Align::Left => format!("{text:<width$}"),
            Align::Right => format!("{text:>width$}"),
            Align::Rest => {
                let skipped = text.chars().count().saturating_sub(width);
                let end: String = text.chars().skip(skipped).collect();
                format!("{end:<width$}")
            }
        };
        (text, tone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid() -> Grid {
        let column = |heading, align, rank| Column {
            heading,
            align,
            rank,
        };
        let row = |texts: [&str; 4]| texts.map(|text| (text.to_owned(), Tone::Plain)).to_vec();
        Grid {
            columns: vec![
                column("name", Align::Left, 0),
                column("much", Align::Right, 1),
                column("little", Align::Right, 3),
                column("strip", Align::Rest, 2),
            ],
            rows: vec![
                row(["read_at", "12", "1", "..........12"]),
                row(["nop", "7", "2", "34"]),
            ],
        }
    }

    fn text(width: usize) -> Vec<String> {
        let joined = |line: Vec<Piece>| line.into_iter().map(|(text, _)| text).collect::<String>();
        grid().lines(width).into_iter().map(joined).collect()
    }

    #[test]
    fn the_least_important_columns_go_first_and_the_first_one_never() {
        let all = [
            "name     much  little  strip",
            "read_at    12       1  ..........12",
            "nop         7       2  34",
        ];
        let trimmed = |width| -> Vec<String> {
            let lines = text(width);
            assert!(
                lines
                    .iter()
                    .all(|line| line.chars().count() <= width.max(7))
            );
            lines
                .iter()
                .map(|line| line.trim_end().to_owned())
                .collect()
        };
        assert_eq!(trimmed(200), all);
        let end_of_strip = trimmed(32);
        assert_eq!(end_of_strip[1], "read_at    12       1  .......12");
        assert_eq!(trimmed(30)[0], "name     much  strip");
        assert_eq!(trimmed(15)[0], "name     much");
        assert_eq!(trimmed(3), ["name", "read_at", "nop"]);
    }
}
