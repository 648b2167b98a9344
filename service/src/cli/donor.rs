//! `kvatlas donor`: register, find and remove donors, and announce their owners.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand, ValueEnum};
use kvatlas_client::{Client, DonorRecord, FindDonor, RemoveDonors, Tier, v1};
use serde_json::json;

use super::{
    admin::{GateOverrides, mode_word},
    error::CliError,
    input,
    output::{Align, Report, Table, grouped, word},
};

mod lookup;

/// Namespaces in one page of a listing.
const PAGE_SIZE: u32 = 1_000;

#[derive(Debug, Subcommand)]
pub(super) enum DonorCommand {
    /// Print a namespace file to fill in
    NamespaceTemplate,
    /// Say that an owner lives; its donors can be leased only while it does
    #[command(after_help = "\
Example:
  kvatlas donor announce --owner worker-0 --generation $(date +%s%3N)")]
    Announce(AnnounceArgs),
    /// Register a prompt whose KV an owner holds
    #[command(after_help = "\
Example:
  kvatlas donor register d1 --namespace ns.json --owner worker-0 --generation 1 \\
      --tokens prompt.json")]
    Register(RegisterArgs),
    /// Ask whose cached prompt a new one can borrow from. Exit status 3 on a miss
    #[command(after_help = "\
Example:
  kvatlas donor find --namespace ns.json --tokens prompt.json --explain")]
    Find(FindArgs),
    /// Remove donors, and make their leases stale
    #[command(after_help = "\
Examples:
  kvatlas donor rm --namespace ns.json d1 d2
  kvatlas donor rm --namespace ns.json --all
  kvatlas donor rm --owner worker-0")]
    Rm(RmArgs),
    /// List the namespaces and how many donors each holds
    Ls,
}

#[derive(Debug, Args)]
pub(super) struct AnnounceArgs {
    /// WORKER or WORKER:RANK
    #[arg(long, value_parser = input::parse_owner)]
    owner: v1::Owner,
    /// The owner's start time in milliseconds since 1970; a higher one drops its older donors
    #[arg(long)]
    generation: u64,
    /// How long the announcement lasts; without it, the server's default
    #[arg(long, value_name = "MS")]
    ttl_ms: Option<u32>,
}

#[derive(Debug, Args)]
pub(super) struct RegisterArgs {
    /// Unique in its namespace; registering it again replaces it
    donor_id: String,
    /// The namespace's file or id
    #[arg(long, value_name = "FILE|ID")]
    namespace: String,
    /// A JSON array of token ids; - for the standard input
    #[arg(long, value_name = "FILE|-")]
    tokens: PathBuf,
    /// WORKER or WORKER:RANK
    #[arg(long, value_parser = input::parse_owner)]
    owner: v1::Owner,
    /// The owner's generation when the KV was computed
    #[arg(long)]
    generation: u64,
    /// Tokens from the start whose KV can be read; without it, all
    #[arg(long, value_name = "N")]
    captured_tokens: Option<u32>,
    /// Of those, tokens from full prefill or exact loads; without it, all captured ones
    #[arg(long, value_name = "N")]
    exact_tokens: Option<u32>,
    /// Where the KV lies
    #[arg(long, value_enum, default_value_t = MediumName::Host)]
    medium: MediumName,
    /// Which store holds it
    #[arg(long, default_value = "local", value_name = "ID")]
    store_id: String,
    /// The request that the prompt came from: its own look-ups never nominate it
    #[arg(long, default_value = "", hide_default_value = true, value_name = "ID")]
    source_request_id: String,
    /// The prompt's text, kept only where the server was started with --text
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum MediumName {
    Device,
    Host,
    Disk,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum TierName {
    Exact,
    Verified,
    Semantic,
}

#[derive(Debug, Args)]
pub(super) struct FindArgs {
    /// The namespace's file or id
    #[arg(long, value_name = "FILE|ID")]
    namespace: String,
    /// A JSON array of token ids; - for the standard input
    #[arg(long, value_name = "FILE|-")]
    tokens: PathBuf,
    /// Tokens from the start that the engine's own prefix cache covers
    #[arg(long, default_value_t = 0, hide_default_value = true, value_name = "N")]
    exact_prefix_tokens: u32,
    /// Who will hold the lease; without it there is none
    #[arg(long, default_value = "", hide_default_value = true)]
    holder: String,
    /// A look-up repeated under it returns the same answer and lease
    #[arg(long, default_value = "", hide_default_value = true, value_name = "ID")]
    request_id: String,
    /// A store that the recipient can read; may be repeated
    #[arg(long = "store-id", default_value = "local", value_name = "ID")]
    store_ids: Vec<String>,
    /// The engine can use spans that are not at the boundary: lease those too
    #[arg(long)]
    accept_spans: bool,
    /// The load runs beside the schedule, so that no token need be left to compute
    #[arg(long)]
    asynchronous_load: bool,
    /// The worst tier that may be nominated
    #[arg(long, value_enum, default_value_t = TierName::Verified)]
    minimum_tier: TierName,
    /// Show the rejected candidates and why
    #[arg(long)]
    explain: bool,
    /// Lease wanted, in milliseconds; without it, the server's default
    #[arg(
        long,
        default_value_t = 0,
        hide_default_value = true,
        value_name = "MS"
    )]
    lease_ttl_ms: u32,
    /// Also list the best spans over up to this many donors
    #[arg(long, default_value_t = 0, hide_default_value = true, value_name = "N")]
    segment_donors_max: u32,
    /// On a miss, list up to this many donors that are near in vocabulary or meaning
    #[arg(long, default_value_t = 0, hide_default_value = true, value_name = "N")]
    neighbours_max: u32,
    /// The prompt's text, for a search by meaning and for a comparison of facts
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    #[command(flatten)]
    gates: GateOverrides,
}

