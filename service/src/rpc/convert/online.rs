//! What a request says about scoring online.

use kvatlas_kernels::score::Aggregate;
use kvatlas_proto::v1;
use tonic::Status;

use super::{check_length, invalid, queries::online_query};
use crate::routing::{
    encoder::{TOKENS_MAX, registry::NAME_BYTES_MAX},
    online::{Ask, TokensAsk},
    query::{Algorithm, POSITION_MAX, Similarity},
};

/// Whether the request asks for scoring online.
#[must_use]
pub fn is_online(request: &v1::GetManifestRequest) -> bool {
    matches!(
        request.algorithm.as_str(),
        "kri-q" | "kri-q-quest" | "kri-t"
    )
}

/// Refuses what only scoring online knows, in a request that does not ask for it.
pub fn check_not_asked(request: &v1::GetManifestRequest) -> Result<(), Status> {
    let given = [
        ("query", request.query.is_some()),
        ("query_tokens", request.query_tokens.is_some()),
        ("similarity", request.similarity != 0),
        ("aggregation", request.aggregation != 0),
    ];
    match given.into_iter().find(|(_, given)| *given) {
        None => Ok(()),
        Some((field, _)) => Err(invalid(
            field,
            "only with the algorithm kri-q, kri-q-quest or kri-t",
        )),
    }
}

/// Checks and takes over what the request says about scoring.
pub fn ask(request: &v1::GetManifestRequest) -> Result<Ask, Status> {
    let algorithm = algorithm(request)?;
    let query = request.query.as_deref();
    // Statistics are kept; where the sequence is, each request says.
    let moves = query.filter(|query| algorithm == Algorithm::KriT && has_no_vectors(query));
    let position = moves.map(|query| query.position);
    let query = match query {
        Some(query) if position.is_none() => Some(online_query(query)?),
        Some(_) | None => None,
    };
    if let Some(position) = position.filter(|position| *position > POSITION_MAX) {
        let problem = format!("{position}, at most {POSITION_MAX}");
        return Err(invalid("query.position", problem));
    }
    if position.is_some() && request.query_hash.is_empty() {
        let problem = "a position alone needs statistics that were kept under a query_hash";
        return Err(invalid("query", problem));
    }
    let tokens = request.query_tokens.as_deref().map(tokens).transpose()?;
    if tokens.is_some() && algorithm == Algorithm::KriT {
        return Err(invalid(
            "query_tokens",
            "kri-t takes statistics, not tokens",
        ));
    }
    if tokens.is_some() && query.is_some() {
        return Err(invalid("query_tokens", "a query is given as well"));
    }
    Ok(Ask {
        algorithm,
        query,
        position,
        tokens,
    })
}

fn algorithm(request: &v1::GetManifestRequest) -> Result<Algorithm, Status> {
    let wrong = |field, value| invalid(field, format!("{value} is not one of its values"));
    let similarity = v1::Similarity::try_from(request.similarity)
        .map_err(|_| wrong("similarity", request.similarity))?;
    let aggregation = v1::GroupAggregation::try_from(request.aggregation)
        .map_err(|_| wrong("aggregation", request.aggregation))?;
    let aggregate = |unspecified| match aggregation {
        v1::GroupAggregation::Unspecified => unspecified,
        v1::GroupAggregation::Mean => Aggregate::Mean,
        v1::GroupAggregation::Max => Aggregate::Max,
    };
    let is_group_mean = request.query.as_ref().is_some_and(|query| query.group_mean);
    if is_group_mean && aggregation == v1::GroupAggregation::Max {
        return Err(invalid("aggregation", "group means know only the mean"));
    }
    if request.algorithm != "kri-q" && similarity != v1::Similarity::Unspecified {
        return Err(invalid("similarity", "only with the algorithm kri-q"));
    }
    Ok(match request.algorithm.as_str() {
        "kri-q-quest" if is_group_mean => Algorithm::Quest {
            aggregate: aggregate(Aggregate::Mean),
        },
        "kri-q-quest" => Algorithm::Quest {
            aggregate: aggregate(Aggregate::Max),
        },
        "kri-t" if aggregation != v1::GroupAggregation::Unspecified => {
            return Err(invalid("aggregation", "kri-t takes the largest z-score"));
        }
        "kri-t" => Algorithm::KriT,
        _ => Algorithm::KriQ {
            similarity: match similarity {
                v1::Similarity::Unspecified | v1::Similarity::Dot => Similarity::Dot,
                v1::Similarity::Cosine => Similarity::Cosine,
            },
            aggregate: aggregate(Aggregate::Mean),
        },
    })
}

fn has_no_vectors(query: &v1::QueryVectors) -> bool {
    let v1::QueryVectors {
        frame: _,
        element_type: _,
        layer_ids: _,
        heads: _,
        head_dim: _,
        group_mean: _,
        vectors,
        position: _,
        mean_real,
        mean_imaginary,
        mean_absolute,
        pair_layout: _,
    } = query;
    [vectors, mean_real, mean_imaginary, mean_absolute]
        .into_iter()
        .all(|bytes| bytes.is_empty())
}

fn tokens(query: &v1::QueryTokens) -> Result<TokensAsk, Status> {
    let v1::QueryTokens {
        tokens,
        start_position,
        mean_of_last,
        encoder,
    } = query;
    check_length("query_tokens.encoder", encoder, 1, NAME_BYTES_MAX)?;
    let (whole, rest) = tokens.as_chunks::<4>();
    if whole.is_empty() || whole.len() > TOKENS_MAX || !rest.is_empty() {
        let problem = format!("must be 1 to {TOKENS_MAX} tokens of 4 bytes");
        return Err(invalid("query_tokens.tokens", problem));
    }
    Ok(TokensAsk {
        encoder: encoder.clone(),
        tokens: whole
            .iter()
            .map(|token| u32::from_le_bytes(*token))
            .collect(),
        start_position: *start_position,
        mean_of_last: *mean_of_last,
    })
}
