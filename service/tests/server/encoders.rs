//! Encoders as callers see them: put, listed, deleted, and still there after a restart.

use std::{fs, path::Path};

use kvatlas::app;
use kvatlas_client::{Client, ClientError, Endpoint};
use kvatlas_proto::v1;
use tempfile::TempDir;
use tonic::{Code, Status};

use crate::common::{self, Clients, start, start_with, within};

fn models() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/encoder"))
}

async fn put(
    clients: &Clients,
    name: &str,
    model_dir: &str,
) -> Result<v1::PutEncoderResponse, Status> {
    let request = v1::PutEncoderRequest {
        name: name.to_owned(),
        model_dir: model_dir.to_owned(),
    };
    let mut routing = clients.routing.clone();
    let answer = within(routing.put_encoder(request)).await?;
    Ok(answer.into_inner())
}

async fn list(clients: &Clients) -> Vec<v1::Encoder> {
    let mut routing = clients.routing.clone();
    let answer = within(routing.list_encoders(v1::ListEncodersRequest {})).await;
    answer.unwrap().into_inner().encoders
}

async fn delete(clients: &Clients, name: &str) -> Result<(), Status> {
    let request = v1::DeleteEncoderRequest {
        name: name.to_owned(),
    };
    let mut routing = clients.routing.clone();
    let answer = within(routing.delete_encoder(request)).await;
    answer.map(|_| ())
}

#[tokio::test]
async fn an_encoder_is_described_listed_and_deleted() {
    let server = start_with(|args| args.models_dir = Some(models().to_owned()));
    let clients = &server.clients;
    let answer = put(clients, "yarn", "llama-yarn-bf16").await.unwrap();
    assert!(!answer.replaced);
    let encoder = answer.encoder.unwrap();
    let mut described = encoder.clone();
    assert_eq!(described.inv_freq.len(), 8);
    assert_eq!(described.inv_freq[0].to_bits(), 1_f32.to_bits());
    described.inv_freq.clear();
    assert_eq!(
        described,
        v1::Encoder {
            name: "yarn".into(),
            model_dir: "llama-yarn-bf16".into(),
            architecture: "LlamaForCausalLM".into(),
            query_heads: 4,
            kv_heads: 2,
            head_dim: 16,
            hidden_size: 48,
            vocabulary_size: 42,
            element_type: v1::ElementType::Bf16.into(),
            pair_layout: v1::PairLayout::Half.into(),
            inv_freq: Vec::new(),
            attention_scaling: 1.138_629_4,
            problem: String::new(),
        }
    );

    let other = put(clients, "a", "qwen3-bf16")
        .await
        .unwrap()
        .encoder
        .unwrap();
    assert_eq!(list(clients).await, [other.clone(), encoder]);
    let answer = put(clients, "yarn", "qwen3-bf16").await.unwrap();
    assert!(answer.replaced);
    delete(clients, "yarn").await.unwrap();
    assert_eq!(list(clients).await, [other]);
    let gone = delete(clients, "yarn").await.unwrap_err();
    assert_eq!(
        (gone.code(), gone.message()),
        (Code::NotFound, "no encoder has this name")
    );
}

#[track_caller]
fn check_refused(answer: Result<v1::PutEncoderResponse, Status>, code: Code, message: &str) {
    let refused = answer.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (code, message));
}

#[tokio::test]
async fn what_is_no_model_below_the_models_folder_is_refused() {
    let elsewhere = TempDir::new().unwrap();
    let server = start_with(|args| args.models_dir = Some(models().to_owned()));
    let clients = &server.clients;
    let bad = Code::InvalidArgument;
    let below = "model_dir: no such folder below the server's models folder";
    let outside = elsewhere.path().to_str().unwrap();
    for place in ["nowhere", "..", outside, "/nowhere"] {
        check_refused(put(clients, "name", place).await, bad, below);
    }
    check_refused(
        put(clients, "", "qwen2-f16").await,
        bad,
        "name: 0 bytes, must be 1 to 128",
    );
    check_refused(
        put(clients, "name", "").await,
        bad,
        "model_dir: 0 bytes, must be 1 to 4096",
    );
    check_refused(
        put(clients, "name", ".").await,
        bad,
        "model_dir: config.json: cannot find: No such file or directory (os error 2)",
    );
    let refused = delete(clients, &"n".repeat(129)).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (bad, "name: 129 bytes, at most 128")
    );
    assert_eq!(list(clients).await, []);
}

#[tokio::test]
async fn without_a_models_folder_the_answer_says_how_to_give_one() {
    let server = start();
    check_refused(
        put(&server.clients, "name", "qwen2-f16").await,
        Code::FailedPrecondition,
        "the server reads no models: start it with --models-dir",
    );
}

#[tokio::test]
async fn a_restart_registers_again_and_tells_of_what_it_cannot() {
    let (data, place) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    for model in ["stays", "breaks"] {
        let folder = place.path().join(model);
        fs::create_dir(&folder).unwrap();
        for name in ["config.json", "model.safetensors"] {
            let bytes = fs::read(models().join("qwen2-f16").join(name)).unwrap();
            fs::write(folder.join(name), bytes).unwrap();
        }
    }
    let mut args = common::args(data.path());
    args.models_dir = Some(place.path().to_owned());
    let server = app::start(args.clone()).unwrap();
    let clients = Clients::lazy(&server.grpc_addresses()[0].to_string());
    for model in ["stays", "breaks"] {
        put(&clients, model, model).await.unwrap();
    }
    let before = list(&clients).await;
    drop((server, clients));

    fs::remove_file(place.path().join("breaks/model.safetensors")).unwrap();
    let server = app::start(args).unwrap();
    let clients = Clients::lazy(&server.grpc_addresses()[0].to_string());
    let broken = v1::Encoder {
        name: "breaks".into(),
        model_dir: "breaks".into(),
        problem: "model_dir: neither model.safetensors nor model.safetensors.index.json is there"
            .into(),
        ..v1::Encoder::default()
    };
    assert_eq!(list(&clients).await, [broken, before[1].clone()]);
}

#[tokio::test]
async fn the_client_says_whether_there_was_something_to_delete() {
    let server = start_with(|args| args.models_dir = Some(models().to_owned()));
    let address = server.server.grpc_addresses()[0].to_string();
    let client = Client::connect(&address.parse::<Endpoint>().unwrap());
    let put = client.put_encoder("name", "qwen2-f16").await.unwrap();
    assert_eq!(
        client.list_encoders().await.unwrap(),
        [put.encoder.unwrap()]
    );
    assert!(client.delete_encoder("name").await.unwrap());
    assert!(!client.delete_encoder("name").await.unwrap());
    let refused = client.put_encoder("name", "nowhere").await.unwrap_err();
    assert!(
        matches!(
            refused,
            ClientError::Refused {
                code: Code::InvalidArgument,
                ..
            }
        ),
        "{refused}"
    );
}
