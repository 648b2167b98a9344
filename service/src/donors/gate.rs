//! What a verified candidate is worth under the contract, and whether that is enough.
//!
//! Pure: lengths and spans in, a verdict out. The terms are those of the answer on the wire.

use super::{
    align::Span,
    vocabulary::{FallbackReason, Tier},
};

/// Thresholds of a look-up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gates {
    /// Tokens that a prompt must have.
    pub min_prompt_tokens: u32,
    /// Tokens that must be reusable.
    pub min_reuse_tokens: u32,
    /// Verified tokens / prompt tokens beyond the exact prefix, 0 to 1.
    pub min_similarity: f32,
    /// Tokens reusable under the outcome / prompt tokens, 0 to 1.
    pub min_reuse_ratio: f32,
    /// The search is skipped when the exact prefix covers this share of the prompt, 0 to 1.
    pub exact_prefix_skip_ratio: f32,
}

impl Default for Gates {
    fn default() -> Gates {
        Gates {
            min_prompt_tokens: 512,
            min_reuse_tokens: 512,
            min_similarity: 0.60,
            min_reuse_ratio: 0.50,
            exact_prefix_skip_ratio: 0.50,
        }
    }
}

/// Thresholds that somebody set; the others are inherited.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct GateOverrides {
    pub min_prompt_tokens: Option<u32>,
    pub min_reuse_tokens: Option<u32>,
    pub min_similarity: Option<f32>,
    pub min_reuse_ratio: Option<f32>,
    pub exact_prefix_skip_ratio: Option<f32>,
}

impl GateOverrides {
    /// The thresholds that hold where `base` held and these were set.
    #[must_use]
    pub fn over(&self, base: Gates) -> Gates {
        Gates {
            min_prompt_tokens: self.min_prompt_tokens.unwrap_or(base.min_prompt_tokens),
            min_reuse_tokens: self.min_reuse_tokens.unwrap_or(base.min_reuse_tokens),
            min_similarity: self.min_similarity.unwrap_or(base.min_similarity),
            min_reuse_ratio: self.min_reuse_ratio.unwrap_or(base.min_reuse_ratio),
            exact_prefix_skip_ratio: self
                .exact_prefix_skip_ratio
                .unwrap_or(base.exact_prefix_skip_ratio),
        }
    }

    /// These, and where they are silent, `older`.
    #[must_use]
    pub fn or(&self, older: &GateOverrides) -> GateOverrides {
        GateOverrides {
            min_prompt_tokens: self.min_prompt_tokens.or(older.min_prompt_tokens),
            min_reuse_tokens: self.min_reuse_tokens.or(older.min_reuse_tokens),
            min_similarity: self.min_similarity.or(older.min_similarity),
            min_reuse_ratio: self.min_reuse_ratio.or(older.min_reuse_ratio),
            exact_prefix_skip_ratio: self
                .exact_prefix_skip_ratio
                .or(older.exact_prefix_skip_ratio),
        }
    }
}

/// What the request says that bears on the verdict.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens from the start that the engine's own cache covers.
    pub exact_prefix_tokens: u32,
    /// Tokens per block; at least 1.
    pub block_size: u32,
    /// The whole prompt may come from the load.
    pub asynchronous_load: bool,
    /// The worst tier that may be nominated.
    pub minimum_tier: Tier,
    pub gates: Gates,
}

/// What alignment found for one donor, and what the donor says of itself.
#[derive(Debug, Clone, Copy)]
pub struct Evidence<'a> {
    /// Verified spans beyond the exact prefix, disjoint on both sides.
    pub spans: &'a [Span],
    /// The longest run that begins at the exact prefix's end.
    pub anchored: Option<Span>,
    /// Tokens that the two share from 0 on.
    pub identical_from_start: u32,
    /// Tokens from the donor's start with KV from full prefill or exact loads.
    pub exact_tokens: u32,
}

/// The reusable tokens that continue the exact prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    /// Additional tokens, a whole number of blocks.
    pub tokens: u32,
    /// Where they begin in the donor.
    pub donor_offset: u32,
    pub tier: Tier,
}

/// What the evidence is worth.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Worth {
    pub prefix: Option<Prefix>,
    /// Verified tokens over all spans.
    pub verified_tokens: u32,
    /// Verified tokens / prompt tokens beyond the exact prefix.
    pub similarity: f32,
    /// Tokens reusable under the verdict's outcome / prompt tokens.
    pub reuse_ratio: f32,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    Prefix,
    /// The spans are worth it, and why they are no prefix.
    Spans(FallbackReason, String),
    /// Which gate, with the limit and the measure.
    Rejected(FallbackReason, String),
}

/// Which threshold was not met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    MinPromptTokens,
    MinReuseTokens,
    MinSimilarity,
    MinReuseRatio,
    ExactPrefixSkipRatio,
    /// The tier asked for, or the blocks that it is counted in.
    MinimumTier,
}

/// What a candidate that was turned down would have given, and what turned it down.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Refusal {
    pub gate: Gate,
    pub verified_tokens: u32,
    /// As a prefix where that is all that was asked for, else in spans.
    pub reusable_tokens: u32,
    pub similarity: f32,
    pub reuse_ratio: f32,
}

