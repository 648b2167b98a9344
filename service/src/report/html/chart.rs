//! Charts as inline SVG. Shapes stretch with the page; their words are HTML beside them, so that
//! they stay readable at every width. No style is inline: a strict policy may forbid it.

use std::fmt::Write as _;

use super::escape;

/// One piece of a stacked bar: the class that colours it, what it is called, how much it is.
pub(crate) type Piece<'a> = (&'a str, &'a str, u64);

/// Pieces beside one another over the whole width, in shares of `whole`.
pub(crate) fn stacked(pieces: &[Piece<'_>], whole: u64, label: &str) -> String {
    let mut svg = open("bar", 100, 10, label);
    let mut left = 0.0;
    for (class, title, count) in pieces.iter().filter(|(_, _, count)| *count > 0) {
        let width = of(*count, whole) * 100.0;
        svg += &rect(class, (left, 0.0, width, 10.0), title);
        left += width;
    }
    svg + "</svg>"
}

/// Upright bars, each a stack from the bottom up, and at most one mark between 0 and 1.
pub(crate) fn columns(columns: &[Vec<Piece<'_>>], mark: Option<f64>, label: &str) -> String {
    let total = |column: &Vec<Piece<'_>>| column.iter().map(|(_, _, n)| n).sum::<u64>();
    let tallest = columns.iter().map(total).max().unwrap_or(0);
    let wide = columns.len().max(1);
    let mut svg = open("columns", wide, 100, label);
    for (at, column) in columns.iter().enumerate() {
        let mut bottom = 100.0;
        for (class, title, count) in column.iter().filter(|(_, _, count)| *count > 0) {
            // Whatever there is can be seen.
            let height = (of(*count, tallest) * 100.0).max(0.6);
            bottom -= height;
            let left = real(at as u64) + 0.07;
            svg += &rect(class, (left, bottom, 0.86, height), title);
        }
    }
    if let Some(mark) = mark {
        let at = mark * real(wide as u64);
        let line = "<line class=\"mark\" y1=\"0\" y2=\"100\"";
        let _infallible = write!(svg, "{line} x1=\"{at:.3}\" x2=\"{at:.3}\"/>");
    }
    svg + "</svg>"
}

/// Decades of the time axis: 1 us to 10 s.
const DECADES: f64 = 7.0;

/// A range of times on a logarithmic axis: thick to the second, thin to the third.
pub(crate) fn range(from_us: u64, to_us: u64, end_us: u64, label: &str) -> String {
    let at = |us: u64| real(us.max(1)).log10() / DECADES * 100.0;
    let (from, to, end) = (at(from_us), at(to_us), at(end_us));
    let mut svg = open("bar", 100, 10, label);
    svg += &rect("track", (0.0, 4.5, 100.0, 1.0), "");
    svg += &rect("whisker", (from, 4.0, (end - from).max(0.0), 2.0), "");
    svg += &rect("range", (from, 1.0, (to - from).max(0.8), 8.0), label);
    svg + "</svg>"
}

pub(crate) fn axis(labels: &[&str]) -> String {
    let mut text = String::from("<div class=\"axis\">");
    for label in labels {
        text += &format!("<span>{}</span>", escape(label));
    }
    text + "</div>"
}

pub(crate) fn legend(entries: &[(&str, &str)]) -> String {
    let mut text = String::from("<p class=\"legend\">");
    for (class, title) in entries {
        text += &format!(
            "<span><i class=\"swatch {class}\"></i>{}</span>",
            escape(title)
        );
    }
    text + "</p>"
}

fn open(class: &str, width: usize, height: usize, label: &str) -> String {
    format!(
        "<svg class=\"{class}\" viewBox=\"0 0 {width} {height}\" preserveAspectRatio=\"none\" \
         role=\"img\" aria-label=\"{}\">",
        escape(label)
    )
}

fn rect(class: &str, (x, y, width, height): (f64, f64, f64, f64), title: &str) -> String {
    let shape = format!(
        "class=\"{class}\" x=\"{x:.2}\" y=\"{y:.2}\" width=\"{width:.2}\" height=\"{height:.2}\""
    );
    match title {
        "" => format!("<rect {shape}/>"),
        _ => format!("<rect {shape}><title>{}</title></rect>", escape(title)),
    }
}

fn of(some: u64, all: u64) -> f64 {
    match all {
        0 => 0.0,
        _ => real(some) / real(all),
    }
}

#[expect(clippy::cast_precision_loss, reason = "places on a screen")]
fn real(number: u64) -> f64 {
    number as f64
}
