//! Events about donors of other providers, and what a look-up makes of these donors.

use std::{pin::Pin, sync::Arc};

use kvatlas_proto::v1;
use tokio_stream::{Stream, StreamExt};
use tonic::{Status, Streaming};

use super::{
    Core,
    clock::Deadline,
    convert::{donors::Lookup, namespace::LookupNamespace},
    find::query,
};
use crate::{
    access::Pass,
    donor_events::intake::Taken,
    donors::{
        announced::namespace::AnnouncedNamespace,
        answer::Answer,
        near::list_announced,
        neighbours::Vector,
        vocabulary::{DonorEventOutcome, VectorSearch},
    },
};

/// Announced donors that are looked at for the few that are listed: some may be the request's own
/// or registered here too.
const NEAR_MAX: usize = 16;

pub(super) type Answers =
    Pin<Box<dyn Stream<Item = Result<v1::PublishDonorEventsResponse, Status>> + Send>>;

/// Applies the events of one stream, in order, one at a time.
pub(super) fn publish(
    core: &Arc<Core>,
    pass: &Pass,
    messages: Streaming<v1::PublishDonorEventsRequest>,
) -> Answers {
    let (there, scope) = (Arc::clone(core), pass.scope_shared());
    let answers = core.paced(messages, pass).then(move |message| {
        let (core, scope) = (Arc::clone(&there), Arc::clone(&scope));
        async move {
            let v1::PublishDonorEventsRequest { event } = message?;
            let taken = core.donor_events.take(event, scope).await;
            let stopping = |_| Status::unavailable("the server is stopping");
            taken.map(answer).map_err(stopping)
        }
    });
    Box::pin(answers)
}

fn answer(taken: Taken) -> v1::PublishDonorEventsResponse {
    use v1::DonorEventOutcome as Wire;
    let Taken { outcome, detail } = taken;
    let outcome = match outcome {
        DonorEventOutcome::Applied => Wire::Applied,
        DonorEventOutcome::AppliedAfterGap => Wire::AppliedAfterGap,
        DonorEventOutcome::Duplicate => Wire::Duplicate,
        DonorEventOutcome::Refused => Wire::Refused,
    };
    v1::PublishDonorEventsResponse {
        outcome: outcome.into(),
        detail,
    }
}

/// What a look-up's donors are announced under, if there are any and its answer may list some.
pub(super) fn namespace(
    core: &Core,
    lookup: &Lookup,
    answer: &Answer,
) -> Option<AnnouncedNamespace> {
    let announced = &core.donor_events.announced;
    let is_asked = lookup.neighbours_max > 0 && !lookup.text.is_empty() && answer.wants_announced();
    if !is_asked || announced.is_empty() {
        return None;
    }
    let namespace = match &lookup.namespace {
        LookupNamespace::Known(_, Some(namespace)) => AnnouncedNamespace::of(namespace),
        LookupNamespace::Known(id, None) => {
            let shard = core.catalog.shard(*id)?;
            AnnouncedNamespace::of(&shard.namespace)
        }
        LookupNamespace::Incomplete(_) => None,
    };
    namespace.filter(|namespace| announced.has(namespace))
}

/// Lists announced donors among the neighbours of an answer that is still a miss.
pub(super) fn list(
    core: &Core,
    lookup: &Lookup,
    mut answer: Arc<Answer>,
    (namespace, vectors): (&AnnouncedNamespace, &[Vector]),
    deadline: Deadline,
) -> Arc<Answer> {
    if !answer.wants_announced() {
        return answer;
    }
    let began_ns = core.clock.now_ns();
    let it = Arc::make_mut(&mut answer);
    if began_ns >= deadline.at_ns {
        it.text_search = VectorSearch::Late;
        return answer;
    }
    let announced = &core.donor_events.announced;
    let near = announced.nearest(namespace, vectors, NEAR_MAX);
    list_announced(it, &query(lookup), near);
    it.text_search = VectorSearch::Done;
    it.timings.neighbours_ns += core.clock.now_ns().saturating_sub(began_ns);
    answer
}
