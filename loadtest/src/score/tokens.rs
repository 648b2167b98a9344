//! `score-tokens`: a manifest from the tokens of a request, by a 3B model's first layer.
//!
//! The model folder has random weights in the sizes of Llama-3.2-3B, but for a small vocabulary;
//! only the first layer's norm and W_q are there, which is all that is read. The key summary holds
//! layer 0 alone. Run under `taskset -c 0`, client, server and scorer share one core.

use std::{fs, path::Path, sync::Arc};

use half::bf16;
use kvatlas_proto::v1::{
    Encoder, GetManifestRequest, PutEncoderRequest, QueryTokens, routing_client::RoutingClient,
};
use serde::Serialize;
use serde_json::json;
use tonic::transport::Channel;

use super::{
    Model, ModelShape,
    keys::{Further, Keys},
    noise::rough_normal,
    rpc::{self, Asked, PREFIX_HASH},
    upload::{self, Rotation},
};
use crate::{
    args::{CommonArgs, ScoreTokensArgs},
    error::LoadtestError,
    random::Random,
    server::Server,
    wire::connect,
};

const ENCODER: &str = "loadtest-encoder";
const HIDDEN_SIZE: usize = 3072;
const VOCABULARY: u32 = 4096;
/// Tokens that a request brings: as long a question as most are.
const TOKENS: usize = 64;
/// Distinct requests, asked in turn.
const REQUESTS: usize = 32;

/// What `score-tokens --json` prints.
#[derive(Debug, Serialize)]
pub struct ScoreTokensReport {
    pub blocks: usize,
    pub k: usize,
    pub hidden_size: usize,
    pub calls: u64,
    /// GetManifest with the tokens, over TCP on the loopback, one call at a time.
    pub rpc_ms_p50: f64,
    pub rpc_ms_p99: f64,
}

/// Registers the model, puts the keys, and asks.
///
/// # Errors
/// When the server cannot be started or refuses a call.
pub async fn measure(args: &ScoreTokensArgs) -> Result<ScoreTokensReport, LoadtestError> {
    let models = tempfile::TempDir::with_prefix("kvatlas-loadtest-models-")?;
    let random = Random::new(args.seed);
    write_model(&models.path().join(ENCODER), &mut random.branch(0))?;
    let server = Server::of(&common(args, models.path()))?;
    let channel = connect(&server.address, 1).await?.remove(0);
    let encoder = put_encoder(&channel).await?;
    let shape = ModelShape {
        layers: 1,
        ..Model::Llama32_3b.shape()
    };
    let further = Further {
        extremes: false,
        magnitudes: false,
    };
    let keys = Keys::draw(shape, args.blocks, further, 1, &random.branch(1));
    let rotation = Rotation {
        inv_freq: encoder.inv_freq,
        attention_scaling: encoder.attention_scaling,
    };
    let keys = Arc::new(keys);
    upload::put(&channel, PREFIX_HASH, (&keys, args.blocks), rotation).await?;
    let mut random = random.branch(2);
    let asked: Vec<Asked> = (0..REQUESTS).map(|_| request(args, &mut random)).collect();
    let latencies = rpc::ask(channel, &asked, args.calls).await?;
    Ok(ScoreTokensReport {
        blocks: args.blocks,
        k: args.k,
        hidden_size: HIDDEN_SIZE,
        calls: latencies.count(),
        rpc_ms_p50: latencies.quantile_us(0.5) / 1e3,
        rpc_ms_p99: latencies.quantile_us(0.99) / 1e3,
    })
}

impl ScoreTokensReport {
    /// For people.
    #[must_use]
    pub fn table(&self) -> String {
        format!(
            "query from {TOKENS} tokens, W_q {size} x {size} in bf16, {blocks} blocks, best {k}\n\
             calls          {calls}\n\
             call, median   {p50:.2} ms\n\
             call, p99      {p99:.2} ms\n",
            size = self.hidden_size,
            blocks = self.blocks,
            k = self.k,
            calls = self.calls,
            p50 = self.rpc_ms_p50,
            p99 = self.rpc_ms_p99,
        )
    }
}