/// Refuses a look-up before any search, with the reason.
pub fn before_search(terms: &Terms) -> Result<(), (FallbackReason, String)> {
    let Terms {
        prompt_tokens,
        exact_prefix_tokens,
        gates,
        ..
    } = *terms;
    if prompt_tokens < gates.min_prompt_tokens {
        let detail = format!(
            "prompt_tokens {prompt_tokens} below min_prompt_tokens {}",
            gates.min_prompt_tokens
        );
        return Err((FallbackReason::UnsupportedRequest, detail));
    }
    let covered = share(exact_prefix_tokens, prompt_tokens);
    let all = exact_prefix_tokens >= prompt_tokens;
    if all || (exact_prefix_tokens > 0 && covered >= gates.exact_prefix_skip_ratio) {
        let detail = format!(
            "exact prefix covers {covered:.3}, exact_prefix_skip_ratio {:.3}",
            gates.exact_prefix_skip_ratio
        );
        return Err((FallbackReason::ExactPrefixSufficient, detail));
    }
    Ok(())
}

/// Judges one verified candidate: first as a prefix, then by the total of its spans.
#[must_use]
pub fn judge(terms: &Terms, evidence: &Evidence<'_>) -> (Verdict, Worth) {
    let beyond = terms
        .prompt_tokens
        .saturating_sub(terms.exact_prefix_tokens);
    let verified_tokens = evidence.spans.iter().map(|span| span.length).sum();
    let prefix = prefix(terms, evidence);
    let mut worth = Worth {
        prefix,
        verified_tokens,
        similarity: share(verified_tokens, beyond),
        reuse_ratio: 0.0,
    };
    if let Some(prefix) = prefix {
        worth.reuse_ratio = share(prefix.tokens, terms.prompt_tokens);
        if shortfall(terms, prefix.tokens, &worth).is_none() {
            return (Verdict::Prefix, worth);
        }
    }
    if terms.minimum_tier == Tier::Exact {
        return (exact_only_rejection(terms, &worth), worth);
    }
    let reusable = reusable_in_spans(terms, evidence.spans);
    let as_spans = Worth {
        prefix: None,
        reuse_ratio: share(reusable, terms.prompt_tokens),
        ..worth
    };
    match shortfall(terms, reusable, &as_spans) {
        None => {
            let (reason, detail) = why_not_prefix(terms, evidence);
            (Verdict::Spans(reason, detail), as_spans)
        }
        Some((reason, detail)) => (Verdict::Rejected(reason, detail), worth),
    }
}

/// Of a candidate that [`judge`] rejected: as what it came furthest, and at which gate that ended.
#[must_use]
pub fn refusal(terms: &Terms, evidence: &Evidence<'_>) -> Refusal {
    let (_, worth) = judge(terms, evidence);
    let is_exact_only = terms.minimum_tier == Tier::Exact;
    let reusable_tokens = if is_exact_only {
        worth.prefix.map_or(0, |prefix| prefix.tokens)
    } else {
        reusable_in_spans(terms, evidence.spans)
    };
    let worth = Worth {
        reuse_ratio: share(reusable_tokens, terms.prompt_tokens),
        ..worth
    };
    let gate = if is_exact_only && worth.prefix.is_none() {
        Gate::MinimumTier
    } else {
        closed(terms, reusable_tokens, &worth).unwrap_or(Gate::MinimumTier)
    };
    Refusal {
        gate,
        verified_tokens: worth.verified_tokens,
        reusable_tokens,
        similarity: worth.similarity,
        reuse_ratio: worth.reuse_ratio,
    }
}

/// The tier of one span of the donor.
#[must_use]
pub fn span_tier(span: &Span, evidence: &Evidence<'_>) -> Tier {
    let end = span.target_start + span.length;
    let identical = span.donor_start == span.target_start && end <= evidence.identical_from_start;
    if identical && end <= evidence.exact_tokens {
        Tier::Exact
    } else {
        Tier::Verified
    }
}

/// The anchored run under the contract: whole blocks, a token left to compute, the tier asked for.
#[must_use]
pub fn prefix(terms: &Terms, evidence: &Evidence<'_>) -> Option<Prefix> {
    let start = terms.exact_prefix_tokens;
    let block = terms.block_size.max(1);
    if !start.is_multiple_of(block) {
        return None;
    }
    let last = if terms.asynchronous_load {
        terms.prompt_tokens
    } else {
        terms.prompt_tokens.saturating_sub(1)
    };
    let whole_blocks = |end: u32| (end.min(last) / block * block).saturating_sub(start);
    let exact = whole_blocks(evidence.identical_from_start.min(evidence.exact_tokens));
    if terms.minimum_tier == Tier::Exact {
        return (exact > 0).then_some(Prefix {
            tokens: exact,
            donor_offset: start,
            tier: Tier::Exact,
        });
    }
    let run = evidence.anchored?;
    let tokens = whole_blocks(run.target_start + run.length);
    if tokens == 0 {
        return None;
    }
    // An equally long exact run is the better one: the engine may keep it.
    let (donor_offset, tier) = if exact >= tokens {
        (start, Tier::Exact)
    } else {
        (run.donor_start, Tier::Verified)
    };
    Some(Prefix {
        tokens,
        donor_offset,
        tier,
    })
}

