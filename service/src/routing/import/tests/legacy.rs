//! Streams from before the zip, and every way in which one is refused.

use super::build::{self, dict, tensor};
use super::*;

/// The five pickles, and what follows them.
struct Stream {
    magic: Vec<u8>,
    version: Vec<u8>,
    system: Vec<u8>,
    object: Vec<u8>,
    keys: Vec<u8>,
    storages: Vec<u8>,
}

/// A stream of one tensor of four bytes.
fn good() -> Stream {
    let scores = tensor("ByteStorage", 4, 0, &[(1, 4), (2, 2), (2, 1)]);
    Stream {
        magic: b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.".to_vec(),
        version: b"\x80\x02M\xe9\x03.".to_vec(),
        system: dict(&[("little_endian", b"\x88")]),
        object: dict(&[("block_affinities", &scores)]),
        keys: b"\x80\x02]X\x01\0\0\x000a.".to_vec(),
        storages: b"\x04\0\0\0\0\0\0\0\x01\x02\x03\x04".to_vec(),
    }
}

fn read(stream: &Stream) -> Result<ImportedPrior, ImportError> {
    let Stream {
        magic,
        version,
        system,
        object,
        keys,
        storages,
    } = stream;
    import(
        &[magic, version, system, object, keys, storages]
            .map(Vec::as_slice)
            .concat(),
        None,
    )
}

#[test]
fn a_stream_is_read() {
    let prior = read(&good()).unwrap();
    assert_eq!(
        prior.affinities.unwrap().scores,
        Scores::F32(vec![1.0, 2.0, 3.0, 4.0])
    );
}

#[test]
fn streams_beyond_the_rules_are_refused() {
    let check = |stream: Stream, wanted: &str| {
        let message = read(&stream).unwrap_err().to_string();
        assert!(
            message.contains(wanted),
            "{message:?} does not say {wanted:?}"
        );
    };
    let other = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x1a.".to_vec();
    check(
        Stream {
            magic: other,
            ..good()
        },
        "the magic number is not what torch writes",
    );
    let other = b"\x80\x02M\xe8\x03.".to_vec();
    check(
        Stream {
            version: other,
            ..good()
        },
        "the protocol version is not what torch writes",
    );
    let other = dict(&[("little_endian", b"\x89")]);
    check(
        Stream {
            system: other,
            ..good()
        },
        "byteorder is big; only little-endian",
    );
    let other = dict(&[("little_endian", b"N")]);
    check(
        Stream {
            system: other,
            ..good()
        },
        "the system's byte order is not",
    );
    let other = dict(&[]);
    check(
        Stream {
            system: other,
            ..good()
        },
        "the system's byte order is not",
    );
    let key = b"X\x01\0\0\x000";
    let keys = |opcodes: &[u8]| [b"\x80\x02", opcodes, b"."].concat();
    check(
        Stream {
            keys: keys(b"N"),
            ..good()
        },
        "the list of storage keys is not",
    );
    check(
        Stream {
            keys: keys(b"]Na"),
            ..good()
        },
        "a storage key is not",
    );
    check(
        Stream {
            keys: keys(b"]"),
            ..good()
        },
        "storage 0 is missing",
    );
    check(
        Stream {
            keys: keys(b"]X\x01\0\0\x001a"),
            ..good()
        },
        "a storage key that no tensor has",
    );
    let twice = keys(&[b"](".as_slice(), key, key, b"e"].concat());
    let storages = good().storages.repeat(2);
    check(
        Stream {
            keys: twice,
            storages,
            ..good()
        },
        "a storage key that comes twice is not",
    );
    let storages = b"\x04\0\0\0\0\0\0\0\x01\x02\x03".to_vec();
    check(Stream { storages, ..good() }, "a cut-off storage is not");
    let storages = b"\xff\xff\xff\xff\xff\xff\xff\xff".to_vec();
    check(Stream { storages, ..good() }, "a cut-off storage is not");
    let storages = b"\x03\0\0\0\0\0\0\0\x01\x02\x03".to_vec();
    check(
        Stream { storages, ..good() },
        "storage 0 has 3 bytes where 4 are needed",
    );
    let wide = tensor("LongStorage", u32::MAX >> 1, 0, &[]);
    let object = dict(&[("kmeans_blocks", &wide)]);
    check(Stream { object, ..good() }, "a cut-off storage is not");
}

#[test]
fn a_list_of_tensors_shares_one_storage() {
    let [first, last] = [0, 3].map(|offset| tensor("ByteStorage", 4, offset, &[]));
    let mut list = b"](".to_vec();
    list.extend([last, first].concat());
    build::int(&mut list, 9);
    list.push(b'e');
    let object = dict(&[("kmeans_blocks", &list)]);
    assert_eq!(
        read(&Stream { object, ..good() }).unwrap().legacy_list,
        Some(vec![4, 1, 9])
    );
}
