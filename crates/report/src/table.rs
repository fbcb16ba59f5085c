//! Tables for people: aligned in a terminal, or as comma-separated values.

use tessera_core::Result;

use crate::output::print_line;

/// Columns are padded to this width at most. A name may be longer than any terminal is wide, and
/// would have every other row be as long.
const MOST_PADDED: usize = 160;

/// A table with aligned columns; those of numbers to the right.
#[derive(Clone, Debug)]
pub struct Table {
    heads: Vec<(&'static str, bool)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns; a head that starts with `>` is aligned to the right.
    pub fn new(heads: &[&'static str]) -> Self {
        let head = |head: &&'static str| match head.strip_prefix('>') {
            Some(head) => (head, true),
            None => (*head, false),
        };
        Self { heads: heads.iter().map(head).collect(), rows: Vec::new() }
    }

    /// Adds a row, with a cell for each column.
    pub fn add_row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The heads, each with whether its column is aligned to the right, and the rows.
    pub(crate) fn heads_and_rows(&self) -> (&[(&'static str, bool)], &[Vec<String>]) {
        (&self.heads, &self.rows)
    }

    /// The table as lines, its columns aligned.
    pub fn to_text(&self) -> String {
        let heads: Vec<String> = self.heads.iter().map(|(head, _)| (*head).to_owned()).collect();
        let width = |column: usize| {
            let cells = self.rows.iter().chain([&heads]).filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let width = |column| width(column).min(MOST_PADDED);
        let widths: Vec<usize> = (0..heads.len()).map(width).collect();
        let mut text = String::new();
        for row in [&heads].into_iter().chain(&self.rows) {
            let cells = row.iter().zip(&widths).zip(&self.heads);
            let cells = cells.map(|((cell, &width), &(_, right))| {
                if right { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
            });
            text.push_str(cells.collect::<Vec<String>>().join("  ").trim_end());
            text.push('\n');
        }
        text
    }

    /// The table as comma-separated values.
    pub fn to_csv(&self) -> String {
        let quote = |cell: &str| {
            if cell.contains([',', '"', '\n']) {
                format!("\"{}\"", cell.replace('"', "\"\""))
            } else {
                cell.to_owned()
            }
        };
        let heads: Vec<String> = self.heads.iter().map(|(head, _)| quote(head)).collect();
        let mut text = heads.join(",") + "\n";
        for row in &self.rows {
            text.push_str(&row.iter().map(|cell| quote(cell)).collect::<Vec<_>>().join(","));
            text.push('\n');
        }
        text
    }

    /// Prints the table.
    pub fn print_table(&self) -> Result<()> {
        print_lines(&self.to_text())
    }

    /// Prints the table as comma-separated values.
    pub fn print_csv(&self) -> Result<()> {
        print_lines(&self.to_csv())
    }
}

/// Lines of what there is to say, each after what it is about: two columns, the second as long as
/// it needs.
pub fn align_facts<Key: AsRef<str>>(facts: &[(Key, String)]) -> String {
    let width = facts.iter().map(|(key, _)| key.as_ref().chars().count()).max().unwrap_or(0);
    let width = width.min(MOST_PADDED);
    let lines = facts.iter().map(|(key, value)| format!("{:<width$}  {value}\n", key.as_ref()));
    lines.collect()
}

fn print_lines(text: &str) -> Result<()> {
    print_line(text.strip_suffix('\n').unwrap_or(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Table {
        let mut table = Table::new(&["name", ">size"]);
        table.add_row(["a, \"b\"".to_owned(), "1".to_owned()]);
        table.add_row(["µ".to_owned(), "12.80 MB".to_owned()]);
        table
    }

    #[test]
    fn columns_are_aligned_and_numbers_to_the_right() {
        let expected = "name        size\na, \"b\"         1\nµ       12.80 MB\n";
        assert_eq!(sample().to_text(), expected);
        assert_eq!(Table::new(&["a", "b"]).to_text(), "a  b\n");
    }

    #[test]
    fn values_with_commas_and_quotes_are_quoted() {
        assert_eq!(sample().to_csv(), "name,size\n\"a, \"\"b\"\"\",1\nµ,12.80 MB\n");
    }

    #[test]
    fn a_name_of_any_length_is_shown_and_pads_no_other_row() {
        let (long, mut table) = ("n".repeat(100_000), Table::new(&["name", ">size"]));
        table.add_row([long.clone(), "1".to_owned()]);
        table.add_row(["b".to_owned(), "12".to_owned()]);
        let text = table.to_text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], format!("{long}     1"));
        assert_eq!(lines[2].len(), MOST_PADDED + "  size".len());
        let facts = align_facts(&[(long, "a".to_owned()), ("k".to_owned(), "b".to_owned())]);
        assert!(facts.ends_with("  b\n") && facts.len() < 101_000, "{}", facts.len());
    }

    #[test]
    fn facts_are_two_columns() {
        let facts = [("model", "m".to_owned()), ("a", "some words".to_owned())];
        assert_eq!(align_facts(&facts), "model  m\na      some words\n");
    }
}
