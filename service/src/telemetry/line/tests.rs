//! The writer of lines beside the derived one, on records of every shape.

use proptest::prelude::*;

use super::super::{
    record::{Digest, VERSION},
    words::{
        Algorithm, Gate, LeaseRefusal, ManifestOutcome, ManifestProvenance, ManifestReason, Mode,
        Outcome, Policy, ReuseProvenance, SourceState, Tier,
    },
};
use super::*;
use crate::donors::vocabulary::FallbackReason;

fn any_of<T: Copy + std::fmt::Debug + 'static>(all: &'static [T]) -> impl Strategy<Value = T> {
    prop::sample::select(all)
}

fn digest() -> impl Strategy<Value = Digest> {
    any::<u64>().prop_map(Hex)
}

fn share() -> impl Strategy<Value = Decimal<4>> {
    (0..=10_000_u64).prop_map(Decimal)
}

fn micros() -> impl Strategy<Value = Decimal<3>> {
    prop_oneof![Just(0), 0..5_000_u64, 0..40_000_000_000_u64].prop_map(Decimal)
}

fn stages() -> impl Strategy<Value = Stages> {
    (micros(), micros(), micros(), micros(), micros()).prop_map(
        |(seeds, align, gate, neighbours, facts)| Stages {
            seeds,
            align,
            gate,
            neighbours,
            facts,
        },
    )
}

fn gates() -> impl Strategy<Value = Gates> {
    (any::<u32>(), any::<u32>(), share(), share(), share()).prop_map(
        |(min_prompt_tokens, min_reuse_tokens, min_similarity, min_reuse_ratio, skip)| Gates {
            min_prompt_tokens,
            min_reuse_tokens,
            min_similarity,
            min_reuse_ratio,
            exact_prefix_skip_ratio: skip,
        },
    )
}

fn lookup() -> impl Strategy<Value = Lookup> {
    let reasons = prop::option::of(prop::sample::select(FallbackReason::ALL.to_vec()));
    let words = (
        any_of(Outcome::ALL),
        reasons,
        prop::option::of(any_of(Gate::ALL)),
        any_of(Mode::ALL),
        prop::option::of(any_of(Tier::ALL)),
        prop::option::of(any_of(LeaseRefusal::ALL)),
    );
    let digests = (
        prop::option::of(digest()),
        prop::option::of((0..1_u64 << 48).prop_map(Hex)),
        prop::option::of(digest()),
        prop::option::of(digest()),
        prop::option::of(digest()),
    );
    let numbers = (any::<[u32; 4]>(), any::<bool>(), any::<Option<bool>>());
    let parts = (
        micros(),
        prop::option::of(share()),
        prop::option::of(share()),
        prop::option::of(gates()),
        stages(),
    );
    (words, digests, numbers, parts).prop_map(|(words, digests, numbers, parts)| {
        let (outcome, reason, gate, mode, tier, lease_refusal) = words;
        let (request, namespace, donor, owner, template) = digests;
        let (tokens, leased, facts_differ) = numbers;
        let (took_us, similarity, reuse_ratio, gates, stages_us) = parts;
        let [
            prompt_tokens,
            exact_prefix_tokens,
            verified_tokens,
            reusable_tokens,
        ] = tokens;
        Lookup {
            request,
            took_us,
            namespace,
            outcome,
            reason,
            gate,
            mode,
            prompt_tokens,
            exact_prefix_tokens,
            verified_tokens,
            reusable_tokens,
            similarity,
            reuse_ratio,
            gates,
            tier,
            donor,
            owner,
            template,
            leased,
            lease_refusal,
            facts_differ,
            stages_us,
        }
    })
}

fn manifest() -> impl Strategy<Value = Manifest> {
    let words = (
        any_of(ManifestOutcome::ALL),
        prop::option::of(any_of(ManifestReason::ALL)),
        prop::option::of(any_of(Algorithm::ALL)),
        prop::option::of(any_of(Policy::ALL)),
        prop::option::of(any_of(ManifestProvenance::ALL)),
    );
    let rest = (
        prop::option::of(digest()),
        micros(),
        digest(),
        any::<[u32; 2]>(),
    );
    (words, rest).prop_map(|(words, (request, took_us, prefix, [k, total_blocks]))| {
        let (outcome, reason, algorithm, policy, provenance) = words;
        Manifest {
            request,
            took_us,
            outcome,
            reason,
            prefix,
            algorithm,
            policy,
            provenance,
            k,
            total_blocks,
        }
    })
}

fn reuse() -> impl Strategy<Value = Reuse> {
    let reason = prop::option::of(prop::sample::select(FallbackReason::ALL.to_vec()));
    let provenance = any_of(ReuseProvenance::ALL);
    let rest = (
        prop::option::of(digest()),
        micros(),
        any::<(u32, u32, bool)>(),
    );
    (provenance, reason, rest).prop_map(|(provenance, reason, (request, took_us, numbers))| {
        let (tokens_loaded, invalid_blocks, released) = numbers;
        Reuse {
            request,
            took_us,
            provenance,
            reason,
            tokens_loaded,
            invalid_blocks,
            released,
        }
    })
}

fn sources() -> impl Strategy<Value = Sources> {
    let source = (digest(), any_of(SourceState::ALL), any::<(u64, u64)>()).prop_map(
        |(worker, state, (gaps, replays))| Source {
            worker,
            state,
            gaps,
            replays,
        },
    );
    (any::<[u32; 3]>(), prop::collection::vec(source, 0..4)).prop_map(
        |([exact, degraded, stale], sources)| Sources {
            exact,
            degraded,
            stale,
            sources,
        },
    )
}

fn record() -> impl Strategy<Value = Record> {
    prop_oneof![
        (any::<u64>(), any_of(Mode::ALL)).prop_map(|(epoch, mode)| Record::Start(Start {
            version: "1.2.3".to_owned(),
            epoch,
            mode,
        })),
        lookup().prop_map(|it| Record::Lookup(Box::new(it))),
        manifest().prop_map(Record::Manifest),
        reuse().prop_map(Record::Reuse),
        sources().prop_map(Record::Sources),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_line_is_written_as_the_derived_one_and_reads_back(
        at_ms in any::<u64>(),
        record in record(),
    ) {
        let line = Line { v: VERSION, at_ms, record };
        let mut written = Vec::new();
        write(&line, &mut written);
        let derived = format!("{}\n", serde_json::to_string(&line).unwrap());
        let written = String::from_utf8(written).unwrap();
        prop_assert_eq!(&written, &derived);
        prop_assert_eq!(Line::parse(&written).unwrap(), line);
    }
}
