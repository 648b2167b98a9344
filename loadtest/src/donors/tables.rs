//! The tables and lines of `donors`, for people.

use super::{
    contention::{Contention, FindTimes},
    report::{DonorsReport, MixedReport, SizeReport},
    seen::NeighboursReport,
};
use crate::{prompts::Class, table::Table};

/// Growth, classes at the largest number of donors, and what only some numbers have.
#[must_use]
pub fn tables(report: &DonorsReport) -> String {
    let growth = growth_table(&report.growth);
    let last = report.last.as_ref().map_or_else(String::new, |last| {
        let alone = format!(
            "look-ups alone: {:.0}/s, in the server p50 {:.0} us, p99 {:.0} us, round trip p50 \
             {:.0} us, p99 {:.0} us\n",
            last.find_rps,
            last.find_p50_us,
            last.find_p99_us,
            last.round_trip_p50_us,
            last.round_trip_p99_us,
        );
        let [classes, neighbours] = [class_table(last), neighbours_table(last)];
        format!("{classes}\n{neighbours}\n{alone}")
    });
    let further: String = report.growth.iter().map(further_lines).collect();
    format!("{growth}\n{last}{further}")
}

/// One number of donors in one line, for who waits.
#[must_use]
pub fn line(size: &SizeReport) -> String {
    let memory = size.rss_mb.zip(size.rss_bytes_per_token);
    let memory = memory.map_or_else(String::new, |(megabytes, each)| {
        format!("{megabytes:.0} MB ({each:.2} B a token), ")
    });
    let MixedReport {
        seen,
        rate_per_s,
        client_cpu_share,
        sent_late_p99_us,
        ..
    } = size.mixed;
    format!(
        "{} donors: {memory}registered at {:.0}/s, search p50 {:.0} us, p99 {:.0} us, p99.9 {:.0} \
         us at {rate_per_s:.0} calls/s, {} of {} right; the client took {client_cpu_share:.2} of \
         a core at full load, and sent 99 % within {sent_late_p99_us:.0} us of their time{}",
        size.donors,
        size.register_per_s,
        seen.search_p50_us,
        seen.search_p99_us,
        seen.search_p999_us,
        size.right,
        size.asked,
        behind(size),
    )
}

/// What the server had not done yet when look-ups began.
fn behind(size: &SizeReport) -> String {
    match (size.settled, size.sketches_behind) {
        (Some(false), Some(count)) => format!("; {count} donors not among the neighbours yet"),
        (Some(false), None) => "; still busy behind registrations".to_owned(),
        (Some(true) | None, _) => String::new(),
    }
}

/// One row a number of donors, under the mixed load.
fn growth_table(growth: &[SizeReport]) -> String {
    let mut table = Table::new(&[
        "donors",
        "MB",
        "B/token",
        "registered/s",
        "calls/s",
        "p50 us",
        "p99 us",
        "p99.9 us",
        "neighbours p99 us",
        "not yet there",
        "client late p99 us",
        "right",
        "false",
        "failed",
    ]);
    let known = |value: Option<f64>, digits| {
        value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
    };
    for size in growth {
        let seen = &size.mixed.seen;
        table.row([
            size.donors.to_string(),
            known(size.rss_mb, 0),
            known(size.rss_bytes_per_token, 2),
            format!("{:.0}", size.register_per_s),
            format!("{:.0}", size.mixed.rate_per_s),
            format!("{:.0}", seen.search_p50_us),
            format!("{:.0}", seen.search_p99_us),
            format!("{:.0}", seen.search_p999_us),
            format!("{:.0}", seen.neighbours.p99_us),
            known(size.sketches_behind.map(|count| count as f64), 0),
            format!("{:.0}", size.mixed.sent_late_p99_us),
            percent(size.right, size.asked),
            size.false_spans.to_string(),
            size.failed.to_string(),
        ]);
    }
    table.render()
}

