//! Policies: how a budget of blocks is spread over a prefix, and the tags that name them.

use std::fmt;

use thiserror::Error;

/// The largest budget: as many blocks as a prefix may have.
pub use super::import::BLOCKS_MAX;
/// The most segments that `segment-quota` may ask for.
pub const SEGMENTS_MAX: u32 = 4096;
/// The longest tag that is looked at, in bytes.
pub const TAG_BYTES_MAX: usize = 64;

/// Pinned blocks of `hybrid` without arguments.
const HYBRID_ANCHOR: u32 = 2;
const HYBRID_RECENT: u32 = 6;

/// A way to choose blocks. `anchor` blocks are the first of the prefix, `recent` ones the last; all
/// counts are in blocks. Made by [`Policy::parse`], which bounds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// The best-scored blocks. Tag `top-k`, or the empty one.
    TopK,
    /// The first, the last, and the `middle` best-scored between them. Tag `A1R2K13`.
    AnchorRecentMiddle {
        anchor: u32,
        recent: u32,
        middle: u32,
    },
    /// The first and the last. Tag `hybrid:2,6`, also spelled `hybrid`.
    Hybrid { anchor: u32, recent: u32 },
    /// The last. Tag `recency`.
    Recency,
    /// The first, the last, and evenly spaced ones between them. Tag `anchor-recency-spread:1,2`.
    AnchorRecencySpread { anchor: u32, recent: u32 },
    /// The first, the last, and reproducibly drawn ones between them. Tag `random-middle:1,2,SEED`.
    RandomMiddle { anchor: u32, recent: u32, seed: u64 },
    /// The first, the last, and of each segment between them its best. Tag `segment-quota:1,2,8`.
    SegmentQuota {
        anchor: u32,
        recent: u32,
        segments: u32,
    },
    /// The best-scored blocks of each (layer, KV head). Tag `per-head`.
    PerHead,
}

/// What a policy must be told about a prefix beyond its number of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Nothing: positions suffice, with or without a prior.
    Positions,
    /// A prior of any kind: scores, or lists of blocks.
    Prior,
    /// A prior with scores; a mere list of blocks does not rank the rest.
    Scores,
}

/// Why a tag names no policy. Says what was expected and how long the value is, never the value.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PolicyError {
    #[error(
        "a tag of {bytes} bytes is unknown; expected top-k, A<a>R<r>K<k>, hybrid[:a,r], recency, \
         anchor-recency-spread:a,r, random-middle:a,r,seed, segment-quota:a,r,segments or per-head"
    )]
    Unknown { bytes: usize },
    #[error("a tag has at most {TAG_BYTES_MAX} bytes, not {bytes}")]
    TooLong { bytes: usize },
    #[error(
        "expected A<a>R<r>K<k>, each letter once and in this order, each followed by a whole \
         number from 0 to {BLOCKS_MAX}"
    )]
    AnchorRecentMiddle,
    #[error("{name} takes {expected}")]
    Arguments {
        name: &'static str,
        expected: &'static str,
    },
    #[error("the budget of {name} is {budget} blocks; expected 1 to {BLOCKS_MAX}")]
    Budget { name: &'static str, budget: u64 },
    #[error("segment-quota takes 1 to {SEGMENTS_MAX} segments, not {segments}")]
    Segments { segments: u32 },
}

impl Policy {
    /// Reads a whole tag; ASCII letters of either case, no spaces, no signs, no leading zeros.
    ///
    /// # Errors
    /// When the tag names no policy, its numbers are out of range, or its own budget is.
    pub fn parse(tag: &str) -> Result<Self, PolicyError> {
        if tag.len() > TAG_BYTES_MAX {
            return Err(PolicyError::TooLong { bytes: tag.len() });
        }
        let (name, arguments) = match tag.split_once(':') {
            Some((name, arguments)) => (name, Some(arguments)),
            None => (tag, None),
        };
        let known = NAMES
            .iter()
            .find(|known| known.name.eq_ignore_ascii_case(name));
        let policy = match known {
            Some(known) => (known.parse)(arguments).ok_or(PolicyError::Arguments {
                name: known.name,
                expected: known.expected,
            })?,
            None if tag.is_empty() => Self::TopK,
            None if looks_like_letters(tag) => {
                parse_letters(tag).ok_or(PolicyError::AnchorRecentMiddle)?
            }
            None => return Err(PolicyError::Unknown { bytes: tag.len() }),
        };
        policy.check()
    }

