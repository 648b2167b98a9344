//! The second stage of a donor look-up: neighbours by vectors, and facts compared.
//!
//! It runs on threads of its own, never on one that serves calls, and gives up at the deadline:
//! then the answer of the first stage goes out as it was, and says so.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::{
    Core,
    clock::Deadline,
    convert::donors::Lookup,
    donor_events,
    find::{query, with_finder},
};
use crate::{
    donors::{
        answer::{Answer, NeighbourDonor},
        catalog::Donor,
        facts::facts_differ_within,
        near::Vectors,
        neighbours::Vector,
        text::{EmbedRefusal, Embedder, segments},
        texts::DonorTexts,
        vocabulary::{FallbackReason, VectorSearch},
    },
    supervise::Workers,
};

/// The last part of a call's time, in which no facts are compared any more: the answer has a way
/// to go, and beside it other calls wait for the processor.
const FACTS_EARLY_SHARE: u64 = 8;

/// What the second stage works with.
#[derive(Debug)]
pub struct NearParts {
    /// Threads that search vectors and read texts.
    pub threads: Workers,
    /// Whether donors are also found by a sketch of their tokens.
    pub by_sketch: bool,
    /// Where donors' texts are read; absent when the operator has not enabled text.
    pub texts: Option<DonorTexts>,
    /// What embeds texts; absent when the operator has given no model.
    pub embedder: Option<Arc<Embedder>>,
    /// Most segments of a prompt's text that are embedded.
    pub query_segments_max: usize,
}

/// Whether anything is left to do after the search by seeds.
pub(super) fn is_wanted(core: &Core, lookup: &Lookup, answer: &Answer) -> bool {
    answer.wants_neighbours()
        || compares_facts(core, lookup, answer)
        || donor_events::namespace(core, lookup, answer).is_some()
}

/// Does what is left, in turn, each as far as it is enabled, needed, and in time.
pub(super) async fn second_stage(
    core: &Arc<Core>,
    lookup: Arc<Lookup>,
    answer: Arc<Answer>,
    deadline: Deadline,
) -> Arc<Answer> {
    let began_ns = core.clock.now_ns();
    let before_ns = answer.timings.total_ns;
    let mut answer = answer;
    if answer.wants_neighbours() {
        answer = by_sketch(core, &lookup, answer, deadline).await;
    }
    if answer.wants_announced() {
        answer = by_text(core, &lookup, answer, deadline).await;
    }
    if compares_facts(core, &lookup, &answer) {
        answer = compare_facts(core, &lookup, answer, deadline).await;
    }
    // The time in queues counts too.
    let waited_ns = core.clock.now_ns().saturating_sub(began_ns);
    Arc::make_mut(&mut answer).timings.total_ns = before_ns + waited_ns;
    answer
}

async fn by_sketch(
    core: &Arc<Core>,
    lookup: &Arc<Lookup>,
    mut answer: Arc<Answer>,
    deadline: Deadline,
) -> Arc<Answer> {
    let (has_sketch, _) = core.catalog.has_vectors(answer.namespace);
    let end = if !core.near.by_sketch {
        VectorSearch::Disabled
    } else if !has_sketch {
        VectorSearch::NothingIndexed
    } else {
        let earlier = Arc::clone(&answer);
        let work = move |core: &Core, lookup: &Lookup| {
            with_finder(core, deadline, |finder| {
                finder.find_near(&query(lookup), &earlier, Vectors::Sketch)
            })
        };
        match on_worker(core, &core.near.threads, lookup, deadline, work).await {
            Ok(answer) => return answer,
            Err(failure) => failure.as_search(),
        }
    };
    Arc::make_mut(&mut answer).sketch_search = end;
    answer
}

async fn by_text(
    core: &Arc<Core>,
    lookup: &Arc<Lookup>,
    mut answer: Arc<Answer>,
    deadline: Deadline,
) -> Arc<Answer> {
    let (_, has_embedding) = core.catalog.has_vectors(answer.namespace);
    let announced = donor_events::namespace(core, lookup, &answer);
    let has_vectors = has_embedding || announced.is_some();
    let end = match embed(core, lookup, has_vectors, deadline).await {
        Err(end) => end,
        Ok(vectors) => {
            let earlier = Arc::clone(&answer);
            let work = move |core: &Core, lookup: &Lookup| {
                let answer = with_finder(core, deadline, |finder| {
                    finder.find_near(&query(lookup), &earlier, Vectors::Text(&vectors))
                });
                match &announced {
                    None => answer,
                    Some(announced) => {
                        donor_events::list(core, lookup, answer, (announced, &vectors), deadline)
                    }
                }
            };
            match on_worker(core, &core.near.threads, lookup, deadline, work).await {
                Ok(answer) => return answer,
                Err(failure) => failure.as_search(),
            }
        }
    };
    Arc::make_mut(&mut answer).text_search = end;
    answer
}

