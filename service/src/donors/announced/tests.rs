//! What is announced against a slow twin that walks through everything it heard, and the bounds.

use std::collections::{BTreeMap, BTreeSet};

use proptest::{prelude::*, sample::Index};

use super::*;

const DIMENSIONS: usize = 8;

fn worker(number: u32) -> OwnerKey {
    OwnerKey {
        worker_id: format!("worker-{number}").into(),
        data_parallel_rank: 0,
    }
}

fn namespace(model: &str) -> AnnouncedNamespace {
    AnnouncedNamespace {
        model: model.into(),
        tokenizer: "t".into(),
        kv_layout: "NHD".into(),
        block_size: 16,
        adapter: "none".into(),
        quantization: None,
        tenant_key: "semblend:tenant:v1:none".into(),
    }
}

// Each number has a direction of its own.
fn vector(number: usize, dimensions: usize) -> Vector {
    let element = |at| if at == number % dimensions { 1.0 } else { 0.0 };
    let values: Vec<f32> = (0..dimensions).map(element).collect();
    Vector::new(&values).unwrap()
}

fn on_worker(number: u32) -> Location {
    Location {
        holder: Some(worker(number)),
        fingerprint: u64::from(number),
    }
}

const STORE: Location = Location {
    holder: None,
    fingerprint: 100,
};

fn donor(id: &str) -> Announcement {
    Announcement {
        donor_id: id.into(),
        namespace: Ok(namespace("m")),
        location: on_worker(0),
        segments: vec![Segment {
            id: 0,
            vector: Some(vector(0, DIMENSIONS)),
        }],
    }
}

fn event(stream: u32, event_id: u64, generation: u64, change: Change) -> Event {
    Event {
        at: Position {
            stream: worker(stream),
            event_id,
            generation: Some(generation),
        },
        change,
    }
}

fn registered(stream: u32, event_id: u64, id: &str) -> Event {
    event(stream, event_id, 0, Change::Registered(Box::new(donor(id))))
}

fn announced(change: impl FnOnce(&mut Capacity)) -> Announced {
    let mut capacity = Capacity::default();
    change(&mut capacity);
    Announced::new(Some(DIMENSIONS), capacity)
}

/// The ids that are there, of whatever emitter, in order.
fn ids(announced: &Announced) -> Vec<String> {
    let near = announced.nearest(&namespace("m"), &[vector(0, DIMENSIONS)], 100);
    let mut ids: Vec<String> = near.iter().map(|near| near.donor_id.to_string()).collect();
    ids.sort_unstable();
    assert_eq!(ids.len(), announced.counts().donors);
    assert_eq!(announced.is_empty(), ids.is_empty());
    ids
}

#[test]
fn donors_are_found_in_their_namespace_by_their_nearest_segment() {
    let announced = announced(|_| {});
    let two = |near, far| {
        [near, far].map(|number| Segment {
            id: u32::try_from(number).unwrap(),
            vector: Some(vector(number, DIMENSIONS)),
        })
    };
    let both = |id: &str, location| Announcement {
        segments: two(1, 2).into(),
        location,
        ..donor(id)
    };
    for (at, announcement) in [
        donor("zero"),
        both("both", on_worker(3)),
        both("stored", STORE),
        Announcement {
            namespace: Ok(namespace("other")),
            ..donor("elsewhere")
        },
    ]
    .into_iter()
    .enumerate()
    {
        let change = Change::Registered(Box::new(announcement));
        let applied = announced.apply(event(0, at as u64, 0, change));
        assert_eq!(applied, Applied::new(DonorEventOutcome::Applied));
    }
    let near = announced.nearest(&namespace("m"), &[vector(2, DIMENSIONS)], 2);
    let told: Vec<_> = near
        .iter()
        .map(|near| (&*near.donor_id, near.holder.as_deref().cloned()))
        .collect();
    assert_eq!(told, [("both", Some(worker(3))), ("stored", None)]);
    assert!(near.iter().all(|near| near.score > 0.99), "{near:?}");
    assert!(announced.has(&namespace("other")));
    assert!(!announced.has(&namespace("nobody's")));
    assert_eq!(announced.nearest(&namespace("nobody's"), &[], 2), []);
}

