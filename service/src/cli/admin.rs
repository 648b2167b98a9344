//! `kvatlas status` and `kvatlas mode`.

use clap::{Args, ValueEnum};
use kvatlas_client::{Client, v1};
use serde_json::{Value, json};

use super::{
    error::CliError,
    input,
    output::{Report, facts, grouped, word},
};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kvatlas mode discovery-only                Search and count, but hand out no lease
  kvatlas mode --namespace ns.json materialize
  kvatlas mode --namespace ns.json follow    As the server again")]
pub(super) struct ModeArgs {
    /// What a look-up may lead to
    #[arg(value_enum)]
    mode: ModeName,
    /// Only for this namespace: its file or id; without it, for the server
    #[arg(long, value_name = "FILE|ID")]
    namespace: Option<String>,
    #[command(flatten)]
    gates: GateOverrides,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ModeName {
    /// Full search and telemetry, no lease
    DiscoveryOnly,
    /// Answers carry leases
    Materialize,
    /// Every look-up is a miss
    Disabled,
    /// As the server, for a namespace
    Follow,
}

/// Thresholds; what is not given stays as it is.
#[derive(Debug, Clone, Copy, Args)]
#[command(next_help_heading = "Gates")]
pub(super) struct GateOverrides {
    /// Tokens that a prompt must have
    #[arg(long, value_name = "N")]
    min_prompt_tokens: Option<u32>,
    /// Tokens that must be reusable
    #[arg(long, value_name = "N")]
    min_reuse_tokens: Option<u32>,
    /// Verified tokens / prompt tokens beyond the exact prefix, 0 to 1
    #[arg(long, value_name = "SHARE")]
    min_similarity: Option<f32>,
    /// Reusable tokens / prompt tokens, 0 to 1
    #[arg(long, value_name = "SHARE")]
    min_reuse_ratio: Option<f32>,
    /// Skip the search when the exact prefix covers this share of the prompt, 0 to 1
    #[arg(long, value_name = "SHARE")]
    exact_prefix_skip_ratio: Option<f32>,
}

impl GateOverrides {
    /// `None` when nothing is given.
    pub(super) fn to_wire(self) -> Option<v1::Gates> {
        let gates = v1::Gates {
            min_prompt_tokens: self.min_prompt_tokens,
            min_reuse_tokens: self.min_reuse_tokens,
            min_similarity: self.min_similarity,
            min_reuse_ratio: self.min_reuse_ratio,
            exact_prefix_skip_ratio: self.exact_prefix_skip_ratio,
        };
        (gates != v1::Gates::default()).then_some(gates)
    }
}

impl ModeArgs {
    pub(super) async fn run(self, client: &Client) -> Result<Report, CliError> {
        let namespace = self
            .namespace
            .as_deref()
            .map(input::namespace)
            .transpose()?;
        let mode = match self.mode {
            ModeName::DiscoveryOnly => v1::Mode::DiscoveryOnly,
            ModeName::Materialize => v1::Mode::Materialize,
            ModeName::Disabled => v1::Mode::Disabled,
            ModeName::Follow if namespace.is_none() => {
                let what = "follow is for a namespace: add --namespace FILE|ID";
                return Err(CliError::Usage(what.into()));
            }
            ModeName::Follow => v1::Mode::Unspecified,
        };
        let answer = client
            .set_mode(namespace.as_ref(), mode, self.gates.to_wire())
            .await?;
        let mode = mode_word(answer.mode());
        let gates = answer.gates.unwrap_or_default();
        let mut pairs = vec![("mode", mode.clone())];
        pairs.extend(gate_pairs(&gates));
        let json = json!({ "mode": mode, "gates": gates_json(&gates) });
        Ok(Report::found(facts(&pairs), json))
    }
}

/// How the server is.
pub(super) async fn status(client: &Client) -> Result<Report, CliError> {
    let status = client.status().await?;
    let of = |used: u64, max: u64| format!("{} of {}", grouped(used), grouped(max));
    let gates = status.gates.unwrap_or_default();
    let mut pairs = vec![
        ("version", status.version.clone()),
        ("epoch", status.epoch.to_string()),
        ("up", format!("{} s", grouped(status.uptime_ms / 1_000))),
        ("mode", mode_word(status.mode())),
        ("priors", grouped(status.priors)),
        ("donors", of(status.donors, status.donors_max)),
        (
            "donor tokens",
            of(status.donor_tokens, status.donor_tokens_max),
        ),
        ("namespaces", grouped(status.namespaces)),
        ("owners live", grouped(status.owners_live)),
        ("leases held", of(status.leases_held, status.leases_max)),
        (
            "calls in flight",
            of(status.calls_in_flight, status.calls_in_flight_max),
        ),
        ("damaged records", grouped(status.damaged_records)),
        ("scoring", status.scoring_device.clone()),
    ];
    pairs.extend(gate_pairs(&gates));
    let json = json!({
        "version": status.version,
        "epoch": status.epoch,
        "uptime_ms": status.uptime_ms,
        "mode": mode_word(status.mode()),
        "priors": status.priors,
        "donors": status.donors,
        "donors_max": status.donors_max,
        "donor_tokens": status.donor_tokens,
        "donor_tokens_max": status.donor_tokens_max,
        "namespaces": status.namespaces,
        "leases_held": status.leases_held,
        "leases_max": status.leases_max,
        "owners_live": status.owners_live,
        "calls_in_flight": status.calls_in_flight,
        "calls_in_flight_max": status.calls_in_flight_max,
        "damaged_records": status.damaged_records,
        "gates": gates_json(&gates),
        "scoring_device": status.scoring_device,
    });
    Ok(Report::found(facts(&pairs), json))
}

/// Whether the server answers calls. It does not while it drains, nor once it cannot keep writes.
pub(super) async fn health(client: &Client) -> Result<Report, CliError> {
    match client.is_serving().await? {
        true => Ok(Report::found(
            "serving\n".to_owned(),
            json!({ "serving": true }),
        )),
        false => Err(CliError::Server("the server is not serving".into())),
    }
}

/// As it is spelled on the command line.
pub(super) fn mode_word(mode: v1::Mode) -> String {
    word(mode.as_str_name(), "MODE_").replace('_', "-")
}

fn gate_pairs(gates: &v1::Gates) -> [(&'static str, String); 5] {
    let tokens = |value: Option<u32>| value.map_or_else(String::new, |value| value.to_string());
    let share = |value: Option<f32>| value.map_or_else(String::new, |value| format!("{value:.2}"));
    [
        ("min prompt tokens", tokens(gates.min_prompt_tokens)),
        ("min reuse tokens", tokens(gates.min_reuse_tokens)),
        ("min similarity", share(gates.min_similarity)),
        ("min reuse ratio", share(gates.min_reuse_ratio)),
        (
            "exact prefix skip ratio",
            share(gates.exact_prefix_skip_ratio),
        ),
    ]
}

fn gates_json(gates: &v1::Gates) -> Value {
    json!({
        "min_prompt_tokens": gates.min_prompt_tokens,
        "min_reuse_tokens": gates.min_reuse_tokens,
        "min_similarity": gates.min_similarity,
        "min_reuse_ratio": gates.min_reuse_ratio,
        "exact_prefix_skip_ratio": gates.exact_prefix_skip_ratio,
    })
}
