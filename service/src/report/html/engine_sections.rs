//! What engines reported, how far their events can be believed, how long things took, manifests.

use super::{
    chart::{self, Piece},
    escape, line_row, spaced,
};
use crate::{
    report::{
        show,
        summary::{Count, Summary},
    },
    telemetry::words::SourceState,
};

pub(super) fn engines(summary: &Summary) -> String {
    let engines = &summary.engines;
    let mut text = String::from("<h2>What engines reported</h2>");
    let most = engines.reports.iter().map(|row| row.reports).max();
    let most = most.unwrap_or(0);
    if most == 0 {
        text += "<p class=\"none\">Nothing. Reuse is counted only from what engines report \
                 (ReportReuse), so that all of the above is what could be, not what was.</p>";
    } else {
        for row in &engines.reports {
            let pieces = [("c-verified_prefix", row.provenance, row.reports)];
            let bar = chart::stacked(&pieces, most, row.provenance);
            let more = match row.tokens {
                0 => String::new(),
                tokens => format!("{} tokens", show::short(tokens)),
            };
            let name = spaced(row.provenance);
            text += &line_row(&name, &bar, &show::short(row.reports), &more);
        }
    }
    let mut facts = Vec::new();
    if engines.failed > 0 {
        let blocks = show::grouped(engines.invalid_blocks);
        let failed = show::grouped(engines.failed);
        facts.push(format!(
            "{failed} loads failed, {blocks} blocks were invalid."
        ));
    }
    let savings = &summary.savings;
    if let Some(seconds) = savings.loaded_seconds.filter(|_| savings.loaded_tokens > 0) {
        let saved = show::seconds(seconds);
        facts.push(format!("What was loaded stands for {saved} of prefill."));
    }
    let leased = show::grouped(summary.leases.given);
    facts.push(format!("{leased} look-ups were given a lease."));
    for refusal in &summary.leases.refused {
        let count = show::grouped(refusal.count);
        facts.push(format!("{count} got none: {}.", spaced(refusal.name)));
    }
    facts.push(match engines.facts_compared {
        0 => "No texts were compared, so that nothing is known of differing facts.".into(),
        all => format!(
            "Of {} texts that were compared, {} differ in a fact.",
            show::grouped(all),
            show::share(engines.facts_differ, all)
        ),
    });
    text + &format!("<p class=\"note\">{}</p>\n", escape(&facts.join(" ")))
}

pub(super) fn sources(summary: &Summary) -> String {
    let sources = &summary.sources;
    let mut text = String::from("<h2>Workers' events</h2>");
    let all: u64 = sources.seen.iter().map(|it| it.count).sum();
    if all == 0 {
        return text + "<p class=\"none\">No worker was followed.</p>\n";
    }
    let pieces: Vec<Piece<'_>> = [
        ("s-exact", SourceState::Exact),
        ("s-degraded", SourceState::Degraded),
        ("s-stale", SourceState::Stale),
    ]
    .map(|(class, state)| {
        (
            class,
            state.as_str(),
            count_of(&sources.seen, state.as_str()),
        )
    })
    .to_vec();
    text += &chart::stacked(&pieces, all, "Share of time in each state");
    let shares: Vec<(&str, String)> = pieces
        .iter()
        .map(|(class, name, count)| (*class, format!("{name} {}", show::share(*count, all))))
        .collect();
    let entries: Vec<(&str, &str)> = shares
        .iter()
        .map(|(class, text)| (*class, text.as_str()))
        .collect();
    text += &chart::legend(&entries);
    if let Some(at_ms) = sources.at_ms {
        text += &format!("<h3>At {}</h3>", show::moment(at_ms));
    }
    text += "<div class=\"scroll\"><table><thead><tr><th>worker</th><th>state</th>\
             <th class=\"n\">gaps</th><th class=\"n\">replays</th></tr></thead><tbody>";
    for row in &sources.workers {
        let state = row.state.as_str();
        text += &format!(
            "<tr><td class=\"mono\">{}</td><td><i class=\"swatch s-{state}\"></i>{state}</td>\
             <td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
            escape(&row.worker),
            show::grouped(row.gaps),
            show::grouped(row.replays)
        );
    }
    text += "</tbody></table></div>";
    let rest = sources.workers_known.saturating_sub(sources.workers.len());
    if rest > 0 {
        text += &format!("<p class=\"note\">{rest} more workers are not shown.</p>");
    }
    text
}

pub(super) fn latency(summary: &Summary) -> String {
    let mut text = String::from("<h2>How long it takes</h2>");
    if summary.latency.is_empty() {
        return text + "<p class=\"none\">Nothing was timed.</p>\n";
    }
    for row in &summary.latency {
        let us = row.us;
        let [p50, p99, max] = [us.p50, us.p99, us.max].map(show::microseconds);
        let label = format!("{}: median {p50}, p99 {p99}, at most {max}", row.what);
        let bar = chart::range(us.p50, us.p99, us.max, &label);
        text += &line_row(row.what, &bar, &p50, &format!("p99 {p99}"));
    }
    text += "<div class=\"row line\"><span class=\"name\"></span>";
    text += &chart::axis(&["1 µs", "1 ms", "10 s"]);
    text += "<span class=\"num\"></span></div>";
    text += "<details><summary>Quantiles</summary><div class=\"scroll\"><table><thead><tr>\
             <th></th><th class=\"n\">count</th><th class=\"n\">p50</th><th class=\"n\">p90</th>\
             <th class=\"n\">p99</th><th class=\"n\">p99.9</th><th class=\"n\">max</th></tr>\
             </thead><tbody>";
    for row in &summary.latency {
        let us = row.us;
        text += &format!(
            "<tr><td>{}</td><td class=\"n\">{}</td>",
            row.what,
            show::short(us.count)
        );
        for quantile in [us.p50, us.p90, us.p99, us.p999, us.max] {
            text += &format!("<td class=\"n\">{}</td>", show::microseconds(quantile));
        }
        text += "</tr>";
    }
    text += "</tbody></table></div></details>";
    text + "<p class=\"note\">Thick from the median to p99, thin to the longest.</p>\n"
}

pub(super) fn manifests(summary: &Summary) -> String {
    let manifests = &summary.manifests;
    let mut text = String::from("<h2>Manifests</h2>");
    if manifests.calls == 0 {
        return text + "<p class=\"none\">None was asked for.</p>\n";
    }
    for (title, counts) in [
        ("Outcome", &manifests.outcomes),
        ("From", &manifests.provenances),
        ("Algorithm", &manifests.algorithms),
        ("Policy", &manifests.policies),
        ("Why not as asked", &manifests.reasons),
    ] {
        if counts.is_empty() {
            continue;
        }
        text += &format!("<h3>{title}</h3>");
        for it in counts {
            let pieces = [("c-verified_prefix", it.name, it.count)];
            let bar = chart::stacked(&pieces, manifests.calls, it.name);
            let share = show::share(it.count, manifests.calls);
            text += &line_row(&spaced(it.name), &bar, &share, &show::short(it.count));
        }
    }
    if manifests.blocks_of > 0 {
        text += &format!(
            "<p class=\"note\">They name {} of the blocks of their prefixes.</p>\n",
            show::share(manifests.blocks, manifests.blocks_of)
        );
    }
    text
}

fn count_of(counts: &[Count], name: &str) -> u64 {
    let found = counts.iter().find(|it| it.name == name);
    found.map_or(0, |it| it.count)
}
