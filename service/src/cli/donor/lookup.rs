//! How the answer to a donor look-up is shown.

use kvatlas_client::{Answered, CachePolicy, Lookup, MissReason, Nomination, v1};
use serde_json::{Value, json};

use super::super::{
    admin::mode_word,
    error::CliError,
    output::{Align, Report, Table, facts, hex, word},
};

/// The answer in both spellings. A look-up that the server did not answer is an error.
pub(super) fn report(lookup: &Lookup) -> Result<Report, CliError> {
    match lookup {
        Lookup::Hit(nomination) => Ok(hit(nomination)),
        Lookup::Miss {
            reason,
            detail,
            answered: Some(answered),
        } => Ok(miss(*reason, detail, answered)),
        Lookup::Miss {
            reason,
            detail,
            answered: None,
        } => Err(CliError::Lookup {
            reason: *reason,
            detail: detail.clone(),
        }),
    }
}

fn hit(nomination: &Nomination) -> Report {
    let answered = &nomination.answered;
    let owner = &nomination.owner;
    let lease = match &nomination.lease {
        Ok(lease) => format!("{} for {} ms", hex(&lease.id), lease.ttl.as_millis()),
        Err(refusal) => format!("none: {}", refusal_word(*refusal)),
    };
    let mut pairs = vec![
        ("outcome", nomination.outcome.as_str().to_owned()),
        ("donor", nomination.donor_id.clone()),
        (
            "owner",
            format!(
                "{}:{} generation {}",
                owner.worker_id, owner.data_parallel_rank, nomination.owner_generation
            ),
        ),
        (
            "stored",
            format!("{} {}", medium(nomination), nomination.store_id),
        ),
        ("tier", nomination.tier.as_str().to_owned()),
        ("engine may", policy(nomination.cache_policy).to_owned()),
        (
            "reusable",
            format!(
                "{} prefix tokens, from donor token {}",
                nomination.reusable_prefix_tokens, nomination.donor_offset
            ),
        ),
        ("facts", facts_word(nomination.quality).to_owned()),
        ("similarity", format!("{:.3}", nomination.similarity)),
        ("reuse ratio", format!("{:.3}", nomination.reuse_ratio)),
        ("lease", lease),
    ];
    pairs.extend(common(answered));
    let text = facts(&pairs) + &spans(nomination) + &others(answered);
    Report::found(text, hit_json(nomination))
}

fn spans(nomination: &Nomination) -> String {
    let mut table = Table::new(&[
        ("SPAN: PROMPT", Align::Right),
        ("DONOR", Align::Right),
        ("TOKENS", Align::Right),
        ("TIER", Align::Left),
    ]);
    for span in &nomination.spans {
        table.row([
            span.target_start.to_string(),
            span.donor_start.to_string(),
            span.length.to_string(),
            span.tier.as_str().to_owned(),
        ]);
    }
    format!("\n{table}")
}

fn hit_json(nomination: &Nomination) -> Value {
    let spans = nomination.spans.iter().map(|span| {
        json!({
            "donor_start": span.donor_start,
            "target_start": span.target_start,
            "length": span.length,
            "tier": span.tier.as_str(),
        })
    });
    let lease = nomination.lease.as_ref();
    let mut json = common_json(&nomination.answered);
    json["outcome"] = nomination.outcome.as_str().into();
    json["match"] = json!({
        "donor_id": nomination.donor_id,
        "owner": {
            "worker_id": nomination.owner.worker_id,
            "data_parallel_rank": nomination.owner.data_parallel_rank,
        },
        "owner_generation": nomination.owner_generation,
        "medium": medium(nomination),
        "store_id": nomination.store_id,
        "tier": nomination.tier.as_str(),
        "cache_policy": policy(nomination.cache_policy),
        "reusable_prefix_tokens": nomination.reusable_prefix_tokens,
        "donor_offset": nomination.donor_offset,
        "spans": spans.collect::<Vec<_>>(),
        "similarity": nomination.similarity,
        "reuse_ratio": nomination.reuse_ratio,
        "captured_tokens": nomination.captured_tokens,
        "discovery": word(nomination.quality.discovery().as_str_name(), "DISCOVERY_"),
        "facts_compared": nomination.quality.facts_compared,
        "facts_differ": nomination.quality.facts_differ,
    });
    json["lease"] = lease.map_or(
        Value::Null,
        |lease| json!({ "id": hex(&lease.id), "ttl_ms": lease.ttl.as_millis() }),
    );
    json["lease_refusal"] = lease
        .err()
        .map_or(Value::Null, |refusal| refusal_word(*refusal).into());
    json
}

fn miss(reason: MissReason, detail: &str, answered: &Answered) -> Report {
    let mut pairs = vec![
        ("outcome", "miss".to_owned()),
        ("reason", reason.as_str().to_owned()),
        ("detail", detail.to_owned()),
    ];
    pairs.extend(common(answered));
    let mut json = common_json(answered);
    json["outcome"] = "miss".into();
    json["reason"] = reason.as_str().into();
    json["detail"] = detail.into();
    Report {
        text: facts(&pairs) + &others(answered),
        json,
        found: false,
    }
}

