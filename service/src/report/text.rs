//! The report for a terminal, no wider than it.

use super::{
    html::{period, verdict_value},
    show,
    summary::{Count, Relaxed, Summary, YieldRow},
    verdict::{Check, Step, Value},
};

/// Narrower terminals get lines that wrap.
pub const COLUMNS_MIN: usize = 40;
/// Wider ones are not filled: long lines are hard to follow.
pub const COLUMNS_MAX: usize = 100;
/// Namespaces, donors and templates that are shown.
const ROWS_MAX: usize = 5;
const FULL: char = '█';
/// An eighth to seven eighths of a letter.
const PARTS: [char; 7] = ['▏', '▎', '▍', '▌', '▋', '▊', '▉'];
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The report in lines of at most `columns` letters.
#[must_use]
pub fn text(summary: &Summary, columns: usize) -> String {
    let columns = columns.clamp(COLUMNS_MIN, COLUMNS_MAX);
    let mut page = Page {
        text: String::new(),
        columns,
    };
    page.line(&period(summary));
    page.line(&format!(
        "{}: {} records",
        summary.source,
        show::grouped(summary.lines)
    ));
    if summary.damaged_lines > 0 {
        let damaged = show::grouped(summary.damaged_lines);
        page.line(&format!("{damaged} lines are damaged and left out"));
    }
    if let Some(connectors) = show::connector_lines(summary.connector_lines) {
        page.line(&connectors);
    }
    page.verdict(summary);
    page.savings(summary);
    page.lookups(summary);
    page.namespaces(summary);
    page.gates(summary);
    page.yields("Donors", &summary.donors);
    page.yields("Templates", &summary.templates);
    page.engines(summary);
    page.latency(summary);
    page.manifests(summary);
    page.sources(summary);
    page.text
}

struct Page {
    text: String,
    columns: usize,
}

impl Page {
    // Wrapped at words; a word that is longer than the line is cut.
    fn line(&mut self, line: &str) {
        let indent = line.len() - line.trim_start().len();
        let mut column = 0;
        for word in line.trim_start().split(' ') {
            let word: String = word.chars().take(self.columns).collect();
            let letters = word.chars().count();
            if column > indent && column + 1 + letters > self.columns {
                self.text.push('\n');
                column = 0;
            } else if column > indent {
                self.text.push(' ');
                column += 1;
            }
            if column == 0 {
                self.text.extend(std::iter::repeat_n(' ', indent));
                column = indent;
            }
            self.text += &word;
            column += letters;
        }
        self.text.push('\n');
    }

    fn heading(&mut self, heading: &str) {
        self.text.push('\n');
        self.line(heading);
    }

    // Name, bar and number; the bar gets what is left.
    fn row(&mut self, name: &str, (some, most): (u64, u64), number: &str) {
        const NAME: usize = 25;
        const NUMBER: usize = 22;
        let name: String = name.chars().take(NAME - 1).collect();
        let number_letters = number.chars().count().max(NUMBER.min(self.columns / 3));
        let room = self.columns.saturating_sub(NAME + 2 + number_letters + 1);
        let bar = bar(some, most, room);
        let line = format!("  {name:<NAME$}{bar:<room$} {number:>number_letters$}");
        let line: String = line.chars().take(self.columns).collect();
        self.text += line.trim_end();
        self.text.push('\n');
    }

    fn verdict(&mut self, summary: &Summary) {
        let verdict = &summary.verdict;
        self.heading(match verdict.step {
            Step::StayInDiscovery => "VERDICT: stay in discovery",
            Step::EnableExact => "VERDICT: enable exact loads",
            Step::TryVerified => "VERDICT: try verified spans",
        });
        self.line(&verdict.why);
        for (name, checks) in [
            ("base", &verdict.base),
            ("exact", &verdict.exact),
            ("verified", &verdict.verified),
        ] {
            for check in checks {
                self.check(name, check);
            }
        }
    }

