//! Tables in Markdown, aligned so that they read well as plain text, too.

#[derive(Clone, Copy)]
pub(crate) enum Align {
    Left,
    Right,
}

pub(crate) struct Table {
    aligns: Vec<Align>,
    /// The head first.
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns. The head holds no more than one line.
    pub(crate) fn new<H: Into<String>>(columns: impl IntoIterator<Item = (H, Align)>) -> Self {
        let (head, aligns) = columns
            .into_iter()
            .map(|(head, align)| (head.into(), align))
            .unzip();
        Self {
            aligns,
            rows: vec![head],
        }
    }

    /// Adds a row; cells that are missing at its end are empty.
    pub(crate) fn row<C: Into<String>>(&mut self, cells: impl IntoIterator<Item = C>) {
        let mut row: Vec<String> = cells.into_iter().map(Into::into).collect();
        assert!(row.len() <= self.aligns.len(), "too many cells: {row:?}");
        row.resize(self.aligns.len(), String::new());
        self.rows.push(row);
    }

    /// Whether it has nothing but its head.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.len() == 1
    }

    pub(crate) fn render(&self) -> String {
        let widths: Vec<_> = (0..self.aligns.len())
            .map(|column| self.width(column))
            .collect();
        let mut lines: Vec<_> = self
            .rows
            .iter()
            .map(|row| self.line(row, &widths))
            .collect();
        lines.insert(1, self.rule(&widths));
        lines.join("\n") + "\n"
    }

    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().map(|row| row[column].chars().count());
        cells.max().unwrap_or_default().max(3)
    }

    fn line(&self, row: &[String], widths: &[usize]) -> String {
        let cells = row.iter().zip(widths).zip(&self.aligns);
        let cells = cells.map(|((cell, &width), align)| match align {
            Align::Left => format!(" {cell:<width$} |"),
            Align::Right => format!(" {cell:>width$} |"),
        });
        format!("|{}", cells.collect::<String>())
    }

    fn rule(&self, widths: &[usize]) -> String {
        let cells = widths.iter().zip(&self.aligns);
        let cells = cells.map(|(&width, align)| match align {
            Align::Left => format!(" {} |", "-".repeat(width)),
            Align::Right => format!(" {}: |", "-".repeat(width - 1)),
        });
        format!("|{}", cells.collect::<String>())
    }
}