fn common(answered: &Answered) -> [(&'static str, String); 4] {
    let repeated = if answered.repeated { "yes" } else { "" };
    [
        ("repeated", repeated.to_owned()),
        ("mode", mode_word(answered.mode)),
        ("namespace", answered.namespace_id.clone()),
        ("took", format!("{:.0} us", answered.timings.total_us)),
    ]
}

fn common_json(answered: &Answered) -> Value {
    let v1::StageTimings {
        decode_us,
        seeds_us,
        align_us,
        gate_us,
        total_us,
        neighbours_us,
        facts_us,
    } = answered.timings;
    let rejected = answered.rejected.iter().map(|candidate| {
        json!({
            "donor_id": candidate.donor_id,
            "reason": reason_word(candidate),
            "detail": candidate.detail,
            "verified_tokens": candidate.verified_tokens,
            "reusable_prefix_tokens": candidate.reusable_prefix_tokens,
        })
    });
    let segments = answered.segments.iter().map(|segment| {
        let span = segment.span.unwrap_or_default();
        json!({
            "donor_id": segment.donor_id,
            "donor_start": span.donor_start,
            "target_start": span.target_start,
            "length": span.length,
        })
    });
    let neighbours = answered.neighbours.iter().map(|neighbour| {
        let quality = neighbour.quality.unwrap_or_default();
        json!({
            "donor_id": neighbour.donor_id,
            "discovery": word(neighbour.discovery().as_str_name(), "DISCOVERY_"),
            "score": neighbour.score,
            "facts_compared": quality.facts_compared,
            "facts_differ": quality.facts_differ,
        })
    });
    json!({
        "mode": mode_word(answered.mode),
        "namespace_id": answered.namespace_id,
        "repeated_answer": answered.repeated,
        "timings": {
            "decode_us": decode_us,
            "seeds_us": seeds_us,
            "align_us": align_us,
            "gate_us": gate_us,
            "total_us": total_us,
            "neighbours_us": neighbours_us,
            "facts_us": facts_us,
        },
        "rejected": rejected.collect::<Vec<_>>(),
        "segments": segments.collect::<Vec<_>>(),
        "neighbours": neighbours.collect::<Vec<_>>(),
        "sketch_search": search_word(answered.sketch_search),
        "text_search": search_word(answered.text_search),
    })
}

// What is known of other donors, each in its table.
fn others(answered: &Answered) -> String {
    rejected(answered) + &segments(answered) + &neighbours(answered)
}

fn segments(answered: &Answered) -> String {
    let mut table = Table::new(&[
        ("SEGMENT: PROMPT", Align::Right),
        ("DONOR", Align::Left),
        ("AT", Align::Right),
        ("TOKENS", Align::Right),
    ]);
    for segment in &answered.segments {
        let span = segment.span.unwrap_or_default();
        table.row([
            span.target_start.to_string(),
            segment.donor_id.clone(),
            span.donor_start.to_string(),
            span.length.to_string(),
        ]);
    }
    shown(&table)
}

fn neighbours(answered: &Answered) -> String {
    let mut table = Table::new(&[
        ("NEIGHBOUR", Align::Left),
        ("BY", Align::Left),
        ("SCORE", Align::Right),
        ("FACTS", Align::Left),
    ]);
    for neighbour in &answered.neighbours {
        table.row([
            neighbour.donor_id.clone(),
            word(neighbour.discovery().as_str_name(), "DISCOVERY_"),
            format!("{:.3}", neighbour.score),
            facts_word(neighbour.quality.unwrap_or_default()).to_owned(),
        ]);
    }
    shown(&table)
}

fn shown(table: &Table) -> String {
    match table.is_empty() {
        true => String::new(),
        false => format!("\n{table}"),
    }
}

fn facts_word(quality: v1::QualitySignals) -> &'static str {
    match (quality.facts_compared, quality.facts_differ) {
        (false, _) => "",
        (true, true) => "differ",
        (true, false) => "alike",
    }
}

fn search_word(search: v1::NeighbourSearch) -> String {
    word(search.as_str_name(), "NEIGHBOUR_SEARCH_")
}

fn rejected(answered: &Answered) -> String {
    let mut table = Table::new(&[
        ("REJECTED", Align::Left),
        ("REASON", Align::Left),
        ("VERIFIED", Align::Right),
        ("REUSABLE", Align::Right),
        ("DETAIL", Align::Left),
    ]);
    for candidate in &answered.rejected {
        table.row([
            candidate.donor_id.clone(),
            reason_word(candidate),
            candidate.verified_tokens.to_string(),
            candidate.reusable_prefix_tokens.to_string(),
            candidate.detail.clone(),
        ]);
    }
    shown(&table)
}

fn reason_word(candidate: &v1::RejectedCandidate) -> String {
    word(candidate.reason().as_str_name(), "FALLBACK_REASON_")
}

fn refusal_word(refusal: v1::LeaseRefusal) -> String {
    word(refusal.as_str_name(), "LEASE_REFUSAL_")
}

fn medium(nomination: &Nomination) -> String {
    word(nomination.medium.as_str_name(), "MEDIUM_")
}

fn policy(policy: CachePolicy) -> &'static str {
    match policy {
        CachePolicy::ExactCommit => "exact_commit",
        CachePolicy::RequestOnly => "request_only",
        CachePolicy::DiscoveryOnly => "discovery_only",
    }
}
