//! Cells in columns, for text and for the screen. If the width is too small for all columns, the least important ones
//! are left out.

/// The style of a piece of text. It never carries information that the text lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    Plain,
    Heading,
    /// A problem, which the text also shows.
    Attention,
    /// Latencies over time.
    Strip,
}

/// Text in one style.
pub(super) type Piece = (String, Tone);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Align {
    Left,
    Right,
    /// Takes the remaining width. If that is too small, the end of the text is shown.
    Rest,
}

pub(super) struct Column {
    pub(super) heading: &'static str,
    pub(super) align: Align,
    /// The order of removal: columns with the highest rank are left out first.
    pub(super) rank: u8,
}

/// A table with a heading.
pub(super) struct Grid {
    pub(super) columns: Vec<Column>,
    pub(super) rows: Vec<Vec<Piece>>,
}

/// The width between columns.
const GAP: usize = 2;
/// The least width of a column that takes the remaining width.
const REST_MIN: usize = 8;

impl Grid {
    /// Returns the heading and the rows, in at most `width` columns of text. The first column is always shown.
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

    /// Returns the columns that fit, with their widths.
    fn shown(&self, width: usize) -> Vec<(usize, usize)> {
        let mut widths: Vec<(usize, usize)> = (0..self.columns.len())
            .map(|i| (i, self.width(i)))
            .collect();
        let needed = |widths: &[(usize, usize)]| {
            let cells: usize = widths.iter().map(|(_, width)| width).sum();
            cells + GAP * widths.len().saturating_sub(1)
        };
        while widths.len() > 1 && needed(&widths) > width {
            // Among equals the rightmost one, and never the first column.
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
    fn the_least_important_columns_are_left_out_first_and_the_first_column_never() {
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
