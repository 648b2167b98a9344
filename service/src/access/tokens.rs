//! The token file: who may call, as the operator wrote it.

use std::{collections::HashSet, sync::Arc};

use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::{
    grant::Role,
    limits::{BURST_MAX, CALLS_PER_SECOND_MAX, Rate},
};
use crate::donors::namespace::{NamespaceId, is_tenant_key};
use crate::donors::scope::{Namespaces, Scope, Workers};

/// Largest token file, in bytes.
pub const FILE_BYTES_MAX: usize = 4 << 20;
/// Most tokens. Each unknown one that is presented is compared with all of them.
pub const TOKENS_MAX: usize = 4096;
/// Shortest and longest token, in bytes.
pub const TOKEN_BYTES_MIN: usize = 16;
pub const TOKEN_BYTES_MAX: usize = 512;
/// Longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// Most names in a list of one token.
pub const LIST_MAX: usize = 10_000;

/// SHA-256 of a token.
pub type Digest = [u8; 32];

/// What a token stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    pub name: Box<str>,
    pub role: Role,
    pub scope: Arc<Scope>,
}

/// One token of the file. The token itself is not kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    pub digest: Digest,
    pub grant: Grant,
    pub rate: Option<Rate>,
}

/// Why a token file was not taken. Never quotes what is in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokensError {
    #[error("line {line}, column {column}: {problem}")]
    Form {
        line: usize,
        column: usize,
        problem: &'static str,
    },
    #[error("tokens: {count} of them, must be 1 to {TOKENS_MAX}")]
    Count { count: usize },
    #[error("tokens[{at}].{field}: {problem}")]
    Field {
        at: usize,
        field: &'static str,
        problem: String,
    },
}

type Fault = (&'static str, String);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    tokens: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    sha256: Option<String>,
    token: Option<String>,
    role: String,
    tenants: Option<Names>,
    namespaces: Option<Vec<String>>,
    workers: Option<Names>,
    calls_per_second_max: Option<u32>,
    burst: Option<u32>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Names {
    All(String),
    Listed(Vec<String>),
}

/// Reads a token file.
///
/// # Errors
/// When any of it is not as documented: then none of it counts.
pub fn parse(text: &[u8]) -> Result<Vec<Token>, TokensError> {
    // The library's message could quote a token that stands at the wrong place.
    let File { tokens: entries } = serde_json::from_slice(text).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        let problem = match error.classify() {
            serde_json::error::Category::Data => "a field is missing, unknown, or of another kind",
            serde_json::error::Category::Eof => "the text ends too early",
            serde_json::error::Category::Syntax | serde_json::error::Category::Io => {
                "this is not JSON"
            }
        };
        TokensError::Form {
            line,
            column,
            problem,
        }
    })?;
    let count = entries.len();
    if count == 0 || count > TOKENS_MAX {
        return Err(TokensError::Count { count });
    }
    let (mut names, mut digests) = (HashSet::new(), HashSet::new());
    let mut tokens = Vec::with_capacity(count);
    for (at, entry) in entries.into_iter().enumerate() {
        let fault = |(field, problem)| TokensError::Field { at, field, problem };
        let token = token(entry).map_err(fault)?;
        if !names.insert(token.grant.name.clone()) {
            return Err(fault(("name", "is that of an earlier one".to_owned())));
        }
        if !digests.insert(token.digest) {
            return Err(fault(("token", "is that of an earlier one".to_owned())));
        }
        tokens.push(token);
    }
    Ok(tokens)
}

/// The digest that a token is known by.
#[must_use]
pub fn digest(token: &[u8]) -> Digest {
    Sha256::digest(token).into()
}

fn token(entry: Entry) -> Result<Token, Fault> {
    let Entry {
        name,
        sha256,
        token,
        role,
        tenants,
        namespaces,
        workers,
        calls_per_second_max,
        burst,
    } = entry;
    check_name(&name)?;
    let role =
        Role::parse(&role).ok_or(("role", "must be engine, baker or operator".to_owned()))?;
    Ok(Token {
        digest: known_by(sha256.as_deref(), token.as_deref())?,
        grant: Grant {
            name: name.into(),
            role,
            scope: Arc::new(scope(role, (tenants, namespaces), workers)?),
        },
        rate: rate(calls_per_second_max, burst)?,
    })
}

fn check_name(name: &str) -> Result<(), Fault> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_plain) {
        let problem = format!("must be 1 to {NAME_BYTES_MAX} letters, digits, - _ .");
        return Err(("name", problem));
    }
    Ok(())
}

fn known_by(sha256: Option<&str>, token: Option<&str>) -> Result<Digest, Fault> {
    match (sha256, token) {
        (Some(digits), None) => match NamespaceId::parse(digits) {
            Some(NamespaceId(digest)) => Ok(digest),
            None => Err((
                "sha256",
                "must be 64 lower-case hexadecimal digits".to_owned(),
            )),
        },
        (None, Some(token)) => {
            check_token(token.as_bytes())?;
            Ok(digest(token.as_bytes()))
        }
        (None, None) | (Some(_), Some(_)) => Err((
            "token",
            "one of token and sha256 must be given, and not both".to_owned(),
        )),
    }
}

