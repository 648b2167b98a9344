//! Digests that stand for ids in records: joinable with each other, and with nothing else.

use sha2::{Digest as _, Sha256};
use siphasher::sip::SipHasher24;

use super::record::{Digest, Hex, NamespaceDigest};

pub const AUDIT_KEY_BYTES: usize = 32;
/// Tokens that make a template.
pub const TEMPLATE_TOKENS: usize = 64;

const JOIN_TAG: &[u8] = b"kvatlas:request:v1:";
/// The first half of the key is for ids, the second for templates.
const HALF_BYTES: usize = AUDIT_KEY_BYTES / 2;

/// Secret and kept, so that digests stay the same over restarts and tell nothing without it:
/// SipHash-2-4 under a random key is a pseudorandom function.
#[derive(Clone, Copy)]
pub struct AuditKey(pub [u8; AUDIT_KEY_BYTES]);

impl std::fmt::Debug for AuditKey {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("AuditKey")
    }
}

/// What an id names: equal ids of two kinds have nothing in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Donor = 1,
    Owner = 2,
    Prefix = 3,
}

impl AuditKey {
    #[must_use]
    pub fn id(&self, kind: Kind, id: &[u8]) -> Digest {
        let mut key = self.half(0);
        key[0] ^= kind as u8;
        Hex(SipHasher24::new_with_key(&key).hash(id))
    }

    /// Of a worker and its data-parallel rank.
    #[must_use]
    pub fn owner(&self, worker_id: &str, rank: u32) -> Digest {
        let mut key = self.half(0);
        key[0] ^= Kind::Owner as u8;
        for (byte, of_rank) in key[4..].iter_mut().zip(rank.to_le_bytes()) {
            *byte ^= of_rank;
        }
        Hex(SipHasher24::new_with_key(&key).hash(worker_id.as_bytes()))
    }

    /// Of a prompt's beginning; none where it is shorter.
    #[must_use]
    pub fn template(&self, tokens: &[u32]) -> Option<Digest> {
        let head = tokens.get(..TEMPLATE_TOKENS)?;
        let mut bytes = [0_u8; TEMPLATE_TOKENS * 4];
        for (four, token) in bytes.chunks_exact_mut(4).zip(head) {
            four.copy_from_slice(&token.to_le_bytes());
        }
        Some(Hex(
            SipHasher24::new_with_key(&self.half(HALF_BYTES)).hash(&bytes)
        ))
    }

    fn half(&self, from: usize) -> [u8; HALF_BYTES] {
        let mut half = [0; HALF_BYTES];
        half.copy_from_slice(&self.0[from..from + HALF_BYTES]);
        half
    }
}

/// The join key: without a secret, so that an engine can compute it for its own log.
#[must_use]
pub fn join_key(request_id: &str) -> Option<Digest> {
    if request_id.is_empty() {
        return None;
    }
    let mut hash = Sha256::new();
    hash.update(JOIN_TAG);
    hash.update(request_id.as_bytes());
    let mut first = [0; 8];
    first.copy_from_slice(&hash.finalize()[..8]);
    Some(Hex(u64::from_be_bytes(first)))
}

/// The beginning of a namespace_id.
#[must_use]
pub fn namespace(id: &[u8; 32]) -> NamespaceDigest {
    let mut first = [0; 8];
    first[2..].copy_from_slice(&id[..6]);
    Hex(u64::from_be_bytes(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_join_key_is_what_an_engine_can_compute() {
        // printf 'kvatlas:request:v1:request-1' | sha256sum | cut -c1-16
        let key = join_key("request-1").unwrap();
        assert_eq!(key.to_string(), "2407c7c5d70a7ed4");
        assert_eq!(join_key(""), None);
    }

    #[test]
    fn a_namespace_is_told_by_the_beginning_of_its_id() {
        let mut id = [0; 32];
        id[..7].copy_from_slice(&[0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xff]);
        assert_eq!(namespace(&id).to_string(), "0123456789ab");
    }

    #[test]
    fn digests_depend_on_the_key_the_kind_and_every_part() {
        let (key, other) = (
            AuditKey([7; AUDIT_KEY_BYTES]),
            AuditKey([8; AUDIT_KEY_BYTES]),
        );
        let all = [
            key.id(Kind::Donor, b"a"),
            key.id(Kind::Prefix, b"a"),
            key.id(Kind::Donor, b"b"),
            other.id(Kind::Donor, b"a"),
            key.owner("a", 0),
            key.owner("a", 1),
            key.owner("b", 0),
            key.template(&[1; 64]).unwrap(),
            key.template(&[2; 64]).unwrap(),
            other.template(&[1; 64]).unwrap(),
        ];
        let distinct: std::collections::BTreeSet<_> = all.into_iter().collect();
        assert_eq!(distinct.len(), all.len());
        assert_eq!(key.template(&[1; 63]), None);
        assert_eq!(key.template(&[1; 64]), key.template(&[1; 65]));
    }
}
