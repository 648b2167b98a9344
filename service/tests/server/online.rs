//! Manifests scored against the request's own query, against a twin written from the formulas.

mod cartridge;
mod tokens;
mod twin;

use kvatlas_proto::v1::{self, ManifestProvenance, ManifestReason};
use tonic::{Code, Status};

use self::{
    cartridge::{Cartridge, narrow},
    twin::Asked,
};
use super::common::{self, Clients, InProcess, within};

const K: usize = 4;

/// A server with the summary of [`Cartridge::random`] under "c1".
async fn served(seed: u64) -> (InProcess, Cartridge) {
    let server = common::start();
    let cartridge = Cartridge::random(seed);
    cartridge.put(&server.clients, "c1").await.unwrap();
    (server, cartridge)
}

async fn ask(
    clients: &Clients,
    request: v1::GetManifestRequest,
) -> Result<v1::GetManifestResponse, Status> {
    let mut routing = clients.routing.clone();
    Ok(within(routing.get_manifest(request)).await?.into_inner())
}

fn request(algorithm: &str, query: v1::QueryVectors) -> v1::GetManifestRequest {
    v1::GetManifestRequest {
        prefix_hash: "c1".into(),
        algorithm: algorithm.into(),
        k: narrow(K),
        query: Some(Box::new(query)),
        ..Default::default()
    }
}

fn best(scores: &[f64], k: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..narrow(scores.len())).collect();
    order.sort_by(|left, right| {
        let [left, right] = [left, right].map(|block| scores[*block as usize]);
        right.total_cmp(&left)
    });
    order.truncate(k);
    order.sort_unstable();
    order
}

/// One request against the twin's scores.
async fn check(clients: &Clients, request: v1::GetManifestRequest, scores: &[f64]) {
    let algorithm = request.algorithm.clone();
    let answer = ask(clients, request).await.unwrap();
    assert_eq!(
        answer.block_indices,
        best(scores, K),
        "{algorithm} {scores:?}"
    );
    assert_eq!(answer.provenance(), ManifestProvenance::Online);
    assert_eq!(answer.reason(), ManifestReason::Unspecified);
    assert_eq!(answer.algorithm, algorithm);
    assert!(answer.prior_generation > 0);
    assert_eq!(answer.total_blocks as usize, scores.len());
}

#[tokio::test]
async fn every_algorithm_picks_the_blocks_of_its_formula() {
    for seed in 1..=8 {
        let (server, cartridge) = served(seed).await;
        let clients = &server.clients;
        let means = Asked::random(seed, &[2, 5, 9], true);
        let heads = Asked::random(seed, &[2, 5, 9], false);
        let some_layers = Asked::random(seed, &[5], false);
        for asked in [&means, &heads, &some_layers] {
            let dot = twin::kri_q(&cartridge, asked, twin::Group::Mean, false);
            check(clients, request("kri-q", asked.vectors()), &dot).await;
            let mut cosine = request("kri-q", asked.vectors());
            cosine.set_similarity(v1::Similarity::Cosine);
            let scores = twin::kri_q(&cartridge, asked, twin::Group::Mean, true);
            check(clients, cosine, &scores).await;
            let mut quest = request("kri-q-quest", asked.vectors());
            quest.set_aggregation(v1::GroupAggregation::Mean);
            let scores = twin::quest(&cartridge, asked, twin::Group::Mean);
            check(clients, quest, &scores).await;
        }
        for asked in [&heads, &some_layers] {
            let mut largest = request("kri-q", asked.vectors());
            largest.set_aggregation(v1::GroupAggregation::Max);
            let scores = twin::kri_q(&cartridge, asked, twin::Group::Max, false);
            check(clients, largest, &scores).await;
            let scores = twin::quest(&cartridge, asked, twin::Group::Max);
            check(clients, request("kri-q-quest", asked.vectors()), &scores).await;
            let scores = twin::kri_t(&cartridge, asked, 131_072);
            check(
                clients,
                request("kri-t", asked.statistics(131_072)),
                &scores,
            )
            .await;
        }
    }
}

