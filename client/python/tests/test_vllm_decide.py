"""What may be advertised, loaded and captured."""

from __future__ import annotations

import dataclasses
import random
import types

import pytest

from kvatlas.answers import Found, Lease, Owner, Span
from kvatlas.vllm.decide import (
    Declined,
    Limits,
    Usable,
    advertised,
    capturable,
    unsupported,
    usable,
)

LIMITS = Limits(block_size=16, min_reuse_tokens=64)
FOUND = Found(
    outcome="prefix",
    reason=None,
    donor_id="d",
    owner=Owner("w"),
    owner_generation=1,
    medium="host",
    store_id="s",
    tier="exact",
    cache_policy="exact_commit",
    reusable_prefix_tokens=160,
    donor_offset=0,
    spans=(Span(0, 0, 160, "exact"),),
    similarity=1.0,
    reuse_ratio=1.0,
    captured_tokens=160,
    lease=Lease(b"l", 1000, 1e9),
    lease_refusal=None,
    namespace_id="n",
    mode="materialize",
    facts_differ=False,
    timings={},
)


def check(
    expected: object, prompt: int = 200, mode: str = "exact_prefix", **changes: object
) -> None:
    found = dataclasses.replace(FOUND, **changes)
    result = usable(found, prompt, LIMITS, mode)
    assert (result.reason if isinstance(result, Declined) else result.end) == expected


def test_whole_blocks_with_a_token_left_to_compute() -> None:
    check(160)
    check(144, prompt=160)
    check(160, prompt=161)
    check(96, captured_tokens=100)
    check(80, reusable_prefix_tokens=95)
    check("low_reuse_tokens", captured_tokens=63)


def test_what_the_mode_does_not_allow_is_declined() -> None:
    check("not_prefix_anchored", outcome="spans", reason="not_prefix_anchored")
    check("recompute_policy", lease=None, lease_refusal="discovery_only")
    check("recompute_policy", tier="verified", cache_policy="request_only")
    check("recompute_policy", cache_policy="request_only")
    verified = {"tier": "verified", "cache_policy": "request_only", "donor_offset": 5}
    check("recompute_policy", mode="request_only", **verified)
    check("recompute_policy", mode="request_only", tier="verified", cache_policy="discovery_only")
    moves = dataclasses.replace(LIMITS, moves=True)
    result = usable(dataclasses.replace(FOUND, **verified), 200, moves, "request_only")
    assert result == Usable(end=144, donor_offset=5, exact=False)


def test_only_what_lies_beyond_the_local_prefix_is_advertised() -> None:
    assert advertised(160, 0, LIMITS) == 160
    assert advertised(160, 96, LIMITS) == 64
    for end, local, reason in (
        (160, 112, "low_reuse_tokens"),
        (160, 160, "exact_prefix_sufficient"),
        (160, 176, "exact_prefix_sufficient"),
        (160, 17, "not_block_aligned"),
    ):
        declined = advertised(end, local, LIMITS)
        assert isinstance(declined, Declined)
        assert declined.reason == reason


def test_promises_hold_for_any_numbers() -> None:
    chance = random.Random(7)
    for _ in range(20_000):
        block = chance.choice([1, 16, 32])
        limits = Limits(block, chance.choice([0, 1, 16, 64]))
        prompt = chance.randrange(1, 400)
        found = dataclasses.replace(
            FOUND,
            reusable_prefix_tokens=chance.randrange(1, 500),
            captured_tokens=chance.randrange(0, 500),
        )
        result = usable(found, prompt, limits, "exact_prefix")
        if isinstance(result, Declined):
            continue
        local = block * chance.randrange(0, 400 // block)
        tokens = advertised(result.end, local, limits)
        if isinstance(tokens, Declined):
            continue
        end = local + tokens
        assert tokens > 0
        assert tokens % block == 0
        assert end < prompt
        assert end <= min(found.reusable_prefix_tokens, found.captured_tokens)
        assert tokens >= limits.min_reuse_tokens


@pytest.mark.parametrize(
    ("prompt", "computed", "blocks", "tokens"),
    [
        (200, 210, 14, 192),
        (192, 192, 12, 192),
        (200, 100, 7, 96),
        (200, 210, 5, 80),
        (63, 80, 5, 0),
    ],
)
def test_full_blocks_of_the_prompt_are_captured(
    prompt: int, computed: int, blocks: int, tokens: int
) -> None:
    assert capturable(prompt, computed, blocks, LIMITS) == tokens


def test_nothing_is_captured_of_less_than_a_block() -> None:
    assert capturable(15, 15, 1, Limits(16, 0)) == 0


def test_requests_that_are_not_served_say_why() -> None:
    plain = {"prompt_token_ids": [1], "prompt_embeds": None, "mm_features": []}
    assert unsupported(types.SimpleNamespace(**plain)) is None
    for change, reason in (
        ({"mm_features": ["image"]}, "unsupported_request"),
        ({"prompt_embeds": "tensor"}, "unsupported_request"),
        ({"prompt_token_ids": None}, "unsupported_request"),
        ({"pooling_params": "embed"}, "unsupported_request"),
        ({"resumable": True}, "unsupported_request"),
        (
            {"sampling_params": types.SimpleNamespace(prompt_logprobs=1)},
            "unsupported_request",
        ),
        ({"skip_reading_prefix_cache": True}, "recompute_policy"),
    ):
        declined = unsupported(types.SimpleNamespace(**{**plain, **change}))
        assert declined is not None, change
        assert declined.reason == reason
