//! How the server is right now, as fragments of the console's page.

use super::pulse::{Pulse, SECONDS};
use crate::{
    report::{
        class::Class,
        html::{chart, escape, line_row},
        show,
    },
    telemetry::words::SourceState,
};

/// Workers and priors that are listed.
pub const ROWS_MAX: usize = 200;

/// What the server knows of itself.
#[derive(Debug, Clone, Default)]
pub struct State {
    pub version: &'static str,
    pub epoch: u64,
    pub uptime_ms: u64,
    pub mode: &'static str,
    /// False where calls are not recorded, so that nothing is known of them.
    pub records: bool,
    pub records_dropped: u64,
    pub calls: Used,
    pub donors: Used,
    pub donor_tokens: Used,
    pub namespaces: u64,
    pub owners_live: u64,
    pub leases: Used,
    pub leases_granted: u64,
    pub leases_released: u64,
    pub leases_expired: u64,
    pub leases_stale: u64,
    pub workers: Vec<Worker>,
    pub workers_known: usize,
    pub priors: Vec<Prior>,
    pub priors_known: usize,
}

/// So much of what there may be.
#[derive(Debug, Clone, Copy, Default)]
pub struct Used {
    pub now: u64,
    pub max: u64,
}

/// A worker whose events are followed.
#[derive(Debug, Clone)]
pub struct Worker {
    pub id: String,
    pub ranks: Vec<u32>,
    pub state: SourceState,
    pub blocks: u64,
    pub batches: u64,
    pub gaps: u64,
    pub replays: u64,
}

#[derive(Debug, Clone)]
pub struct Prior {
    pub prefix_hash: String,
    pub query_hash: String,
    pub algorithm: String,
    /// 0: the file does not say.
    pub blocks: u64,
    /// (layers, KV heads) of its scores; (0, 0) of a list of blocks.
    pub heads: (u32, u32),
}

/// One line about the server itself.
pub(super) fn server(state: &State) -> String {
    let mode = state.mode.replace('_', " ");
    let up = show::duration(state.uptime_ms);
    let line = format!(
        "{mode} · kvatlas {} · up {up} · epoch {}",
        state.version, state.epoch
    );
    escape(&line)
}

pub(super) fn now(state: &State, pulse: &Pulse) -> String {
    let lookups = pulse.lookups();
    let (per_second, manifests) = pulse.rates();
    let found = show::share(lookups.found(), lookups.total());
    let latency = pulse.latency();
    let [p50, p99] = match latency {
        Some(of) => [of.p50, of.p99].map(show::microseconds),
        None => ["–", "–"].map(str::to_owned),
    };
    let calls = format!("of {}", show::grouped(state.calls.max));
    let tiles = [
        (
            "look-ups a second",
            rate(per_second),
            "over 10 s".to_owned(),
        ),
        (
            "found",
            found,
            format!("of {} in 2 min", show::grouped(lookups.total())),
        ),
        ("look-up median", p50, format!("p99 {p99}, in 2 min")),
        (
            "manifests a second",
            rate(manifests),
            "over 10 s".to_owned(),
        ),
        ("calls in flight", show::grouped(state.calls.now), calls),
    ];
    let mut text = String::from("<div class=\"tiles\">");
    for (name, number, more) in &tiles {
        text += &format!(
            "<div class=\"tile\"><span>{name}</span><strong>{}</strong><small>{}</small></div>",
            escape(number),
            escape(more)
        );
    }
    text += "</div>";
    if !state.records {
        text += "<p class=\"note\">Calls are not recorded on this server: only what it holds is \
                 shown.</p>";
    } else if state.records_dropped > 0 {
        let dropped = show::grouped(state.records_dropped);
        text += &format!("<p class=\"note\">{dropped} records were dropped: too many at once.</p>");
    }
    text
}

pub(super) fn pulse(pulse: &Pulse) -> String {
    let seconds = pulse.seconds();
    let most = seconds.iter().map(|it| it.lookups.total()).max();
    let columns: Vec<Vec<chart::Piece<'_>>> = seconds
        .iter()
        .map(|second| {
            let of = |classes: &[Class]| classes.iter().map(|it| second.lookups.get(*it)).sum();
            let prefix: u64 = of(&[Class::ExactPrefix, Class::VerifiedPrefix]);
            let spans: u64 = of(&[Class::Spans]);
            let miss = second.lookups.total() - prefix - spans;
            vec![
                ("c-exact_prefix", "", prefix),
                ("c-spans", "", spans),
                ("c-nothing_alike", "", miss),
            ]
        })
        .collect();
    let missing = SECONDS.saturating_sub(columns.len());
    let columns: Vec<_> = std::iter::repeat_n(Vec::new(), missing)
        .chain(columns)
        .collect();
    let mut text = String::from("<h2>Look-ups, the last two minutes</h2>");
    let most = show::grouped(most.unwrap_or(0));
    text += &format!("<p class=\"top\">{most} in a second</p>");
    text += &chart::columns(&columns, None, "Look-ups a second, by outcome");
    text += &chart::axis(&["2 min ago", "1 min ago", "now"]);
    text += &chart::legend(&[
        ("c-exact_prefix", "prefix"),
        ("c-spans", "spans"),
        ("c-nothing_alike", "miss"),
    ]);
    let lookups = pulse.lookups();
    let most = lookups.0.iter().copied().max().unwrap_or(0);
    for class in Class::ALL
        .into_iter()
        .filter(|class| lookups.get(*class) > 0)
    {
        let name = format!("c-{}", class.as_str());
        let count = lookups.get(class);
        let bar = chart::stacked(&[(&name, class.title(), count)], most, class.title());
        let share = show::share(count, lookups.total());
        text += &line_row(class.title(), &bar, &share, &show::grouped(count));
    }
    text
}