#[tokio::test]
async fn policies_choose_among_the_scores() {
    let (server, cartridge) = served(7).await;
    let asked = Asked::random(7, &[2, 5, 9], true);
    let scores = twin::kri_q(&cartridge, &asked, twin::Group::Mean, false);
    let blocks = narrow(scores.len());

    let mut by_position = request("kri-q", asked.vectors());
    by_position.policy = "recency".into();
    let answer = ask(&server.clients, by_position).await.unwrap();
    assert_eq!(
        answer.block_indices,
        (blocks - narrow(K)..blocks).collect::<Vec<_>>()
    );
    assert_eq!(answer.provenance(), ManifestProvenance::PolicyOnly);

    let mut all = request("kri-q", asked.vectors());
    all.k = blocks + 5;
    let answer = ask(&server.clients, all).await.unwrap();
    assert_eq!(answer.block_indices.len(), blocks as usize);
    assert_eq!(answer.reason(), ManifestReason::AllBlocks);

    let mut quota = request("kri-q", asked.vectors());
    quota.policy = "segment-quota:0,0,2".into();
    let answer = ask(&server.clients, quota).await.unwrap();
    let half = scores.len() / 2;
    let mut expected = best(&scores[..half], 2);
    expected.extend(
        best(&scores[half..], 2)
            .into_iter()
            .map(|block| block + narrow(half)),
    );
    assert_eq!(answer.block_indices, expected);
}

#[tokio::test]
async fn pinned_blocks_take_no_place_of_the_best_between() {
    let (server, cartridge) = served(7).await;
    // Among so many queries the ends are often the best.
    for seed in 1..=16 {
        let asked = Asked::random(seed, &[2, 5, 9], true);
        let scores = twin::kri_q(&cartridge, &asked, twin::Group::Mean, false);
        let blocks = narrow(scores.len());
        let mut pinned = request("kri-q", asked.vectors());
        pinned.policy = "A1R2K3".into();
        pinned.k = 0;
        let answer = ask(&server.clients, pinned).await.unwrap();
        let mut expected = vec![0, blocks - 2, blocks - 1];
        let middle = best(&scores[1..scores.len() - 2], 3);
        expected.extend(middle.into_iter().map(|block| block + 1));
        expected.sort_unstable();
        assert_eq!(answer.block_indices, expected);
        assert_eq!(answer.policy, "A1R2K3");
    }
}

#[tokio::test]
async fn each_head_can_have_its_own_blocks() {
    let (server, cartridge) = served(3).await;
    let asked = Asked::random(3, &[5, 9], false);
    let mut per_head = request("kri-q", asked.vectors());
    per_head.policy = "per-head".into();
    let answer = ask(&server.clients, per_head).await.unwrap();
    let heads = answer.per_head.unwrap();
    assert_eq!(
        (heads.layers, heads.kv_heads),
        (2, narrow(cartridge.kv_heads))
    );
    let expected: Vec<u32> = twin::kri_q_by_head(&cartridge, &asked, twin::Group::Mean)
        .iter()
        .flat_map(|scores| best(scores, K))
        .collect();
    assert_eq!(heads.block_indices, expected);
}

#[tokio::test]
async fn the_callers_number_of_blocks_may_differ_by_one() {
    let (server, cartridge) = served(4).await;
    let asked = Asked::random(4, &[2, 5, 9], true);
    let scores = twin::kri_q(&cartridge, &asked, twin::Group::Mean, false);
    let blocks = narrow(scores.len());
    let with_total = |total_blocks| {
        let mut request = request("kri-q", asked.vectors());
        request.total_blocks = total_blocks;
        ask(&server.clients, request)
    };
    let fewer = with_total(blocks - 1).await.unwrap();
    assert_eq!(fewer.block_indices, best(&scores[..scores.len() - 1], K));
    let more = with_total(blocks + 1).await.unwrap();
    assert_eq!(more.block_indices, best(&scores, K));
    assert_eq!(more.total_blocks, blocks + 1);
    let refused = with_total(blocks + 2).await.unwrap_err();
    assert!(refused.message().contains("total_blocks"), "{refused}");
}