#[test]
fn what_nobody_can_find_is_not_kept_and_says_why() {
    let announced = announced(|_| {});
    let segment = |vector| vec![Segment { id: 0, vector }];
    let cases = [
        (
            Err(Unfindable::NoTenant),
            donor("").segments,
            Unfindable::NoTenant,
        ),
        (Ok(namespace("m")), segment(None), Unfindable::NoVector),
        (
            Ok(namespace("m")),
            segment(Some(vector(0, DIMENSIONS + 1))),
            Unfindable::OtherDimensions,
        ),
    ];
    for (at, (namespace, segments, why)) in cases.into_iter().enumerate() {
        let at = 2 * at as u64;
        assert_eq!(announced.apply(registered(0, at, "d")).unfindable, None);
        let announcement = Announcement {
            namespace,
            segments,
            ..donor("d")
        };
        let change = Change::Registered(Box::new(announcement));
        let applied = announced.apply(event(0, at + 1, 0, change));
        assert_eq!(applied.outcome, DonorEventOutcome::Applied);
        assert_eq!(applied.unfindable, Some(why));
        // The donor that it replaces is gone all the same.
        assert_eq!(applied.forgotten, [(Forgotten::Replaced, 1)]);
        assert!(ids(&announced).is_empty());
    }
    let without_model = Announced::new(None, Capacity::default());
    let applied = without_model.apply(registered(0, 0, "d"));
    assert_eq!(applied.unfindable, Some(Unfindable::NoModel));
}

#[test]
fn what_was_announced_longest_ago_makes_room() {
    let all = |announced: &Announced| {
        for at in 0..4 {
            announced.apply(registered(
                u32::try_from(at % 2).unwrap(),
                at / 2,
                &format!("d{at}"),
            ));
        }
        // Announced again, it is the youngest.
        announced.apply(registered(0, 2, "d0"))
    };
    let roomy = announced(|_| {});
    all(&roomy);
    assert_eq!(ids(&roomy), ["d0", "d1", "d2", "d3"]);
    let bytes = roomy.counts().bytes;

    let check = |change: &dyn Fn(&mut Capacity), left: &[&str], forgotten: usize| {
        let tight = announced(change);
        all(&tight);
        assert_eq!(ids(&tight), left);
        let applied = tight.apply(registered(0, 3, "d4"));
        assert_eq!(
            applied.forgotten,
            [(Forgotten::Room, forgotten)],
            "{left:?}"
        );
    };
    check(&|it| it.donors_max = 3, &["d0", "d2", "d3"], 1);
    check(&|it| it.bytes_max = bytes - 1, &["d0", "d2", "d3"], 1);
    check(&|it| it.donors_per_stream_max = 1, &["d0", "d3"], 1);

    let two = announced(|it| it.streams_max = 2);
    all(&two);
    // Heard, though by nothing new: the other one was silent longer.
    two.apply(registered(1, 2, "d5"));
    let applied = two.apply(registered(2, 0, "d6"));
    assert_eq!(applied.forgotten, [(Forgotten::Room, 2)]);
    assert_eq!(ids(&two), ["d1", "d3", "d5", "d6"]);
    assert_eq!(two.counts().streams, 2);
}

#[test]
fn a_worker_that_is_gone_takes_along_what_lies_there() {
    let announced = announced(|_| {});
    announced.apply(registered(0, 0, "own"));
    announced.apply(registered(1, 0, "of another"));
    let elsewhere = Announcement {
        location: STORE,
        ..donor("stored")
    };
    announced.apply(event(1, 1, 0, Change::Registered(Box::new(elsewhere))));
    let applied = announced.forget_worker(&worker(0));
    let total: usize = applied.forgotten.iter().map(|(_, count)| count).sum();
    assert_eq!(total, 2);
    assert_eq!(ids(&announced), ["stored"]);
    // It may start to count anywhere.
    let again = announced.apply(registered(0, 0, "own"));
    assert_eq!(again.outcome, DonorEventOutcome::Applied);
}

