//! Text tables: the first column is aligned to the left, the others to the right, with a rule below the headings.

/// Formats lines of cells; the first line has the headings.
pub(super) fn ruled<L: AsRef<[String]>>(lines: &[L]) -> String {
    let mut widths: Vec<usize> = Vec::new();
    for line in lines {
        widths.resize(line.as_ref().len(), 0);
        for (width, cell) in widths.iter_mut().zip(line.as_ref()) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for (index, line) in lines.iter().enumerate() {
        for (nth, (cell, width)) in line.as_ref().iter().zip(&widths).enumerate() {
            text += &match nth {
                0 => format!("{cell:<width$}"),
                _ => format!("  {cell:>width$}"),
            };
        }
        text.push('\n');
        if index == 0 {
            let rule: usize = widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1);
            text += &"─".repeat(rule);
            text.push('\n');
        }
    }
    text
}

/// Formats remarks, each after all names that it is about.
pub(super) fn remarks(list: &[(String, String)]) -> String {
    let mut grouped: Vec<(&str, Vec<&str>)> = Vec::new();
    for (name, remark) in list {
        match grouped.iter_mut().find(|(known, _)| known == remark) {
            Some((_, names)) => names.push(name),
            None => grouped.push((remark, vec![name])),
        }
    }
    let line = |(remark, names): &(&str, Vec<&str>)| format!("{}: {remark}\n", names.join(", "));
    grouped.iter().map(line).collect()
}
