//! The second stage of a look-up: donors that vectors nominate, for what the seeds did not find.

use std::sync::Arc;

use super::{
    announced,
    answer::{Answer, Neighbour, NeighbourDonor, Outcome},
    catalog::{Donor, Shard},
    find::{FindQuery, Finder, Ground, Judged, REJECTED_MAX, judge_all, repeat_key, terms},
    neighbours::{Near, Vector, sketch::sketch},
    offer::{Offer, Wanted, Wish},
    search::{Prospect, Target},
    vocabulary::{Discovery, VectorSearch},
};

/// Neighbours that are compared with the prompt token by token.
const NEAR_MAX: usize = 16;

/// What neighbours are asked by.
#[derive(Debug, Clone, Copy)]
pub enum Vectors<'a> {
    /// A sketch of the prompt's tokens beyond the exact prefix, made here.
    Sketch,
    /// Embeddings of the prompt's text.
    Text(&'a [Vector]),
}

impl Vectors<'_> {
    fn discovery(self) -> Discovery {
        match self {
            Vectors::Sketch => Discovery::Sketch,
            Vectors::Text(_) => Discovery::Text,
        }
    }
}

impl Finder<'_> {
    /// Asks the neighbours, after a search by seeds that came to `earlier`.
    ///
    /// What they nominate goes through the same alignment and gates, and may be a hit. Otherwise
    /// the answer stays the miss that it was, with the nearest listed where that was asked for.
    #[must_use]
    pub fn find_near(
        &self,
        query: &FindQuery<'_>,
        earlier: &Arc<Answer>,
        vectors: Vectors<'_>,
    ) -> Arc<Answer> {
        let started = (self.clock_ns)();
        let shard = earlier.namespace.and_then(|id| self.catalog.shard(id));
        let Some(shard) = shard else {
            return Arc::clone(earlier);
        };
        let (mut answer, end) = if started >= self.deadline_ns {
            (Answer::clone(earlier), VectorSearch::Late)
        } else {
            self.ask(query, earlier, &shard, vectors)
        };
        match vectors {
            Vectors::Sketch => answer.sketch_search = end,
            Vectors::Text(_) => answer.text_search = end,
        }
        let took = (self.clock_ns)().saturating_sub(started);
        answer.timings.neighbours_ns += took;
        answer.timings.total_ns += took;
        // The key is a hash of the whole prompt, and only a lease is worth remembering.
        let repeat = answer
            .lease
            .and_then(|_| repeat_key(query, shard.id, answer.mode));
        self.remembered(repeat, Arc::new(answer), query.holder)
    }

    fn ask(
        &self,
        query: &FindQuery<'_>,
        earlier: &Answer,
        shard: &Shard,
        vectors: Vectors<'_>,
    ) -> (Answer, VectorSearch) {
        let discovery = vectors.discovery();
        let (mode, gates) = self.catalog.rules(Some(shard));
        let Some(near) = nearest(query, shard, vectors) else {
            return (Answer::clone(earlier), VectorSearch::NothingIndexed);
        };
        let terms = terms(query, query.gates.over(gates), Some(shard));
        let wish = Wish {
            query,
            wanted: Wanted::serving(query, mode),
            terms: &terms,
        };
        let (judged, listed) = self.compare(&wish, shard, &near, discovery);
        let ground = Ground {
            mode,
            namespace: shard.id,
        };
        let found = self.conclude(query, judged, ground, discovery);
        let late = (self.clock_ns)() >= self.deadline_ns;
        if found.outcome != Outcome::Miss && !late {
            let answer = Answer {
                namespace: earlier.namespace,
                gates: earlier.gates,
                timings: earlier.timings,
                segments: earlier.segments.clone(),
                sketch_search: earlier.sketch_search,
                text_search: earlier.text_search,
                ..found
            };
            return (answer, VectorSearch::Done);
        }
        self.take_back(&found, query.holder);
        let mut answer = Answer::clone(earlier);
        let end = if late {
            VectorSearch::Late
        } else {
            list(&mut answer.neighbours, listed, query.neighbours_max);
            answer.refusal = answer.refusal.or(found.refusal);
            if query.explain && answer.rejected.is_empty() {
                answer.rejected = found.rejected;
                answer.rejected.truncate(REJECTED_MAX);
            }
            VectorSearch::Done
        };
        (answer, end)
    }

    // The nearest that are still there, compared with the prompt, and as they are listed.
    fn compare(
        &self,
        wish: &Wish<'_>,
        shard: &Shard,
        near: &[Near],
        discovery: Discovery,
    ) -> (Vec<Judged>, Vec<Neighbour>) {
        let is_wanted = |donor: &Donor| match self.offer(donor, wish) {
            Offer::All | Offer::Part(_) | Offer::Unfit => true,
            Offer::Gone | Offer::Nothing => false,
        };
        self.catalog.with_scratch(|scratch| {
            let donors = shard.read();
            // A slot may have been given to another donor since its vector was read.
            let present = |near: &Near| {
                let donor = donors.at(near.slot)?;
                (donor.sequence == near.sequence && is_wanted(donor)).then_some(donor)
            };
            let slots: Vec<u32> = near
                .iter()
                .filter(|near| present(near).is_some())
                .map(|near| near.slot)
                .collect();
            let listed: Vec<Neighbour> = near
                .iter()
                .filter_map(|near| Some(neighbour(present(near)?, near.score, discovery)))
                .collect();
            let target = Target {
                tokens: wish.query.tokens,
                boundary: wish.query.exact_prefix_tokens as usize,
                is_eligible: &|slot| {
                    let donor = donors.at(slot);
                    donor.is_some_and(|donor| self.offer(donor, wish).tokens() > 0)
                },
                reach: Some(&|slot| {
                    let donor = donors.at(slot);
                    donor.map_or(0, |donor| self.offer(donor, wish).tokens())
                }),
                verify_max: NEAR_MAX,
                prospect: &Prospect::by_length,
            };
            let aligned = donors.index.verify_slots(&target, &slots, scratch);
            (judge_all(wish.terms, &donors, aligned), listed)
        })
    }
}

