//! Verdicts on evidence made by hand.

use proptest::prelude::*;

use super::*;

fn terms(prompt_tokens: u32, exact_prefix_tokens: u32) -> Terms {
    Terms {
        prompt_tokens,
        exact_prefix_tokens,
        block_size: 16,
        asynchronous_load: false,
        minimum_tier: Tier::Verified,
        gates: Gates::default(),
    }
}

fn run(donor_start: u32, target_start: u32, length: u32) -> Span {
    Span {
        donor_start,
        target_start,
        length,
    }
}

struct Case {
    terms: Terms,
    spans: Vec<Span>,
    identical: u32,
    exact: u32,
}

fn check(case: &Case) -> (Verdict, Worth) {
    let anchored = case
        .spans
        .iter()
        .copied()
        .find(|span| span.target_start == case.terms.exact_prefix_tokens);
    let evidence = Evidence {
        spans: &case.spans,
        anchored,
        identical_from_start: case.identical,
        exact_tokens: case.exact,
    };
    judge(&case.terms, &evidence)
}

fn check_prefix(case: &Case, expected: Option<(u32, u32, Tier)>) {
    let (verdict, worth) = check(case);
    let got = worth.prefix.map(|p| (p.tokens, p.donor_offset, p.tier));
    assert_eq!(got, expected);
    assert_eq!(
        verdict == Verdict::Prefix,
        expected.is_some(),
        "{verdict:?}"
    );
}

#[test]
fn a_full_hit_leaves_a_token_to_compute() {
    let mut case = Case {
        terms: terms(1024, 0),
        spans: vec![run(0, 0, 1024)],
        identical: 1024,
        exact: 1024,
    };
    check_prefix(&case, Some((1008, 0, Tier::Exact)));
    case.terms.asynchronous_load = true;
    check_prefix(&case, Some((1024, 0, Tier::Exact)));
}

#[test]
fn reusable_tokens_are_beyond_the_exact_prefix() {
    let case = Case {
        terms: terms(2048, 512),
        spans: vec![run(512, 512, 1536)],
        identical: 2048,
        exact: 2048,
    };
    check_prefix(&case, Some((1520, 512, Tier::Exact)));
}

#[test]
fn another_position_or_unsaid_exactness_is_verified() {
    let spans = vec![run(0, 0, 1024)];
    let case = Case {
        terms: terms(1100, 0),
        spans,
        identical: 1024,
        exact: 1008,
    };
    check_prefix(&case, Some((1024, 0, Tier::Verified)));
    let moved = Case {
        terms: terms(1100, 0),
        spans: vec![run(32, 0, 1030)],
        identical: 0,
        exact: 2000,
    };
    check_prefix(&moved, Some((1024, 32, Tier::Verified)));
}

#[test]
fn exact_only_cuts_at_the_exact_tokens() {
    let mut case = Case {
        terms: terms(1100, 0),
        spans: vec![run(0, 0, 1024)],
        identical: 1024,
        exact: 1000,
    };
    case.terms.minimum_tier = Tier::Exact;
    check_prefix(&case, Some((992, 0, Tier::Exact)));
    case.exact = 0;
    let (verdict, _) = check(&case);
    assert!(matches!(
        verdict,
        Verdict::Rejected(FallbackReason::NotPrefixAnchored, _)
    ));
}

#[test]
fn spans_that_are_not_anchored_pass_on_their_total() {
    let spans = vec![run(10, 30, 500), run(600, 600, 400)];
    let (verdict, worth) = check(&Case {
        terms: terms(1024, 0),
        spans,
        identical: 0,
        exact: 0,
    });
    assert!(matches!(verdict, Verdict::Spans(..)), "{verdict:?}");
    assert_eq!((worth.verified_tokens, worth.prefix), (900, None));
}

#[test]
fn each_gate_rejects_under_its_own_reason() {
    let reason = |case: &Case| match check(case).0 {
        Verdict::Rejected(reason, _) => reason,
        Verdict::Prefix | Verdict::Spans(..) => panic!("it passed"),
    };
    let short = Case {
        terms: terms(1024, 0),
        spans: vec![run(5, 5, 511)],
        identical: 0,
        exact: 0,
    };
    assert_eq!(reason(&short), FallbackReason::LowReuseTokens);
    let thin = Case {
        terms: terms(1024, 0),
        spans: vec![run(5, 5, 600)],
        identical: 0,
        exact: 0,
    };
    assert_eq!(reason(&thin), FallbackReason::LowSimilarity);
    let mut low_ratio = Case {
        terms: terms(2048, 1008),
        spans: vec![run(5, 1020, 900)],
        identical: 0,
        exact: 0,
    };
    assert_eq!(reason(&low_ratio), FallbackReason::LowReuseTokens);
    low_ratio.terms.gates.min_reuse_ratio = 0.4;
    assert!(matches!(check(&low_ratio).0, Verdict::Spans(..)));
}

