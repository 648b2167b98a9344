//! What a command prints: aligned text for people, JSON for programs.

use std::{
    fmt::{self, Write as _},
    io::{self, Write as _},
};

use serde_json::Value;

/// The answer of one command in both spellings.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) text: String,
    pub(super) json: Value,
    /// False for a miss and for what is not there.
    pub(super) found: bool,
}

impl Report {
    pub(super) fn found(text: String, json: Value) -> Self {
        Self {
            text,
            json,
            found: true,
        }
    }
}

/// Writes to the standard output.
pub(super) fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Align {
    Left,
    Right,
}

/// Rows under headers, each column as wide as its widest cell.
#[derive(Debug)]
pub(super) struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn new(columns: &[(&'static str, Align)]) -> Self {
        Self {
            columns: columns.to_vec(),
            rows: Vec::new(),
        }
    }

    /// A row that is shorter than the headers ends in empty cells.
    pub(super) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.into());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    fn width(&self, column: usize) -> usize {
        let header = self.columns[column].0.chars().count();
        let cells = self.rows.iter().filter_map(|row| row.get(column));
        cells
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
            .max(header)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths: Vec<usize> = (0..self.columns.len()).map(|at| self.width(at)).collect();
        let headers = self.columns.iter().map(|(name, _)| (*name).to_owned());
        let headers: Vec<String> = headers.collect();
        for row in std::iter::once(&headers).chain(&self.rows) {
            let mut line = String::new();
            for ((cell, width), (_, align)) in row.iter().zip(&widths).zip(&self.columns) {
                match align {
                    Align::Left => write!(line, "{cell:<width$}  ")?,
                    Align::Right => write!(line, "{cell:>width$}  ")?,
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// The width of the terminal that is written to; none for a file or a pipe.
pub(super) fn terminal_columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    // A terminal that does not know its size says 0.
    (size.ws_col > 0).then(|| size.ws_col.into())
}

/// Names and values, one pair a line; a pair without a value is left out.
pub(super) fn facts(pairs: &[(&str, String)]) -> String {
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for (name, value) in pairs.iter().filter(|(_, value)| !value.is_empty()) {
        text += &format!("{name:<width$}  {value}\n");
    }
    text
}

/// The plain word of a wire enum: `MEDIUM_HOST` without `MEDIUM_` is `host`.
pub(super) fn word(name: &str, prefix: &str) -> String {
    name.strip_prefix(prefix)
        .unwrap_or(name)
        .to_ascii_lowercase()
}

/// Lower-case hexadecimal digits, as lease ids are shown and taken.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Numbers with a comma between each three digits.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&[("NAME", Align::Left), ("K", Align::Right)]);
        table.row(["a".into(), "16".into()]);
        table.row(["long name".into(), "4".into()]);
        assert_eq!(
            table.to_string(),
            "NAME        K\na          16\nlong name   4\n"
        );
    }

    #[test]
    fn facts_without_a_value_are_left_out() {
        let pairs = [("a", "1".to_owned()), ("none", String::new())];
        assert_eq!(facts(&pairs), "a     1\n");
    }

    #[test]
    fn numbers_are_grouped_by_three() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(grouped(number), text);
        }
    }

    #[test]
    fn wire_names_become_plain_words() {
        assert_eq!(
            word("FALLBACK_REASON_DONOR_STALE", "FALLBACK_REASON_"),
            "donor_stale"
        );
        assert_eq!(hex(&[0, 0xab]), "00ab");
    }
}
