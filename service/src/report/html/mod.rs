//! The report as one HTML page: no script, nothing fetched, every text escaped.

pub(crate) mod chart;
mod engine_sections;
mod lookup_sections;
mod verdict_section;

pub(super) use verdict_section::value as verdict_value;

use super::{show, summary::Summary};

/// What the page and the console look like.
pub const STYLE: &str = include_str!("style.css");

/// One part of the page. The console replaces what it holds, by its id.
#[derive(Debug, Clone, Copy)]
pub struct Section {
    pub id: &'static str,
    /// Its width on wide screens.
    pub class: &'static str,
    pub render: fn(&Summary) -> String,
}

/// In the order of the page.
pub const SECTIONS: [Section; 12] = [
    section("verdict", "wide", verdict_section::verdict),
    section("numbers", "wide bare", lookup_sections::numbers),
    section("time", "wide", lookup_sections::time),
    section("classes", "half", lookup_sections::classes),
    section("namespaces", "half", lookup_sections::namespaces),
    section("spreads", "wide", lookup_sections::spreads),
    section("gates", "wide", lookup_sections::gates),
    section("donors", "wide", lookup_sections::donors),
    section("engines", "half", engine_sections::engines),
    section("sources", "half", engine_sections::sources),
    section("latency", "half", engine_sections::latency),
    section("manifests", "half", engine_sections::manifests),
];

const fn section(id: &'static str, class: &'static str, render: fn(&Summary) -> String) -> Section {
    Section { id, class, render }
}

/// The whole page.
#[must_use]
pub fn page(summary: &Summary) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>kvatlas report</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <header><h1>kvatlas report</h1>{}</header>\n",
        heading(summary)
    );
    for Section { id, class, render } in SECTIONS {
        let inside = render(summary);
        page += &format!("<section id=\"{id}\" class=\"{class}\">\n{inside}</section>\n");
    }
    page += &about(summary);
    page + "</main>\n</body>\n</html>\n"
}

fn heading(summary: &Summary) -> String {
    let mut text = format!("<p class=\"sub\">{}</p>", escape(&period(summary)));
    let lines = match summary.damaged_lines {
        0 => format!("{} records", show::grouped(summary.lines)),
        damaged => format!(
            "{} lines, of which {} are damaged and left out",
            show::grouped(summary.lines),
            show::grouped(damaged)
        ),
    };
    let version = summary.version.as_ref();
    let version = version.map_or_else(String::new, |it| format!(" · kvatlas {it}"));
    let line = format!("{} · {lines}{version}", summary.source);
    text += &format!("<p class=\"sub\">{}</p>", escape(&line));
    if let Some(connectors) = show::connector_lines(summary.connector_lines) {
        text += &format!("<p class=\"sub\">{}</p>", escape(&connectors));
    }
    text
}

/// From when to when.
#[must_use]
pub fn period(summary: &Summary) -> String {
    match (summary.from_ms, summary.to_ms) {
        (Some(from), Some(to)) => format!(
            "{} to {} ({})",
            show::moment(from),
            show::moment(to),
            show::duration(to - from)
        ),
        _ => "nothing recorded".into(),
    }
}

fn about(summary: &Summary) -> String {
    let modes: Vec<_> = summary.modes.iter().map(|mode| mode.name).collect();
    let modes = match modes.as_slice() {
        [] => "none".to_owned(),
        modes => modes.join(", ").replace('_', " "),
    };
    format!(
        "<footer><p>Similarity: verified tokens over the prompt's tokens beyond the engine's own \
         prefix. Reuse ratio: reusable tokens over all of the prompt's. Every reusable token was \
         compared with the prompt's own. Donors, owners and templates are digests under a key of \
         the server; nothing here holds tokens, texts or salts.</p>\
         <p>Modes of the look-ups: {}. Starts of the server or of a file: {}. Times are UTC.</p>\
         </footer>\n",
        escape(&modes),
        show::grouped(summary.starts)
    )
}

/// Text that cannot be mistaken for markup.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            other => escaped.push(other),
        }
    }
    escaped
}

/// A name and what it comes to, and a bar below; in one line where there is room.
pub(crate) fn line_row(name: &str, bar: &str, number: &str, more: &str) -> String {
    bar_row(name, bar, number, more).replacen("\"row\"", "\"row line\"", 1)
}

/// A name and what it comes to, and a bar below.
pub(crate) fn bar_row(name: &str, bar: &str, number: &str, more: &str) -> String {
    format!(
        "<div class=\"row\"><span class=\"name\">{}</span>{bar}<span class=\"num\">{}\
         <small>{}</small></span></div>\n",
        escape(name),
        escape(number),
        escape(more)
    )
}

// Names of the vocabulary as people spell them.
fn spaced(word: &str) -> String {
    word.replace('_', " ")
}
