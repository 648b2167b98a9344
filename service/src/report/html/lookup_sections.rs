//! What look-ups came to: numbers, time, classes, namespaces, spreads, gates, donors.

use super::{
    bar_row,
    chart::{self, Piece},
    escape, line_row, spaced,
};
use crate::report::{
    show,
    summary::{Spread, Summary, TimeSeries, YieldRow},
};

const NO_LOOKUP: &str = "<p class=\"none\">No look-up was recorded.</p>\n";

pub(super) fn numbers(summary: &Summary) -> String {
    let found = show::share(summary.found, summary.lookups);
    let reusable = show::share(summary.reusable_tokens, summary.prompt_tokens);
    let mut tiles = vec![
        (
            "look-ups",
            show::short(summary.lookups),
            rate(summary).unwrap_or_default(),
        ),
        (
            "found",
            found,
            format!("{} look-ups", show::short(summary.found)),
        ),
        (
            "reusable tokens",
            show::short(summary.reusable_tokens),
            format!(
                "{reusable} of {} prompt tokens",
                show::short(summary.prompt_tokens)
            ),
        ),
    ];
    let savings = &summary.savings;
    let currency = &summary.assumptions.currency;
    if let (Some(prefix), Some(spans)) = (savings.prefix_seconds, savings.spans_seconds) {
        let more = format!(
            "prefixes {}, spans {}",
            show::seconds(prefix),
            show::seconds(spans)
        );
        tiles.push(("prefill time to save", show::seconds(prefix + spans), more));
    }
    if let (Some(prefix), Some(spans)) = (savings.prefix_cost, savings.spans_cost) {
        let more = format!(
            "prefixes {}, spans {}",
            show::money(prefix, currency),
            show::money(spans, currency)
        );
        tiles.push(("cost to save", show::money(prefix + spans, currency), more));
    }
    let mut text = String::from("<div class=\"tiles\">");
    for (name, number, more) in &tiles {
        text += &format!(
            "<div class=\"tile\"><span>{name}</span><strong>{}</strong><small>{}</small></div>",
            escape(number),
            escape(more)
        );
    }
    text + "</div>" + &reckoning(summary)
}

fn rate(summary: &Summary) -> Option<String> {
    let ms = summary.to_ms?.checked_sub(summary.from_ms?)?;
    let per_hour = summary.lookups.checked_mul(3_600_000)?.checked_div(ms)?;
    Some(match per_hour {
        0..36_000 => format!("{} an hour", show::short(per_hour)),
        _ => format!("{} a second", show::short(per_hour / 3_600)),
    })
}

fn reckoning(summary: &Summary) -> String {
    let assumed = &summary.assumptions;
    let text = match (assumed.prefill_tokens_per_second, assumed.cost_per_gpu_hour) {
        (None, _) => "Time and cost are reckoned when --prefill-tokens-per-second (and \
                      --cost-per-gpu-hour) say what yours are."
            .to_owned(),
        (Some(rate), price) => {
            let price = price.map_or_else(String::new, |price| {
                format!(", at {} a GPU hour", show::money(price, &assumed.currency))
            });
            format!(
                "Reckoned with a prefill of {} tokens a second{price}: what engines would save \
                 if they loaded everything that was found, not counting what loading takes.",
                show::number(rate)
            )
        }
    };
    format!("<p class=\"note\">{}</p>\n", escape(&text))
}

pub(super) fn time(summary: &Summary) -> String {
    let mut text = String::from("<h2>Look-ups over time</h2>");
    let TimeSeries {
        from_ms,
        width_ms,
        bars,
    } = &summary.time;
    if bars.is_empty() {
        return text + NO_LOOKUP;
    }
    let to_ms = from_ms.saturating_add(width_ms.saturating_mul(bars.len() as u64));
    let on_one_day = from_ms / 86_400_000 == to_ms / 86_400_000;
    let titles: Vec<String> = bars
        .iter()
        .zip(0_u64..)
        .map(|([prefix, spans, miss], at)| {
            let when = show::tick(from_ms.saturating_add(at * width_ms), on_one_day);
            format!("{when}: {prefix} prefix, {spans} spans, {miss} miss")
        })
        .collect();
    let columns: Vec<Vec<Piece<'_>>> = bars
        .iter()
        .zip(&titles)
        .map(|([prefix, spans, miss], title)| {
            vec![
                ("c-exact_prefix", title.as_str(), *prefix),
                ("c-spans", title, *spans),
                ("c-nothing_alike", title, *miss),
            ]
        })
        .collect();
    let tallest = bars.iter().map(|bar| bar.iter().sum::<u64>()).max();
    let each = show::duration(*width_ms);
    text += &format!(
        "<p class=\"top\">{} look-ups in {}</p>",
        show::short(tallest.unwrap_or(0)),
        escape(&each)
    );
    text += &chart::columns(&columns, None, "Look-ups over time, by outcome");
    let middle = show::tick(from_ms + (to_ms - from_ms) / 2, on_one_day);
    text += &chart::axis(&[
        &show::tick(*from_ms, on_one_day),
        &middle,
        &show::tick(to_ms, on_one_day),
    ]);
    text + &chart::legend(&[
        ("c-exact_prefix", "prefix"),
        ("c-spans", "spans"),
        ("c-nothing_alike", "miss"),
    ])
}

