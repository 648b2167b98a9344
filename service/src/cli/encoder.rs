//! `kvatlas encoder`: register, list and forget the models that make queries from tokens.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use kvatlas_client::{Client, v1};
use serde_json::{Value, json};

use super::{
    error::CliError,
    output::{Align, Report, Table, facts, grouped, word},
};

#[derive(Debug, Subcommand)]
pub(super) enum EncoderCommand {
    /// Register a model folder: config.json and safetensors of a Llama, Mistral, Qwen2 or Qwen3
    #[command(after_help = "\
The folder lies on the server's machine, below the folder that `kvatlas serve --models-dir` names.

Examples:
  kvatlas encoder put Llama-3.2-3B              In the server's models folder
  kvatlas encoder put /models/Llama-3.2-3B      The same where that folder is /models
  kvatlas encoder put Llama-3.2-3B --name draft")]
    Put(PutArgs),
    /// List the encoders
    #[command(visible_alias = "ls")]
    List,
    /// Forget an encoder; its folder stays as it is
    #[command(visible_alias = "rm")]
    Delete {
        #[arg(value_name = "NAME")]
        name: String,
    },
}

#[derive(Debug, Args)]
pub(super) struct PutArgs {
    /// The folder, from the server's models folder or as an absolute path below it
    #[arg(value_name = "MODEL_DIR")]
    model_dir: PathBuf,
    /// What requests call it; without it, the folder's own name
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
}

impl EncoderCommand {
    pub(super) async fn run(self, client: &Client) -> Result<Report, CliError> {
        match self {
            Self::Put(args) => put(args, client).await,
            Self::List => list(client).await,
            Self::Delete { name } => delete(&name, client).await,
        }
    }
}

async fn put(args: PutArgs, client: &Client) -> Result<Report, CliError> {
    let PutArgs { model_dir, name } = args;
    let of_folder = || {
        let name = model_dir.file_name()?;
        name.to_str().map(str::to_owned)
    };
    let name = name.or_else(of_folder).ok_or_else(|| {
        CliError::Usage(format!(
            "{} has no name of its own: give one with --name",
            model_dir.display()
        ))
    })?;
    let model_dir = model_dir
        .to_str()
        .ok_or_else(|| CliError::Usage(format!("{} is not UTF-8", model_dir.display())))?;
    let answer = client.put_encoder(&name, model_dir).await?;
    let encoder = answer.encoder.unwrap_or_default();
    let verb = match answer.replaced {
        true => "replaced",
        false => "registered",
    };
    let text = format!("{verb}\n{}", describe(&encoder));
    let mut json = to_json(&encoder);
    json["replaced"] = answer.replaced.into();
    Ok(Report::found(text, json))
}

async fn list(client: &Client) -> Result<Report, CliError> {
    let encoders = client.list_encoders().await?;
    let mut table = Table::new(&[
        ("NAME", Align::Left),
        ("FOLDER", Align::Left),
        ("ARCHITECTURE", Align::Left),
        ("HEADS", Align::Right),
        ("HEAD DIM", Align::Right),
        ("HIDDEN", Align::Right),
        ("TYPE", Align::Left),
        ("PROBLEM", Align::Left),
    ]);
    // A broken one has no numbers.
    let number = |number: u32| match number {
        0 => String::new(),
        number => number.to_string(),
    };
    for encoder in &encoders {
        table.row([
            encoder.name.clone(),
            encoder.model_dir.clone(),
            encoder.architecture.clone(),
            number(encoder.query_heads),
            number(encoder.head_dim),
            number(encoder.hidden_size),
            element(encoder),
            encoder.problem.clone(),
        ]);
    }
    let text = match table.is_empty() {
        true => "no encoders; `kvatlas encoder put MODEL_DIR` registers one\n".to_owned(),
        false => table.to_string(),
    };
    Ok(Report::found(text, encoders.iter().map(to_json).collect()))
}

async fn delete(name: &str, client: &Client) -> Result<Report, CliError> {
    if client.delete_encoder(name).await? {
        return Ok(Report::found(
            "deleted\n".to_owned(),
            json!({ "name": name, "deleted": true }),
        ));
    }
    Err(CliError::NotFound(format!(
        "no encoder has the name {name:?}. `kvatlas encoder list` lists them."
    )))
}

fn element(encoder: &v1::Encoder) -> String {
    match encoder.element_type() {
        v1::ElementType::Unspecified => String::new(),
        known @ (v1::ElementType::F32 | v1::ElementType::F16 | v1::ElementType::Bf16) => {
            word(known.as_str_name(), "ELEMENT_TYPE_")
        }
    }
}

fn describe(encoder: &v1::Encoder) -> String {
    facts(&[
        ("name", encoder.name.clone()),
        ("folder", encoder.model_dir.clone()),
        ("architecture", encoder.architecture.clone()),
        (
            "heads",
            format!("{} query, {} KV", encoder.query_heads, encoder.kv_heads),
        ),
        ("head dim", encoder.head_dim.to_string()),
        ("hidden size", grouped(encoder.hidden_size.into())),
        ("vocabulary", grouped(encoder.vocabulary_size.into())),
        ("type", element(encoder)),
        ("attention scaling", encoder.attention_scaling.to_string()),
    ])
}

fn to_json(encoder: &v1::Encoder) -> Value {
    json!({
        "name": encoder.name,
        "model_dir": encoder.model_dir,
        "architecture": encoder.architecture,
        "query_heads": encoder.query_heads,
        "kv_heads": encoder.kv_heads,
        "head_dim": encoder.head_dim,
        "hidden_size": encoder.hidden_size,
        "vocabulary_size": encoder.vocabulary_size,
        "element_type": element(encoder),
        "pair_layout": word(encoder.pair_layout().as_str_name(), "PAIR_LAYOUT_"),
        "inv_freq": encoder.inv_freq,
        "attention_scaling": encoder.attention_scaling,
        "problem": encoder.problem,
    })
}
