//! What `events` tells.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Indexes, Served, ask::Asked, subject::Figures};
use crate::{args::EventsArgs, measure::median, table::Table};

/// What `events --json` prints. Of indexes, medians over the rounds.
#[derive(Debug, Serialize)]
pub struct EventsReport {
    pub workers: usize,
    pub blocks: usize,
    pub decode_gb_per_s: f64,
    /// The whole view: all rules, and hashing the tokens.
    pub view_stores_per_s: f64,
    pub view_bytes_per_entry: f64,
    /// The index alone: who uses it keeps a place for each block.
    pub stores_per_s: f64,
    pub chunk_events_per_s: f64,
    pub removes_per_s: f64,
    pub bytes_per_entry: f64,
    /// Of the whole view, without hashing the prompt.
    pub find_p50_us: f64,
    pub find_p99_us: f64,
    pub find_p99_us_with_writer: f64,
    /// From an engine's socket until the last batch is seen; one event of 128 new blocks a batch.
    pub zmq_batches_per_s_to_visible: f64,
    /// The same at capacity: 128 removals of one block each besides.
    pub zmq_churn_batches_per_s_to_visible: f64,
    /// From all workers' sockets at once.
    pub zmq_fleet_batches_per_s_to_visible: f64,
    #[serde(flatten)]
    pub asked: Asked,
    pub server_rss_mb: Option<f64>,
    /// Every index, ours and others', by the same operations.
    pub indexes: BTreeMap<String, Figures>,
}

impl EventsReport {
    pub(super) fn new(
        args: &EventsArgs,
        decode_gb_per_s: f64,
        indexes: &Indexes,
        served: Served,
    ) -> Self {
        let indexes: BTreeMap<String, Figures> = indexes
            .iter()
            .map(|(name, rounds)| (name.clone(), middle(rounds)))
            .collect();
        let of = |name: &str| indexes.get(name).cloned().unwrap_or_default();
        let (index, view) = (of("index"), of("view"));
        Self {
            workers: args.workers,
            blocks: view.entries,
            decode_gb_per_s,
            view_stores_per_s: view.stores_per_s,
            view_bytes_per_entry: view.bytes_per_entry,
            stores_per_s: index.stores_per_s,
            chunk_events_per_s: index.chunk_events_per_s,
            removes_per_s: index.removes_per_s,
            bytes_per_entry: index.bytes_per_entry,
            find_p50_us: view.find_p50_us.unwrap_or_default(),
            find_p99_us: view.find_p99_us.unwrap_or_default(),
            find_p99_us_with_writer: view.find_p99_us_with_writer.unwrap_or_default(),
            zmq_batches_per_s_to_visible: served.growth_batches_per_s,
            zmq_churn_batches_per_s_to_visible: served.churn_batches_per_s,
            zmq_fleet_batches_per_s_to_visible: served.fleet_batches_per_s,
            asked: served.asked,
            server_rss_mb: served.resident_mb,
            indexes,
        }
    }

    /// For people.
    #[must_use]
    pub fn table(&self) -> String {
        let mut table = Table::new(&[
            "index",
            "stores/s",
            "in churn",
            "removes/s",
            "128-block/s",
            "p50 us",
            "p99 us",
            "beside a writer",
            "bytes",
            "in churn",
        ]);
        let us = |value: Option<f64>| value.map_or("-".to_owned(), |us| format!("{us:.2}"));
        for (name, of) in &self.indexes {
            table.row([
                name.clone(),
                format!("{:.0}", of.stores_per_s),
                format!("{:.0}", of.churn_stores_per_s),
                format!("{:.0}", of.removes_per_s),
                format!("{:.0}", of.chunk_events_per_s),
                us(of.find_p50_us),
                us(of.find_p99_us),
                us(of.find_p99_us_with_writer),
                format!("{:.1}", of.bytes_per_entry),
                format!("{:.1}", of.churned_bytes_per_entry),
            ]);
        }
        let Asked {
            rpc_find_p50_us,
            rpc_find_p99_us,
            rpc_echo_p50_us,
            rpc_take_p50_us,
            rpc_find_of_echo,
            rpc_find_of_take,
        } = self.asked;
        format!(
            "{}{} workers, {} blocks of 16 tokens; prompts of 8,192 tokens\n\
             decoding: {:.2} GB/s\n\
             ZMQ to visible, batches of 128 blocks a second: {:.0} growing, {:.0} at capacity, \
             {:.0} from all workers at once\n\
             FindWorkers over gRPC: p50 {rpc_find_p50_us:.0} us, p99 {rpc_find_p99_us:.0} us; \
             echo of the same bytes {rpc_echo_p50_us:.0} us (ratio {rpc_find_of_echo:.2}), \
             taken without an answer {rpc_take_p50_us:.0} us ({rpc_find_of_take:.2})\n",
            table.render(),
            self.workers,
            self.blocks,
            self.decode_gb_per_s,
            self.zmq_batches_per_s_to_visible,
            self.zmq_churn_batches_per_s_to_visible,
            self.zmq_fleet_batches_per_s_to_visible,
        )
    }
}

/// Of each figure its median.
fn middle(rounds: &[Figures]) -> Figures {
    let of = |figure: fn(&Figures) -> f64| {
        let values: Vec<f64> = rounds.iter().map(figure).collect();
        median(&values)
    };
    let some = |figure: fn(&Figures) -> Option<f64>| {
        let values: Vec<f64> = rounds.iter().filter_map(figure).collect();
        (!values.is_empty()).then(|| median(&values))
    };
    Figures {
        entries: rounds.first().map_or(0, |figures| figures.entries),
        stores_per_s: of(|figures| figures.stores_per_s),
        churn_stores_per_s: of(|figures| figures.churn_stores_per_s),
        removes_per_s: of(|figures| figures.removes_per_s),
        chunk_events_per_s: of(|figures| figures.chunk_events_per_s),
        bytes_per_entry: of(|figures| figures.bytes_per_entry),
        churned_bytes_per_entry: of(|figures| figures.churned_bytes_per_entry),
        find_p50_us: some(|figures| figures.find_p50_us),
        find_p99_us: some(|figures| figures.find_p99_us),
        find_p50_us_with_writer: some(|figures| figures.find_p50_us_with_writer),
        find_p99_us_with_writer: some(|figures| figures.find_p99_us_with_writer),
        writer_events_per_s: some(|figures| figures.writer_events_per_s),
    }
}