#[derive(Debug, Args)]
pub(super) struct RmArgs {
    /// Donors of the namespace
    #[arg(
        value_name = "DONOR_ID",
        requires = "namespace",
        conflicts_with = "owner"
    )]
    donor_ids: Vec<String>,
    /// The namespace's file or id
    #[arg(long, value_name = "FILE|ID", required_unless_present = "owner")]
    namespace: Option<String>,
    /// Every donor of the namespace
    #[arg(long, requires = "namespace", conflicts_with = "donor_ids")]
    all: bool,
    /// Every donor of this owner: WORKER or WORKER:RANK
    #[arg(long, value_parser = input::parse_owner, conflicts_with = "namespace")]
    owner: Option<v1::Owner>,
}

impl DonorCommand {
    pub(super) async fn run(self, client: &Client) -> Result<Report, CliError> {
        match self {
            Self::NamespaceTemplate => {
                let (text, json) = input::namespace_template();
                Ok(Report::found(text, json))
            }
            Self::Announce(args) => announce(&args, client).await,
            Self::Register(args) => register(args, client).await,
            Self::Find(args) => find(args, client).await,
            Self::Rm(args) => remove(args, client).await,
            Self::Ls => list(client).await,
        }
    }
}

async fn announce(args: &AnnounceArgs, client: &Client) -> Result<Report, CliError> {
    let ttl = args.ttl_ms.map(|ms| Duration::from_millis(ms.into()));
    let answer = client
        .announce_owner(&args.owner, args.generation, ttl)
        .await?;
    let text = format!(
        "announced for {} ms: {} donors held, {} of older generations dropped\n",
        answer.ttl_ms, answer.held_donors, answer.dropped_donors
    );
    let json = json!({
        "epoch": answer.epoch,
        "ttl_ms": answer.ttl_ms,
        "held_donors": answer.held_donors,
        "dropped_donors": answer.dropped_donors,
    });
    Ok(Report::found(text, json))
}

async fn register(args: RegisterArgs, client: &Client) -> Result<Report, CliError> {
    let tokens = input::tokens(&args.tokens)?;
    let all = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
    let captured_tokens = args.captured_tokens.unwrap_or(all);
    let medium = match args.medium {
        MediumName::Device => v1::Medium::Device,
        MediumName::Host => v1::Medium::Host,
        MediumName::Disk => v1::Medium::Disk,
    };
    let record = DonorRecord {
        donor_id: args.donor_id,
        namespace: input::namespace(&args.namespace)?,
        owner: args.owner,
        owner_generation: args.generation,
        tokens,
        captured_tokens,
        exact_tokens: args.exact_tokens.unwrap_or(captured_tokens),
        medium,
        store_id: args.store_id,
        source_request_id: args.source_request_id,
        block_hashes: Vec::new(),
        text: args
            .text
            .as_deref()
            .map_or(Ok(String::new()), input::text)?,
    };
    let answer = client.register_donor(&record).await?;
    let admission = word(answer.admission().as_str_name(), "ADMISSION_");
    let by = match answer.covered_by.as_str() {
        "" => String::new(),
        donor => format!(" by donor {donor}"),
    };
    let text = format!(
        "{admission}{by}, {all} tokens in namespace {}\n",
        answer.namespace_id
    );
    let json = json!({
        "admission": admission,
        "namespace_id": answer.namespace_id,
        "covered_by": answer.covered_by,
        "evicted": answer.evicted,
    });
    Ok(Report::found(text, json))
}

