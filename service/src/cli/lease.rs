//! `kvatlas lease`: check, prolong and end leases.

use std::time::Duration;

use bytes::Bytes;
use clap::{Args, Subcommand};
use kvatlas_client::{Client, Renewal, v1};
use serde_json::json;

use super::{
    error::CliError,
    input::parse_lease_id,
    output::{Report, hex, word},
};

#[derive(Debug, Subcommand)]
pub(super) enum LeaseCommand {
    /// Is the lease valid, and for how long? Exit status 3 when it is not
    Validate(LeaseArgs),
    /// Move the deadline of a donor lease
    Renew {
        #[command(flatten)]
        lease: LeaseArgs,
        /// From now, in milliseconds; without it, the server's default
        #[arg(long, value_name = "MS")]
        ttl_ms: Option<u32>,
    },
    /// End a donor lease
    Release(LeaseArgs),
}

#[derive(Debug, Args)]
pub(super) struct LeaseArgs {
    /// Hexadecimal digits, as `donor find` and `manifest` show them
    #[arg(value_name = "LEASE_ID", value_parser = parse_lease_id)]
    id: Bytes,
    /// Who holds it; not needed for manifest leases
    #[arg(long, default_value = "", hide_default_value = true)]
    holder: String,
}

impl LeaseCommand {
    pub(super) async fn run(self, client: &Client) -> Result<Report, CliError> {
        match self {
            Self::Validate(lease) => {
                let answer = client.check_lease(&lease.id, &lease.holder).await?;
                let left = Duration::from_millis(answer.remaining_ms.into());
                Ok(report(answer.state(), left))
            }
            Self::Renew { lease, ttl_ms } => {
                let ttl = ttl_ms.map(|ms| Duration::from_millis(ms.into()));
                let renewal = client.renew_lease(&lease.id, &lease.holder, ttl).await?;
                Ok(match renewal {
                    Renewal::Renewed(lease) => report(v1::LeaseState::Valid, lease.ttl),
                    Renewal::Refused(state) => report(state, Duration::ZERO),
                })
            }
            Self::Release(lease) => {
                let answer = client.release_lease(&lease.id, &lease.holder).await?;
                let before = word(answer.state().as_str_name(), "LEASE_STATE_");
                let text = match answer.released {
                    true => "released\n".to_owned(),
                    false => format!("not released: {before}\n"),
                };
                Ok(Report {
                    text,
                    json: json!({
                        "lease_id": hex(&lease.id),
                        "released": answer.released,
                        "state_before": before,
                    }),
                    found: answer.released,
                })
            }
        }
    }
}

fn report(state: v1::LeaseState, left: Duration) -> Report {
    let name = word(state.as_str_name(), "LEASE_STATE_");
    let found = state == v1::LeaseState::Valid;
    let text = match found {
        true => format!("{name}, {} ms left\n", left.as_millis()),
        false => format!("{name}\n"),
    };
    Report {
        text,
        json: json!({ "state": name, "remaining_ms": left.as_millis() }),
        found,
    }
}
