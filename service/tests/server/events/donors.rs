//! Donors in device memory live and die with their owner's events, seen from outside.

use kvatlas::config::ServeMode;
use kvatlas_proto::v1::{
    self, FallbackReason, FindOutcome, LeaseState, donors_client::DonorsClient,
    leases_client::LeasesClient,
};
use tonic::transport::Channel;

use crate::{
    common::{self, InProcess, within},
    events::{harness::Harness, publish::Sidecar},
    payloads::{batch, removed, stored},
};

const WORKER: &str = "vllm-0";
const HOLDER: &str = "engine-1";
pub(super) const BLOCKS: u64 = 64;
pub(super) const TOKENS: u32 = 1024;

/// A server that gives leases, and a sidecar of one engine.
pub(super) struct Story {
    pub(super) harness: Harness,
    donors: DonorsClient<Channel>,
    leases: LeasesClient<Channel>,
    pub(super) sidecar: Sidecar,
    _server: InProcess,
}

impl Story {
    pub(super) async fn begin() -> Story {
        let server = common::start_with(|args| args.mode = Some(ServeMode::Materialize));
        let mut harness = Harness::on(&server.clients);
        let sidecar = Sidecar::open(&mut harness, WORKER, Some(100)).await;
        let mut donors = server.clients.donors.clone();
        let announcement = v1::AnnounceOwnerRequest {
            owner: owner(),
            generation: 1,
            ttl_ms: 3_600_000,
        };
        within(donors.announce_owner(announcement)).await.unwrap();
        Story {
            harness,
            donors,
            leases: server.clients.leases.clone(),
            sidecar,
            _server: server,
        }
    }

    pub(super) async fn register(
        &mut self,
        donor_id: &str,
        medium: v1::Medium,
        block_hashes: &[u64],
    ) {
        let hash = |hash: &u64| hash.to_be_bytes().to_vec().into();
        let request = v1::RegisterDonorRequest {
            donor_id: donor_id.into(),
            namespace: common::selector(common::namespace()),
            owner: owner(),
            owner_generation: 1,
            tokens: tokens(TOKENS),
            captured_tokens: TOKENS,
            exact_tokens: TOKENS,
            medium: medium.into(),
            store_id: "store".into(),
            block_hashes: block_hashes.iter().map(hash).collect(),
            ..v1::RegisterDonorRequest::default()
        };
        within(self.donors.register_donor(request)).await.unwrap();
    }

    pub(super) async fn find(&mut self) -> v1::FindDonorResponse {
        let found = within(self.donors.find_donor(request())).await;
        found.unwrap().into_inner()
    }

    /// The tokens that can be leased, and the lease.
    pub(super) async fn leased(&mut self) -> (u32, Vec<u8>) {
        let answer = self.find().await;
        assert_eq!(answer.outcome(), FindOutcome::Prefix, "{answer:?}");
        let lease = answer.lease.expect("a lease");
        let found = answer.r#match.unwrap();
        (found.reusable_prefix_tokens, lease.id.to_vec())
    }

    /// What the segments list: donors, and tokens from their starts.
    async fn segments(&mut self) -> Vec<(String, u32)> {
        let request = v1::FindDonorRequest {
            segment_donors_max: 4,
            ..request()
        };
        let answer = within(self.donors.find_donor(request)).await.unwrap();
        let segments = answer.into_inner().segments.into_iter();
        let end = |span: v1::Span| span.donor_start + span.length;
        segments
            .map(|segment| (segment.donor_id, end(segment.span.unwrap())))
            .collect()
    }

    async fn check_stale(&mut self, says: &str) {
        let answer = self.find().await;
        assert_eq!(answer.reason(), FallbackReason::DonorStale, "{answer:?}");
        assert!(answer.detail.contains(says), "{}", answer.detail);
    }

    pub(super) async fn state(&mut self, lease_id: &[u8]) -> LeaseState {
        let request = v1::ValidateRequest {
            lease_id: lease_id.to_vec().into(),
            holder: HOLDER.into(),
        };
        let state = within(self.leases.validate(request)).await.unwrap();
        state.into_inner().state()
    }

    pub(super) async fn store(&mut self, blocks: std::ops::RangeInclusive<u64>) {
        let first = u32::try_from(*blocks.start()).unwrap() - 1;
        let parent = Some(blocks.start() - 1).filter(|parent| *parent > 0);
        let names: Vec<u64> = blocks.collect();
        let event = stored(&names, parent, first * 16);
        self.sidecar.publish(&batch(&[event])).await;
    }

    async fn remove(&mut self, blocks: &[u64]) {
        self.sidecar.publish(&batch(&[removed(blocks)])).await;
    }
}

fn request() -> v1::FindDonorRequest {
    v1::FindDonorRequest {
        // One more, which is left to compute.
        tokens: tokens(TOKENS + 1),
        namespace: common::selector(common::namespace()),
        holder: HOLDER.into(),
        readable_store_ids: vec!["store".into()],
        gates: Some(v1::Gates {
            min_reuse_tokens: Some(16),
            min_similarity: Some(0.1),
            min_reuse_ratio: Some(0.1),
            ..v1::Gates::default()
        }),
        ..v1::FindDonorRequest::default()
    }
}

#[expect(clippy::unnecessary_wraps, reason = "as the messages hold it")]
fn owner() -> Option<v1::Owner> {
    Some(v1::Owner {
        worker_id: WORKER.into(),
        data_parallel_rank: 0,
    })
}

