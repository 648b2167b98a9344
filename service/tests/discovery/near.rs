//! What comes after the seeds: neighbours, several donors, compared facts.

use kvatlas_proto::v1::{self, Discovery, FallbackReason, FindOutcome, NeighbourSearch};

use crate::harness::{Harness, check_miss, lookup, registration, text};

/// The document with every twelfth token replaced: no run is long enough to be reusable.
fn every_twelfth_replaced(document: &[u32]) -> Vec<u32> {
    let replace = |(at, &token): (usize, &u32)| match at % 12 {
        11 => 140_000 + u32::try_from(at).unwrap(),
        _ => token,
    };
    document.iter().enumerate().map(replace).collect()
}

/// Asks until the vectors, which are made behind the acknowledgement, are there. Each answer is a
/// round trip, and what waits for them is one donor's worth of work.
async fn check_near(harness: &mut Harness, request: v1::FindDonorRequest, donor: &str) {
    for _ in 0..10_000 {
        let reason = FallbackReason::LowReuseTokens;
        let answer = check_miss(harness, request.clone(), reason).await;
        if answer.sketch_search() == NeighbourSearch::NothingIndexed || answer.neighbours.is_empty()
        {
            continue;
        }
        assert_eq!(answer.sketch_search(), NeighbourSearch::Done);
        assert_eq!(answer.text_search(), NeighbourSearch::Disabled);
        assert!(answer.neighbours.len() <= 5);
        let first = &answer.neighbours[0];
        assert_eq!(first.donor_id, donor);
        assert_eq!(first.discovery(), Discovery::Sketch);
        assert!(first.score > 0.5, "{}", first.score);
        assert!(!first.quality.unwrap().facts_compared, "nobody gave a text");
        assert!(answer.timings.unwrap().neighbours_us > 0.0);
        return;
    }
    panic!("no neighbour was ever listed");
}

#[tokio::test]
async fn a_donor_without_a_long_run_is_listed_as_a_neighbour() {
    let mut harness = Harness::discovery().await;
    let documents: Vec<Vec<u32>> = (0..8).map(|seed| text(50 + seed, 1200)).collect();
    // The one that is looked for is the first to get its vector: the others may come later.
    for (at, document) in documents.iter().enumerate().rev() {
        harness.register(&format!("d{at}"), document).await;
    }
    let request = v1::FindDonorRequest {
        neighbours_max: 5,
        ..lookup(&every_twelfth_replaced(&documents[7]))
    };
    check_near(&mut harness, request, "d7").await;
}

#[tokio::test]
async fn sketches_can_be_turned_off() {
    let mut harness = Harness::start(|args| args.sketches = false).await;
    let document = text(1, 1200);
    harness.register("document", &document).await;
    let request = v1::FindDonorRequest {
        neighbours_max: 5,
        ..lookup(&every_twelfth_replaced(&document))
    };
    let answer = check_miss(&mut harness, request, FallbackReason::LowReuseTokens).await;
    assert_eq!(answer.sketch_search(), NeighbourSearch::Disabled);
    assert!(answer.neighbours.is_empty());
}

#[tokio::test]
async fn spans_of_several_donors_cover_what_none_covers_alone() {
    let mut harness = Harness::discovery().await;
    let parts: Vec<Vec<u32>> = (0..4).map(|seed| text(70 + seed, 400)).collect();
    for (at, part) in parts.iter().enumerate() {
        let own = text(90 + u64::try_from(at).unwrap(), 400);
        harness
            .register(&format!("d{at}"), &[own, part.clone()].concat())
            .await;
    }
    let target = parts.concat();
    for (most, covered) in [(0, 0), (1, 400), (3, 1200), (4, 1600), (8, 1600)] {
        let request = v1::FindDonorRequest {
            segment_donors_max: most,
            ..lookup(&target)
        };
        let answer = harness.find(request).await;
        let spans: Vec<v1::Span> = answer.segments.iter().map(|s| s.span.unwrap()).collect();
        let mut end = 0;
        for (segment, span) in answer.segments.iter().zip(&spans) {
            assert!(span.target_start >= end, "{spans:?}");
            end = span.target_start + span.length;
            let part = usize::try_from(span.target_start / 400).unwrap();
            assert_eq!(segment.donor_id, format!("d{part}"));
        }
        // The captured tokens are whole blocks, and 800 is fifty of them.
        let total: u32 = spans.iter().map(|span| span.length).sum();
        assert_eq!(total, covered, "{most} donors: {spans:?}");
    }
}

