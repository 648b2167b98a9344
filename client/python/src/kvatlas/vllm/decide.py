"""What may be advertised, loaded and captured: pure decisions, without clock, engine or network."""

from __future__ import annotations

import dataclasses
from typing import Any

from kvatlas.answers import Found


@dataclasses.dataclass(frozen=True)
class Held:
    """How many blocks copies may hold. Sizes differ a thousandfold, so that requests are not what
    is counted."""

    # So that running requests keep theirs; one copy alone may have more.
    blocks_max: int = 2**31
    # So that what is copied has room.
    copied_blocks_max: int = 2**31


@dataclasses.dataclass(frozen=True)
class Limits:
    """What every decision keeps to."""

    # Tokens per KV block.
    block_size: int
    # A load of fewer tokens is not worth its trouble, nor a donor of fewer.
    min_reuse_tokens: int
    # Keys can be moved to another position.
    moves: bool = False
    # Blocks of finished prompts that may be held for copies, at a time.
    held: Held = Held()


@dataclasses.dataclass(frozen=True)
class Declined:
    """Why a request is computed as usual: a word of the closed vocabulary, and details without
    content."""

    reason: str
    detail: str = ""


@dataclasses.dataclass(frozen=True)
class Usable:
    """How far a donor's KV carries a prompt."""

    # Tokens from the prompt's start, whole blocks.
    end: int
    # Where in the donor the prompt's start lies; 0 for an exact prefix.
    donor_offset: int
    # The KV may be committed to the engine's exact cache.
    exact: bool


def usable(found: Found, prompt_tokens: int, limits: Limits, mode: str) -> Usable | Declined:
    """What of a nomination, made for the whole prompt, the mode may use.

    At least one token is left to compute: the engine samples from it.
    """
    if found.outcome != "prefix":
        return Declined("not_prefix_anchored", "spans only")
    if found.lease is None:
        return Declined("recompute_policy", f"no lease: {found.lease_refusal}")
    exact = found.tier == "exact" and found.cache_policy == "exact_commit"
    if not exact and (mode != "request_only" or found.cache_policy == "discovery_only"):
        return Declined("recompute_policy", f"tier {found.tier} is not for mode {mode}")
    if found.donor_offset and not limits.moves:
        return Declined("recompute_policy", "keys of another position")
    readable = max(0, found.captured_tokens - found.donor_offset)
    end = min(found.reusable_prefix_tokens, readable, prompt_tokens - 1)
    end -= end % limits.block_size
    if end < limits.min_reuse_tokens or end == 0:
        return Declined("low_reuse_tokens", f"{end} of whole blocks")
    return Usable(end, found.donor_offset, exact)


def advertised(end: int, local_tokens: int, limits: Limits) -> int | Declined:
    """Tokens to load beyond what the engine's own cache covers."""
    if local_tokens % limits.block_size:
        return Declined("not_block_aligned", "the local prefix ends within a block")
    beyond = end - local_tokens
    if beyond <= 0:
        return Declined("exact_prefix_sufficient", f"{local_tokens} tokens lie in the local cache")
    if beyond < limits.min_reuse_tokens:
        return Declined("low_reuse_tokens", f"{beyond} beyond the local prefix")
    return beyond


def capturable(prompt_tokens: int, computed_tokens: int, blocks: int, limits: Limits) -> int:
    """Tokens from the prompt's start whose KV can be kept, whole blocks; 0: not worth it."""
    full = min(prompt_tokens, computed_tokens, blocks * limits.block_size)
    full -= full % limits.block_size
    return full if full >= max(limits.min_reuse_tokens, 1) else 0


def too_many_held(held: int, blocks: int, limits: Limits) -> str:
    """Why no copy of so many blocks may begin beside those that are going on; empty: it may."""
    both = held + blocks
    if both > limits.held.copied_blocks_max:
        return f"{both} blocks wait to be copied, more than {limits.held.copied_blocks_max}"
    if held and both > limits.held.blocks_max:
        return f"{both} blocks wait to be copied, more than {limits.held.blocks_max} of the engine"
    return ""


def unsupported(request: Any) -> Declined | None:
    """What of an engine's request the connector does not serve.

    Its tokens must say all there is to its KV, and its output must need no more than the last
    token's logits.
    """
    sampling = getattr(request, "sampling_params", None)
    kinds = {
        "multimodal inputs": bool(getattr(request, "mm_features", None)),
        "prompt embeddings": getattr(request, "prompt_embeds", None) is not None
        or request.prompt_token_ids is None,
        "pooling": getattr(request, "pooling_params", None) is not None,
        "streamed input": getattr(request, "resumable", False),
        "log probabilities of the prompt": getattr(sampling, "prompt_logprobs", None) is not None,
    }
    for kind, is_it in kinds.items():
        if is_it:
            return Declined("unsupported_request", kind)
    if getattr(request, "skip_reading_prefix_cache", False):
        return Declined("recompute_policy", "the request wants its prompt computed")
    return None