#[test]
fn a_boundary_inside_a_block_cannot_be_continued() {
    let mut case = Case {
        terms: terms(2048, 100),
        spans: vec![run(100, 100, 1948)],
        identical: 2048,
        exact: 2048,
    };
    assert!(matches!(check(&case).0, Verdict::Spans(..)));
    case.terms.minimum_tier = Tier::Exact;
    let (verdict, _) = check(&case);
    assert!(matches!(
        verdict,
        Verdict::Rejected(FallbackReason::NotBlockAligned, _)
    ));
}

#[test]
fn spans_over_the_whole_prompt_leave_a_token_to_compute() {
    let mut case = Case {
        terms: terms(512, 0),
        spans: vec![run(1, 0, 512)],
        identical: 0,
        exact: 0,
    };
    let (verdict, _) = check(&case);
    assert!(matches!(
        verdict,
        Verdict::Rejected(FallbackReason::LowReuseTokens, _)
    ));
    case.terms.asynchronous_load = true;
    assert_eq!(check(&case).0, Verdict::Prefix);
}

#[test]
fn an_answer_of_spans_says_what_there_is_at_the_boundary() {
    let why = |prefix: u32, spans: &[Span], anchored: Option<Span>| {
        let evidence = Evidence {
            spans,
            anchored,
            identical_from_start: 0,
            exact_tokens: 0,
        };
        why_not_prefix(&terms(2048, prefix), &evidence)
    };
    let far = run(5, 50, 900);
    let (reason, _) = why(0, &[far], None);
    assert_eq!(reason, FallbackReason::NotPrefixAnchored);
    let (reason, detail) = why(0, &[far], Some(run(7, 0, 40)));
    assert_eq!(reason, FallbackReason::NotPrefixAnchored);
    assert!(
        detail.starts_with("40 tokens") && detail.contains("blocks 32"),
        "{detail}"
    );
    let (reason, detail) = why(100, &[far], Some(run(7, 100, 40)));
    assert_eq!(reason, FallbackReason::NotBlockAligned);
    assert!(detail.contains("100") && detail.contains("16"), "{detail}");
}

#[test]
fn nothing_found_is_never_a_hit_even_without_thresholds() {
    let mut case = Case {
        terms: terms(600, 0),
        spans: vec![],
        identical: 0,
        exact: 0,
    };
    case.terms.gates = Gates {
        min_prompt_tokens: 0,
        min_reuse_tokens: 0,
        min_similarity: 0.0,
        min_reuse_ratio: 0.0,
        exact_prefix_skip_ratio: 1.0,
    };
    assert!(matches!(
        check(&case).0,
        Verdict::Rejected(FallbackReason::LowReuseTokens, _)
    ));
}

#[test]
fn a_look_up_can_be_refused_before_the_search() {
    let reason = |prompt, prefix| before_search(&terms(prompt, prefix)).map_err(|r| r.0);
    assert_eq!(reason(511, 0), Err(FallbackReason::UnsupportedRequest));
    assert_eq!(
        reason(1024, 512),
        Err(FallbackReason::ExactPrefixSufficient)
    );
    assert_eq!(reason(1024, 511), Ok(()));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// A gate that is set to what the refusal measured lets the candidate through, or to the next.
    #[test]
    fn a_refusal_names_the_gate_and_what_would_pass_it(
        lengths in prop::collection::vec((1..400_u32, 0..40_u32), 0..4),
        exact_prefix in 0..8_u32,
        extra in 1..400_u32,
        is_exact_only in any::<bool>(),
    ) {
        let start = exact_prefix * 16;
        let mut spans = Vec::new();
        let mut at = start;
        for (length, gap) in lengths {
            spans.push(run(at, at, length));
            at += length + gap;
        }
        let mut terms = terms(at + extra, start);
        terms.gates = Gates { min_prompt_tokens: 1, ..Gates::default() };
        terms.minimum_tier = if is_exact_only { Tier::Exact } else { Tier::Verified };
        let end = spans.first().map_or(start, Span::target_end);
        let evidence = Evidence {
            spans: &spans,
            anchored: spans.first().copied(),
            identical_from_start: end,
            exact_tokens: end,
        };
        let mut closed = Vec::new();
        while let (Verdict::Rejected(..), _) = judge(&terms, &evidence) {
            let refusal = refusal(&terms, &evidence);
            prop_assert!(!closed.contains(&refusal.gate), "{refusal:?} after {closed:?}");
            closed.push(refusal.gate);
            let gates = &mut terms.gates;
            match refusal.gate {
                Gate::MinReuseTokens if refusal.reusable_tokens == 0 => break,
                Gate::MinReuseTokens => gates.min_reuse_tokens = refusal.reusable_tokens,
                Gate::MinSimilarity => gates.min_similarity = refusal.similarity,
                Gate::MinReuseRatio => gates.min_reuse_ratio = refusal.reuse_ratio,
                Gate::MinimumTier => {
                    prop_assert!(is_exact_only);
                    break;
                }
                Gate::MinPromptTokens | Gate::ExactPrefixSkipRatio => {
                    prop_assert!(false, "no candidate is judged by {:?}", refusal.gate);
                }
            }
        }
    }
}