    /// The budget that the policy itself fixes, in blocks; `None` when the request gives it.
    #[must_use]
    pub fn fixed_budget(&self) -> Option<u32> {
        match *self {
            Self::AnchorRecentMiddle {
                anchor,
                recent,
                middle,
            } => Some(anchor + recent + middle),
            Self::Hybrid { anchor, recent } => Some(anchor + recent),
            Self::TopK
            | Self::Recency
            | Self::AnchorRecencySpread { .. }
            | Self::RandomMiddle { .. }
            | Self::SegmentQuota { .. }
            | Self::PerHead => None,
        }
    }

    /// How many blocks it takes from the (start, end) of the prefix before anything else.
    #[must_use]
    pub fn pinned(&self) -> (u32, u32) {
        match *self {
            Self::AnchorRecentMiddle { anchor, recent, .. }
            | Self::Hybrid { anchor, recent }
            | Self::AnchorRecencySpread { anchor, recent }
            | Self::RandomMiddle { anchor, recent, .. }
            | Self::SegmentQuota { anchor, recent, .. } => (anchor, recent),
            Self::TopK | Self::Recency | Self::PerHead => (0, 0),
        }
    }

    #[must_use]
    pub fn needs(&self) -> Needs {
        match self {
            Self::TopK => Needs::Prior,
            Self::AnchorRecentMiddle { .. } | Self::SegmentQuota { .. } | Self::PerHead => {
                Needs::Scores
            }
            Self::Hybrid { .. }
            | Self::Recency
            | Self::AnchorRecencySpread { .. }
            | Self::RandomMiddle { .. } => Needs::Positions,
        }
    }

    /// Its name without arguments, for messages.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::TopK => "top-k",
            Self::AnchorRecentMiddle { .. } => "A/R/K",
            Self::Hybrid { .. } => "hybrid",
            Self::Recency => "recency",
            Self::AnchorRecencySpread { .. } => "anchor-recency-spread",
            Self::RandomMiddle { .. } => "random-middle",
            Self::SegmentQuota { .. } => "segment-quota",
            Self::PerHead => "per-head",
        }
    }

    /// Holds afterwards: pinned blocks and a fixed budget fit into `1..=BLOCKS_MAX`, so that
    /// nothing that adds them can overflow.
    fn check(self) -> Result<Self, PolicyError> {
        let (anchor, recent) = self.pinned();
        let pinned = u64::from(anchor) + u64::from(recent);
        let (budget, least) = match self {
            Self::AnchorRecentMiddle { middle, .. } => (pinned + u64::from(middle), 1),
            Self::Hybrid { .. } => (pinned, 1),
            Self::SegmentQuota { segments, .. } if !(1..=SEGMENTS_MAX).contains(&segments) => {
                return Err(PolicyError::Segments { segments });
            }
            Self::TopK
            | Self::Recency
            | Self::AnchorRecencySpread { .. }
            | Self::RandomMiddle { .. }
            | Self::SegmentQuota { .. }
            | Self::PerHead => (pinned, 0),
        };
        if !(least..=u64::from(BLOCKS_MAX)).contains(&budget) {
            return Err(PolicyError::Budget {
                name: self.name(),
                budget,
            });
        }
        Ok(self)
    }
}

/// The canonical spelling: parsing it gives the same policy.
impl Policy {
    /// The canonical tag. Built by hand: every manifest carries one, and the formatting machinery
    /// costs more than choosing the blocks.
    #[must_use]
    pub fn tag(&self) -> String {
        let mut tag = String::with_capacity(32);
        match *self {
            Self::TopK | Self::Recency | Self::PerHead => tag.push_str(self.name()),
            Self::AnchorRecentMiddle {
                anchor,
                recent,
                middle,
            } => {
                for (letter, number) in [('A', anchor), ('R', recent), ('K', middle)] {
                    tag.push(letter);
                    push_number(&mut tag, u64::from(number));
                }
            }
            Self::Hybrid { anchor, recent } | Self::AnchorRecencySpread { anchor, recent } => {
                self.push_arguments(&mut tag, &[anchor.into(), recent.into()]);
            }
            Self::RandomMiddle {
                anchor,
                recent,
                seed,
            } => self.push_arguments(&mut tag, &[anchor.into(), recent.into(), seed]),
            Self::SegmentQuota {
                anchor,
                recent,
                segments,
            } => {
                self.push_arguments(&mut tag, &[anchor.into(), recent.into(), segments.into()]);
            }
        }
        tag
    }

    fn push_arguments(&self, tag: &mut String, numbers: &[u64]) {
        tag.push_str(self.name());
        for (index, number) in numbers.iter().enumerate() {
            tag.push(if index == 0 { ':' } else { ',' });
            push_number(tag, *number);
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.tag())
    }
}

fn push_number(tag: &mut String, number: u64) {
    if number >= 10 {
        push_number(tag, number / 10);
    }
    let digit = u8::try_from(number % 10).unwrap_or(0);
    tag.push(char::from(b'0' + digit));
}

