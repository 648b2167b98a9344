//! Real paraphrase: the same verses in two translations, as JSON lines `{verse, kjv, asv}`.

use std::io::BufRead;

use serde::Deserialize;

use super::words::Prompt;
use crate::{error::LoadtestError, random::Random};

/// Verses are put together until both translations have so many tokens: a shorter prompt is not
/// looked up at the default gates.
const PASSAGE_MIN_TOKENS: usize = 540;
/// Bytes of a file of verses at most.
const FILE_MAX_BYTES: u64 = 64 << 20;

/// The same verses twice.
#[derive(Debug)]
pub struct Pair {
    /// The older translation, which is registered.
    pub donor: Prompt,
    /// The newer one, which is looked up.
    pub target: Prompt,
}

#[derive(Deserialize)]
struct Line {
    kjv: String,
    asv: String,
}

/// Runs of successive verses as long as a prompt must be, `count` of them drawn.
///
/// # Errors
/// When a line is none, or there are too few verses for one pair.
pub fn read(
    lines: impl BufRead,
    count: usize,
    random: &mut Random,
) -> Result<Vec<Pair>, LoadtestError> {
    let mut pairs = Vec::new();
    let [mut donor, mut target] = [String::new(), String::new()];
    for (at, line) in lines.take(FILE_MAX_BYTES).lines().enumerate() {
        let line = line?;
        let verse: Line =
            serde_json::from_str(&line).map_err(|source| LoadtestError::Passages {
                line: at + 1,
                reason: source.to_string(),
            })?;
        append(&mut donor, &verse.kjv);
        append(&mut target, &verse.asv);
        let [left, right] = [&donor, &target].map(|text| Prompt::new(text.clone()));
        if left.tokens.len().min(right.tokens.len()) >= PASSAGE_MIN_TOKENS {
            pairs.push(Pair {
                donor: left,
                target: right,
            });
            donor.clear();
            target.clear();
        }
    }
    if pairs.is_empty() {
        return Err(LoadtestError::Argument {
            argument: "--verses",
            reason: "too few verses".to_owned(),
        });
    }
    random.shuffle(&mut pairs);
    pairs.truncate(count);
    Ok(pairs)
}

fn append(text: &mut String, verse: &str) {
    if !text.is_empty() {
        text.push(' ');
    }
    text.push_str(verse);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(verses: usize) -> Result<Vec<Pair>, LoadtestError> {
        let lines: String = (0..verses)
            .map(|at| {
                let [kjv, asv] =
                    ["hath", "has"].map(|word| format!("{word} said {at}. ").repeat(30));
                format!("{{\"verse\":{at},\"kjv\":\"{kjv}\",\"asv\":\"{asv}\"}}\n")
            })
            .collect();
        read(lines.as_bytes(), 3, &mut Random::new(1))
    }

    #[test]
    fn pairs_are_the_same_verses_and_long_enough() {
        let pairs = check(40).unwrap();
        assert_eq!(pairs.len(), 3);
        for pair in pairs {
            assert_eq!(pair.donor.text.replace("hath", "has"), pair.target.text);
            assert!((540..700).contains(&pair.target.tokens.len()));
        }
    }

    #[test]
    fn too_few_verses_or_no_verses_are_refused() {
        assert!(check(3).is_err());
        assert!(read(&b"{}\n"[..], 3, &mut Random::new(1)).is_err());
    }
}
