//! The tour's second half: prompts in, nominations out, and one lease from its birth to its end.

use kvatlas_client::{
    Client, DonorRecord, FindDonor, Lookup, Namespace, NamespaceRef, Nomination, Outcome, Tokens,
    v1,
};
use tokio::time::Instant;

use super::{
    REPEATS,
    corpus::{Change, Prompts},
    heading, median, show_table,
};
use crate::cli::{
    error::CliError,
    output::{self, Align, Table, grouped, word},
};

pub(super) const STORE_ID: &str = "local";
const BLOCK_SIZE: u32 = 16;
const HOLDER: &str = "quickstart";
const GENERATION: u64 = 1;

/// Registers the prompts, asks for donors, and leases one. Returns the namespace's id.
pub(super) async fn show(client: &Client, prompts: &Prompts) -> Result<String, CliError> {
    let namespace = namespace()?;
    let namespace_id = register(client, prompts, &namespace).await?;
    let subject = prompts.subject().map_or("", |subject| subject.id.as_str());
    heading(
        5,
        "Look-ups: whose cached prompt can this new one borrow from?",
        &format!("New prompts made from donor {subject}. Discovery only: a full search, no lease."),
    )?;
    let id = NamespaceRef::id(&namespace_id).map_err(CliError::server)?;
    show_table(&look_up(client, prompts, &id).await?)?;
    output::print(
        "
  REUSE: tokens that continue the prompt's start. COVER: tokens of every verified span.
  SERVER: inside the server. CALL: the whole round trip. Both are medians of 21 calls.
",
    )?;
    heading(
        6,
        "A lease: the right to load what was found, until a deadline",
        "kvatlas mode --namespace NS materialize, then donor find, lease validate, lease release",
    )?;
    show_table(&lease(client, prompts, &id).await?)?;
    Ok(namespace_id)
}

fn namespace() -> Result<Namespace, CliError> {
    Namespace::builder()
        .model("example/model", "1")
        .tokenizer("example/tokenizer", "1")
        .tokenization("default")
        .chat_template("none")
        .dtypes("bfloat16", "auto")
        .kv_layout(BLOCK_SIZE, "NHD", "flash_attn")
        .parallel_sizes(1, 1)
        .adapter("none")
        .rope_scaling("none")
        .tenant_key(Some("quickstart"))
        .build()
        .map_err(CliError::server)
}

async fn register(
    client: &Client,
    prompts: &Prompts,
    namespace: &Namespace,
) -> Result<String, CliError> {
    let owner = v1::Owner {
        worker_id: "worker-0".into(),
        data_parallel_rank: 0,
    };
    client.announce_owner(&owner, GENERATION, None).await?;
    let mut total: u64 = 0;
    let mut records = Vec::with_capacity(prompts.donors.len());
    for prompt in &prompts.donors {
        let tokens = prompt.tokens();
        let length = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
        // Engines capture whole blocks.
        let captured_tokens = length / BLOCK_SIZE * BLOCK_SIZE;
        total += u64::from(length);
        records.push(DonorRecord {
            donor_id: prompt.id.clone(),
            namespace: namespace.clone().into(),
            owner: owner.clone(),
            owner_generation: GENERATION,
            tokens: Tokens::new(&tokens),
            captured_tokens,
            exact_tokens: captured_tokens,
            medium: v1::Medium::Host,
            store_id: STORE_ID.into(),
            source_request_id: String::new(),
            block_hashes: Vec::new(),
            text: String::new(),
        });
    }
    let started = Instant::now();
    let answers = client.register_donors(&records).await?;
    let took = started.elapsed();
    let mut namespace_id = String::new();
    for answer in answers {
        namespace_id = answer?.namespace_id;
    }
    heading(
        4,
        "Donors: prompts whose KV lies in some engine",
        &format!(
            "{} prompts of {} tokens (presidents on the state of the union) are on disk and \
             searchable\n   after {} ms. Their owner, worker-0, is announced.",
            records.len(),
            grouped(total),
            took.as_millis()
        ),
    )?;
    Ok(namespace_id)
}

