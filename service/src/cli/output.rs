//! What a command prints: aligned text for people, JSON for programs.

use std::{
    fmt,
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

/// Rows under headers, each column as wide as its widest cell; on a terminal that is too narrow
/// for that, cells of text are cut.
#[derive(Debug)]
pub(super) struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

/// Between two columns.
const GAP: usize = 2;
/// No column of text is cut below this, nor below its header.
const CUT_WIDTH_MIN: usize = 8;
/// In place of what was cut off.
const CUT: char = '…';

impl Table {
    pub(super) fn new(columns: &[(&'static str, Align)]) -> Self {
        Self {
            columns: columns.to_vec(),
            rows: Vec::new(),
        }
    }

    /// A row that is shorter than the headers ends in empty cells.
    pub(super) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.map(|cell| plain(&cell, "")).into());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The table in at most so many columns of a terminal, as far as cutting text can reach that.
    /// Numbers are never cut.
    pub(super) fn within(&self, columns: Option<usize>) -> String {
        let mut widths: Vec<usize> = (0..self.columns.len()).map(|at| self.width(at)).collect();
        if let Some(columns) = columns {
            self.narrow(&mut widths, columns);
        }
        let headers = self.columns.iter().map(|(name, _)| (*name).to_owned());
        let headers: Vec<String> = headers.collect();
        let mut text = String::new();
        for row in std::iter::once(&headers).chain(&self.rows) {
            let mut line = String::new();
            for ((cell, &width), (_, align)) in row.iter().zip(&widths).zip(&self.columns) {
                let cell = cut(cell, width);
                line += &match align {
                    Align::Left => format!("{cell:<width$}  "),
                    Align::Right => format!("{cell:>width$}  "),
                };
            }
            text += line.trim_end();
            text.push('\n');
        }
        text
    }

    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(column));
        cells
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
            .max(self.header(column))
    }

    fn header(&self, column: usize) -> usize {
        self.columns[column].0.chars().count()
    }

    /// Takes a character from the widest column of text until the row fits.
    fn narrow(&self, widths: &mut [usize], columns: usize) {
        let gaps = GAP * widths.len().saturating_sub(1);
        let mut excess = (widths.iter().sum::<usize>() + gaps).saturating_sub(columns);
        while excess > 0 {
            let can_be_cut = |&at: &usize| {
                let floor = self.header(at).max(CUT_WIDTH_MIN);
                self.columns[at].1 == Align::Left && widths[at] > floor
            };
            let widest = (0..widths.len()).filter(can_be_cut);
            let Some(widest) = widest.max_by_key(|&at| widths[at]) else {
                return;
            };
            widths[widest] -= 1;
            excess -= 1;
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.within(terminal_columns()))
    }
}

/// The width of the terminal that is written to; none for a file or a pipe.
pub(super) fn terminal_columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    // A terminal that does not know its size says 0.
    (size.ws_col > 0).then(|| size.ws_col.into())
}

fn cut(cell: &str, width: usize) -> String {
    if cell.chars().count() <= width {
        return cell.to_owned();
    }
    let kept = cell.chars().take(width.saturating_sub(1));
    kept.chain([CUT]).collect()
}

/// Names and values, one pair a line; a pair without a value is left out.
pub(super) fn facts(pairs: &[(&str, String)]) -> String {
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for (name, value) in pairs.iter().filter(|(_, value)| !value.is_empty()) {
        text += &format!("{name:<width$}  {}\n", plain(value, ""));
    }
    text
}

/// Text that does nothing to a terminal: names that others chose may hold control characters.
pub(super) fn plain(text: &str, kept: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter.is_control() && !kept.contains(letter) {
            shown.extend(letter.escape_default());
        } else {
            shown.push(letter);
        }
    }
    shown
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
    fn text_is_cut_to_the_terminal_and_numbers_are_not() {
        let mut table = Table::new(&[
            ("PREFIX", Align::Left),
            ("K", Align::Right),
            ("ALGORITHM", Align::Left),
        ]);
        table.row(["0123456789abcdef".into(), "1234567".into(), "kri-d".into()]);
        let whole = "\
            PREFIX                  K  ALGORITHM\n\
            0123456789abcdef  1234567  kri-d\n";
        assert_eq!(table.within(None), whole);
        assert_eq!(table.within(Some(36)), whole);
        assert_eq!(
            table.within(Some(35)),
            "\
            PREFIX                 K  ALGORITHM\n\
            0123456789abcd…  1234567  kri-d\n"
        );
        let least = "\
            PREFIX          K  ALGORITHM\n\
            0123456…  1234567  kri-d\n";
        for columns in [28, 1, 0] {
            assert_eq!(table.within(Some(columns)), least, "{columns}");
        }
    }

    #[test]
    fn a_name_moves_no_cursor_and_makes_no_rows() {
        let mut table = Table::new(&[("NAME", Align::Left), ("K", Align::Right)]);
        table.row(["\u{1b}]0;a\u{7}\nb 9".into(), "16".into()]);
        assert_eq!(
            table.within(None),
            "NAME                   K\n\\u{1b}]0;a\\u{7}\\nb 9  16\n"
        );
        assert_eq!(facts(&[("a", "\r1".to_owned())]), "a  \\r1\n");
        assert_eq!(plain("é\t1\u{9b}\n", "\n\t"), "é\t1\\u{9b}\n");
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
