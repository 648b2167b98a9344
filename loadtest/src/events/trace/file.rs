//! A trace in Mooncake's format: JSON lines of {timestamp, input_length, output_length, hash_ids}.

use std::{
    fs::File,
    io::{BufRead, BufReader, Read},
    path::Path,
};

use serde::Deserialize;

use crate::error::LoadtestError;

/// Tokens of a block in such traces.
pub(super) const BLOCK_TOKENS: usize = 512;
const FILE_BYTES_MAX: u64 = 1 << 30;

/// One request.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) at_us: u64,
    pub(super) input_tokens: u64,
    pub(super) output_tokens: u64,
    /// One name for each block of the input, which stands for all blocks before it too.
    pub(super) blocks: Vec<u32>,
}

#[derive(Deserialize)]
struct Line {
    /// Milliseconds since the first.
    timestamp: u64,
    input_length: u64,
    output_length: u64,
    hash_ids: Vec<u32>,
}

/// All requests, in order of time. A speed of 2 lets them come twice as fast.
pub(super) fn read(path: &Path, speed: f64) -> Result<Vec<Request>, LoadtestError> {
    let file = BufReader::new(File::open(path)?.take(FILE_BYTES_MAX));
    let mut requests = Vec::new();
    for line in file.lines() {
        let Line {
            timestamp,
            input_length,
            output_length,
            hash_ids,
        } = serde_json::from_str(&line?)?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "microseconds of some days"
        )]
        let at_us = (timestamp as f64 * 1000.0 / speed) as u64;
        requests.push(Request {
            at_us,
            input_tokens: input_length,
            output_tokens: output_length,
            blocks: hash_ids,
        });
    }
    if requests.is_empty() {
        return Err(LoadtestError::Argument {
            argument: "--trace",
            reason: "there is no request in that file".to_owned(),
        });
    }
    requests.sort_by_key(|request| request.at_us);
    Ok(requests)
}