#[tokio::test]
async fn a_query_can_be_kept_and_named() {
    let (server, cartridge) = served(5).await;
    let clients = &server.clients;
    let asked = Asked::random(5, &[2, 5, 9], false);
    let keep = |query_hash: &str, query| {
        let mut routing = clients.routing.clone();
        let put = v1::PutQueryRequest {
            query_hash: query_hash.into(),
            query: Some(query),
            ttl_ms: 0,
        };
        async move { within(routing.put_query(put)).await.unwrap() }
    };
    keep("q1", asked.vectors()).await;
    keep("calibration", asked.statistics(10)).await;

    let mut named = request("kri-q", v1::QueryVectors::default());
    named.query = None;
    named.query_hash = "q1".into();
    let dot = twin::kri_q(&cartridge, &asked, twin::Group::Mean, false);
    check(clients, named, &dot).await;

    // Statistics are kept once; each request says where the sequence is.
    for position in [10_u64, 131_072] {
        let moved = v1::QueryVectors {
            position,
            ..Default::default()
        };
        let mut named = request("kri-t", moved);
        named.query_hash = "calibration".into();
        check(clients, named, &twin::kri_t(&cartridge, &asked, position)).await;
    }
}

#[tokio::test]
async fn where_scoring_is_not_possible_the_prior_answers_with_the_reason() {
    let (server, _) = served(6).await;
    let clients = &server.clients;
    for prefix in ["c1", "without summary"] {
        cartridge::put_prior(
            clients,
            prefix,
            &[0.0, 5.0, 1.0, 4.0, 2.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        )
        .await;
    }
    let stored = |answer: v1::GetManifestResponse, reason| {
        assert_eq!(answer.block_indices, [1, 3, 4, 5]);
        assert_eq!(answer.provenance(), ManifestProvenance::Prior);
        assert_eq!(answer.reason(), reason);
    };
    let asked = Asked::random(6, &[2, 5, 9], true);

    // Nothing is kept under the query_hash: whether or not a fallback is allowed.
    let mut unknown = request("kri-q", asked.vectors());
    unknown.query = None;
    unknown.query_hash = "never put".into();
    stored(
        ask(clients, unknown).await.unwrap(),
        ManifestReason::QueryUnknown,
    );

    // The summary does not hold the layer.
    let mut no_layer = request("kri-q", Asked::random(6, &[2], true).vectors());
    no_layer.query.as_mut().unwrap().layer_ids = vec![3];
    let refused = ask(clients, no_layer.clone()).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("layer"), "{refused}");
    no_layer.allow_fallback = true;
    stored(
        ask(clients, no_layer).await.unwrap(),
        ManifestReason::OnlineUnavailable,
    );

    let mut no_summary = request("kri-q", asked.vectors());
    no_summary.prefix_hash = "without summary".into();
    let refused = ask(clients, no_summary.clone()).await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound);
    assert!(refused.message().contains("key summary"), "{refused}");
    no_summary.allow_fallback = true;
    stored(
        ask(clients, no_summary).await.unwrap(),
        ManifestReason::OnlineUnavailable,
    );
}

#[tokio::test]
async fn a_fallback_reads_the_rankings_of_single_heads_first() {
    let (server, _) = served(6).await;
    let clients = &server.clients;
    let scores: Vec<f32> = (0_u8..24).map(f32::from).collect();
    cartridge::put_prior_of(clients, "c1", &[2, 1, 12], &scores).await;
    let mut request = request("kri-q", v1::QueryVectors::default());
    request.query = None;
    request.query_hash = "never put".into();
    request.policy = "per-head".into();
    let answer = ask(clients, request).await.unwrap();
    assert_eq!(answer.reason(), ManifestReason::QueryUnknown);
    let expected = [8, 9, 10, 11, 8, 9, 10, 11];
    assert_eq!(answer.per_head.unwrap().block_indices, expected);
}

