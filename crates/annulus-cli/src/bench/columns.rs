//! Text tables: the first column is aligned to the left, the others to the right, with a rule below the headings.

/// Formats lines of cells; the first line has the headings.
pub(super) fn ruled<const N: usize>(lines: &[[String; N]]) -> String {
    let mut widths = [0; N];
    for line in lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for (index, line) in lines.iter().enumerate() {
        text += &format!("{:<width$}", line[0], width = widths[0]);
        for (cell, width) in line.iter().zip(&widths).skip(1) {
            text += &format!("  {cell:>width$}");
        }
        text.push('\n');
        if index == 0 {
            let rule: usize = widths.iter().sum::<usize>() + 2 * (widths.len() - 1);
            text += &"─".repeat(rule);
            text.push('\n');
        }
    }
    text
}