/// Whether a text may be a bearer token (RFC 6750).
fn check_token(token: &[u8]) -> Result<(), Fault> {
    let size = token.len();
    if !(TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX).contains(&size) {
        let problem = format!("{size} bytes, must be {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX}");
        return Err(("token", problem));
    }
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(byte);
    if !token.iter().all(is_plain) {
        let problem = "may hold letters, digits and - . _ ~ + / = alone";
        return Err(("token", problem.to_owned()));
    }
    Ok(())
}

// A list that was left out is never taken for all by accident: only an operator's may be.
fn scope(
    role: Role,
    (tenants, ids): (Option<Names>, Option<Vec<String>>),
    workers: Option<Names>,
) -> Result<Scope, Fault> {
    let names_something = tenants.is_some() || ids.is_some() || workers.is_some();
    match role {
        Role::Baker if names_something => {
            let problem = "a baker's calls name no namespace and no worker: leave it out";
            return Err(("tenants", problem.to_owned()));
        }
        Role::Baker => {
            return Ok(Scope {
                namespaces: Namespaces::Of {
                    tenants: HashSet::new(),
                    ids: HashSet::new(),
                },
                workers: Workers::Named(Vec::new()),
            });
        }
        Role::Engine | Role::Operator => {}
    }
    let namespaces = match (tenants, ids) {
        (None, None) if role == Role::Operator => Namespaces::All,
        (None, None) => {
            let problem = "tenants or namespaces must be given; \"*\" stands for all tenants";
            return Err(("tenants", problem.to_owned()));
        }
        (Some(Names::All(star)), None) if star == "*" => Namespaces::All,
        (Some(Names::All(_)), _) => {
            let problem = "must be a list, or \"*\" without namespaces";
            return Err(("tenants", problem.to_owned()));
        }
        (Some(Names::Listed(tenants)), ids) => of(tenants, &ids.unwrap_or_default())?,
        (None, Some(ids)) => of(Vec::new(), &ids)?,
    };
    let workers = match workers {
        None if namespaces == Namespaces::All => Workers::All,
        // A worker serves every tenant of its engine, and what is told of it reaches all of them.
        None => {
            let problem = "must be given where not all tenants are; \"*\" stands for all workers";
            return Err(("workers", problem.to_owned()));
        }
        Some(Names::All(star)) if star == "*" => Workers::All,
        Some(Names::All(_)) => return Err(("workers", "must be a list, or \"*\"".to_owned())),
        Some(Names::Listed(names)) => named_workers(names)?,
    };
    Ok(Scope {
        namespaces,
        workers,
    })
}

fn of(tenants: Vec<String>, ids: &[String]) -> Result<Namespaces, Fault> {
    check_length("tenants", tenants.len())?;
    check_length("namespaces", ids.len())?;
    if tenants.is_empty() && ids.is_empty() {
        return Err(("tenants", "names nothing".to_owned()));
    }
    if !tenants.iter().all(|tenant| is_tenant_key(tenant)) {
        return Err(("tenants", "each must be a tenant key v1".to_owned()));
    }
    let ids: Option<_> = ids.iter().map(|id| NamespaceId::parse(id)).collect();
    let ids = ids.ok_or_else(|| {
        let problem = "each must be 64 lower-case hexadecimal digits";
        ("namespaces", problem.to_owned())
    })?;
    let tenants = tenants.into_iter().map(Box::from).collect();
    Ok(Namespaces::Of { tenants, ids })
}

fn named_workers(names: Vec<String>) -> Result<Workers, Fault> {
    check_length("workers", names.len())?;
    let is_plain = |name: &String| name.trim_end_matches('*').len() + 1 >= name.len();
    if !names.iter().all(|name| !name.is_empty() && is_plain(name)) {
        let problem = "each must be a worker's id, or how ids begin and one *";
        return Err(("workers", problem.to_owned()));
    }
    Ok(Workers::Named(names.into_iter().map(Box::from).collect()))
}

fn check_length(field: &'static str, count: usize) -> Result<(), Fault> {
    if count > LIST_MAX {
        return Err((field, format!("{count} names, at most {LIST_MAX}")));
    }
    Ok(())
}

fn rate(calls_per_second_max: Option<u32>, burst: Option<u32>) -> Result<Option<Rate>, Fault> {
    let Some(calls_per_second_max) = calls_per_second_max else {
        return match burst {
            None => Ok(None),
            Some(_) => Err(("burst", "needs calls_per_second_max".to_owned())),
        };
    };
    if !(1..=CALLS_PER_SECOND_MAX).contains(&calls_per_second_max) {
        let problem = format!("{calls_per_second_max}, must be 1 to {CALLS_PER_SECOND_MAX}");
        return Err(("calls_per_second_max", problem));
    }
    let burst = burst.unwrap_or(calls_per_second_max);
    if !(1..=BURST_MAX).contains(&burst) {
        return Err(("burst", format!("{burst}, must be 1 to {BURST_MAX}")));
    }
    Ok(Some(Rate {
        calls_per_second_max,
        burst,
    }))
}

#[cfg(test)]
mod tests;
