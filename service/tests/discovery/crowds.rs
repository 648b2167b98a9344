//! Donors that sampled seeds cannot tell apart, more of them than are aligned.

use kvatlas_proto::v1::{self, FindOutcome};

use crate::harness::{Expect, Harness, check, lookup, owner, registration, text};

/// One template, a variable in it, and who continues the prompt.
#[tokio::test]
async fn the_one_that_continues_the_prompt_is_nominated() {
    let mut harness = Harness::discovery().await;
    for (trial, width) in (0..12).zip([1, 2, 3].into_iter().cycle()) {
        let seed = 1_000 * (trial + 1);
        let (head, tail) = (text(seed, 100), text(seed + 1, 1_400));
        let filled = |donor: u64| [&head[..], &text(seed + 2 + donor, width), &tail].concat();
        for donor in 0..30 {
            harness
                .register(&format!("{trial}-{donor}"), &filled(donor))
                .await;
        }
        let wanted = 7 * trial % 30;
        let target = [filled(wanted), text(seed + 99, 30)].concat();
        let expect = Expect {
            target: &target,
            exact_prefix: 0,
            outcome: FindOutcome::Prefix,
            donor: &format!("{trial}-{wanted}"),
            covered: 1_500 / 16 * 16,
        };
        check(&mut harness, expect).await;
    }
}

/// Many share all but a few tokens near the start; one shares less, from the start on.
#[tokio::test]
async fn one_that_shares_less_from_the_start_is_nominated() {
    let mut harness = Harness::discovery().await;
    for trial in 0..6 {
        let seed = 1_000 * (trial + 1);
        let prompt = text(seed, 1_500);
        for donor in 0..30 {
            let at = 20 + 13 * usize::try_from(donor).unwrap();
            let changed = [&prompt[..at], &text(seed + 1 + donor, 1), &prompt[at + 1..]];
            let (id, changed) = (format!("early{trial}-{donor}"), changed.concat());
            harness.register(&id, &changed).await;
            if donor == 11 {
                let mut late = prompt.clone();
                for at in [1_300, 1_330, 1_370, 1_400, 1_440] {
                    late[at] = 160_000;
                }
                harness.register(&format!("late{trial}"), &late).await;
            }
        }
        let expect = Expect {
            target: &prompt,
            exact_prefix: 0,
            outcome: FindOutcome::Prefix,
            donor: &format!("late{trial}"),
            covered: 1_296,
        };
        let answer = check(&mut harness, expect).await;
        assert_eq!(answer.r#match.unwrap().reusable_prefix_tokens, 1_296);
    }
}

#[tokio::test]
async fn of_equal_ones_an_exact_one_and_then_the_freshest_is_nominated() {
    let mut harness = Harness::discovery().await;
    let prompt = text(5, 1_600);
    let mut first = registration("exact", &prompt);
    first.exact_tokens = first.captured_tokens;
    harness.register_as(first).await.unwrap();
    for donor in 0..20 {
        // Owners of their own: of one owner's, all but the first would be covered by it.
        let mut alike = registration(&format!("alike{donor}"), &prompt);
        alike.owner = owner(&format!("worker-{}", 10 + donor));
        alike.exact_tokens = 0;
        harness.register_as(alike).await.unwrap();
    }
    let nominated = async |harness: &mut Harness| {
        let found = harness.find(lookup(&prompt)).await.r#match.unwrap();
        (found.donor_id.clone(), found.tier())
    };
    assert_eq!(
        nominated(&mut harness).await,
        ("exact".into(), v1::Tier::Exact)
    );
    let what = owner("worker-1").map(v1::remove_donors_request::What::Owner);
    let request = v1::RemoveDonorsRequest { what };
    harness.donors.remove_donors(request).await.unwrap();
    assert_eq!(
        nominated(&mut harness).await,
        ("alike19".into(), v1::Tier::Verified)
    );
}
