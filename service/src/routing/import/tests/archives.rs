//! Archives in their two forms, and every way in which one is refused.

use super::build::{self, Layout, archive, dict};
use super::*;

/// The message that a file is refused with holds `wanted`.
fn check(file: &[u8], wanted: &str) {
    let message = import(file, Some(Format::Torch)).unwrap_err().to_string();
    assert!(
        message.contains(wanted),
        "{message:?} does not say {wanted:?}"
    );
}

#[test]
fn zip64_reads_as_the_short_form_does() {
    let pickle = dict(&[("kmeans_blocks", &build::list(&[5, 2]))]);
    let entries = [
        ("a/data.pkl", pickle.as_slice()),
        ("a/byteorder", b"little"),
    ];
    for layout in [Layout::Stream, Layout::Zip64] {
        let file = archive(&entries, layout);
        assert_eq!(
            import(&file, None).unwrap().legacy_list,
            Some(vec![5, 2]),
            "{layout:?}"
        );
        // A comment may follow, as long as it reaches to the end.
        let mut file = file;
        let end = file.len() - 2;
        file.splice(end.., *b"\x04\0PK\x05\x06");
        assert_eq!(
            import(&file, None).unwrap().legacy_list,
            Some(vec![5, 2]),
            "{layout:?}"
        );
    }
}

#[test]
fn archives_beyond_the_rules_are_refused() {
    let pickle = dict(&[("kmeans_blocks", &build::list(&[5, 2]))]);
    let entries = [
        ("a/data.pkl", pickle.as_slice()),
        ("a/byteorder", b"little"),
    ];
    let good = archive(&entries, Layout::Stream);
    let central = good
        .windows(4)
        .position(|bytes| bytes == b"PK\x01\x02")
        .unwrap();
    let changed = |at: usize, bytes: &[u8]| {
        let mut file = good.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        file
    };
    let compressed = "entry a/data.pkl is compressed (method 8); only stored";
    check(&changed(central + 10, &[8]), compressed);
    check(&changed(central + 8, &[1]), "entry a/data.pkl is encrypted");
    check(
        &changed(central + 16, &[0; 4]),
        "entry a/data.pkl does not have its checksum",
    );
    check(
        &changed(45, b"\x07"),
        "entry a/data.pkl does not have its checksum",
    );
    check(
        &changed(central + 42, &[0xff; 3]),
        "entry a/data.pkl lies outside the file",
    );
    check(
        &changed(30, b"b"),
        "entry a/data.pkl lies outside the file or does not match",
    );
    check(&changed(central, b"?"), "a central directory entry at byte");
    check(&changed(good.len() - 18, &[1]), "split over several disks");
    check(
        &changed(good.len() - 6, &[0xff; 4]),
        "a central directory entry at byte 4294967",
    );
    check(
        &changed(good.len() - 10, &[0xff; 1]),
        "the central directory at byte",
    );
    check(
        &changed(good.len() - 2, &[1]),
        "the end of the central directory is missing",
    );
}

#[test]
fn entries_must_be_torch_s() {
    let pickle = dict(&[("kmeans_blocks", &build::list(&[5, 2]))]);
    let entries = [
        ("a/data.pkl", pickle.as_slice()),
        ("a/byteorder", b"little"),
    ];
    check(
        &archive(&[("x", b"")], Layout::Stream),
        "the entry data.pkl is missing",
    );
    check(
        &archive(&[], Layout::Stream),
        "the entry data.pkl is missing",
    );
    check(
        &archive(&[entries[0], entries[0]], Layout::Stream),
        "two entries are named a/data.pkl",
    );
    let two = [entries[0], ("b/data.pkl", pickle.as_slice())];
    check(
        &archive(&two, Layout::Stream),
        "two entries are named data.pkl",
    );
    check(
        &archive(&[("a", b"".as_slice()); ZIP_ENTRIES_MAX + 1], Layout::Stream),
        &format!("entries; at most {ZIP_ENTRIES_MAX}"),
    );
    let big = [entries[0], ("a/byteorder", b"big")];
    check(
        &archive(&big, Layout::Stream),
        "byteorder is big; only little-endian",
    );
    check(b"PK", "the end of the central directory is missing");
}

#[test]
fn unknown_bytes_are_refused() {
    for bytes in [b"".as_slice(), b"{}", b"GGUF....", b"\x89HDF\r\n\x1a\n"] {
        let message = import(bytes, None).unwrap_err().to_string();
        assert!(
            message.contains("neither those of a torch file"),
            "{message}"
        );
    }
    let message = import(b"\x80\x02K\x01.", None).unwrap_err().to_string();
    assert!(
        message.contains("the magic number is not what torch writes"),
        "{message}"
    );
}