    fn check(&mut self, part: &str, check: &Check) {
        let mark = if check.passes { "ok  " } else { "no  " };
        let limit = if check.is_minimum { ">=" } else { "<=" };
        let judged = check.judged.filter(|judged| *judged != Value::Unknown);
        let judged = judged.map_or_else(String::new, |judged| {
            let end = if check.is_minimum {
                "at least"
            } else {
                "at most"
            };
            format!(" ({end} {})", verdict_value(judged))
        });
        self.line(&format!(
            "  {mark}{part}: {} {}{judged} {limit} {}",
            check.name,
            verdict_value(check.measured),
            verdict_value(check.limit)
        ));
    }

    fn savings(&mut self, summary: &Summary) {
        let savings = &summary.savings;
        self.heading("REUSABLE");
        let reusable = show::share(summary.reusable_tokens, summary.prompt_tokens);
        self.line(&format!(
            "  {} of {} prompt tokens ({reusable}): prefixes {}, spans {}",
            show::short(summary.reusable_tokens),
            show::short(summary.prompt_tokens),
            show::short(savings.prefix_tokens),
            show::short(savings.spans_tokens)
        ));
        let Some((prefix, spans)) = savings.prefix_seconds.zip(savings.spans_seconds) else {
            self.line("  give --prefill-tokens-per-second to see the time that it stands for");
            return;
        };
        let mut line = format!("  {} of prefill", show::seconds(prefix + spans));
        if let Some((prefix, spans)) = savings.prefix_cost.zip(savings.spans_cost) {
            let cost = show::money(prefix + spans, &summary.assumptions.currency);
            line += &format!(", {cost}");
        }
        self.line(&(line + ", if engines loaded all of it"));
    }

    fn lookups(&mut self, summary: &Summary) {
        let found = show::share(summary.found, summary.lookups);
        self.heading(&format!(
            "LOOK-UPS: {}, {found} found",
            show::grouped(summary.lookups)
        ));
        let bars = &summary.time.bars;
        let totals: Vec<u64> = bars.iter().map(|bar| bar.iter().sum()).collect();
        let most = totals.iter().copied().max().unwrap_or(0);
        if bars.len() > 1 {
            let room = self.columns.saturating_sub(2);
            let levels: String = totals
                .iter()
                .map(|it| level(*it, most))
                .take(room)
                .collect();
            self.text += &format!("  {levels}\n");
            let each = show::duration(summary.time.width_ms);
            self.line(&format!("  each {each}, at most {}", show::short(most)));
        }
        let most = summary
            .classes
            .iter()
            .map(|row| row.lookups)
            .max()
            .unwrap_or(0);
        for row in summary.classes.iter().filter(|row| row.lookups > 0) {
            let share = show::share(row.lookups, summary.lookups);
            let number = format!("{} {share:>8}", show::short(row.lookups));
            self.row(row.title, (row.lookups, most), &number);
        }
    }

    fn namespaces(&mut self, summary: &Summary) {
        if summary.namespaces.is_empty() {
            return;
        }
        let known = summary.namespaces_known;
        self.heading(&format!("NAMESPACES: {known}; share found"));
        for row in summary.namespaces.iter().take(ROWS_MAX) {
            let share = show::share(row.found, row.lookups);
            let number = format!("of {} {share:>8}", show::short(row.lookups));
            self.row(&row.namespace, (row.found, row.lookups), &number);
        }
    }

    fn gates(&mut self, summary: &Summary) {
        let gates = &summary.gates;
        if gates.refused.is_empty() {
            return;
        }
        self.heading("GATES: refused first by");
        let most = gates.refused.iter().map(|it| it.count).max().unwrap_or(0);
        for gate in &gates.refused {
            let share = show::share(gate.count, summary.lookups);
            let number = format!("{} {share:>8}", show::short(gate.count));
            self.row(gate.name, (gate.count, most), &number);
        }
        let telling = |gate| Relaxed::telling(gate).map(|step| (gate.gate, step));
        let gains = gates.relaxed.iter().flat_map(telling);
        let gains: Vec<_> = gains.collect();
        if gains.is_empty() {
            return;
        }
        self.line("  Best candidates that would pass if one gate alone were lower:");
        for (gate, step) in gains {
            let (lookups, tokens) = (show::short(step.lookups), show::short(step.tokens));
            self.line(&format!(
                "    {gate} {}: +{lookups}, +{tokens} tokens",
                step.at
            ));
        }
    }

