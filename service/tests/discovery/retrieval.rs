//! Prompts as chats and retrieval make them: what grows, is shuffled, or differs in a line.

use kvatlas_proto::v1::{self, Admission, FallbackReason, FindOutcome};

use crate::harness::{Expect, Harness, check, check_miss, lookup, text};

const REQUESTS: usize = 2_000;
const DOCUMENTS: usize = 60;
const DOCUMENTS_PER_REQUEST: usize = 14;
const WINDOW: usize = 500;
const OTHER_TOKEN: u32 = 160_000;

/// A fixed sequence that looks random.
struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % bound
    }

    /// Some of the numbers below `count`, in random order.
    fn some(&mut self, wanted: usize, count: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..count).collect();
        for at in 0..wanted {
            let other = at + self.below(count - at);
            all.swap(at, other);
        }
        all.truncate(wanted);
        all
    }
}

fn covered(tokens: usize) -> u32 {
    u32::try_from(tokens).unwrap()
}

fn spans<'a>(donor: &'a str, target: &'a [u32], covered: u32) -> Expect<'a> {
    Expect {
        target,
        exact_prefix: 0,
        outcome: FindOutcome::Spans,
        donor,
        covered,
    }
}

fn prefix<'a>(donor: &'a str, target: &'a [u32], covered: u32) -> Expect<'a> {
    Expect {
        outcome: FindOutcome::Prefix,
        ..spans(donor, target, covered)
    }
}

#[tokio::test]
async fn shuffled_retrieval_is_served_as_well_after_two_thousand_requests_as_before() {
    let mut harness = Harness::start(|args| args.donors_max = 200).await;
    let documents: Vec<Vec<u32>> = (0..DOCUMENTS)
        .map(|i| text(5_000 + i as u64, 60 + i * 37 % 91))
        .collect();
    let (instruction, mut draws) = (text(1, 25), Draws(11));
    let mut hits = Vec::with_capacity(REQUESTS);
    for request in 0..REQUESTS {
        let mut prompt = instruction.clone();
        for document in draws.some(DOCUMENTS_PER_REQUEST, DOCUMENTS) {
            prompt.extend(&documents[document]);
        }
        prompt.extend(text(10_000 + request as u64, 10));
        let mut look_up = lookup(&prompt);
        // About half of the documents in one donor are worth it.
        look_up.gates = Some(v1::Gates {
            min_similarity: Some(0.45),
            min_reuse_ratio: Some(0.4),
            ..v1::Gates::default()
        });
        let answer = harness.find(look_up).await;
        hits.push(answer.outcome() != FindOutcome::Miss);
        let id = format!("request-{request}");
        assert_eq!(harness.register(&id, &prompt).await, Admission::Added);
    }
    let rate = |from: usize| hits[from..from + WINDOW].iter().filter(|hit| **hit).count();
    let (early, late) = (rate(WINDOW), rate(REQUESTS - WINDOW));
    assert!(early > WINDOW / 2, "{early} of {WINDOW}");
    assert!(late * 100 >= early * 95, "{late} after {early}");
}

#[tokio::test]
async fn what_is_hit_seldom_but_again_and_again_outlives_a_flood_of_others() {
    const HOT: u64 = 10;
    const BETWEEN_HITS: u64 = 6;
    let mut harness = Harness::start(|args| args.donors_max = 40).await;
    let hot = |i: u64| text(100 + i, 600);
    for i in 0..HOT {
        harness.register(&format!("hot{i}"), &hot(i)).await;
        check(&mut harness, prefix(&format!("hot{i}"), &hot(i), 592)).await;
    }
    // Of forty donors by last hit, none outlives the sixty between two hits of it.
    for one_off in 0..600 {
        let id = format!("once{one_off}");
        harness.register(&id, &text(10_000 + one_off, 600)).await;
        if one_off % BETWEEN_HITS == 0 {
            let i = one_off / BETWEEN_HITS % HOT;
            check(&mut harness, prefix(&format!("hot{i}"), &hot(i), 592)).await;
        }
    }
    // What is no longer hit goes in the end.
    for one_off in 600..1_200 {
        let id = format!("once{one_off}");
        harness.register(&id, &text(10_000 + one_off, 600)).await;
    }
    for i in 0..HOT {
        check_miss(&mut harness, lookup(&hot(i)), FallbackReason::ProviderMiss).await;
    }
}