fn neighbour(donor: &Arc<Donor>, score: f32, discovery: Discovery) -> Neighbour {
    Neighbour {
        donor: NeighbourDonor::Registered(Arc::clone(donor)),
        discovery,
        score,
        facts_differ: None,
    }
}

// None when the namespace has no vector of the kind.
fn nearest(query: &FindQuery<'_>, shard: &Shard, vectors: Vectors<'_>) -> Option<Vec<Near>> {
    let kept = match vectors {
        Vectors::Sketch => Some(&shard.sketches),
        Vectors::Text(_) => shard.embeddings.get(),
    };
    let kept = kept.filter(|kept| !kept.is_empty())?;
    match vectors {
        Vectors::Sketch => {
            let beyond = query.tokens.get(query.exact_prefix_tokens as usize..)?;
            let sketch = sketch(beyond)?;
            Some(kept.nearest(&sketch, NEAR_MAX))
        }
        Vectors::Text(segments) => Some(kept.nearest_donors(segments, NEAR_MAX)),
    }
}

/// Lists donors of other providers among the neighbours of a miss, but not the request's own.
pub fn list_announced(answer: &mut Answer, query: &FindQuery<'_>, near: Vec<announced::Near>) {
    let is_own = |donor_id: &str| !donor_id.is_empty() && donor_id == query.request_id;
    let others = near.into_iter().filter(|near| !is_own(&near.donor_id));
    let neighbours = others.map(|near| Neighbour {
        donor: NeighbourDonor::Announced {
            donor_id: near.donor_id,
            holder: near.holder,
        },
        discovery: Discovery::Announced,
        score: near.score,
        facts_differ: None,
    });
    // One that is registered here as well is known better so.
    let known = &answer.neighbours;
    let is_new = |new: &Neighbour| known.iter().all(|known| !known.donor.is_same(&new.donor));
    let neighbours = neighbours.filter(is_new).collect();
    list(&mut answer.neighbours, neighbours, query.neighbours_max);
}

// Those by text come first: they are the stronger evidence. No donor is listed twice.
fn list(known: &mut Vec<Neighbour>, mut more: Vec<Neighbour>, most: usize) {
    let by_tokens = |neighbour: &Neighbour| match neighbour.discovery {
        Discovery::Text | Discovery::Announced => false,
        Discovery::Seeds | Discovery::Sketch => true,
    };
    more.append(known);
    more.sort_by(|a, b| {
        let by_kind = by_tokens(a).cmp(&by_tokens(b));
        by_kind.then(b.score.total_cmp(&a.score))
    });
    for neighbour in more {
        let is_known = known.iter().any(|it| it.donor.is_same(&neighbour.donor));
        if known.len() < most && !is_known {
            known.push(neighbour);
        }
    }
}
