//! Writes small archives and pickles by hand, the wrong ones too.

/// How an archive is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Layout {
    /// As torch does below 4 GiB: sizes and checksum in the central directory alone.
    #[default]
    Stream,
    /// All sizes, offsets and counts only in zip64 records.
    Zip64,
}

/// A zip archive of stored entries.
pub(super) fn archive(entries: &[(&str, &[u8])], layout: Layout) -> Vec<u8> {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for (name, data) in entries {
        let offset = file.len() as u64;
        local_header(&mut file, name);
        file.extend_from_slice(data);
        central_header(&mut directory, name, data, (offset, layout));
    }
    let (count, size, offset) = (
        entries.len() as u64,
        directory.len() as u64,
        file.len() as u64,
    );
    file.extend_from_slice(&directory);
    if layout == Layout::Zip64 {
        let end_at = file.len() as u64;
        file.extend_from_slice(b"PK\x06\x06");
        file.extend_from_slice(&44_u64.to_le_bytes());
        file.extend_from_slice(&[45, 0, 45, 0]);
        file.extend_from_slice(&[0; 8]);
        for number in [count, count, size, offset] {
            file.extend_from_slice(&number.to_le_bytes());
        }
        file.extend_from_slice(b"PK\x06\x07\0\0\0\0");
        file.extend_from_slice(&end_at.to_le_bytes());
        file.extend_from_slice(&1_u32.to_le_bytes());
    }
    file.extend_from_slice(b"PK\x05\x06\0\0\0\0");
    if layout == Layout::Zip64 {
        file.extend_from_slice(&[0xff; 12]);
    } else {
        let count = u16::try_from(count).expect("few entries").to_le_bytes();
        file.extend_from_slice(&count);
        file.extend_from_slice(&count);
        file.extend_from_slice(&narrow(size).to_le_bytes());
        file.extend_from_slice(&narrow(offset).to_le_bytes());
    }
    file.extend_from_slice(&[0, 0]);
    file
}

fn local_header(file: &mut Vec<u8>, name: &str) {
    file.extend_from_slice(b"PK\x03\x04\0\0\x08\x08");
    file.extend_from_slice(&[0; 18]);
    file.extend_from_slice(&u16_of(name.len()));
    file.extend_from_slice(&[0, 0]);
    file.extend_from_slice(name.as_bytes());
}

fn central_header(
    directory: &mut Vec<u8>,
    name: &str,
    data: &[u8],
    (offset, layout): (u64, Layout),
) {
    let mut crc = flate2::Crc::new();
    crc.update(data);
    directory.extend_from_slice(b"PK\x01\x02\0\0\0\0\x08\x08");
    directory.extend_from_slice(&[0; 6]);
    directory.extend_from_slice(&crc.sum().to_le_bytes());
    let size = data.len() as u64;
    let narrow = |number| {
        if layout == Layout::Zip64 {
            u32::MAX
        } else {
            narrow(number)
        }
    };
    let mut extra = Vec::new();
    if layout == Layout::Zip64 {
        // A field of another kind first, as archivers write them.
        extra.extend_from_slice(b"UX\x02\0..\x01\0\x18\0");
        for number in [size, size, offset] {
            extra.extend_from_slice(&number.to_le_bytes());
        }
    }
    directory.extend_from_slice(&narrow(size).to_le_bytes());
    directory.extend_from_slice(&narrow(size).to_le_bytes());
    directory.extend_from_slice(&u16_of(name.len()));
    directory.extend_from_slice(&u16_of(extra.len()));
    directory.extend_from_slice(&[0; 10]);
    directory.extend_from_slice(&narrow(offset).to_le_bytes());
    directory.extend_from_slice(name.as_bytes());
    directory.extend_from_slice(&extra);
}

pub(super) fn int(pickle: &mut Vec<u8>, number: u32) {
    pickle.push(b'J');
    pickle.extend_from_slice(&number.to_le_bytes());
}

pub(super) fn text(pickle: &mut Vec<u8>, text: &str) {
    pickle.push(b'X');
    pickle.extend_from_slice(&narrow(text.len() as u64).to_le_bytes());
    pickle.extend_from_slice(text.as_bytes());
}

fn narrow(number: u64) -> u32 {
    u32::try_from(number).expect("a small file")
}

fn u16_of(length: usize) -> [u8; 2] {
    u16::try_from(length).expect("a short name").to_le_bytes()
}

/// A `.pt` file of a pickle and its storages.
pub(super) fn torch(pickle: &[u8], storages: &[(&str, &[u8])]) -> Vec<u8> {
    let names: Vec<_> = storages
        .iter()
        .map(|(key, _)| format!("prior/data/{key}"))
        .collect();
    let mut entries = vec![
        ("prior/data.pkl", pickle),
        ("prior/byteorder", b"little".as_slice()),
    ];
    entries.extend(
        names
            .iter()
            .map(String::as_str)
            .zip(storages.iter().map(|(_, data)| *data)),
    );
    archive(&entries, Layout::Stream)
}

/// The pickle of a dict; values are opcodes.
pub(super) fn dict(fields: &[(&str, &[u8])]) -> Vec<u8> {
    let mut pickle = b"\x80\x02}".to_vec();
    for (key, value) in fields {
        text(&mut pickle, key);
        pickle.extend_from_slice(value);
        pickle.push(b's');
    }
    pickle.push(b'.');
    pickle
}

/// The opcodes of a list of integers.
pub(super) fn list(numbers: &[u32]) -> Vec<u8> {
    let mut opcodes = b"](".to_vec();
    numbers.iter().for_each(|&number| int(&mut opcodes, number));
    opcodes.push(b'e');
    opcodes
}

/// The opcodes of a view of storage `0`.
pub(super) fn tensor(kind: &str, elements: u32, offset: u32, dimensions: &[(u32, u32)]) -> Vec<u8> {
    let mut opcodes = b"ctorch._utils\n_rebuild_tensor_v2\n((".to_vec();
    text(&mut opcodes, "storage");
    opcodes.extend_from_slice(format!("ctorch\n{kind}\n").as_bytes());
    text(&mut opcodes, "0");
    text(&mut opcodes, "cpu");
    int(&mut opcodes, elements);
    opcodes.extend_from_slice(b"tQ");
    int(&mut opcodes, offset);
    opcodes.push(b'(');
    dimensions
        .iter()
        .for_each(|&(length, _)| int(&mut opcodes, length));
    opcodes.extend_from_slice(b"t(");
    dimensions
        .iter()
        .for_each(|&(_, stride)| int(&mut opcodes, stride));
    opcodes.extend_from_slice(b"t\x89NtR");
    opcodes
}
