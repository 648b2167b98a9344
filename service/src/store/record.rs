//! The bytes of one record: version, form, checksum over key and payload, payload.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::error::Damage;

const VERSION: u8 = 1;
const HEADER_BYTES: usize = 10;

/// What the payload of a record is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Form {
    /// The caller's bytes.
    Inline = 0,
    /// A [`super::BlobRef`] to the file with the caller's bytes.
    Spilled = 1,
}

/// A record for `key`, which is the whole key, table byte included.
pub(super) fn encode(key: &[u8], form: Form, payload: &[u8]) -> Vec<u8> {
    let mut record = Vec::with_capacity(HEADER_BYTES + payload.len());
    record.extend_from_slice(&[VERSION, form as u8]);
    record.extend_from_slice(&checksum(key, form as u8, payload).to_le_bytes());
    record.extend_from_slice(payload);
    record
}

/// The form and the payload of a record that was written for `key`.
pub(super) fn decode<'a>(key: &[u8], record: &'a [u8]) -> Result<(Form, &'a [u8]), Damage> {
    let Some((header, payload)) = record.split_first_chunk::<HEADER_BYTES>() else {
        return Err(Damage::Length);
    };
    let [version, form, checksum_bytes @ ..] = *header;
    if version > VERSION {
        return Err(Damage::Newer);
    }
    if version != VERSION || u64::from_le_bytes(checksum_bytes) != checksum(key, form, payload) {
        return Err(Damage::Checksum);
    }
    match form {
        0 => Ok((Form::Inline, payload)),
        1 => Ok((Form::Spilled, payload)),
        _ => Err(Damage::Newer),
    }
}

/// Key, version and form seed the payload's hash, so that a record under another key is found too.
fn checksum(key: &[u8], form: u8, payload: &[u8]) -> u64 {
    let seed = xxh3_64_with_seed(key, u64::from_le_bytes([VERSION, form, 0, 0, 0, 0, 0, 0]));
    xxh3_64_with_seed(payload, seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_and_every_other_key_is_found() {
        let record = encode(b"key", Form::Inline, b"payload");
        assert_eq!(decode(b"key", &record), Ok((Form::Inline, &b"payload"[..])));
        for bit in 0..record.len() * 8 {
            let mut flipped = record.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(
                decode(b"key", &flipped).is_err(),
                "bit {bit} went unnoticed"
            );
        }
        for length in 0..record.len() {
            assert!(
                decode(b"key", &record[..length]).is_err(),
                "cut to {length}"
            );
        }
        assert_eq!(decode(b"kez", &record), Err(Damage::Checksum));
    }

    #[test]
    fn a_newer_record_is_told_apart_from_a_damaged_one() {
        let mut record = encode(b"key", Form::Inline, b"payload");
        record[0] = VERSION + 1;
        assert_eq!(decode(b"key", &record), Err(Damage::Newer));
    }
}