#[test]
fn an_event_that_is_not_understood_is_no_gap_and_takes_its_share() {
    let lost = |event_id, donor_id: Option<&str>| Lost {
        at: registered(0, event_id, "").at,
        donor_id: donor_id.map(Box::from),
    };
    let announced = announced(|_| {});
    for (at, id) in ["a", "b", "c"].into_iter().enumerate() {
        announced.apply(registered(0, at as u64, id));
    }
    assert_eq!(announced.lose(&lost(1, None)).forgotten, [], "an old one");
    let applied = announced.lose(&lost(3, Some("b")));
    assert_eq!(applied.outcome, DonorEventOutcome::Refused);
    assert_eq!(applied.forgotten, [(Forgotten::Gap, 1)]);
    let next = announced.apply(registered(0, 4, "d"));
    assert_eq!(next.outcome, DonorEventOutcome::Applied);
    assert_eq!(ids(&announced), ["a", "c", "d"]);
    assert_eq!(
        announced.lose(&lost(5, None)).forgotten,
        [(Forgotten::Gap, 3)]
    );
    let next = announced.apply(registered(0, 6, "e"));
    assert_eq!(next.outcome, DonorEventOutcome::Applied);
}

/// One donor as it is seen: its emitter, its id, and its segments.
type Seen = BTreeSet<(OwnerKey, String, Vec<u32>)>;

/// The generation, and what was applied in it.
type Run = (u64, Vec<(usize, Event)>);

/// Everything that was heard and applied, walked through anew whenever it is asked.
#[derive(Default)]
struct Twin {
    heard: usize,
    /// By emitter: what was applied since its generation began, with its place among all.
    runs: BTreeMap<OwnerKey, Run>,
    purges: Vec<(usize, Scope)>,
}

impl Twin {
    fn take(&mut self, event: Event) -> DonorEventOutcome {
        self.heard += 1;
        let key = event.at.stream.clone();
        let known = self.runs.contains_key(&key);
        let (generation, run) = self.runs.entry(key).or_default();
        let own = event.at.generation.unwrap_or(*generation);
        let last = run.iter().map(|(_, event)| event.at.event_id).max();
        let is_older = last.is_some_and(|last| event.at.event_id < last);
        let is_reset = event.change == Change::Reset;
        let mut outcome = DonorEventOutcome::Applied;
        if known && own < *generation {
            return DonorEventOutcome::Refused;
        }
        if own > *generation || (is_reset && is_older) {
            run.clear();
        } else if last.is_some_and(|last| event.at.event_id <= last) {
            return DonorEventOutcome::Duplicate;
        } else if last.is_some_and(|last| event.at.event_id > last + 1) {
            outcome = DonorEventOutcome::AppliedAfterGap;
        }
        *generation = own;
        if let Change::Purged(scope) = &event.change {
            self.purges.push((self.heard, scope.clone()));
        }
        run.push((self.heard, event));
        outcome
    }

    fn seen(&self) -> Seen {
        let mut seen = Seen::new();
        for (stream, (_, run)) in &self.runs {
            for (at, (place, event)) in run.iter().enumerate() {
                let Change::Registered(donor) = &event.change else {
                    continue;
                };
                if donor.namespace.is_err() || self.is_purged(*place, donor) {
                    continue;
                }
                let with = |it: &&Segment| it.vector.is_some();
                let segments = donor.segments.iter().filter(with).map(|it| it.id);
                let left = left_after(&run[at..], donor, segments.collect());
                if !left.is_empty() {
                    let id = donor.donor_id.to_string();
                    seen.insert((stream.clone(), id, left));
                }
            }
        }
        seen
    }

    fn is_purged(&self, place: usize, donor: &Announcement) -> bool {
        let later = self.purges.iter().filter(|(at, _)| *at > place);
        later.into_iter().any(|(_, scope)| match scope {
            // Seen to in the emitter's own run.
            Scope::Stream => false,
            Scope::Location(fingerprint) => donor.location.fingerprint == *fingerprint,
            Scope::Worker(worker) => {
                let holder = donor.location.holder.as_ref();
                holder.is_some_and(|holder| holder.worker_id == *worker)
            }
        })
    }
}

// What the events behind a registration leave of its segments.
fn left_after(run: &[(usize, Event)], donor: &Announcement, mut left: Vec<u32>) -> Vec<u32> {
    for pair in run.windows(2) {
        let [(_, before), (_, event)] = pair else {
            continue;
        };
        let is_gap = event.at.event_id > before.at.event_id + 1;
        let goes = match &event.change {
            Change::Registered(other) => other.donor_id == donor.donor_id,
            Change::Evicted { donor_id, segments } => {
                let is_meant = *donor_id == donor.donor_id;
                if let Some(segments) = segments.as_ref().filter(|_| is_meant) {
                    left.retain(|segment| !segments.contains(segment));
                }
                is_meant && segments.is_none()
            }
            Change::Purged(Scope::Stream) => true,
            Change::Purged(_) | Change::Reset => false,
        };
        if is_gap || goes {
            return Vec::new();
        }
    }
    left
}