#[tokio::test]
async fn of_a_growing_conversation_the_longest_turn_is_nominated() {
    let mut harness = Harness::discovery().await;
    let mut conversation = text(20, 640);
    for turn in 0..8 {
        let donor = format!("turn{turn}");
        let admission = harness.register(&donor, &conversation).await;
        assert_eq!(admission, Admission::Added);
        let before = conversation.len();
        conversation.extend(text(200 + turn, 160));
        let found = check(&mut harness, prefix(&donor, &conversation, covered(before))).await;
        let found = found.r#match.unwrap();
        assert_eq!(found.reusable_prefix_tokens, covered(before));
        assert_eq!(found.tier(), v1::Tier::Exact);
        // An earlier turn that comes late adds nothing.
        if turn > 0 {
            let early = &conversation[..640];
            let admission = harness.register(&format!("late{turn}"), early).await;
            assert_eq!(admission, Admission::Covered);
        }
    }
    let status = harness.admin.get_status(v1::GetStatusRequest {});
    assert_eq!(status.await.unwrap().into_inner().donors, 8);
}

#[tokio::test]
async fn reordered_passages_in_another_wrapper_are_found() {
    let mut harness = Harness::discovery().await;
    let passages: Vec<Vec<u32>> = (0..30).map(|i| text(300 + i, 200)).collect();
    for donor in 0..5 {
        let body = passages[donor * 6..donor * 6 + 6].concat();
        let prompt = [text(400 + donor as u64, 30), body, text(450, 10)].concat();
        harness.register(&format!("d{donor}"), &prompt).await;
    }
    for (donor, order) in [(0, [5, 3, 1, 0, 4, 2]), (4, [1, 0, 3, 2, 5, 4])] {
        let body: Vec<u32> = order
            .iter()
            .flat_map(|at| passages[donor * 6 + at].clone())
            .collect();
        let target = [text(499, 22), body, text(498, 12)].concat();
        check(&mut harness, spans(&format!("d{donor}"), &target, 1_180)).await;
    }
}

#[tokio::test]
async fn another_separator_or_first_token_costs_no_more_than_itself() {
    let mut harness = Harness::discovery().await;
    let passages: Vec<Vec<u32>> = (0..6).map(|i| text(600 + i, 150)).collect();
    let joined = |first: u32, separator: &[u32]| {
        let body = passages
            .iter()
            .flat_map(|passage| [passage, separator].concat());
        [first].into_iter().chain(body).collect::<Vec<u32>>()
    };
    harness.register("d", &joined(1, &[198, 198])).await;
    for target in [
        joined(2, &[198, 198]),
        joined(1, &[271]),
        joined(3, &[]),
        joined(4, &[OTHER_TOKEN; 5]),
    ] {
        let answer = check(&mut harness, spans("d", &target, 6 * 148)).await;
        assert!(answer.r#match.unwrap().similarity > 0.9);
    }
}

#[tokio::test]
async fn a_template_with_other_variables_is_found_around_them() {
    let mut harness = Harness::discovery().await;
    let pieces: Vec<Vec<u32>> = (0..10).map(|i| text(700 + i, 90)).collect();
    let filled = |with: u64| {
        let piece = |(i, piece): (usize, &Vec<u32>)| {
            [piece.clone(), text(9_000 + with * 100 + i as u64, 3)].concat()
        };
        pieces
            .iter()
            .enumerate()
            .flat_map(piece)
            .collect::<Vec<u32>>()
    };
    harness.register("filled", &filled(1)).await;
    harness.register("other", &text(799, 900)).await;
    let target = filled(2);
    let answer = check(&mut harness, spans("filled", &target, 900)).await;
    assert!(answer.r#match.unwrap().similarity > 0.95);
}

#[tokio::test]
async fn a_code_file_with_a_changed_line_is_reused_before_and_behind_it() {
    let mut harness = Harness::discovery().await;
    let file = text(800, 1_600);
    harness.register("file", &file).await;
    for line in [640, 1_000] {
        let changed = text(810 + line as u64, 9);
        let target = [&file[..line], &changed, &file[line + 12..]].concat();
        let is_prefix = line > 800;
        let expect = if is_prefix { prefix } else { spans };
        let expect = expect("file", &target, covered(1_600 - 12));
        let found = check(&mut harness, expect).await.r#match.unwrap();
        let blocks = if is_prefix { line / 16 * 16 } else { 0 };
        assert_eq!(found.reusable_prefix_tokens, covered(blocks));
        let ends: Vec<(u32, u32)> = found
            .spans
            .iter()
            .map(|span| (span.donor_start, span.target_start))
            .collect();
        let behind = (covered(line + 12), covered(line + 9));
        assert_eq!(ends, [(0, 0), behind]);
    }
}

#[tokio::test]
async fn a_system_prompt_that_all_share_hides_no_conversation() {
    let mut harness = Harness::discovery().await;
    let system = text(900, 700);
    let conversation = |i: u64| [system.clone(), text(910 + i, 400)].concat();
    for i in 0..40 {
        harness.register(&format!("c{i}"), &conversation(i)).await;
    }
    for i in [0, 19, 39] {
        let target = [conversation(i), text(990, 40)].concat();
        let donor = format!("c{i}");
        check(&mut harness, prefix(&donor, &target, 1_088)).await;
    }
}