const STORY: &str = "The committee met on the evening of the third day and heard both sides at \
    length. It did approve the sale of 25 ships to the port. The members then went home, and the \
    matter was laid upon the table until the next session of the house.";

#[tokio::test]
async fn changed_facts_are_told_where_text_is_kept() {
    let flipped = STORY.replace("did approve", "did not approve");
    let benign = STORY.replace(", and the matter", " and the matter");
    // Whether the server keeps text; the donor's text, the prompt's; compared, and different.
    for (keeps, donor, prompt, expected) in [
        (true, STORY, STORY, Some(false)),
        (true, STORY, flipped.as_str(), Some(true)),
        (true, STORY, benign.as_str(), Some(false)),
        (true, "", flipped.as_str(), None),
        (true, STORY, "", None),
        (false, STORY, flipped.as_str(), None),
    ] {
        let mut harness = Harness::start(|args| args.text.enabled = keeps).await;
        let tokens = text(5, 1024);
        let record = v1::RegisterDonorRequest {
            text: donor.into(),
            ..registration("story", &tokens)
        };
        harness.register_as(record).await.unwrap();
        let request = v1::FindDonorRequest {
            text: prompt.into(),
            ..lookup(&tokens)
        };
        let answer = harness.find(request).await;
        assert_ne!(answer.outcome(), FindOutcome::Miss);
        check_stages(&answer, keeps && !prompt.is_empty());
        let quality = answer.r#match.unwrap().quality.unwrap();
        assert_eq!(quality.discovery(), Discovery::Seeds);
        let told = quality.facts_compared.then_some(quality.facts_differ);
        assert_eq!(told, expected, "kept {keeps}: {prompt}");
    }
}

fn check_stages(answer: &v1::FindDonorResponse, compares: bool) {
    let timings = answer.timings.unwrap();
    assert_eq!(timings.facts_us > 0.0, compares, "{timings:?}");
    let parts = timings.seeds_us + timings.align_us + timings.gate_us + timings.facts_us;
    assert!(timings.total_us >= parts, "{timings:?}");
}

#[tokio::test]
async fn texts_that_would_take_too_long_to_compare_cost_no_answer() {
    let mut harness = Harness::start(|args| args.text.enabled = true).await;
    let tokens = text(5, 1024);
    let record = v1::RegisterDonorRequest {
        text: STORY.into(),
        ..registration("story", &tokens)
    };
    harness.register_as(record).await.unwrap();
    let request = v1::FindDonorRequest {
        text: STORY.repeat((2 << 20) / STORY.len()),
        ..lookup(&tokens)
    };
    let answer = harness.find(request).await;
    assert_ne!(answer.outcome(), FindOutcome::Miss);
    check_stages(&answer, true);
    let quality = answer.r#match.unwrap().quality.unwrap();
    assert!(!quality.facts_compared && !quality.facts_differ);
}

#[tokio::test]
async fn texts_and_marks_survive_a_restart() {
    let mut harness = Harness::start(|args| args.text.enabled = true).await;
    let tokens = text(6, 1024);
    let record = v1::RegisterDonorRequest {
        text: STORY.into(),
        ..registration("story", &tokens)
    };
    harness.register_as(record).await.unwrap();
    harness.restart().await;
    let request = v1::FindDonorRequest {
        text: STORY.replace("25 ships", "52 ships"),
        ..lookup(&tokens)
    };
    let answer = harness.find(request).await;
    assert!(answer.r#match.unwrap().quality.unwrap().facts_differ);
    let request = v1::FindDonorRequest {
        neighbours_max: 1,
        ..lookup(&every_twelfth_replaced(&tokens))
    };
    check_near(&mut harness, request, "story").await;
}