async fn find(args: FindArgs, client: &Client) -> Result<Report, CliError> {
    let namespace = input::namespace(&args.namespace)?;
    let query = FindDonor {
        exact_prefix_tokens: args.exact_prefix_tokens,
        request_id: args.request_id,
        holder: args.holder,
        readable_store_ids: args.store_ids,
        gates: args.gates.to_wire(),
        accept_spans: args.accept_spans,
        asynchronous_load: args.asynchronous_load,
        minimum_tier: match args.minimum_tier {
            TierName::Exact => Tier::Exact,
            TierName::Verified => Tier::Verified,
            TierName::Semantic => Tier::Semantic,
        },
        explain: args.explain,
        lease_ttl_ms: args.lease_ttl_ms,
        segment_donors_max: args.segment_donors_max,
        neighbours_max: args.neighbours_max,
        text: args
            .text
            .as_deref()
            .map_or(Ok(String::new()), input::text)?,
        ..FindDonor::new(input::tokens(&args.tokens)?, namespace)
    };
    lookup::report(&client.find_donor(&query).await)
}

async fn remove(args: RmArgs, client: &Client) -> Result<Report, CliError> {
    let what = match (args.owner, args.namespace) {
        (Some(owner), _) => RemoveDonors::Owner(owner),
        (None, Some(namespace)) => {
            let namespace = input::namespace(&namespace)?;
            match (args.all, args.donor_ids.is_empty()) {
                (true, _) => RemoveDonors::Namespace(namespace),
                (false, false) => RemoveDonors::Ids(namespace, args.donor_ids),
                (false, true) => {
                    let what = "name the donors to remove, or give --all";
                    return Err(CliError::Usage(what.into()));
                }
            }
        }
        (None, None) => {
            return Err(CliError::Usage("give --namespace or --owner".into()));
        }
    };
    let removed = client.remove_donors(&what).await?;
    Ok(Report {
        text: format!("removed {removed}\n"),
        json: json!({ "removed": removed }),
        found: removed > 0,
    })
}

async fn list(client: &Client) -> Result<Report, CliError> {
    let mut namespaces = Vec::new();
    let mut page_token = String::new();
    loop {
        let page = client.list_namespaces(PAGE_SIZE, &page_token).await?;
        namespaces.extend(page.namespaces);
        if page.next_page_token.is_empty() {
            break;
        }
        page_token = page.next_page_token;
    }
    let mut table = Table::new(&[
        ("NAMESPACE", Align::Left),
        ("MODEL", Align::Left),
        ("MODE", Align::Left),
        ("DONORS", Align::Right),
        ("TOKENS", Align::Right),
    ]);
    for status in &namespaces {
        let namespace = status.namespace.as_ref();
        table.row([
            status.namespace_id.clone(),
            namespace.map_or_else(String::new, |namespace| namespace.model.clone()),
            mode_word(status.mode()),
            grouped(status.donors),
            grouped(status.donor_tokens),
        ]);
    }
    let text = if table.is_empty() {
        "no namespaces; `kvatlas donor register` makes one\n".to_owned()
    } else {
        table.to_string()
    };
    let json = namespaces
        .iter()
        .map(|status| {
            json!({
                "namespace_id": status.namespace_id,
                "model": status.namespace.as_ref().map(|namespace| &namespace.model),
                "tenant_key": status.namespace.as_ref().map(|namespace| &namespace.tenant_key),
                "mode": mode_word(status.mode()),
                "mode_is_own": status.mode_is_own,
                "donors": status.donors,
                "donor_tokens": status.donor_tokens,
            })
        })
        .collect();
    Ok(Report::found(text, json))
}