/// Whether a donor could pass as a prefix if all its tokens continued the prompt.
#[must_use]
pub fn may_pass(terms: &Terms, captured_tokens: u32, exact_tokens: u32) -> bool {
    let start = terms.exact_prefix_tokens;
    let end = captured_tokens.min(terms.prompt_tokens);
    let run = Span {
        donor_start: start,
        target_start: start,
        length: end.saturating_sub(start),
    };
    let evidence = Evidence {
        spans: &[run],
        anchored: Some(run),
        identical_from_start: end,
        exact_tokens,
    };
    let (verdict, _) = judge(terms, &evidence);
    verdict == Verdict::Prefix
}

// Verified tokens, less the one that a synchronous load leaves to compute.
fn reusable_in_spans(terms: &Terms, spans: &[Span]) -> u32 {
    let last = spans.iter().map(Span::target_end).max().unwrap_or(0);
    let left = u32::from(!terms.asynchronous_load && last == terms.prompt_tokens);
    spans.iter().map(|span| span.length).sum::<u32>() - left
}

// Why an answer is only spans: what there is at the boundary, in numbers.
fn why_not_prefix(terms: &Terms, evidence: &Evidence<'_>) -> (FallbackReason, String) {
    let block = terms.block_size.max(1);
    let Some(run) = evidence.anchored else {
        let detail = "nothing continues the exact prefix".to_owned();
        return (FallbackReason::NotPrefixAnchored, detail);
    };
    if !terms.exact_prefix_tokens.is_multiple_of(block) {
        let detail = format!(
            "exact_prefix_tokens {} is no multiple of block_size {block}",
            terms.exact_prefix_tokens
        );
        return (FallbackReason::NotBlockAligned, detail);
    }
    let detail = format!(
        "{} tokens continue the exact prefix, in whole blocks {}: too few for the gates",
        run.length,
        prefix(terms, evidence).map_or(0, |prefix| prefix.tokens)
    );
    (FallbackReason::NotPrefixAnchored, detail)
}

// Whatever is exact continues the exact prefix: spans alone cannot be.
fn exact_only_rejection(terms: &Terms, worth: &Worth) -> Verdict {
    let block = terms.block_size.max(1);
    if !terms.exact_prefix_tokens.is_multiple_of(block) {
        let detail = format!(
            "exact_prefix_tokens {} is no multiple of block_size {block}",
            terms.exact_prefix_tokens
        );
        return Verdict::Rejected(FallbackReason::NotBlockAligned, detail);
    }
    match worth
        .prefix
        .and_then(|prefix| shortfall(terms, prefix.tokens, worth))
    {
        Some((reason, detail)) => Verdict::Rejected(reason, detail),
        None => Verdict::Rejected(
            FallbackReason::NotPrefixAnchored,
            "no exact tokens continue the exact prefix".into(),
        ),
    }
}

// The first gate that so many tokens do not pass.
fn closed(terms: &Terms, tokens: u32, worth: &Worth) -> Option<Gate> {
    let gates = &terms.gates;
    if tokens == 0 || tokens < gates.min_reuse_tokens {
        return Some(Gate::MinReuseTokens);
    }
    if worth.similarity < gates.min_similarity {
        return Some(Gate::MinSimilarity);
    }
    (worth.reuse_ratio < gates.min_reuse_ratio).then_some(Gate::MinReuseRatio)
}

fn shortfall(terms: &Terms, tokens: u32, worth: &Worth) -> Option<(FallbackReason, String)> {
    let gates = &terms.gates;
    let (reason, detail) = match closed(terms, tokens, worth)? {
        Gate::MinReuseTokens => (
            FallbackReason::LowReuseTokens,
            format!(
                "reusable {tokens} below min_reuse_tokens {}",
                gates.min_reuse_tokens
            ),
        ),
        Gate::MinSimilarity => (
            FallbackReason::LowSimilarity,
            format!(
                "similarity {:.3} below min_similarity {:.3}",
                worth.similarity, gates.min_similarity
            ),
        ),
        Gate::MinReuseRatio => (
            FallbackReason::LowReuseTokens,
            format!(
                "reuse_ratio {:.3} below min_reuse_ratio {:.3}",
                worth.reuse_ratio, gates.min_reuse_ratio
            ),
        ),
        Gate::MinPromptTokens | Gate::ExactPrefixSkipRatio | Gate::MinimumTier => return None,
    };
    Some((reason, detail))
}

// Token counts stay far below 2^24 x 2^24, so that f64 is exact and f32 rounds once.
#[expect(
    clippy::cast_possible_truncation,
    reason = "a share from 0 to 1; rounding is meant"
)]
fn share(part: u32, whole: u32) -> f32 {
    if whole == 0 {
        0.0
    } else {
        (f64::from(part) / f64::from(whole)) as f32
    }
}

#[cfg(test)]
mod tests;
