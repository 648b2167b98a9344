//! Event messages from and to the wire.

use kvatlas_events::{
    event::Adapter,
    feed::{Progress, Source, State},
    view::{self, Item, Outcome, Prompt},
};
use kvatlas_proto::v1;
use tonic::Status;

use super::{
    check_length,
    donors::{ID_BYTES_MAX, tokens},
    invalid, namespace,
};
use crate::{
    donors::{
        namespace::{NO_ADAPTER, Namespace},
        owners::OwnerKey,
        scope::Workers,
        writes::NamespaceName,
    },
    events::{
        feeds::SourceStatus,
        fleet::{WorkerMatch, WorkerQuery},
        pushed::PushRefusal,
        sources::NamedSource,
    },
};

/// Most multimodal items of a prompt.
pub const ITEMS_MAX: usize = 1024;
/// Longest identifier of an item, in bytes.
pub const ITEM_BYTES_MAX: usize = 256;
/// Tokens a block where neither a namespace nor a worker's events say it.
const BLOCK_SIZE: u32 = 16;
/// Most requests that one call finishes.
pub const FINISHED_MAX: usize = 1000;

/// A question for workers whose fields have been checked.
#[derive(Debug)]
pub struct WorkerLookup {
    pub tokens: Vec<u32>,
    pub namespace: Option<NamespaceName>,
    pub pick: bool,
    pub request_id: String,
    items: Vec<v1::MultimodalItem>,
}

/// Checks a question for workers.
pub fn worker_lookup(request: v1::FindWorkersRequest) -> Result<WorkerLookup, Status> {
    let v1::FindWorkersRequest {
        tokens: prompt,
        namespace,
        pick,
        request_id,
        items,
    } = request;
    let tokens = tokens(prompt)?;
    let namespace = selected(namespace)?;
    check_length("request_id", &request_id, 0, ID_BYTES_MAX)?;
    if !request_id.is_empty() && !pick {
        return Err(invalid(
            "request_id",
            "is for a pick: set pick, or leave it out",
        ));
    }
    check_items(&items, tokens.len())?;
    Ok(WorkerLookup {
        tokens,
        namespace,
        pick,
        request_id,
        items,
    })
}

fn check_items(items: &[v1::MultimodalItem], prompt_tokens: usize) -> Result<(), Status> {
    if items.len() > ITEMS_MAX {
        let problem = format!("{} items, at most {ITEMS_MAX}", items.len());
        return Err(invalid("items", problem));
    }
    let mut free_from = 0;
    for item in items {
        check_length("items.identifier", &item.identifier, 1, ITEM_BYTES_MAX)?;
        let (start, end) = (
            u64::from(item.start),
            u64::from(item.start) + u64::from(item.tokens),
        );
        if item.tokens == 0 || end > prompt_tokens as u64 {
            let problem = format!(
                "placeholders {start} to {end}, must be at least one and lie in the prompt of \
                 {prompt_tokens} tokens"
            );
            return Err(invalid("items", problem));
        }
        if start < free_from {
            return Err(invalid(
                "items",
                "must be in the order of their starts, apart",
            ));
        }
        free_from = end;
    }
    Ok(())
}

impl WorkerLookup {
    /// The items in the domain's terms.
    #[must_use]
    pub fn items(&self) -> Vec<Item<'_>> {
        fn item(item: &v1::MultimodalItem) -> Item<'_> {
            Item {
                id: &item.identifier,
                start: item.start,
                tokens: item.tokens,
            }
        }
        self.items.iter().map(item).collect()
    }

    /// The question in the domain's terms; `whole` is the namespace that the request named, and
    /// `visible` the workers that its caller may know of.
    #[must_use]
    pub fn query<'a>(
        &'a self,
        items: &'a [Item<'a>],
        namespace: view::Namespace,
        whole: Option<&'a Namespace>,
        visible: &'a Workers,
    ) -> WorkerQuery<'a> {
        let has_unknown_items =
            whole.is_some_and(|whole| !whole.multimodal_hashes.is_empty()) && items.is_empty();
        WorkerQuery {
            prompt: Prompt {
                namespace,
                adapter: whole
                    .map(|whole| whole.adapter.as_str())
                    .filter(|adapter| *adapter != NO_ADAPTER)
                    .map(Adapter::Name),
                tenant: whole.map(|whole| whole.tenant_key.as_str()),
                items,
                tokens: &self.tokens,
            },
            visible,
            is_known: !has_unknown_items,
            block_size: whole.map_or(BLOCK_SIZE, |whole| whole.block_size),
        }
    }
}