#[expect(clippy::unnecessary_wraps, reason = "as the messages hold it")]
fn tokens(count: u32) -> Option<v1::Tokens> {
    let packed: Vec<u8> = (0..count).flat_map(u32::to_le_bytes).collect();
    Some(v1::Tokens {
        ids: Vec::new(),
        packed: packed.into(),
    })
}

#[tokio::test]
async fn a_lease_ends_with_the_first_block_that_goes_and_what_remains_is_leased_anew() {
    let mut story = Story::begin().await;
    story.register("d", v1::Medium::Device, &[]).await;
    story.check_stale("events are not followed").await;
    story.store(1..=32).await;
    let (reusable, half) = story.leased().await;
    assert_eq!(reusable, 512);
    story.store(33..=BLOCKS).await;
    assert_eq!(story.state(&half).await, LeaseState::Valid);
    let (reusable, whole) = story.leased().await;
    assert_eq!(reusable, TOKENS);

    story.remove(&[49]).await;
    assert_eq!(story.state(&whole).await, LeaseState::Stale);
    let (reusable, rest) = story.leased().await;
    assert_eq!(reusable, 768);
    // A block that is not among the leased ones.
    story.remove(&[BLOCKS]).await;
    let (reusable, _) = story.leased().await;
    assert_eq!(reusable, 768);
    story.store(49..=49).await;
    let (reusable, _) = story.leased().await;
    assert_eq!(reusable, 1008);
    assert_ne!(story.state(&whole).await, LeaseState::Valid);

    let cleared = serde_json::json!({ "type": "AllBlocksCleared" });
    story.sidecar.publish(&batch(&[cleared])).await;
    assert_eq!(story.state(&rest).await, LeaseState::Stale);
    story.check_stale("left the device memory").await;
}

#[tokio::test]
async fn a_copy_that_goes_ends_the_lease_and_is_not_trusted_to_have_a_twin() {
    let mut story = Story::begin().await;
    story.store(1..=BLOCKS).await;
    story.store(1..=BLOCKS).await;
    story.register("d", v1::Medium::Device, &[]).await;
    let (reusable, lease) = story.leased().await;
    assert_eq!(reusable, TOKENS);
    story.remove(&[33]).await;
    assert_eq!(story.state(&lease).await, LeaseState::Stale);
    let (reusable, _) = story.leased().await;
    assert_eq!(reusable, 512);
}

#[tokio::test]
async fn what_is_not_exact_is_not_leased_and_an_ended_lease_never_comes_back() {
    let mut story = Story::begin().await;
    story.store(1..=BLOCKS).await;
    story.register("d", v1::Medium::Device, &[]).await;
    let (_, lease) = story.leased().await;
    // A later stream takes over: the engine may be another one until it has sent again.
    let kept = std::mem::take(&mut story.sidecar.kept);
    let next = story.sidecar.next;
    story.sidecar = Sidecar::open(&mut story.harness, WORKER, Some(100)).await;
    let asked = story.sidecar.exchange(story.sidecar.request()).await;
    assert_eq!(asked.replay_from, Some(0));
    assert_eq!(story.state(&lease).await, LeaseState::Stale);
    story.check_stale("may have gaps").await;
    (story.sidecar.kept, story.sidecar.next) = (kept, next);
    story.sidecar.replay(0).await;
    let (reusable, _) = story.leased().await;
    assert_eq!(reusable, TOKENS);
    assert_eq!(story.state(&lease).await, LeaseState::Stale);
    // An engine that begins anew has nothing of it.
    story.sidecar = Sidecar::open(&mut story.harness, WORKER, Some(100)).await;
    story.store(1..=16).await;
    let (reusable, _) = story.leased().await;
    assert_eq!(reusable, 256);
}

#[tokio::test]
async fn names_of_blocks_say_which_they_are() {
    let mut story = Story::begin().await;
    let names: Vec<u64> = (1..=BLOCKS).collect();
    story.register("named", v1::Medium::Device, &names).await;
    story.store(1..=BLOCKS).await;
    assert_eq!(story.leased().await.0, TOKENS);
    let mut other = names.clone();
    other.swap(0, 1);
    story.register("named", v1::Medium::Device, &other).await;
    story.check_stale("no KV event has said").await;
}

#[tokio::test]
async fn a_worker_that_is_removed_takes_its_device_donors_along_and_no_others() {
    let mut story = Story::begin().await;
    story.store(1..=BLOCKS).await;
    story.register("device", v1::Medium::Device, &[]).await;
    let (_, lease) = story.leased().await;
    let gone = story.harness.unfollow(WORKER).await;
    assert_eq!((gone.removed_sources, gone.removed_donors), (1, 1));
    assert_eq!(story.state(&lease).await, LeaseState::Stale);
    story.register("host", v1::Medium::Host, &[]).await;
    let (reusable, lease) = story.leased().await;
    assert_eq!(reusable, TOKENS);
    story.harness.unfollow(WORKER).await;
    assert_eq!(story.state(&lease).await, LeaseState::Valid);
}

#[tokio::test]
async fn segments_list_what_is_left_of_a_donor_and_nothing_where_nothing_is() {
    let mut story = Story::begin().await;
    story.register("d", v1::Medium::Device, &[]).await;
    story.store(1..=BLOCKS).await;
    assert_eq!(story.segments().await, [("d".to_owned(), TOKENS)]);
    story.remove(&[33]).await;
    assert_eq!(story.segments().await, [("d".to_owned(), 512)]);
    let cleared = serde_json::json!({ "type": "AllBlocksCleared" });
    story.sidecar.publish(&batch(&[cleared])).await;
    assert_eq!(story.segments().await, []);
    story.store(1..=16).await;
    assert_eq!(story.segments().await, [("d".to_owned(), 256)]);
}