// The prompt's text beyond the exact prefix, whose share of the text is taken to be its share of
// the tokens.
async fn embed(
    core: &Core,
    lookup: &Lookup,
    has_embedding: bool,
    deadline: Deadline,
) -> Result<Vec<Vector>, VectorSearch> {
    let Some(embedder) = &core.near.embedder else {
        return Err(VectorSearch::Disabled);
    };
    if lookup.text.is_empty() {
        return Err(VectorSearch::NoText);
    }
    if !has_embedding {
        return Err(VectorSearch::NothingIndexed);
    }
    let tokens = lookup.tokens.len().max(1) as f64;
    #[expect(clippy::cast_possible_truncation, reason = "a share of a text")]
    let skip_share = (f64::from(lookup.exact_prefix_tokens) / tokens) as f32;
    let parts = segments(&lookup.text, skip_share, core.near.query_segments_max);
    let parts: Vec<String> = parts.into_iter().map(str::to_owned).collect();
    if parts.is_empty() {
        return Err(VectorSearch::NoText);
    }
    match deadline
        .bound(embedder.embed_query(parts, deadline.at_ns))
        .await
    {
        Ok(Ok(embedded)) => Ok(embedded
            .iter()
            .filter_map(|values| Vector::new(values))
            .collect()),
        Ok(Err(EmbedRefusal::Busy)) => Err(VectorSearch::Busy),
        Ok(Err(EmbedRefusal::Late)) | Err(_) => Err(VectorSearch::Late),
        Ok(Err(EmbedRefusal::Stopped | EmbedRefusal::Model(_))) => Err(VectorSearch::Failed),
    }
}

fn compares_facts(core: &Core, lookup: &Lookup, answer: &Answer) -> bool {
    let any = answer.found.is_some() || !answer.neighbours.is_empty();
    any && !lookup.text.is_empty() && core.near.texts.is_some()
}

// An answer whose facts could not be compared in time goes out without.
async fn compare_facts(
    core: &Arc<Core>,
    lookup: &Arc<Lookup>,
    answer: Arc<Answer>,
    deadline: Deadline,
) -> Arc<Answer> {
    let began_ns = core.clock.now_ns();
    let mut compared = Answer::clone(&answer);
    let until_ns = deadline.at_ns - (deadline.at_ns - deadline.began_ns) / FACTS_EARLY_SHARE;
    let work = move |core: &Core, lookup: &Lookup| {
        let differ = |donor: &Donor| {
            let text = core.near.texts.as_ref()?.of(donor)?;
            facts_differ_within(&text, &lookup.text, &|| core.clock.now_ns() >= until_ns)
        };
        if let Some(found) = &mut compared.found {
            found.facts_differ = differ(&found.donor);
        }
        for neighbour in &mut compared.neighbours {
            neighbour.facts_differ = match &neighbour.donor {
                NeighbourDonor::Registered(donor) => differ(donor),
                NeighbourDonor::Announced { .. } => None,
            };
        }
        Arc::new(compared)
    };
    let done = on_worker(core, &core.near.threads, lookup, deadline, work).await;
    let mut answer = done.unwrap_or(answer);
    let took_ns = core.clock.now_ns().saturating_sub(began_ns);
    Arc::make_mut(&mut answer).timings.facts_ns = took_ns;
    answer
}

/// Why a worker's answer did not come.
#[derive(Debug, Clone, Copy)]
pub(super) enum WorkerFailure {
    QueueFull,
    Late,
    Stopping,
}

impl WorkerFailure {
    pub(super) fn as_miss(self) -> (FallbackReason, &'static str) {
        match self {
            WorkerFailure::QueueFull => (
                FallbackReason::ProviderError,
                "the queue for long look-ups is full",
            ),
            WorkerFailure::Late => (
                FallbackReason::ProviderTimeout,
                "the deadline passed in the queue",
            ),
            WorkerFailure::Stopping => (FallbackReason::ProviderError, "the server is stopping"),
        }
    }

    fn as_search(self) -> VectorSearch {
        match self {
            WorkerFailure::QueueFull => VectorSearch::Busy,
            WorkerFailure::Late => VectorSearch::Late,
            WorkerFailure::Stopping => VectorSearch::Failed,
        }
    }
}

/// Runs `work` on one of `threads`. A lease that comes with an answer too late is given back.
pub(super) async fn on_worker(
    core: &Arc<Core>,
    threads: &Workers,
    lookup: &Arc<Lookup>,
    deadline: Deadline,
    work: impl FnOnce(&Core, &Lookup) -> Arc<Answer> + Send + 'static,
) -> Result<Arc<Answer>, WorkerFailure> {
    let (reply, answer) = oneshot::channel();
    let (core, lookup) = (Arc::clone(core), Arc::clone(lookup));
    let job = move || {
        if reply.is_closed() {
            return;
        }
        if let Err(unwanted) = reply.send(work(&core, &lookup)) {
            with_finder(&core, deadline, |finder| {
                finder.take_back(&unwanted, &lookup.holder);
            });
        }
    };
    threads.submit(job).map_err(|_| WorkerFailure::QueueFull)?;
    match deadline.bound(answer).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(_)) => Err(WorkerFailure::Stopping),
        Err(_) => Err(WorkerFailure::Late),
    }
}
