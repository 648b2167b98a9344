//! A server on a free port, prompts made from a seed, and one `check` for look-ups.

use kvatlas::{
    app::{self, RunningServer},
    config::{ListenAddress, ServeArgs, ServeMode},
};
use kvatlas_proto::v1::{
    self, FallbackReason, FindOutcome, admin_client::AdminClient, donors_client::DonorsClient,
    leases_client::LeasesClient,
};
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};

pub(crate) const BLOCK: u32 = 16;
pub(crate) const STORE: &str = "host-a";

pub(crate) struct Harness {
    pub(crate) donors: DonorsClient<Channel>,
    pub(crate) leases: LeasesClient<Channel>,
    pub(crate) admin: AdminClient<Channel>,
    server: Option<RunningServer>,
    args: ServeArgs,
    _folder: TempDir,
}

impl Harness {
    pub(crate) async fn discovery() -> Harness {
        Harness::start(|_| {}).await
    }

    pub(crate) async fn materialize() -> Harness {
        Harness::start(|args| args.mode = Some(ServeMode::Materialize)).await
    }

    pub(crate) async fn start(edit: impl FnOnce(&mut ServeArgs)) -> Harness {
        let folder = TempDir::new().unwrap();
        let mut args = ServeArgs {
            listen: vec![ListenAddress::Tcp(([127, 0, 0, 1], 0).into())],
            http_listen: ([127, 0, 0, 1], 0).into(),
            data_dir: folder.path().join("data"),
            // The tests end a server while their own connection to it is still open.
            drain_ms: 50,
            ..ServeArgs::default()
        };
        edit(&mut args);
        let (server, channel) = open(&args).await;
        Harness {
            donors: DonorsClient::new(channel.clone()),
            leases: LeasesClient::new(channel.clone()),
            admin: AdminClient::new(channel),
            server: Some(server),
            args,
            _folder: folder,
        }
    }

    /// Ends the server and starts one on the same data.
    pub(crate) async fn restart(&mut self) {
        self.server.take().unwrap().stop().unwrap();
        let (server, channel) = open(&self.args).await;
        self.donors = DonorsClient::new(channel.clone());
        self.leases = LeasesClient::new(channel.clone());
        self.admin = AdminClient::new(channel);
        self.server = Some(server);
    }

    pub(crate) async fn register(&mut self, id: &str, tokens: &[u32]) -> v1::Admission {
        self.register_as(registration(id, tokens)).await.unwrap()
    }

    pub(crate) async fn register_as(
        &mut self,
        request: v1::RegisterDonorRequest,
    ) -> Result<v1::Admission, tonic::Status> {
        let answer = self.donors.register_donor(request).await?.into_inner();
        Ok(answer.admission())
    }

    pub(crate) async fn announce(&mut self, worker: &str, generation: u64) -> u64 {
        let request = v1::AnnounceOwnerRequest {
            owner: owner(worker),
            generation,
            ttl_ms: 60_000,
        };
        self.donors
            .announce_owner(request)
            .await
            .unwrap()
            .into_inner()
            .dropped_donors
    }

    pub(crate) async fn find(&mut self, request: v1::FindDonorRequest) -> v1::FindDonorResponse {
        let prompt = packed(request.tokens.as_ref().unwrap());
        let boundary = request.exact_prefix_tokens;
        let asynchronous = request.asynchronous_load;
        let answer = self.donors.find_donor(request).await.unwrap().into_inner();
        check_contract(&answer, prompt.len(), boundary, asynchronous);
        answer
    }

    pub(crate) async fn validate(&mut self, lease_id: &[u8], holder: &str) -> v1::LeaseState {
        let request = v1::ValidateRequest {
            lease_id: lease_id.to_vec().into(),
            holder: holder.into(),
        };
        self.leases
            .validate(request)
            .await
            .unwrap()
            .into_inner()
            .state()
    }

    pub(crate) async fn release(&mut self, lease_id: &[u8], holder: &str) -> bool {
        let request = v1::ReleaseRequest {
            lease_id: lease_id.to_vec().into(),
            holder: holder.into(),
        };
        self.leases
            .release(request)
            .await
            .unwrap()
            .into_inner()
            .released
    }
}

/// One look-up of `target`, and what must come back.
pub(crate) struct Expect<'a> {
    pub(crate) target: &'a [u32],
    pub(crate) exact_prefix: u32,
    pub(crate) outcome: FindOutcome,
    pub(crate) donor: &'a str,
    /// Verified tokens at least.
    pub(crate) covered: u32,
}

pub(crate) async fn check(harness: &mut Harness, expect: Expect<'_>) -> v1::FindDonorResponse {
    let mut request = lookup(expect.target);
    request.exact_prefix_tokens = expect.exact_prefix;
    let answer = harness.find(request).await;
    assert_eq!(answer.outcome(), expect.outcome, "{answer:?}");
    let found = answer.r#match.clone().unwrap();
    assert_eq!(found.donor_id, expect.donor);
    let covered: u32 = found.spans.iter().map(|span| span.length).sum();
    assert!(
        covered >= expect.covered,
        "{covered} of {} tokens",
        expect.covered
    );
    answer
}

