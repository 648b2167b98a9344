//! Whose a donor is: what an event says of the tenant, made into a tenant key v1.
//!
//! `tenant_key` is one already. `cache_salt` is either a raw salt, which is hashed here and goes no
//! further, or, as SemBlend emits it, what isolates the donor in its engine: the digest of the salt
//! that a tenant key has, or of the salt and more that no look-up knows. Where both are given they
//! must be the same, since a difference that cannot be compared is a difference.

use super::{
    refusal::{Fault, Problem},
    wire::{self, Extra, Raw},
};
use crate::donors::{
    namespace::{is_tenant_key, tenant_key},
    vocabulary::Unfindable,
};

const TENANT_FIELD: &str = "data.namespace.extra.tenant_key";
const SALT_FIELD: &str = "data.namespace.extra.cache_salt";
/// Longest salt, in bytes.
const SALT_BYTES_MAX: usize = 1024;

const ISOLATION_PREFIX: &str = "semblend:ns:";
const NOT_ISOLATED: &str = "semblend:ns:no-cache-salt";
const ISOLATED_BY_SALT: &str = "semblend:ns:salt:";

/// The tenant's key, or why no look-up can be compared with the donor.
///
/// # Errors
/// When what is said has no meaning, or contradicts itself.
pub(super) fn tenant(extra: &Extra<'_>) -> Result<Result<Box<str>, Unfindable>, Fault> {
    if extra.has_twice {
        return Err(Fault::new("data.namespace.extra", Problem::Twice));
    }
    let key = extra.tenant_key.map(|raw| key(Some(raw))).transpose()?;
    let salt = extra.cache_salt.map(|raw| salt(Some(raw))).transpose()?;
    let tenant = match (key, salt) {
        (None, None) => Err(Unfindable::NoTenant),
        (Some(key), None) => Ok(key),
        (None, Some(Salt::Raw(key) | Salt::Digest(key))) => Ok(key),
        (Some(key), Some(Salt::Raw(other))) if key != other => {
            return Err(Fault::new(SALT_FIELD, Problem::Disagrees("tenant_key")));
        }
        (Some(key), Some(Salt::Digest(other))) if key != other => Err(Unfindable::OtherIsolation),
        (Some(key), Some(Salt::Raw(_) | Salt::Digest(_))) => Ok(key),
        (_, Some(Salt::Other)) => Err(Unfindable::OtherIsolation),
    };
    if extra.has_other_keys {
        return Ok(Err(Unfindable::UnknownKey));
    }
    Ok(tenant)
}

/// What a `cache_salt` comes to.
enum Salt {
    /// It was a raw salt; this is its tenant key.
    Raw(Box<str>),
    /// It was a digest already; this is the tenant key with it.
    Digest(Box<str>),
    /// It isolates by what no look-up says.
    Other,
}

fn key(raw: Raw<'_>) -> Result<Box<str>, Fault> {
    let key: String = wire::value(raw, TENANT_FIELD, "a string")?;
    if !is_tenant_key(&key) {
        return Err(Fault::form(TENANT_FIELD, "a tenant key v1"));
    }
    Ok(key.into())
}

fn salt(raw: Raw<'_>) -> Result<Salt, Fault> {
    let salt = wire::text(raw, SALT_FIELD, SALT_BYTES_MAX)?;
    if !salt.starts_with(ISOLATION_PREFIX) {
        return Ok(Salt::Raw(tenant_key(Some(&salt)).into()));
    }
    if &*salt == NOT_ISOLATED {
        return Ok(Salt::Digest(tenant_key(None).into()));
    }
    let digest = salt.strip_prefix(ISOLATED_BY_SALT);
    // "none" is no digest, though a tenant key may have it.
    let digest = digest.filter(|digest| *digest != "none");
    let key = digest.map(|digest| format!("semblend:tenant:v1:{digest}"));
    let key = key.filter(|key| is_tenant_key(key));
    Ok(key.map_or(Salt::Other, |key| Salt::Digest(key.into())))
}
