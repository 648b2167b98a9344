//! Queries that the service makes of tokens, against the vectors that transformers made.

use std::path::Path;

use kvatlas_proto::v1;
use safetensors::SafeTensors;
use tonic::Code;

use super::cartridge::{Random, narrow, put_prior, put_summary};
use super::{InProcess, K, ask, best, common, within};

const BLOCKS: usize = 24;

/// A server with a model registered as an encoder, and a summary of two of its layers under "c1".
struct Served {
    server: InProcess,
    encoder: v1::Encoder,
    /// `[2, kv_heads, BLOCKS, head_dim]`.
    means: Vec<f32>,
    tokens: Vec<u32>,
    starts: Vec<u32>,
    /// After RoPE, `[starts, tokens]`, each `[heads, head_dim]`.
    queries: Vec<Vec<f32>>,
}

impl Served {
    async fn new(model: &str) -> Served {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/encoder");
        let server = common::start_with(|args| args.models_dir = Some(models.clone()));
        let put = v1::PutEncoderRequest {
            name: "e".into(),
            model_dir: model.into(),
        };
        let mut routing = server.clients.routing.clone();
        let encoder = within(routing.put_encoder(put)).await.unwrap();
        let encoder = encoder.into_inner().encoder.unwrap();

        let bytes = std::fs::read(models.join(model).join("expected.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let words = |name: &str| -> Vec<u32> {
            let words = file.tensor(name).unwrap().data().as_chunks().0.iter();
            words.map(|word| u32::from_le_bytes(*word)).collect()
        };
        let size = (encoder.query_heads * encoder.head_dim) as usize;
        let queries: Vec<f32> = words("post_rope").into_iter().map(f32::from_bits).collect();
        let mut random = Random(11);
        let count = 2 * (encoder.kv_heads * encoder.head_dim) as usize * BLOCKS;
        Served {
            means: (0..count)
                .map(|_| (random.next() * 64.0).round() / 64.0)
                .collect(),
            tokens: words("tokens"),
            starts: words("starts"),
            queries: queries.chunks_exact(size).map(<[f32]>::to_vec).collect(),
            encoder,
            server,
        }
    }

    async fn put(&self, change: impl FnOnce(&mut v1::PutKeySummaryHeader)) {
        self.put_keys(self.encoder.kv_heads, change).await;
    }

    /// With more heads there are fewer blocks.
    async fn put_keys(&self, kv_heads: u32, change: impl FnOnce(&mut v1::PutKeySummaryHeader)) {
        let head_dim = self.encoder.head_dim;
        let blocks = BLOCKS * self.encoder.kv_heads as usize / kv_heads as usize;
        let mut header = v1::PutKeySummaryHeader {
            prefix_hash: "c1".into(),
            frame: v1::RopeFrame::PostRope.into(),
            pair_layout: v1::PairLayout::Half.into(),
            inv_freq: self.encoder.inv_freq.clone(),
            attention_scaling: self.encoder.attention_scaling,
            block_size: 16,
            layer_ids: vec![0, 1],
            ..Default::default()
        };
        change(&mut header);
        let shape = vec![2, kv_heads as usize, blocks, head_dim as usize];
        let tensors = [("key_means".to_owned(), shape, &self.means[..])];
        put_summary(&self.server.clients, header, &tensors)
            .await
            .unwrap();
    }

    fn request(&self, start: u32, mean_of_last: u32) -> v1::GetManifestRequest {
        let tokens: Vec<u8> = self.tokens.iter().flat_map(|id| id.to_le_bytes()).collect();
        v1::GetManifestRequest {
            prefix_hash: "c1".into(),
            algorithm: "kri-q".into(),
            k: narrow(K),
            query_tokens: Some(Box::new(v1::QueryTokens {
                tokens: tokens.into(),
                start_position: start.into(),
                mean_of_last,
                encoder: "e".into(),
            })),
            ..Default::default()
        }
    }

    /// Layer 0 by the mean of the queries of the last tokens.
    fn expected(&self, start: usize, mean_of_last: usize) -> Vec<u32> {
        let of_start = &self.queries[start * self.tokens.len()..][..self.tokens.len()];
        let last = &of_start[self.tokens.len() - mean_of_last..];
        let head_dim = self.encoder.head_dim as usize;
        let group = (self.encoder.query_heads / self.encoder.kv_heads) as usize;
        let score = |block: usize| -> f64 {
            let heads = last
                .iter()
                .flat_map(|query| query.chunks_exact(head_dim).enumerate());
            let dot = |(head, query): (usize, &[f32])| -> f64 {
                let means = &self.means[(head / group * BLOCKS + block) * head_dim..][..head_dim];
                let pairs = query.iter().zip(means);
                pairs.map(|(q, k)| f64::from(*q) * f64::from(*k)).sum()
            };
            heads.map(dot).sum()
        };
        best(&(0..BLOCKS).map(score).collect::<Vec<_>>(), K)
    }
}

#[tokio::test]
async fn blocks_are_those_that_the_models_own_query_picks() {
    for model in [
        "llama-llama3-f32",
        "qwen3-yarn-f32",
        "llama-yarn-mscale-f32",
    ] {
        let served = Served::new(model).await;
        served.put(|_| {}).await;
        for (at, start) in served.starts.iter().enumerate() {
            for mean_of_last in [1, 3] {
                let request = served.request(*start, mean_of_last);
                let answer = ask(&served.server.clients, request).await.unwrap();
                let expected = served.expected(at, mean_of_last as usize);
                assert_eq!(
                    answer.block_indices, expected,
                    "{model} {start} {mean_of_last}"
                );
                assert_eq!(answer.provenance(), v1::ManifestProvenance::Online);
            }
        }
    }
}

#[tokio::test]
async fn what_does_not_belong_to_the_model_is_refused() {
    type Change = fn(&mut v1::GetManifestRequest);
    fn tokens(request: &mut v1::GetManifestRequest) -> &mut v1::QueryTokens {
        request.query_tokens.as_mut().unwrap()
    }
    let served = Served::new("llama-llama3-f32").await;
    served.put(|_| {}).await;
    let cases: [(&str, Code, Change); 6] = [
        ("encoder", Code::NotFound, |it| {
            tokens(it).encoder = "other".into();
        }),
        ("tokens", Code::InvalidArgument, |it| {
            tokens(it).tokens = u32::MAX.to_le_bytes().to_vec().into();
        }),
        ("tokens", Code::InvalidArgument, |it| {
            tokens(it).tokens = vec![0; 7].into();
        }),
        ("mean_of_last", Code::InvalidArgument, |it| {
            tokens(it).mean_of_last = 65;
        }),
        ("start_position", Code::InvalidArgument, |it| {
            tokens(it).start_position = u64::MAX;
        }),
        ("kri-t", Code::InvalidArgument, |it| {
            it.algorithm = "kri-t".into();
        }),
    ];
    for (word, code, change) in cases {
        let mut request = served.request(0, 0);
        change(&mut request);
        let refused = ask(&served.server.clients, request).await.unwrap_err();
        assert_eq!(refused.code(), code, "{word}: {refused}");
        assert!(refused.message().contains(word), "{word}: {refused}");
    }
    // Keys of other models, and a summary without layer 0.
    served.put_keys(served.encoder.kv_heads * 2, |_| {}).await;
    let refused = ask(&served.server.clients, served.request(0, 0))
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("KV heads"), "{refused}");
    served.put(|header| header.inv_freq[1] *= 1.5).await;
    let refused = ask(&served.server.clients, served.request(0, 0))
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("frequency"), "{refused}");
    served.put(|header| header.layer_ids = vec![1, 2]).await;
    let mut request = served.request(0, 0);
    let refused = ask(&served.server.clients, request.clone())
        .await
        .unwrap_err();
    assert!(refused.message().contains("layer 0"), "{refused}");
    put_prior(&served.server.clients, "c1", &[1.0; BLOCKS]).await;
    request.allow_fallback = true;
    let answer = ask(&served.server.clients, request).await.unwrap();
    assert_eq!(answer.reason(), v1::ManifestReason::OnlineUnavailable);
}