    fn yields(&mut self, title: &str, rows: &[YieldRow]) {
        if rows.is_empty() {
            return;
        }
        self.heading(&format!("{}: tokens reusable", title.to_uppercase()));
        let most = rows
            .iter()
            .map(|row| row.reusable_tokens)
            .max()
            .unwrap_or(0);
        for row in rows.iter().take(ROWS_MAX) {
            let tokens = show::short(row.reusable_tokens);
            self.row(&row.digest, (row.reusable_tokens, most), &tokens);
        }
    }

    fn engines(&mut self, summary: &Summary) {
        let engines = &summary.engines;
        let most = engines.reports.iter().map(|row| row.reports).max();
        let most = most.unwrap_or(0);
        self.heading("ENGINES REPORTED");
        if most == 0 {
            self.line("  nothing: all of the above is what could be, not what was");
            return;
        }
        for row in engines.reports.iter().filter(|row| row.reports > 0) {
            let tokens = show::short(row.tokens);
            let number = format!("{} ({tokens} tokens)", show::short(row.reports));
            let name = row.provenance.replace('_', " ");
            self.row(&name, (row.reports, most), &number);
        }
        if engines.failed > 0 {
            let failed = show::grouped(engines.failed);
            self.line(&format!("  {failed} loads failed"));
        }
    }

    fn latency(&mut self, summary: &Summary) {
        if summary.latency.is_empty() {
            return;
        }
        self.heading("TIME: p50, p99, max");
        for row in &summary.latency {
            let [p50, p99, max] = [row.us.p50, row.us.p99, row.us.max].map(show::microseconds);
            let line = format!("  {:<11}{p50:>9}{p99:>9}{max:>9}", row.what);
            self.text += &line;
            self.text.push('\n');
        }
    }

    fn manifests(&mut self, summary: &Summary) {
        let manifests = &summary.manifests;
        if manifests.calls == 0 {
            return;
        }
        self.heading(&format!("MANIFESTS: {}", show::grouped(manifests.calls)));
        for (name, counts) in [
            ("outcome", &manifests.outcomes),
            ("from", &manifests.provenances),
            ("policy", &manifests.policies),
        ] {
            self.line(&format!("  {name}: {}", words(counts, manifests.calls)));
        }
    }

    fn sources(&mut self, summary: &Summary) {
        let sources = &summary.sources;
        let all: u64 = sources.seen.iter().map(|it| it.count).sum();
        if all > 0 {
            self.heading(&format!(
                "WORKERS' EVENTS: {} workers",
                sources.workers_known
            ));
            self.line(&format!("  {}", words(&sources.seen, all)));
        }
    }
}

fn words(counts: &[Count], all: u64) -> String {
    let words = counts.iter().map(|it| {
        let name = it.name.replace('_', " ");
        format!("{name} {}", show::share(it.count, all))
    });
    words.collect::<Vec<_>>().join(", ")
}

// Eighths of a letter.
fn bar(some: u64, most: u64, letters: usize) -> String {
    let eighths = match most {
        0 => 0,
        _ => u128::from(some) * letters as u128 * 8 / u128::from(most),
    };
    // Whatever there is can be seen.
    let eighths = usize::try_from(eighths)
        .unwrap_or(0)
        .max(usize::from(some > 0));
    let mut bar: String = std::iter::repeat_n(FULL, eighths / 8).collect();
    bar.extend((eighths % 8).checked_sub(1).and_then(|at| PARTS.get(at)));
    bar
}

fn level(some: u64, most: u64) -> char {
    if some == 0 {
        return ' ';
    }
    let level = (u128::from(some) * 8 / u128::from(most.max(1))).saturating_sub(1);
    let level = usize::try_from(level).ok().and_then(|at| LEVELS.get(at));
    level.copied().unwrap_or('▁')
}