fn check(announced: &Announced, twin: &Twin) {
    let kept = announced.kept.lock();
    let seen = kept.donors.values().map(|entry| {
        let segments = entry.segments.to_vec();
        ((*entry.stream).clone(), entry.id.to_string(), segments)
    });
    assert_eq!(seen.collect::<Seen>(), twin.seen());
    drop(kept);
    // What is kept is what is found.
    let mut found = 0;
    for model in ["m", "n"] {
        let all: Vec<Vector> = (0..DIMENSIONS).map(|at| vector(at, DIMENSIONS)).collect();
        found += announced.nearest(&namespace(model), &all, 100).len();
    }
    assert_eq!(found, twin.seen().len());
}

fn any_change() -> impl Strategy<Value = Change> {
    let id = prop::sample::select(vec!["a", "b", "c", "d"]);
    let location = prop_oneof![(0_u32..3).prop_map(on_worker), Just(STORE),];
    let with_vector = prop::bool::weighted(0.8);
    let registration = (
        id.clone(),
        prop::sample::select(vec![Ok("m"), Ok("m"), Ok("n"), Err(Unfindable::NoTenant)]),
        location.clone(),
        prop::collection::vec(with_vector, 1..4),
    );
    let segments = prop::option::of(prop::collection::vec(0_u32..3, 0..3));
    prop_oneof![
        6 => registration.prop_map(|(id, model, location, vectors)| {
            let segment = |(at, has): (usize, bool)| Segment {
                id: u32::try_from(at).unwrap(),
                vector: has.then(|| vector(at, DIMENSIONS)),
            };
            Change::Registered(Box::new(Announcement {
                donor_id: id.into(),
                namespace: model.map(namespace),
                location,
                segments: vectors.into_iter().enumerate().map(segment).collect(),
            }))
        }),
        3 => (id, segments).prop_map(|(id, segments)| Change::Evicted {
            donor_id: id.into(),
            segments,
        }),
        1 => Just(Change::Reset),
        1 => prop_oneof![
            Just(Scope::Stream),
            (0_u32..3).prop_map(|number| Scope::Worker(worker(number).worker_id)),
            location.prop_map(|location| Scope::Location(location.fingerprint)),
        ]
        .prop_map(Change::Purged),
    ]
}

proptest! {
    #[test]
    fn what_is_there_is_what_the_twin_sees(
        steps in prop::collection::vec(
            (0_u32..3, any::<Index>(), any::<Index>(), any_change()), 1..80,
        ),
    ) {
        let (announced, mut twin) = (announced(|_| {}), Twin::default());
        let mut last: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for (stream, number, generation, change) in steps {
            let (event_id, current) = last.get(&stream).copied().unwrap_or((3, 1));
            // Mostly the next, of the same generation.
            let next = [event_id + 1; 7];
            let ids = [&next[..], &[event_id, event_id - 1, event_id + 2, 3]].concat();
            let same = [Some(current); 7];
            let generations = [&same[..], &[None, Some(current + 1), Some(0)]].concat();
            let at = Position {
                stream: worker(stream),
                event_id: ids[number.index(ids.len())].max(1),
                generation: generations[generation.index(generations.len())],
            };
            let event = Event { at, change };
            let outcome = announced.apply(event.clone()).outcome;
            prop_assert_eq!(outcome, twin.take(event.clone()), "{:?}", event);
            if matches!(outcome, DonorEventOutcome::Applied | DonorEventOutcome::AppliedAfterGap) {
                let generation = event.at.generation.unwrap_or(current);
                last.insert(stream, (event.at.event_id, generation));
            }
            check(&announced, &twin);
        }
        for stream in 0..3 {
            announced.forget_worker(&worker(stream));
        }
        let counts = announced.counts();
        prop_assert_eq!((counts.donors, counts.namespaces, counts.bytes), (0, 0, 0));
    }
}