/// The search by class, one look-up at a time and under the mixed load.
fn class_table(size: &SizeReport) -> String {
    let mut table = Table::new(&[
        "class",
        "asked",
        "right",
        "coverage",
        "of best",
        "false",
        "p50 us",
        "p99 us",
        "loaded p50",
        "p99",
        "p99.9",
    ]);
    for class in Class::ALL {
        let Some(report) = size.classes.get(class.name()) else {
            continue;
        };
        table.row([
            class.name().to_owned(),
            report.asked.to_string(),
            percent(report.right, report.asked),
            format!("{:.4}", report.coverage),
            format!("{:.4}", report.coverage_of_best),
            report.false_spans.to_string(),
            format!("{:.0}", report.idle.search_p50_us),
            format!("{:.0}", report.idle.search_p99_us),
            format!("{:.0}", report.mixed.search_p50_us),
            format!("{:.0}", report.mixed.search_p99_us),
            format!("{:.0}", report.mixed.search_p999_us),
        ]);
    }
    table.render()
}

/// The classes of which any look-up asked neighbours, by the whole time that it took.
fn neighbours_table(size: &SizeReport) -> String {
    let mut table = Table::new(&[
        "asked neighbours",
        "idle",
        "nominated",
        "late",
        "refused",
        "p50 us",
        "p99 us",
        "loaded",
        "nominated",
        "late",
        "refused",
        "p50 us",
        "p99 us",
    ]);
    for class in Class::ALL {
        let Some(report) = size.classes.get(class.name()) else {
            continue;
        };
        let [idle, mixed] = [&report.idle.neighbours, &report.mixed.neighbours];
        if idle.asked + mixed.asked == 0 {
            continue;
        }
        let cells = [idle, mixed].into_iter().flat_map(neighbours_cells);
        table.row([class.name().to_owned()].into_iter().chain(cells));
    }
    table.render()
}

fn neighbours_cells(of: &NeighboursReport) -> [String; 6] {
    [
        of.asked.to_string(),
        of.nominated.to_string(),
        of.late.to_string(),
        of.refused.to_string(),
        format!("{:.0}", of.p50_us),
        format!("{:.0}", of.p99_us),
    ]
}

/// What only some numbers of donors have.
fn further_lines(size: &SizeReport) -> String {
    let contention = size.contention.as_ref();
    let contention = contention.map_or_else(String::new, |beside| {
        format!(
            "{}{}\n",
            contention_table(size.donors, beside),
            costs(beside)
        )
    });
    let restart = size.restart.map_or_else(String::new, |restart| {
        format!(
            "{} donors there {:.2} s after the start; {} of {} right\n",
            restart.held_donors, restart.start_s, restart.right, restart.asked
        )
    });
    contention + &restart
}

fn contention_table(donors: usize, beside: &Contention) -> String {
    let first = format!("{donors} donors, {:.0} look-ups/s", beside.finds_per_s);
    let mut table = Table::new(&[
        &first,
        "p50 us",
        "p99 us",
        "search p99",
        "neighbours p99",
        "round trip p99",
        "client late p99",
        "client cores",
    ]);
    let row = |what: String, times: &FindTimes| {
        [
            what,
            format!("{:.0}", times.p50_us),
            format!("{:.0}", times.p99_us),
            format!("{:.0}", times.seen.search_p99_us),
            format!("{:.0}", times.seen.neighbours.p99_us),
            format!("{:.0}", times.round_trip_p99_us),
            format!("{:.0}", times.sent_late_p99_us),
            format!("{:.2}", times.client_cpu_share),
        ]
    };
    table.row(row("alone".to_owned(), &beside.idle));
    let busy = format!("beside {:.0} registrations/s", beside.registrations_per_s);
    table.row(row(busy, &beside.busy));
    let ratios = &beside.p99_ratios;
    table.row([
        "times".to_owned(),
        String::new(),
        format!("{:.2}", ratios.whole),
        format!("{:.2}", ratios.search),
        format!("{:.2}", ratios.neighbours),
        format!("{:.2}", ratios.round_trip),
    ]);
    format!("\n{}", table.render())
}

fn costs(beside: &Contention) -> String {
    format!(
        "{:.0} registrations/s in bulk, {:.0} removals/s",
        beside.bulk_registrations_per_s, beside.removals_per_s
    )
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.1} %", part as f64 * 100.0 / whole as f64)
}