pub(super) fn holds(state: &State) -> String {
    let mut text = String::from("<h2>Donors and leases</h2>");
    for (name, used) in [
        ("donors", state.donors),
        ("donor tokens", state.donor_tokens),
        ("leases held", state.leases),
    ] {
        let pieces = [("c-verified_prefix", name, used.now)];
        let bar = chart::stacked(&pieces, used.max, name);
        let of = format!("of {}", show::short(used.max));
        text += &line_row(name, &bar, &show::grouped(used.now), &of);
    }
    let facts = [
        ("namespaces", state.namespaces),
        ("owners live", state.owners_live),
        ("leases granted", state.leases_granted),
        ("released", state.leases_released),
        ("expired", state.leases_expired),
        ("stale", state.leases_stale),
    ];
    text += "<dl class=\"facts\">";
    for (name, count) in facts {
        text += &format!(
            "<div><dt>{name}</dt><dd>{}</dd></div>",
            show::grouped(count)
        );
    }
    text + "</dl>"
}

pub(super) fn workers(state: &State) -> String {
    let mut text = String::from("<h2>Workers</h2>");
    if state.workers.is_empty() {
        return text + "<p class=\"none\">No engine's events are followed.</p>";
    }
    text += "<div class=\"scroll\"><table><thead><tr><th>worker</th><th>state</th>\
             <th class=\"n\">blocks</th><th class=\"n\">batches</th><th class=\"n\">gaps</th>\
             <th class=\"n\">replays</th></tr></thead><tbody>";
    for worker in &state.workers {
        let ranks: Vec<String> = worker.ranks.iter().map(u32::to_string).collect();
        let id = match ranks.as_slice() {
            [] => worker.id.clone(),
            [one] if one == "0" => worker.id.clone(),
            ranks => format!("{} ({})", worker.id, ranks.join(", ")),
        };
        let state = worker.state.as_str();
        text += &format!(
            "<tr><td>{}</td><td><i class=\"swatch s-{state}\"></i>{state}</td>",
            escape(&id)
        );
        for count in [worker.blocks, worker.batches, worker.gaps, worker.replays] {
            text += &format!("<td class=\"n\">{}</td>", show::grouped(count));
        }
        text += "</tr>";
    }
    text += "</tbody></table></div>";
    text + &more(state.workers_known, state.workers.len(), "workers")
}

pub(super) fn priors(state: &State) -> String {
    let mut text = String::from("<h2>Priors</h2>");
    if state.priors.is_empty() {
        return text + "<p class=\"none\">None is stored: <code>kvatlas prior put</code>.</p>";
    }
    text += "<div class=\"scroll tall\"><table><thead><tr><th>prefix</th><th>algorithm</th>\
             <th class=\"n\">blocks</th><th class=\"n\">layers × heads</th></tr></thead><tbody>";
    for prior in &state.priors {
        let prefix = escape(&prior.prefix_hash);
        let query = match prior.query_hash.as_str() {
            "" => String::new(),
            query => format!(" <small>query {}</small>", escape(query)),
        };
        let heads = match prior.heads {
            (0, 0) => "–".to_owned(),
            (layers, heads) => format!("{layers} × {heads}"),
        };
        let blocks = match prior.blocks {
            0 => "–".to_owned(),
            blocks => show::grouped(blocks),
        };
        text += &format!(
            "<tr><td><button type=\"button\" class=\"pick\" data-prefix=\"{prefix}\">{prefix}\
             </button>{query}</td><td>{}</td><td class=\"n\">{blocks}</td>\
             <td class=\"n\">{heads}</td></tr>",
            escape(&prior.algorithm)
        );
    }
    text += "</tbody></table></div>";
    text + &more(state.priors_known, state.priors.len(), "priors")
}

fn more(known: usize, shown: usize, what: &str) -> String {
    match known.saturating_sub(shown) {
        0 => String::new(),
        rest => format!("<p class=\"note\">{rest} more {what} are not shown.</p>"),
    }
}

fn rate(per_second: f64) -> String {
    match per_second {
        ..10.0 => format!("{per_second:.1}"),
        _ => {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a rate above 10, shown as a whole number"
            )]
            let whole = per_second.round() as u64;
            show::short(whole)
        }
    }
}