async fn look_up(
    client: &Client,
    prompts: &Prompts,
    namespace: &NamespaceRef,
) -> Result<Table, CliError> {
    let mut table = Table::new(&[
        ("NEW PROMPT", Align::Left),
        ("OUTCOME", Align::Left),
        ("TIER", Align::Left),
        ("REUSE", Align::Right),
        ("COVER", Align::Right),
        ("DONOR", Align::Left),
        ("REASON", Align::Left),
        ("SERVER", Align::Right),
        ("CALL", Align::Right),
    ]);
    for change in Change::ALL {
        let tokens = Tokens::new(&prompts.changed(change));
        let query = FindDonor {
            readable_store_ids: vec![STORE_ID.into()],
            ..FindDonor::new(tokens, namespace.clone())
        };
        let mut calls = Vec::with_capacity(REPEATS);
        let mut lookup = client.find_donor(&query).await;
        let mut inside = Vec::with_capacity(REPEATS);
        for _ in 0..REPEATS {
            let started = Instant::now();
            lookup = client.find_donor(&query).await;
            calls.push(started.elapsed());
            inside.push(server_time(&lookup)?);
        }
        let [outcome, tier, reuse, cover, donor, reason] = cells(&lookup);
        table.row([
            change.as_str().to_owned(),
            outcome,
            tier,
            reuse,
            cover,
            donor,
            reason,
            median(inside),
            median(calls),
        ]);
    }
    Ok(table)
}

fn server_time(lookup: &Lookup) -> Result<std::time::Duration, CliError> {
    match lookup {
        Lookup::Miss {
            reason,
            detail,
            answered: None,
        } => Err(CliError::Lookup {
            reason: *reason,
            detail: detail.clone(),
        }),
        Lookup::Miss { .. } | Lookup::Hit(_) => {
            let timings = lookup.answered().map(|answered| answered.timings);
            let seconds = timings.unwrap_or_default().total_us / 1e6;
            std::time::Duration::try_from_secs_f32(seconds).map_err(CliError::server)
        }
    }
}

/// Outcome, tier, reusable and covered tokens, donor and reason.
fn cells(lookup: &Lookup) -> [String; 6] {
    match lookup {
        Lookup::Hit(found) => {
            let covered: u64 = found.spans.iter().map(|span| u64::from(span.length)).sum();
            let reason = match found.outcome {
                Outcome::Prefix => "",
                Outcome::Spans => "not_prefix_anchored",
            };
            [
                found.outcome.as_str().to_owned(),
                found.tier.as_str().to_owned(),
                found.reusable_prefix_tokens.to_string(),
                covered.to_string(),
                found.donor_id.clone(),
                reason.to_owned(),
            ]
        }
        Lookup::Miss { reason, .. } => {
            let none = || "-".to_owned();
            let reason = reason.as_str().to_owned();
            ["miss".to_owned(), none(), none(), none(), none(), reason]
        }
    }
}

async fn lease(
    client: &Client,
    prompts: &Prompts,
    namespace: &NamespaceRef,
) -> Result<Table, CliError> {
    let mut table = Table::new(&[("CALL", Align::Left), ("ANSWER", Align::Left)]);
    let mode = client
        .set_mode(Some(namespace), v1::Mode::Materialize, None)
        .await?
        .mode();
    table.row(["SetMode".into(), word(mode.as_str_name(), "MODE_")]);
    let query = FindDonor {
        readable_store_ids: vec![STORE_ID.into()],
        holder: HOLDER.into(),
        request_id: "request-1".into(),
        ..FindDonor::new(
            Tokens::new(&prompts.changed(Change::NextTurn)),
            namespace.clone(),
        )
    };
    let lookup = client.find_donor(&query).await;
    let (found, lease) = leased(&lookup)?;
    table.row([
        "FindDonor".into(),
        format!(
            "{} tokens of donor {}, leased for {} ms",
            found.reusable_prefix_tokens,
            found.donor_id,
            lease.ttl.as_millis()
        ),
    ]);
    let valid = client.check_lease(&lease.id, HOLDER).await?;
    table.row([
        "Validate".into(),
        format!("{}, {} ms left", state(valid.state()), valid.remaining_ms),
    ]);
    let thief = client.check_lease(&lease.id, "somebody else").await?;
    table.row(["Validate, by another".into(), state(thief.state())]);
    let released = client.release_lease(&lease.id, HOLDER).await?;
    let answer = match released.released {
        true => "released".to_owned(),
        false => format!("not released: {}", state(released.state())),
    };
    table.row(["Release".into(), answer]);
    let after = client.check_lease(&lease.id, HOLDER).await?;
    table.row(["Validate, afterwards".into(), state(after.state())]);
    client
        .set_mode(Some(namespace), v1::Mode::Unspecified, None)
        .await?;
    Ok(table)
}

fn leased(lookup: &Lookup) -> Result<(&Nomination, &kvatlas_client::Lease), CliError> {
    let found = lookup.hit();
    let lease = found.and_then(|found| found.lease.as_ref().ok());
    found.zip(lease).ok_or_else(|| {
        CliError::Server(format!("no lease in materialize mode: {:?}", cells(lookup)))
    })
}

fn state(state: v1::LeaseState) -> String {
    word(state.as_str_name(), "LEASE_STATE_")
}