#[tokio::test]
async fn a_fallback_policy_answers_for_a_prefix_of_which_nothing_is_stored() {
    let (server, _) = served(6).await;
    let asked = Asked::random(6, &[2, 5, 9], true);
    let mut unknown = request("kri-q", asked.vectors());
    unknown.prefix_hash = "nothing".into();
    unknown.fallback_policy = "recency".into();
    unknown.total_blocks = 9;
    let answer = ask(&server.clients, unknown).await.unwrap();
    assert_eq!(answer.block_indices, [5, 6, 7, 8]);
    assert_eq!(answer.reason(), ManifestReason::PriorMissing);
}

#[tokio::test]
async fn a_request_that_would_score_garbage_is_refused() {
    let (server, _) = served(9).await;
    let asked = Asked::random(9, &[2, 5, 9], false);
    type Change = fn(&mut v1::GetManifestRequest);
    fn query(request: &mut v1::GetManifestRequest) -> &mut v1::QueryVectors {
        request.query.as_mut().unwrap()
    }
    let cases: [(&str, &str, Change); 11] = [
        ("kri-q", "query", |it| it.query = None),
        ("kri-q", "frame", |it| {
            query(it).set_frame(v1::RopeFrame::PreRope);
        }),
        ("kri-q", "pair_layout", |it| {
            query(it).set_pair_layout(v1::PairLayout::Interleaved);
        }),
        ("kri-q", "head_dim", |it| {
            query(it).head_dim = 4;
            query(it).heads *= 2;
        }),
        ("kri-q", "vectors", |it| {
            let vectors = query(it).vectors.slice(4..);
            query(it).vectors = vectors;
        }),
        ("kri-q", "vectors", |it| {
            let mut vectors = query(it).vectors.to_vec();
            vectors[..4].copy_from_slice(&f32::NAN.to_le_bytes());
            query(it).vectors = vectors.into();
        }),
        ("kri-t", "kri-t", |_| {}),
        ("kri-t", "similarity", |it| {
            it.set_similarity(v1::Similarity::Cosine);
        }),
        ("kri-q", "similarity", |it| it.similarity = 77),
        ("", "query", |_| {}),
        ("kri-q", "k", |it| it.k = 0),
    ];
    for (algorithm, word, change) in cases {
        let mut request = request(algorithm, asked.vectors());
        // A fallback is for what cannot be had, not for what is wrong.
        request.allow_fallback = true;
        change(&mut request);
        let refused = ask(&server.clients, request).await.unwrap_err();
        let code = refused.code();
        let is_refused = [Code::InvalidArgument, Code::FailedPrecondition].contains(&code);
        assert!(is_refused, "{word}: {refused}");
        assert!(refused.message().contains(word), "{word}: {refused}");
    }
}

#[tokio::test]
async fn a_lease_on_scored_blocks_ends_with_their_summary() {
    let (server, cartridge) = served(2).await;
    let clients = &server.clients;
    let asked = Asked::random(2, &[2, 5, 9], true);
    let answer = ask(clients, request("kri-q", asked.vectors()))
        .await
        .unwrap();
    let lease_id = answer.lease.unwrap().id;
    let state = || {
        let mut leases = clients.leases.clone();
        let request = v1::ValidateRequest {
            lease_id: lease_id.clone(),
            holder: String::new(),
        };
        async move {
            within(leases.validate(request))
                .await
                .unwrap()
                .into_inner()
                .state()
        }
    };
    assert_eq!(state().await, v1::LeaseState::Valid);
    cartridge.put(clients, "c1").await.unwrap();
    assert_eq!(state().await, v1::LeaseState::Stale);
}