pub(crate) async fn check_miss(
    harness: &mut Harness,
    request: v1::FindDonorRequest,
    reason: FallbackReason,
) -> v1::FindDonorResponse {
    let answer = harness.find(request).await;
    assert_eq!(answer.outcome(), FindOutcome::Miss, "{answer:?}");
    assert_eq!(answer.reason(), reason, "{answer:?}");
    assert!(answer.r#match.is_none() && answer.lease.is_none());
    answer
}

// What holds for every answer, whatever was asked.
fn check_contract(
    answer: &v1::FindDonorResponse,
    prompt: usize,
    boundary: u32,
    asynchronous: bool,
) {
    let Some(found) = &answer.r#match else {
        assert_eq!(answer.outcome(), FindOutcome::Miss);
        assert_ne!(answer.reason(), FallbackReason::Unspecified);
        assert!(answer.lease.is_none());
        return;
    };
    let prompt = u32::try_from(prompt).unwrap();
    let mut end = boundary;
    for span in &found.spans {
        assert!(span.length >= 16 && span.target_start >= end, "{span:?}");
        end = span.target_start + span.length;
        assert!(end <= prompt && span.donor_start + span.length <= found.captured_tokens);
    }
    let mut in_donor = found.spans.clone();
    in_donor.sort_by_key(|span| span.donor_start);
    for pair in in_donor.windows(2) {
        assert!(
            pair[0].donor_start + pair[0].length <= pair[1].donor_start,
            "{pair:?}"
        );
    }
    let reusable = found.reusable_prefix_tokens;
    assert_eq!(reusable > 0, answer.outcome() == FindOutcome::Prefix);
    assert!((boundary + reusable).is_multiple_of(BLOCK) || reusable == 0);
    assert!(boundary + reusable <= if asynchronous { prompt } else { prompt - 1 });
    assert!(found.donor_offset + reusable <= found.captured_tokens);
    assert!((0.0..=1.0).contains(&found.similarity) && (0.0..=1.0).contains(&found.reuse_ratio));
}

pub(crate) fn lookup(target: &[u32]) -> v1::FindDonorRequest {
    v1::FindDonorRequest {
        tokens: Some(tokens(target)),
        namespace: namespace(),
        readable_store_ids: vec![STORE.into()],
        holder: "engine-1".into(),
        ..v1::FindDonorRequest::default()
    }
}

pub(crate) fn registration(id: &str, prompt: &[u32]) -> v1::RegisterDonorRequest {
    let captured = u32::try_from(prompt.len()).unwrap() / BLOCK * BLOCK;
    v1::RegisterDonorRequest {
        donor_id: id.into(),
        namespace: namespace(),
        owner: owner("worker-1"),
        owner_generation: 7,
        tokens: Some(tokens(prompt)),
        captured_tokens: captured,
        exact_tokens: captured,
        medium: v1::Medium::Host.into(),
        store_id: STORE.into(),
        ..v1::RegisterDonorRequest::default()
    }
}

#[expect(clippy::unnecessary_wraps, reason = "as the messages hold it")]
pub(crate) fn owner(worker: &str) -> Option<v1::Owner> {
    Some(v1::Owner {
        worker_id: worker.into(),
        data_parallel_rank: 0,
    })
}

pub(crate) fn namespace() -> Option<v1::NamespaceSelector> {
    tenant("none")
}

#[expect(clippy::unnecessary_wraps, reason = "as the messages hold it")]
pub(crate) fn tenant(key: &str) -> Option<v1::NamespaceSelector> {
    let namespace = v1::Namespace {
        model: "llama".into(),
        model_revision: "main".into(),
        tokenizer: "llama".into(),
        tokenizer_revision: "main".into(),
        tokenization: "default".into(),
        chat_template: "none".into(),
        dtype: "bfloat16".into(),
        kv_cache_dtype: "auto".into(),
        block_size: BLOCK,
        kv_layout: "NHD".into(),
        attention_backend: "flash_attn".into(),
        tensor_parallel_size: 1,
        pipeline_parallel_size: 1,
        adapter: "none".into(),
        rope_scaling: "none".into(),
        multimodal_hashes: vec![],
        tenant_key: format!("semblend:tenant:v1:{key}"),
    };
    Some(v1::NamespaceSelector {
        selector: Some(v1::namespace_selector::Selector::Namespace(namespace)),
    })
}

pub(crate) fn tokens(prompt: &[u32]) -> v1::Tokens {
    let packed: Vec<u8> = prompt
        .iter()
        .flat_map(|token| token.to_le_bytes())
        .collect();
    v1::Tokens {
        ids: vec![],
        packed: packed.into(),
    }
}

fn packed(tokens: &v1::Tokens) -> Vec<u32> {
    tokens
        .packed
        .as_chunks::<4>()
        .0
        .iter()
        .map(|word| u32::from_le_bytes(*word))
        .collect()
}

/// `count` tokens that no other seed shares a run with.
pub(crate) fn text(seed: u64, count: usize) -> Vec<u32> {
    // Squared, so that no stream is another one shifted.
    let mut state = seed.wrapping_mul(seed).wrapping_add(seed << 40);
    let token = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        u32::try_from((z ^ (z >> 31)) % 150_000).unwrap()
    };
    std::iter::repeat_with(token).take(count).collect()
}

async fn open(args: &ServeArgs) -> (RunningServer, Channel) {
    let server = app::start(args.clone()).unwrap();
    let address = server.grpc_addresses()[0].to_string();
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    (server, endpoint.tcp_nodelay(true).connect().await.unwrap())
}