fn request(args: &ScoreTokensArgs, random: &mut Random) -> Asked {
    let tokens = (0..TOKENS).flat_map(|_| random.below_u32(VOCABULARY).to_le_bytes());
    let tokens = QueryTokens {
        tokens: tokens.collect(),
        start_position: args.blocks as u64 * u64::from(super::keys::BLOCK_TOKENS),
        mean_of_last: 0,
        encoder: ENCODER.to_owned(),
    };
    let request = GetManifestRequest {
        prefix_hash: PREFIX_HASH.to_owned(),
        k: u32::try_from(args.k).expect("arguments are checked"),
        algorithm: "kri-q".to_owned(),
        query_tokens: Some(Box::new(tokens)),
        ..GetManifestRequest::default()
    };
    // What the encoder makes of the tokens is not known here.
    Asked::new(&request, Vec::new())
}

async fn put_encoder(channel: &Channel) -> Result<Encoder, LoadtestError> {
    let request = PutEncoderRequest {
        name: ENCODER.to_owned(),
        model_dir: ENCODER.to_owned(),
    };
    let answer = RoutingClient::new(channel.clone())
        .put_encoder(request)
        .await
        .map_err(|status| LoadtestError::call("PutEncoder", status))?;
    let encoder = answer.into_inner().encoder;
    encoder.ok_or_else(|| LoadtestError::WrongAnswer {
        call: "PutEncoder",
        reason: "no encoder".to_owned(),
    })
}

fn common(args: &ScoreTokensArgs, models: &Path) -> CommonArgs {
    let own = ["--score-threads".into(), "1".into(), "--models-dir".into()];
    let own = own.into_iter().chain([models.as_os_str().to_owned()]);
    CommonArgs {
        address: None,
        json: args.json,
        seed: args.seed,
        connections: 1,
        client_workers: 1,
        server: own.chain(args.server.clone()).collect(),
    }
}

fn write_model(folder: &Path, random: &mut Random) -> Result<(), LoadtestError> {
    let shape = Model::Llama32_3b.shape();
    let config = json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN_SIZE,
        "num_attention_heads": shape.query_heads,
        "num_key_value_heads": shape.kv_heads,
        "num_hidden_layers": shape.layers,
        "head_dim": shape.head_dim,
        "vocab_size": VOCABULARY,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131_072,
        "rope_theta": 500_000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "tie_word_embeddings": true,
        "torch_dtype": "bfloat16",
    });
    fs::create_dir_all(folder)?;
    fs::write(folder.join("config.json"), config.to_string())?;
    fs::write(folder.join("model.safetensors"), weights(random))?;
    Ok(())
}

fn weights(random: &mut Random) -> Vec<u8> {
    let hidden = HIDDEN_SIZE;
    let vocabulary = VOCABULARY as usize;
    // As initializers have them: products keep the size of what goes in.
    let deviation = 1.0 / (hidden as f32).sqrt();
    let tensors = [
        (
            "model.embed_tokens.weight",
            vec![vocabulary, hidden],
            0.0,
            deviation,
        ),
        (
            "model.layers.0.input_layernorm.weight",
            vec![hidden],
            1.0,
            0.1,
        ),
        (
            "model.layers.0.self_attn.q_proj.weight",
            vec![hidden, hidden],
            0.0,
            deviation,
        ),
    ];
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for (name, shape, mean, deviation) in tensors {
        let start = data.len();
        for _ in 0..shape.iter().product::<usize>() {
            let weight = bf16::from_f32(mean + deviation * rough_normal(random));
            data.extend_from_slice(&weight.to_le_bytes());
        }
        let entry = json!({"dtype": "BF16", "shape": shape, "data_offsets": [start, data.len()]});
        header.insert(name.to_owned(), entry);
    }
    upload::safetensors_start(header)
        .into_iter()
        .chain(data)
        .collect()
}