pub(super) fn classes(summary: &Summary) -> String {
    let mut text = String::from("<h2>What look-ups came to</h2>");
    if summary.lookups == 0 {
        return text + NO_LOOKUP;
    }
    let most = summary.classes.iter().map(|row| row.lookups).max();
    let most = most.unwrap_or(0);
    for row in summary.classes.iter().filter(|row| row.lookups > 0) {
        let class = format!("c-{}", row.class);
        let share = show::share(row.lookups, summary.lookups);
        let pieces = [(class.as_str(), row.title, row.lookups)];
        let bar = chart::stacked(&pieces, most, row.title);
        text += &line_row(row.title, &bar, &share, &show::short(row.lookups));
    }
    if !summary.reasons.is_empty() {
        text += "<details><summary>By reason</summary>";
        for reason in &summary.reasons {
            let pieces = [("c-nothing_alike", reason.name, reason.count)];
            let most = summary.reasons.iter().map(|it| it.count).max();
            let bar = chart::stacked(&pieces, most.unwrap_or(0), reason.name);
            let count = show::grouped(reason.count);
            text += &line_row(&spaced(reason.name), &bar, &count, "");
        }
        text += "</details>\n";
    }
    text
}

pub(super) fn namespaces(summary: &Summary) -> String {
    let mut text = String::from("<h2>By namespace</h2>");
    if summary.lookups == 0 {
        return text + NO_LOOKUP;
    }
    for row in &summary.namespaces {
        let titled: Vec<(String, String, u64)> = row
            .classes
            .iter()
            .map(|it| {
                let title = format!("{}: {}", spaced(it.name), show::grouped(it.count));
                (format!("c-{}", it.name), title, it.count)
            })
            .collect();
        let pieces: Vec<Piece<'_>> = titled
            .iter()
            .map(|(class, title, count)| (class.as_str(), title.as_str(), *count))
            .collect();
        let bar = chart::stacked(&pieces, row.lookups, &row.namespace);
        let found = format!("{} found", show::share(row.found, row.lookups));
        let more = format!(
            "of {}; {} of tokens",
            show::short(row.lookups),
            show::share(row.reusable_tokens, row.prompt_tokens)
        );
        text += &bar_row(&row.namespace, &bar, &found, &more);
    }
    let shown: u64 = summary.namespaces.iter().map(|row| row.lookups).sum();
    let rest = summary
        .namespaces_known
        .saturating_sub(summary.namespaces.len());
    if rest > 0 || summary.namespaces_beyond > 0 {
        text += &format!("<p class=\"note\">{rest} more namespaces are not shown.</p>");
    }
    let without = summary.lookups.saturating_sub(shown);
    if rest == 0 && without > 0 {
        text += &format!(
            "<p class=\"note\">{} look-ups named no complete namespace.</p>",
            show::grouped(without)
        );
    }
    let there = summary.classes.iter().filter(|row| row.lookups > 0);
    let entries: Vec<(String, &str)> = there
        .map(|row| (format!("c-{}", row.class), row.title))
        .collect();
    let entries: Vec<(&str, &str)> = entries
        .iter()
        .map(|(class, title)| (class.as_str(), *title))
        .collect();
    text + &chart::legend(&entries)
}

pub(super) fn spreads(summary: &Summary) -> String {
    let limits = summary.gates.limits;
    let mut text = String::from("<h2>How alike prompts are</h2><div class=\"pair\">");
    for (name, spread, limit) in [
        (
            "Similarity",
            &summary.similarity,
            limits.map(|it| it.min_similarity.value()),
        ),
        (
            "Reuse ratio",
            &summary.reuse_ratio,
            limits.map(|it| it.min_reuse_ratio.value()),
        ),
    ] {
        text += &format!(
            "<div><h3>{name}</h3>{}</div>",
            histogram(name, spread, limit)
        );
    }
    text += "</div>";
    let entries = [("c-exact_prefix", "found"), ("c-below_gates", "refused")];
    text += &chart::legend(&entries);
    text += "<p class=\"note\">Of the donor that was nominated, or of the best that was refused; \
             look-ups without any candidate are not in it. The line is the gate now.</p>\n";
    text
}

