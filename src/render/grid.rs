//! Aligned tables.

use super::text::display_width;

/// One column.
pub(super) struct Head {
    /// What stands above it.
    pub title: String,
    /// It is never narrower than this.
    pub min: usize,
    /// Numbers stand on the right, names on the left.
    pub right: bool,
}

enum Line {
    Cells(Vec<String>),
    Rule,
}

/// A table: columns as wide as their widest cell, one blank between two.
pub(super) struct Grid {
    heads: Vec<Head>,
    lines: Vec<Line>,
}

impl Grid {
    /// An empty table.
    pub fn new(heads: Vec<Head>) -> Self {
        Self { heads, lines: Vec::new() }
    }

    /// Adds a row. A cell that is missing or blank becomes `-`.
    pub fn row(&mut self, cells: Vec<String>) {
        self.lines.push(Line::Cells(cells));
    }

    /// Adds a line of dashes.
    pub fn rule(&mut self) {
        self.lines.push(Line::Rule);
    }

    fn widths(&self) -> Vec<usize> {
        let mut widths: Vec<usize> =
            self.heads.iter().map(|head| head.min.max(display_width(&head.title))).collect();
        for line in &self.lines {
            let Line::Cells(cells) = line else { continue };
            for (width, cell) in widths.iter_mut().zip(cells) {
                *width = (*width).max(display_width(cell));
            }
        }
        widths
    }

    /// What is left of `width` columns beside the columns of numbers.
    pub fn room(&self, width: usize) -> usize {
        let numbers: usize = self
            .widths()
            .iter()
            .zip(&self.heads)
            .filter(|(_, head)| head.right)
            .map(|(width, _)| width + 1)
            .sum();
        width.saturating_sub(numbers)
    }

    /// Sets how narrow the columns of names may be.
    pub fn names_at_least(&mut self, min: usize) {
        for head in self.heads.iter_mut().filter(|head| !head.right) {
            head.min = min;
        }
    }

    /// Adds the last cell of every row, which was left open because the
    /// numbers decide how much room there is for it.
    pub fn complete(&mut self, last: impl IntoIterator<Item = String>) {
        let mut last = last.into_iter();
        for line in &mut self.lines {
            if let Line::Cells(cells) = line {
                cells.extend(last.next());
            }
        }
    }

    /// The table, with its head.
    pub fn render(&self) -> String {
        let widths = self.widths();
        let mut out = String::new();
        let titles: Vec<String> = self.heads.iter().map(|head| head.title.clone()).collect();
        self.render_cells(&mut out, &titles, &widths);
        for line in &self.lines {
            match line {
                Line::Cells(cells) => self.render_cells(&mut out, cells, &widths),
                Line::Rule => {
                    let dashes: Vec<String> =
                        widths.iter().map(|width| "-".repeat(*width)).collect();
                    self.render_cells(&mut out, &dashes, &widths);
                }
            }
        }
        out
    }

    fn render_cells(&self, out: &mut String, cells: &[String], widths: &[usize]) {
        let mut line = String::new();
        for (index, (head, width)) in self.heads.iter().zip(widths).enumerate() {
            let cell = cells.get(index).map_or("", String::as_str);
            let cell = if cell.trim().is_empty() { "-" } else { cell };
            let padding = " ".repeat(width.saturating_sub(display_width(cell)));
            if index > 0 {
                line.push(' ');
            }
            if head.right {
                line.push_str(&padding);
                line.push_str(cell);
            } else {
                line.push_str(cell);
                line.push_str(&padding);
            }
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
}
