//! A text in Markdown that grows paragraph by paragraph.

use super::table::Table;

/// The page, or its printed form: only headings and tables.
pub(super) struct Page {
    text: String,
    is_printed: bool,
}

impl Page {
    pub(super) fn new(is_printed: bool) -> Self {
        Self {
            text: String::new(),
            is_printed,
        }
    }

    /// Adds text or a chart, unless the page is printed.
    pub(super) fn prose(&mut self, paragraph: &str) {
        if !self.is_printed {
            self.add(paragraph);
        }
    }

    pub(super) fn heading(&mut self, heading: &str) {
        self.add(heading);
    }

    pub(super) fn table(&mut self, table: &Table) {
        self.add(&table.render());
    }

    pub(super) fn finish(self) -> String {
        self.text
    }

    /// Adds a part after an empty line.
    fn add(&mut self, part: &str) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        self.text.push_str(part.trim_end());
        self.text.push('\n');
    }
}