/// Checks a source that is to be followed. A namespace comes with the call, never from a file:
/// callers must not have the server read any.
pub fn named_source(request: v1::AddEventSourceRequest) -> Result<NamedSource, Status> {
    let v1::AddEventSourceRequest { source, namespace } = request;
    let source: Source = source.parse().map_err(|error| invalid("source", error))?;
    if source.namespace.is_some() {
        let problem = "namespace= is for the command line: give the field `namespace`";
        return Err(invalid("source", problem));
    }
    let selector = namespace.map(|namespace| v1::NamespaceSelector {
        selector: Some(v1::namespace_selector::Selector::Namespace(namespace)),
    });
    let namespace = match selected(selector)? {
        None => None,
        Some(NamespaceName::Full(namespace)) => Some(*namespace),
        Some(NamespaceName::Id(_)) => return Err(invalid("namespace", "must be given in full")),
    };
    Ok(NamedSource { source, namespace })
}

/// A namespace that may be left out.
pub fn selected(selector: Option<v1::NamespaceSelector>) -> Result<Option<NamespaceName>, Status> {
    match selector {
        None => Ok(None),
        Some(selector) => namespace::required(Some(selector)).map(Some),
    }
}

/// Checks the ids of requests that are done.
pub fn finished(request: v1::FinishRequestsRequest) -> Result<Vec<String>, Status> {
    let ids = request.request_ids;
    if ids.is_empty() || ids.len() > FINISHED_MAX {
        let problem = format!("{} ids, must be 1 to {FINISHED_MAX}", ids.len());
        return Err(invalid("request_ids", problem));
    }
    for id in &ids {
        check_length("request_ids", id, 1, ID_BYTES_MAX)?;
    }
    Ok(ids)
}

#[must_use]
pub fn owner_to_wire(owner: &OwnerKey) -> v1::Owner {
    v1::Owner {
        worker_id: owner.worker_id.to_string(),
        data_parallel_rank: owner.data_parallel_rank,
    }
}

#[must_use]
pub fn state_to_wire(state: State) -> v1::SourceState {
    match state {
        State::Exact => v1::SourceState::Exact,
        State::Degraded => v1::SourceState::Degraded,
        State::Stale => v1::SourceState::Stale,
    }
}

#[must_use]
pub fn refusal_to_wire(refusal: PushRefusal) -> v1::PublishRefusal {
    match refusal {
        PushRefusal::TooMany => v1::PublishRefusal::TooMany,
        PushRefusal::Superseded => v1::PublishRefusal::Superseded,
        PushRefusal::Followed => v1::PublishRefusal::Followed,
        PushRefusal::RankTaken => v1::PublishRefusal::RankTaken,
    }
}

#[must_use]
pub fn worker_to_wire(found: &WorkerMatch) -> v1::WorkerMatch {
    let holding = found.holding;
    v1::WorkerMatch {
        owner: Some(owner_to_wire(&found.owner)),
        device_blocks: holding.device_blocks,
        device_tokens: holding.device_tokens(),
        lower_tier_blocks: holding.lower_blocks,
        source_state: state_to_wire(found.state).into(),
        load_blocks: found.load_blocks,
        lower_tier_tokens: holding.lower_tokens(),
        block_size: holding.block_size,
    }
}

#[must_use]
pub fn source_to_wire(status: SourceStatus) -> v1::EventSourceStatus {
    let Progress {
        state,
        epoch,
        applied,
        met,
        outcomes,
    } = status.progress;
    v1::EventSourceStatus {
        source: status.source.as_ref().map(spelled).unwrap_or_default(),
        worker_id: status.worker_id.into(),
        data_parallel_ranks: status.ranks,
        state: state_to_wire(state).into(),
        epoch,
        first_sequence: applied.map(|(first, _)| first),
        last_sequence: applied.map(|(_, last)| last),
        blocks: status.blocks,
        batches: met.batches,
        events: met.events,
        gaps: met.gaps,
        replays: met.replays,
        connections: met.connections,
        connection_failures: met.failures,
        unknown_events: met.unknown_events,
        malformed_events: met.malformed_events,
        undecodable_batches: met.decode_errors,
        refused_batches: met.refused_batches,
        malformed_messages: met.malformed_messages,
        dropped_batches: met.dropped_batches,
        outcomes: Outcome::ALL
            .iter()
            .map(|&(outcome, name)| (name.to_owned(), outcomes.get(outcome)))
            .filter(|(_, count)| *count > 0)
            .collect(),
    }
}

fn spelled(source: &Source) -> String {
    use std::fmt::Write as _;
    let Source {
        events,
        replay,
        worker,
        rank,
        namespace: _,
    } = source;
    let mut text = format!("tcp://{events}");
    if let Some(replay) = replay {
        // Writing to a String cannot fail.
        let _written = write!(text, ",replay=tcp://{replay}");
    }
    let _written = write!(text, ",worker={worker},rank={rank}");
    text
}
