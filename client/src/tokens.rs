//! Token ids as they travel: packed little-endian bytes, with no per-token protobuf cost.

use bytes::Bytes;
use kvatlas_proto::v1;

/// Tokens that a prompt may have.
pub const TOKENS_MAX: usize = 1_048_576;

const TOKEN_BYTES: usize = size_of::<u32>();

/// A prompt's token ids. Cloning is cheap.
#[derive(Clone, PartialEq, Eq)]
pub struct Tokens {
    packed: Bytes,
}

/// Packed tokens are 4 bytes each.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("packed tokens take 4 bytes each, so their length cannot be {bytes}")]
pub struct TokensError {
    pub bytes: usize,
}

impl Tokens {
    /// Packs the ids once; sending them then copies nothing.
    pub fn new(ids: &[u32]) -> Self {
        let mut packed = vec![0; ids.len() * TOKEN_BYTES];
        for (slot, id) in packed.chunks_exact_mut(TOKEN_BYTES).zip(ids) {
            slot.copy_from_slice(&id.to_le_bytes());
        }
        Self {
            packed: packed.into(),
        }
    }

    /// Takes ids that are already packed: `u32`, little endian.
    ///
    /// # Errors
    /// When the length is not a multiple of 4.
    pub fn from_packed(packed: Bytes) -> Result<Self, TokensError> {
        if packed.len().is_multiple_of(TOKEN_BYTES) {
            Ok(Self { packed })
        } else {
            Err(TokensError {
                bytes: packed.len(),
            })
        }
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.packed.len() / TOKEN_BYTES
    }

    pub fn is_empty(&self) -> bool {
        self.packed.is_empty()
    }

    /// The ids as they travel: `u32`, little endian.
    pub fn packed(&self) -> Bytes {
        self.packed.clone()
    }

    pub(crate) fn to_wire(&self) -> v1::Tokens {
        v1::Tokens {
            ids: Vec::new(),
            packed: self.packed.clone(),
        }
    }
}

/// Prompts stay out of logs, so only the length is shown.
impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokens").field("len", &self.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_travel_as_little_endian_words() {
        let wire = Tokens::new(&[1, 0x0102_0304]).to_wire();
        assert_eq!(wire.packed.as_ref(), [1, 0, 0, 0, 4, 3, 2, 1]);
        assert!(wire.ids.is_empty());
    }

    #[test]
    fn packed_bytes_must_be_whole_words() {
        let packed = Bytes::from_static(&[1, 0, 0, 0, 2, 0, 0]);
        assert_eq!(Tokens::from_packed(packed), Err(TokensError { bytes: 7 }));
        let packed = Bytes::from_static(&[1, 0, 0, 0]);
        assert_eq!(Tokens::from_packed(packed), Ok(Tokens::new(&[1])));
    }

    #[test]
    fn a_prompt_is_not_shown() {
        assert_eq!(format!("{:?}", Tokens::new(&[77, 78])), "Tokens { len: 2 }");
    }
}