/// A tag of the form `name` or `name:arguments`.
struct Named {
    name: &'static str,
    /// Completes "{name} takes ...".
    expected: &'static str,
    parse: fn(Option<&str>) -> Option<Policy>,
}

const NAMES: [Named; 7] = [
    Named {
        name: "top-k",
        expected: "no arguments",
        parse: |a| bare(a, Policy::TopK),
    },
    Named {
        name: "recency",
        expected: "no arguments",
        parse: |a| bare(a, Policy::Recency),
    },
    Named {
        name: "per-head",
        expected: "no arguments",
        parse: |a| bare(a, Policy::PerHead),
    },
    Named {
        name: "hybrid",
        expected: "nothing or two whole numbers, hybrid:anchor,recent",
        parse: |arguments| {
            if arguments.is_none() {
                return Some(Policy::Hybrid {
                    anchor: HYBRID_ANCHOR,
                    recent: HYBRID_RECENT,
                });
            }
            let [anchor, recent] = split(arguments)?;
            Some(Policy::Hybrid {
                anchor: count(anchor)?,
                recent: count(recent)?,
            })
        },
    },
    Named {
        name: "anchor-recency-spread",
        expected: "two whole numbers, anchor-recency-spread:anchor,recent",
        parse: |arguments| {
            let [anchor, recent] = split(arguments)?;
            Some(Policy::AnchorRecencySpread {
                anchor: count(anchor)?,
                recent: count(recent)?,
            })
        },
    },
    Named {
        name: "random-middle",
        expected: "three whole numbers, random-middle:anchor,recent,seed, the seed below 2^64",
        parse: |arguments| {
            let [anchor, recent, seed] = split(arguments)?;
            let (anchor, recent) = (count(anchor)?, count(recent)?);
            Some(Policy::RandomMiddle {
                anchor,
                recent,
                seed: digits(seed)?,
            })
        },
    },
    Named {
        name: "segment-quota",
        expected: "three whole numbers, segment-quota:anchor,recent,segments",
        parse: |arguments| {
            let [anchor, recent, segments] = split(arguments)?;
            let (anchor, recent) = (count(anchor)?, count(recent)?);
            Some(Policy::SegmentQuota {
                anchor,
                recent,
                segments: count(segments)?,
            })
        },
    },
];

fn bare(arguments: Option<&str>, policy: Policy) -> Option<Policy> {
    arguments.is_none().then_some(policy)
}

/// Exactly `LENGTH` parts between commas.
fn split<const LENGTH: usize>(arguments: Option<&str>) -> Option<[&str; LENGTH]> {
    let mut parts = arguments?.split(',');
    let mut taken = [""; LENGTH];
    for part in &mut taken {
        *part = parts.next()?;
    }
    parts.next().is_none().then_some(taken)
}

/// Whether to explain A/R/K rather than list every policy.
fn looks_like_letters(tag: &str) -> bool {
    let is_letter = |b: u8| matches!(b.to_ascii_uppercase(), b'A' | b'R' | b'K');
    let mut bytes = tag.bytes();
    bytes.next().is_some_and(is_letter) && tag.bytes().any(|b| b.is_ascii_digit())
}

fn parse_letters(tag: &str) -> Option<Policy> {
    let rest = after_letter(tag, b'A')?;
    let (anchor, rest) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?);
    let rest = after_letter(rest, b'R')?;
    let (recent, rest) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?);
    let middle = after_letter(rest, b'K')?;
    let (anchor, recent, middle) = (count(anchor)?, count(recent)?, count(middle)?);
    Some(Policy::AnchorRecentMiddle {
        anchor,
        recent,
        middle,
    })
}

/// What follows `letter`, which must come first.
fn after_letter(text: &str, letter: u8) -> Option<&str> {
    let first = text.as_bytes().first()?;
    if first.eq_ignore_ascii_case(&letter) {
        text.get(1..)
    } else {
        None
    }
}

/// A number of blocks or segments, at most [`BLOCKS_MAX`].
fn count(text: &str) -> Option<u32> {
    u32::try_from(digits(text)?)
        .ok()
        .filter(|&count| count <= BLOCKS_MAX)
}

/// Decimal digits and nothing else; `str::parse` alone would take a plus sign.
fn digits(text: &str) -> Option<u64> {
    let leading_zero = text.len() > 1 && text.starts_with('0');
    let all_digits = text.bytes().all(|b| b.is_ascii_digit());
    if all_digits && !leading_zero {
        text.parse().ok()
    } else {
        None
    }
}

#[cfg(test)]
pub(crate) mod tests;
