//! The passages that prompts are made of: a gzipped file of JSON lines `{doc, part, text, tokens}`.

use std::io::{BufRead, BufReader, Read};

use flate2::read::MultiGzDecoder;
use serde::Deserialize;

use crate::error::LoadtestError;

/// Token ids of one passage.
pub type Passage = Vec<u32>;

/// Passages read from one file at most.
pub const PASSAGES_MAX: usize = 1 << 20;
/// Bytes of one line at most.
const LINE_MAX_BYTES: u64 = 1 << 20;
/// Fewer would leave nothing to draw negatives from.
const PASSAGES_MIN: usize = 60;
/// A shorter passage could not hold a run that counts.
const PASSAGE_MIN_TOKENS: usize = 32;

/// The tokens of every passage in gzipped JSON lines, in the file's order.
///
/// # Errors
/// When it cannot be read, or a line is not a passage, or there are too few or too many.
pub fn parse(gzipped: impl Read) -> Result<Vec<Passage>, LoadtestError> {
    let mut lines = BufReader::new(MultiGzDecoder::new(gzipped));
    let mut passages = Vec::new();
    let mut line = Vec::new();
    loop {
        let refuse = |reason: String| LoadtestError::Passages {
            line: passages.len() + 1,
            reason,
        };
        line.clear();
        let read = lines
            .by_ref()
            .take(LINE_MAX_BYTES)
            .read_until(b'\n', &mut line)
            .map_err(|source| refuse(source.to_string()))?;
        if read == 0 {
            break;
        }
        let parsed: Line =
            serde_json::from_slice(&line).map_err(|source| refuse(source.to_string()))?;
        if parsed.tokens.len() < PASSAGE_MIN_TOKENS {
            return Err(refuse(format!("fewer than {PASSAGE_MIN_TOKENS} tokens")));
        }
        if passages.len() == PASSAGES_MAX {
            return Err(refuse(format!("more than {PASSAGES_MAX} passages")));
        }
        passages.push(parsed.tokens);
    }
    if passages.len() < PASSAGES_MIN {
        return Err(LoadtestError::Passages {
            line: passages.len(),
            reason: format!("fewer than {PASSAGES_MIN} passages"),
        });
    }
    Ok(passages)
}

#[derive(Deserialize)]
struct Line {
    tokens: Vec<u32>,
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};

    use super::*;

    fn check(lines: &str) -> Result<Vec<Passage>, String> {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(lines.as_bytes()).unwrap();
        parse(gzip.finish().unwrap().as_slice()).map_err(|error| error.to_string())
    }

    fn line(first: u32) -> String {
        let tokens: Vec<u32> = (first..first + 40).collect();
        format!("{{\"doc\":\"d\",\"part\":0,\"text\":\"t\",\"tokens\":{tokens:?}}}\n")
    }

    #[test]
    fn reads_tokens_in_order() {
        let passages = check(&(0..80).map(line).collect::<String>()).unwrap();
        assert_eq!(passages.len(), 80);
        assert_eq!(passages[7], (7..47).collect::<Vec<u32>>());
    }

    #[test]
    fn refuses_what_is_no_passage_and_names_the_line() {
        let short = "{\"tokens\":[1,2]}\n";
        let refused = check(&format!("{}{short}", line(0))).unwrap_err();
        assert!(refused.contains("line 2"), "{refused}");
        assert!(check(&line(0)).unwrap_err().contains("fewer than 60"));
        assert!(check("not json\n").unwrap_err().contains("line 1"));
        assert!(parse(&b"not gzip"[..]).is_err());
    }
}