fn histogram(name: &str, spread: &Spread, limit: Option<f64>) -> String {
    let both = spread.found.iter().zip(&spread.refused);
    let titles: Vec<String> = both
        .clone()
        .zip(0_u32..)
        .map(|((found, refused), at)| {
            let from = f64::from(at) / 20.0;
            let to = from + 0.05;
            format!("{from:.2} to {to:.2}: {found} found, {refused} refused")
        })
        .collect();
    let columns: Vec<Vec<Piece<'_>>> = both
        .zip(&titles)
        .map(|((found, refused), title)| {
            vec![
                ("c-exact_prefix", title.as_str(), *found),
                ("c-below_gates", title, *refused),
            ]
        })
        .collect();
    let tallest = spread.found.iter().zip(&spread.refused).map(|(a, b)| a + b);
    let tallest = tallest.max().unwrap_or(0);
    format!(
        "<p class=\"top\">{} look-ups</p>{}{}",
        show::short(tallest),
        chart::columns(&columns, limit, name),
        chart::axis(&["0", "0.25", "0.5", "0.75", "1"])
    )
}

pub(super) fn gates(summary: &Summary) -> String {
    let gates = &summary.gates;
    let mut text = String::from("<h2>What the gates refuse</h2><div class=\"pair\"><div>");
    text += "<h3>Refused first by</h3>";
    if gates.refused.is_empty() {
        text += "<p class=\"none\">No look-up was refused by a gate.</p>";
    }
    for gate in &gates.refused {
        let pieces = [("c-below_gates", gate.name, gate.count)];
        let most = gates.refused.iter().map(|it| it.count).max().unwrap_or(0);
        let bar = chart::stacked(&pieces, most, gate.name);
        let share = show::share(gate.count, summary.lookups);
        text += &bar_row(gate.name, &bar, &share, &show::short(gate.count));
    }
    if gates.by_several > 0 {
        text += &format!(
            "<p class=\"note\">{} are refused by more than one gate: no gate alone lets them \
             pass.</p>",
            show::grouped(gates.by_several)
        );
    }
    text += "</div><div><h3>If one gate were lower</h3>";
    text += &relaxed(summary);
    text += "</div></div><p class=\"note\">Look-ups whose best refused candidate would have passed \
             if this gate alone stood there, and the tokens that it had to give. With lower gates \
             another donor may be better still. What \
             min_prompt_tokens and exact_prefix_skip_ratio refuse was not searched: nothing is \
             known of it.</p>\n";
    text
}

fn relaxed(summary: &Summary) -> String {
    let gates = &summary.gates;
    let mut text = String::new();
    let steps = gates.relaxed.iter().flat_map(|gate| &gate.steps);
    let most = steps.map(|step| step.lookups).max().unwrap_or(0);
    for gate in &gates.relaxed {
        if gate.steps.iter().all(|step| step.lookups == 0) {
            continue;
        }
        text += &format!("<p class=\"gate\">{}</p>", escape(gate.gate));
        for step in gate.telling() {
            let at = match gate.gate {
                "min_reuse_tokens" => format!("at {}", step.at),
                _ => format!("at {:.2}", step.at),
            };
            let pieces = [("c-spans", at.as_str(), step.lookups)];
            let bar = chart::stacked(&pieces, most, &at);
            let more = format!("+{} tokens", show::short(step.tokens));
            text += &bar_row(&at, &bar, &format!("+{}", show::short(step.lookups)), &more);
        }
    }
    if text.is_empty() {
        text += "<p class=\"none\">Nothing that was refused would pass.</p>";
    }
    text
}

pub(super) fn donors(summary: &Summary) -> String {
    let mut text = String::from("<h2>What gives most tokens</h2><div class=\"pair\">");
    text += &most_reused(
        "Donors",
        &summary.donors,
        (summary.donors_known, summary.donors_beyond),
    );
    text += &most_reused(
        "Templates",
        &summary.templates,
        (summary.templates_known, summary.templates_beyond),
    );
    text + "</div><p class=\"note\">Tokens that could be reused, and in how many look-ups. \
             Templates are prompts that begin with the same 64 tokens.</p>\n"
}

fn most_reused(title: &str, rows: &[YieldRow], (known, beyond): (usize, u64)) -> String {
    let mut text = format!("<div><h3>{title}</h3>");
    if rows.is_empty() {
        return text + "<p class=\"none\">None gave anything.</p></div>";
    }
    let most = rows.iter().map(|row| row.reusable_tokens).max();
    for row in rows {
        let pieces = [(
            "c-verified_prefix",
            row.digest.as_str(),
            row.reusable_tokens,
        )];
        let bar = chart::stacked(&pieces, most.unwrap_or(0), &row.digest);
        let tokens = show::short(row.reusable_tokens);
        let lookups = show::short(row.lookups);
        let more = match row.found == row.lookups {
            true => format!("{lookups} look-ups"),
            false => format!("{} of {lookups}", show::short(row.found)),
        };
        text += &bar_row(&row.digest, &bar, &tokens, &more);
    }
    let lower = title.to_lowercase();
    text += &format!(
        "<p class=\"note\">Of {} {lower}.",
        show::grouped(known as u64)
    );
    if beyond > 0 {
        text += &format!(
            " {} look-ups named others, which were too many to tell apart.",
            show::grouped(beyond)
        );
    }
    text + "</p></div>"
}
